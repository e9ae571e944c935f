import { useState } from 'preact/hooks';
import { post, type Schemas } from '../api';
import { type Column, Table } from '../components/Table';
import { Command, Empty, Facts, Failed, Time } from '../components/ui';
import { command, list, sentence } from '../format';
import { setQuery, useRoute } from '../router';
import { useRole } from '../session';
import { EventLink } from './Sink';

type Explanation = Schemas['StreamExplanation'];
type Kind = 'key' | 'credential' | 'claims';

const kinds: [Kind, string][] = [
  ['key', 'Name of an API key'],
  ['credential', 'Credential: an API key, a token or a JWT'],
  ['claims', 'Claims of a JWT'],
];

const columns: Column<Schemas['StreamEvent']>[] = [
  {
    id: 'visible',
    label: 'Visible',
    cell: (e) => <span class={`badge ${e.visible ? 'good' : 'plain'}`}>{e.visible ? 'visible' : 'not visible'}</span>,
  },
  { id: 'time', label: 'Time', cell: (e) => <Time time={e.time} /> },
  { id: 'id', label: 'Event', cell: (e) => <EventLink id={e.id} /> },
  { id: 'topic', label: 'Topic', cell: (e) => <span class="mono">{e.topic}</span> },
  { id: 'hub', label: 'Hub', cell: (e) => <span class="mono">{e.hub_id}</span> },
  { id: 'account', label: 'Account', cell: (e) => <span class="mono">{e.account_id}</span> },
  { id: 'reason', label: 'Reason', breaks: 'wide', cell: (e) => sentence(e.detail || e.reason) },
];

/** Explain shows which events a client sees. Credentials and claims are not part of the address. */
export function Explain() {
  const operator = useRole('operator');
  const { query } = useRoute();
  const [secret, setSecret] = useState('');
  const [asked, setAsked] = useState('');
  const [result, setResult] = useState<Explanation | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [running, setRunning] = useState(false);
  const kind = (query.get('by') as Kind | null) ?? 'key';
  const text = (name: string) => query.get(name) ?? '';
  const topics = list(text('topics'));
  if (!operator) return <Empty>Your role is viewer. Only operators can explain streams.</Empty>;

  // A result of an earlier question is not shown.
  const question = JSON.stringify([query.toString(), secret]);

  async function submit(event: Event) {
    event.preventDefault();
    setRunning(true);
    setError(null);
    setAsked(question);
    try {
      const client =
        kind === 'key'
          ? { key: text('key').trim() }
          : kind === 'claims'
            ? { claims: JSON.parse(secret) as unknown }
            : { credential: secret.trim() };
      const body = { ...client, hub_id: text('hub_id').trim(), topics, limit: Number(text('limit')) || 20 };
      setResult((await post('/api/streams/explain', { body })).data);
    } catch (e) {
      setResult(null);
      setError(e instanceof Error ? e : new Error(String(e)));
    }
    setRunning(false);
  }

  const field = (name: string, label: string, placeholder = '') => (
    <label class="field">
      <span class="label">{label}</span>
      <input
        value={text(name)}
        placeholder={placeholder}
        autoComplete="off"
        onInput={(e) => setQuery({ [name]: e.currentTarget.value })}
      />
    </label>
  );

  return (
    <>
      <form class="card" onSubmit={submit}>
        <div class="grid">
          <label class="field">
            <span class="label">The client has</span>
            <select
              value={kind}
              onChange={(e) => {
                setSecret('');
                setQuery({ by: e.currentTarget.value });
              }}
            >
              {kinds.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </select>
          </label>
          {kind === 'key' ? field('key', 'Key') : null}
          {kind === 'credential' ? (
            <label class="field">
              <span class="label">Credential</span>
              <input
                type="password"
                autoComplete="off"
                value={secret}
                onInput={(e) => setSecret(e.currentTarget.value)}
              />
            </label>
          ) : null}
          {field('hub_id', 'Hub', 'empty: the stream of the account')}
          {field('topics', 'Topics', 'all, or job.*, *.error')}
          {field('limit', 'Newest events', '20')}
        </div>
        {kind === 'claims' ? (
          <label class="field">
            <span class="label">Claims as JSON</span>
            <textarea
              class="mono"
              value={secret}
              placeholder={'{"sub": "eve", "exp": 1893456000, "hubs": ["hub-1"]}'}
              onInput={(e) => setSecret(e.currentTarget.value)}
            />
          </label>
        ) : null}
        <div class="buttons">
          <button type="submit" class="primary" disabled={running || (kind === 'key' ? !text('key') : !secret)}>
            Explain the stream
          </button>
        </div>
        <Command
          text={command(
            ...['streams', 'explain', `--${kind}`, kind === 'key' ? text('key') || 'NAME' : '-'],
            ...(text('hub_id') ? ['--hub', text('hub_id')] : []),
            ...topics.flatMap((t) => ['--topic', t]),
            ...(text('limit') ? ['--limit', text('limit')] : []),
          )}
        />
      </form>
      {error ? <Failed error={error} /> : null}
      <div aria-live="polite" class="stack">
        {result && asked === question ? <Result result={result} /> : null}
      </div>
    </>
  );
}

function Result({ result: r }: { result: Explanation }) {
  if (r.rejection)
    return (
      <div class="notice bad">
        <p>
          <strong>The client cannot open the stream.</strong> {sentence(r.rejection.detail)}{' '}
          <span class="mono muted">{r.rejection.code}</span>
        </p>
      </div>
    );
  const visible = r.events.filter((e) => e.visible).length;
  return (
    <>
      <Facts
        facts={[
          { label: 'Key', value: <span class="mono">{r.key}</span> },
          { label: 'Stream', value: r.hub_id ? `hub ${r.hub_id}` : `account ${r.account_id}` },
          { label: 'Hubs', value: r.hubs.join(', ') || '–' },
          { label: 'Topics', value: r.topics.join(', ') || 'all' },
          { label: 'Networks', value: r.networks.join(', ') || 'all' },
          { label: 'Expires', value: r.expires_at ? <Time time={r.expires_at} /> : 'never' },
        ]}
      />
      <p>
        The client sees {visible} of the {r.events.length} newest events.
      </p>
      {r.events.length ? (
        <Table caption="Newest events" columns={columns} rows={r.events} rowKey={(e) => e.id} />
      ) : (
        <Empty>The log has no events.</Empty>
      )}
    </>
  );
}
