import { collect, get, type Schemas } from '../api';
import { type Column, Table } from '../components/Table';
import { Command, Count, Empty, Loaded, State, Time, Title } from '../components/ui';
import { command, isSet, number, sentence } from '../format';
import { usePolling } from '../poll';

type Source = Schemas['Source'];

const columns: Column<Source>[] = [
  {
    id: 'name',
    label: 'Source',
    sort: (s) => s.name,
    cell: (s) => (
      <>
        <span class="mono">{s.name}</span>
        <div class="muted sub">{s.type}</div>
      </>
    ),
  },
  {
    id: 'state',
    label: 'State',
    sort: (s) => s.state,
    cell: (s) => (
      <>
        <State state={s.state} />
        {isSet(s.state_changed_at) ? (
          <div class="muted sub">
            since <Time time={s.state_changed_at} ago />
          </div>
        ) : null}
        {isSet(s.next_attempt_at) ? (
          <div class="muted sub">
            next attempt <Time time={s.next_attempt_at} ago />
          </div>
        ) : null}
      </>
    ),
  },
  {
    id: 'upstream',
    label: 'Upstream',
    breaks: 'short',
    cell: (s) => (
      <>
        <span class="mono">{s.url}</span>
        <div class="muted sub">
          {s.hub_id ? `hub ${s.hub_id}, ` : ''}
          {s.topics.length ? s.topics.join(', ') : 'all topics'}
          {s.resumes ? '' : ', events are lost while it is not read'}
        </div>
      </>
    ),
  },
  { id: 'node', label: 'Node', cell: (s) => s.node || <span class="muted">–</span> },
  {
    id: 'last',
    label: 'Last event',
    sort: (s) => s.last_event_at ?? '',
    cell: (s) => <Time time={s.last_event_at} ago />,
  },
  { id: 'stored', label: 'Stored', numeric: true, sort: (s) => s.stored, cell: (s) => number(s.stored) },
  {
    id: 'quarantined',
    label: 'Quarantined',
    numeric: true,
    sort: (s) => s.quarantined,
    cell: (s) => (s.quarantined ? <a href="#/quarantine">{number(s.quarantined)}</a> : <Count n={0} />),
  },
  { id: 'gaps', label: 'Gaps', numeric: true, sort: (s) => s.gaps, cell: (s) => <Count n={s.gaps} tone="bad" /> },
  { id: 'returned', label: 'Returned', numeric: true, cell: (s) => <Count n={s.returned} /> },
  { id: 'reason', label: 'Reason', breaks: 'wide', cell: (s) => sentence(s.reason ?? '') },
];

export function Sources() {
  const sources = usePolling(
    async (signal) => (await collect((after) => get('/api/sources', { query: { after }, signal }))).data,
    5000,
    'sources',
  );
  return (
    <>
      <Title text="Sources" />
      <Loaded of={sources}>
        {(all) =>
          all.length ? (
            <Table stack caption="Sources" columns={columns} rows={all} rowKey={(s) => s.name} />
          ) : (
            <Empty>No sources are configured. Add relays to copy events from under sources in the configuration.</Empty>
          )
        }
      </Loaded>
      <details>
        <summary>Show the sources in a terminal</summary>
        <Command text={command('sources', 'list')} />
      </details>
    </>
  );
}
