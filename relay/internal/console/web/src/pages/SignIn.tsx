import { useState } from 'preact/hooks';
import { ApiError, type Session, signIn } from '../api';
import { ThemeChoice } from '../components/Layout';
import { Title } from '../components/ui';

export function SignIn({ expired, onSession }: { expired: boolean; onSession: (session: Session) => void }) {
  const [token, setToken] = useState('');
  const [error, setError] = useState('');
  const [running, setRunning] = useState(false);

  async function submit(event: Event) {
    event.preventDefault();
    setRunning(true);
    setError('');
    try {
      onSession(await signIn(token.trim()));
    } catch (e) {
      if (e instanceof ApiError && e.status === 401) setError('The relay does not accept this token.');
      else if (e instanceof ApiError && e.status === 429) setError('Too many attempts. Wait a minute, then try again.');
      else setError(e instanceof Error ? e.message : String(e));
      setRunning(false);
    }
  }

  return (
    <main class="signin" id="main">
      <form onSubmit={submit}>
        <p class="brand">hubrelay</p>
        <Title text="Sign in" />
        {expired ? <p class="notice warn">Your session has ended. Sign in again.</p> : null}
        <label class="field">
          <span class="label">Admin token</span>
          <input
            type="password"
            autoComplete="current-password"
            required
            value={token}
            aria-invalid={error !== ''}
            aria-describedby="signin-help"
            onInput={(e) => setToken(e.currentTarget.value)}
          />
        </label>
        <p id="signin-help" class="muted">
          A token of <code>admin.tokens</code> in the configuration. <code>hubrelay keys new --admin</code> makes one.
        </p>
        <p class="bad" role="alert">
          {error}
        </p>
        <div class="buttons">
          <button type="submit" class="primary" disabled={running || token.trim() === ''}>
            {running ? 'Signing in…' : 'Sign in'}
          </button>
          <ThemeChoice />
        </div>
      </form>
    </main>
  );
}
