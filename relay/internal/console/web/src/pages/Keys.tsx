import { useRef, useState } from 'preact/hooks';
import { collect, get, post, type Schemas } from '../api';
import { Confirm } from '../components/Confirm';
import { CreateKey, Secret } from '../components/CreateKey';
import { type Column, Table } from '../components/Table';
import { Command, CopyButton, Empty, Failed, Loaded, Time, Title } from '../components/ui';
import { command, isSet, sentence } from '../format';
import { usePolling } from '../poll';
import { setQuery, useRoute } from '../router';
import { useRole } from '../session';

type Key = Schemas['Key'];
type Action = { action: 'create' } | { action: 'rotate' | 'revoke'; name: string };

const join = (values: string[] | undefined, empty: string) =>
  values?.length ? <span class="mono">{values.join(', ')}</span> : <span class="muted">{empty}</span>;

const columns: Column<Key>[] = [
  {
    id: 'name',
    label: 'Key',
    sort: (k) => k.name,
    cell: (k) => (
      <>
        <span class="mono">{k.name}</span>
        <div class="muted sub">{k.origin}</div>
      </>
    ),
  },
  { id: 'account', label: 'Account', sort: (k) => k.account_id, cell: (k) => <span class="mono">{k.account_id}</span> },
  { id: 'hubs', label: 'Hubs', breaks: 'wide', cell: (k) => join(k.hubs, 'none') },
  {
    id: 'capabilities',
    label: 'Capabilities',
    breaks: 'wide',
    cell: (k) => (
      <>
        {join(k.capabilities, 'read only')}
        {k.topics?.length ? <div class="muted sub">topics {k.topics.join(', ')}</div> : null}
        {k.networks?.length ? <div class="muted sub">from {k.networks.join(', ')}</div> : null}
      </>
    ),
  },
  {
    id: 'used',
    label: 'Last used',
    sort: (k) => k.last_used_at ?? '',
    cell: (k) => (isSet(k.last_used_at) ? <Time time={k.last_used_at} ago /> : <span class="muted">never</span>),
  },
  {
    id: 'expires',
    label: 'Expires',
    sort: (k) => k.expires_at ?? '9',
    cell: (k) => (
      <>
        {isSet(k.expires_at) ? <Time time={k.expires_at} ago /> : <span class="muted">never</span>}
        {isSet(k.previous_expires_at) && Date.parse(k.previous_expires_at) > Date.now() ? (
          <div class="warn sub">
            old secret <Time time={k.previous_expires_at} ago />
          </div>
        ) : null}
      </>
    ),
  },
];

export function Keys() {
  const admin = useRole('admin');
  const [action, setAction] = useState<Action | null>(null);
  const keys = usePolling(
    async (signal) => (await collect((after) => get('/api/keys', { query: { after }, signal }))).data,
    10_000,
    'keys',
  );
  const actions: Column<Key> = {
    id: 'actions',
    label: 'Actions',
    cell: (k) =>
      k.origin === 'stored' ? (
        <div class="buttons">
          <button type="button" class="small" onClick={() => setAction({ action: 'rotate', name: k.name })}>
            Rotate
          </button>
          <button type="button" class="small" onClick={() => setAction({ action: 'revoke', name: k.name })}>
            Revoke
          </button>
        </div>
      ) : (
        <span class="muted">in the configuration</span>
      ),
  };
  const close = () => setAction(null);
  return (
    <>
      <Title text="Keys">
        <div class="buttons">
          <CopyButton label="Copy the command" text={command('keys', 'list')} />
          {admin ? (
            <button type="button" class="primary" onClick={() => setAction({ action: 'create' })}>
              Create a key
            </button>
          ) : null}
        </div>
      </Title>
      <Loaded of={keys}>
        {(all) => (
          <>
            {all.length ? (
              <Table
                caption="API keys"
                columns={admin ? [...columns, actions] : columns}
                rows={all}
                rowKey={(k) => `${k.origin} ${k.name}`}
              />
            ) : (
              <Empty>There are no API keys. {admin ? 'Create the first one.' : 'An admin can create one.'}</Empty>
            )}
            <Access names={all.map((k) => k.name)} />
          </>
        )}
      </Loaded>
      {action?.action === 'create' ? <CreateKey onClose={close} onDone={keys.refresh} /> : null}
      {action?.action === 'rotate' ? <Rotate name={action.name} onClose={close} onDone={keys.refresh} /> : null}
      {action?.action === 'revoke' ? <Revoke name={action.name} onClose={close} onDone={keys.refresh} /> : null}
    </>
  );
}

