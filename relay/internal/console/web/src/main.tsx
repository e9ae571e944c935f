import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import './style.css';
import { getSession, onSignedOut, type Session, signOut } from './api';
import { Layout } from './components/Layout';
import { Empty, Failed, Loading, Title } from './components/ui';
import { Audit } from './pages/Audit';
import { Configuration } from './pages/Configuration';
import { DeadLetterPage, DeadLetters } from './pages/DeadLetters';
import { Deliveries } from './pages/Deliveries';
import { EventPage } from './pages/Event';
import { Events } from './pages/Events';
import { JobPage, Jobs } from './pages/Jobs';
import { Keys } from './pages/Keys';
import { Live } from './pages/Live';
import { Migrate } from './pages/Migrate';
import { Nodes } from './pages/Nodes';
import { Overview } from './pages/Overview';
import { Quarantine, QuarantinedEntry } from './pages/Quarantine';
import { SignIn } from './pages/SignIn';
import { SinkPage } from './pages/Sink';
import { Sinks } from './pages/Sinks';
import { Sources } from './pages/Sources';
import { Streams } from './pages/Streams';
import { useRoute } from './router';
import { SessionContext } from './session';
import { applyTheme } from './theme';
import { showInvisible } from './visible';

function Page({ path }: { path: string[] }) {
  const [first = '', second, third, fourth] = path;
  if (first === '') return <Overview />;
  if (first === 'live') return <Live />;
  if (first === 'deliveries') return <Deliveries />;
  if (first === 'streams') return <Streams explain={second === 'explain'} />;
  if (first === 'sources') return <Sources />;
  if (first === 'quarantine') return second ? <QuarantinedEntry id={second} /> : <Quarantine />;
  if (first === 'events') return second ? <EventPage id={second} /> : <Events />;
  if (first === 'sinks') {
    if (!second) return <Sinks />;
    if (third !== 'deadletters') return <SinkPage name={second} />;
    return fourth ? <DeadLetterPage sink={second} id={fourth} /> : <DeadLetters sink={second} />;
  }
  if (first === 'keys') return <Keys />;
  if (first === 'config') return <Configuration />;
  if (first === 'jobs') return second === 'new' ? <Migrate /> : second ? <JobPage id={second} /> : <Jobs />;
  if (first === 'nodes') return <Nodes />;
  if (first === 'audit') return <Audit />;
  return (
    <>
      <Title text="Not found" />
      <Empty>There is no page at this address.</Empty>
    </>
  );
}

function App() {
  const { path } = useRoute();
  const [session, setSession] = useState<Session | null | undefined>();
  const [expired, setExpired] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    onSignedOut(() => {
      // A dialog can show a secret that is shown only once. The next request after it signs out.
      if (document.querySelector('dialog[open]')) return;
      setExpired(true);
      setSession(null);
    });
    const controller = new AbortController();
    setError(null);
    getSession(controller.signal).then(setSession, (e) => {
      if (!controller.signal.aborted) setError(e);
    });
    return () => controller.abort();
  }, [turn]);

  if (error) {
    return (
      <main class="signin">
        <Failed error={error} retry={() => setTurn((n) => n + 1)} />
      </main>
    );
  }
  if (session === undefined) return <Loading />;
  if (session === null) {
    return (
      <SignIn
        expired={expired}
        onSession={(s) => {
          setExpired(false);
          setSession(s);
        }}
      />
    );
  }

  async function leave() {
    try {
      await signOut();
      location.reload(); // nothing of the session stays in memory
    } catch (e) {
      setError(e instanceof Error ? e : new Error(String(e)));
    }
  }
  return (
    <SessionContext.Provider value={session}>
      <Layout session={session} page={path[0] ?? ''} onSignOut={leave}>
        <Page key={path.join('/')} path={path} />
      </Layout>
    </SessionContext.Provider>
  );
}

applyTheme();
showInvisible();
const app = document.getElementById('app');
if (app) render(<App />, app);
