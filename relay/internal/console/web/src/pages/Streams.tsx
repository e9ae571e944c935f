import { get, type Schemas } from '../api';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Count, Empty, Loaded, State, Time, Title } from '../components/ui';
import { bytes, command, plural } from '../format';
import { usePages } from '../pages';
import { href, useRoute } from '../router';
import { useStatus } from '../series';
import { useRole } from '../session';
import { Explain } from './Explain';

type Connection = Schemas['Connection'];

const keyOf = (c: Connection) => `${c.address} ${c.connected_at} ${c.key}`;

const columns: Column<Connection>[] = [
  { id: 'key', label: 'Key', cell: (c) => <span class="mono">{c.key}</span> },
  {
    id: 'stream',
    label: 'Stream',
    cell: (c) => (c.account_id ? `account ${c.account_id}` : <span class="mono">{c.hub_id}</span>),
  },
  { id: 'state', label: 'State', cell: (c) => <State state={c.state} /> },
  { id: 'type', label: 'Type', cell: (c) => c.type },
  { id: 'address', label: 'Address', cell: (c) => <span class="mono">{c.address}</span> },
  { id: 'connected_at', label: 'Connected', cell: (c) => <Time time={c.connected_at} ago /> },
  {
    id: 'queued',
    label: 'Queued',
    numeric: true,
    cell: (c) => (c.queued_bytes ? bytes(c.queued_bytes) : <Count n={0} />),
  },
  {
    id: 'topics',
    label: 'Topics',
    breaks: 'wide',
    cell: (c) => (c.topics.length ? <span class="mono">{c.topics.join(', ')}</span> : <span class="muted">all</span>),
  },
];

export function Streams({ explain }: { explain: boolean }) {
  const operator = useRole('operator');
  const tab = (path: string[], label: string, current: boolean) => (
    <a href={href(path)} aria-current={current ? 'page' : undefined}>
      {label}
    </a>
  );
  return (
    <>
      <Title text={explain ? 'Explain a stream' : 'Streams'} />
      {operator ? (
        <nav class="tabs" aria-label="Streams">
          {tab(['streams'], 'Connections', !explain)}
          {tab(['streams', 'explain'], 'Explain', explain)}
        </nav>
      ) : null}
      {explain ? <Explain /> : <Connections />}
    </>
  );
}

function Connections() {
  const { query } = useRoute();
  const status = useStatus();
  const hub = query.get('hub_id') ?? '';
  const key = query.get('key') ?? '';
  const search = { hub_id: hub, key };
  const connections = usePages(
    (page, signal) => get('/api/connections', { query: { ...search, ...page }, signal }),
    keyOf,
    5000,
    JSON.stringify(search),
  );
  return (
    <>
      <Filter
        submit="Filter"
        fields={[
          { name: 'key', label: 'Key' },
          { name: 'hub_id', label: 'Hub' },
        ]}
      />
      <p class="muted count">
        {status.data ? `${plural(status.data.streams.clients, 'client')} of node ${status.data.node}. ` : ''}
        <CopyButton
          label="Copy the command"
          text={command('connections', 'list', ...(hub ? ['--hub', hub] : []), ...(key ? ['--key', key] : []))}
        />
      </p>
      <Loaded of={connections}>
        {(page) => (
          <>
            {page.data.length ? (
              <Table
                caption="Connections, the oldest first"
                columns={columns}
                rows={page.data}
                rowKey={keyOf}
                paged={connections}
              />
            ) : (
              <Empty>
                {hub || key
                  ? 'No connection matches the filter.'
                  : 'No client is connected to this node. Try hubrelay listen.'}
              </Empty>
            )}
            <More of={connections} />
          </>
        )}
      </Loaded>
    </>
  );
}