interface ChangeProps {
  name: string;
  onClose: () => void;
  onDone: () => void;
}

function Rotate({ name, onClose, onDone }: ChangeProps) {
  const [overlap, setOverlap] = useState('1h');
  return (
    <Confirm
      title={`Rotate the secret of ${name}?`}
      confirm={`Rotate ${name}`}
      command={command('keys', 'rotate', name, '--overlap', overlap.trim() || '0s')}
      onClose={onClose}
      action={async () => {
        const body = { overlap: overlap.trim() };
        const { data } = await post('/api/keys/{name}/rotate', { params: { name }, body });
        onDone();
        return <Secret created={data} />;
      }}
    >
      <p>The relay creates a new secret. Clients with the old one lose access when the overlap ends.</p>
      <label class="field">
        <span class="label">Overlap</span>
        <input value={overlap} placeholder="0s" onInput={(e) => setOverlap(e.currentTarget.value)} />
        <span class="help">The time for which the old secret stays valid, such as 24h. At most 30d.</span>
      </label>
    </Confirm>
  );
}

function Revoke({ name, onClose, onDone }: ChangeProps) {
  return (
    <Confirm
      title={`Revoke ${name}?`}
      confirm={`Revoke ${name}`}
      danger
      command={command('keys', 'revoke', name)}
      onClose={onClose}
      action={async () => {
        await post('/api/keys/{name}/revoke', { params: { name } });
        onDone();
        return null;
      }}
    >
      <p>
        The key <strong class="mono">{name}</strong> is removed permanently. Within a second, its tokens and streams end
        on all nodes.
      </p>
    </Confirm>
  );
}

/** Access checks what a key may do. The question is part of the address. */
function Access({ names }: { names: string[] }) {
  const { query } = useRoute();
  const [result, setResult] = useState<Schemas['KeyAccess'] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const value = (name: string) => query.get(name) ?? '';
  const set = (name: string, v: string) => {
    setResult(null);
    setQuery({ [name]: v });
  };
  const name = names.includes(value('key')) ? value('key') : (names[0] ?? '');
  const action = value('action') || 'publish';
  // A response to an earlier question is not shown.
  const question = useRef('');
  question.current = JSON.stringify([name, action, value('topic'), value('hub_id'), value('account_id')]);

  async function submit(event: Event) {
    event.preventDefault();
    setError(null);
    setResult(null);
    const asked = question.current;
    try {
      const check = { action, topic: value('topic'), hub_id: value('hub_id'), account_id: value('account_id') };
      const { data } = await get('/api/keys/{name}/access', { params: { name }, query: check });
      if (asked === question.current) setResult(data);
    } catch (e) {
      setError(e instanceof Error ? e : new Error(String(e)));
    }
  }

  const select = (field: string, label: string, options: string[], current: string) => (
    <label class="field">
      <span class="label">{label}</span>
      <select value={current} onChange={(e) => set(field, e.currentTarget.value)}>
        {options.map((o) => (
          <option key={o} value={o}>
            {o}
          </option>
        ))}
      </select>
    </label>
  );
  const input = (field: string, label: string, placeholder: string, required: boolean) => (
    <label class="field">
      <span class="label">{label}</span>
      <input
        value={value(field)}
        required={required}
        placeholder={placeholder}
        autoComplete="off"
        onInput={(e) => set(field, e.currentTarget.value)}
      />
    </label>
  );
  return (
    <section>
      <h2>Check what a key may do</h2>
      <form class="card" onSubmit={submit}>
        <div class="grid">
          {select('key', 'Key', names, name)}
          {select('action', 'Action', ['publish', 'read'], action)}
          {input('topic', 'Topic', 'container.error', true)}
          {input('hub_id', 'Hub', 'hub-1', true)}
          {input('account_id', 'Account of the event', 'none', false)}
        </div>
        <div class="buttons">
          <button type="submit" class="primary">
            Check the key
          </button>
        </div>
        <div aria-live="polite">
          {result ? (
            <p class={`notice ${result.allowed ? 'good' : 'bad'}`}>
              {result.allowed ? 'Allowed.' : 'Not allowed.'} {sentence(result.reason)}
            </p>
          ) : null}
          {error ? <Failed error={error} /> : null}
        </div>
        <Command
          text={command(
            ...['keys', 'check', name || 'KEY', action, value('topic') || 'TOPIC', '--hub', value('hub_id') || 'HUB'],
            ...(value('account_id') ? ['--account', value('account_id')] : []),
          )}
        />
      </form>
    </section>
  );
}
