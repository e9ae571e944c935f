import { get, type Schemas } from '../api';
import { Filter } from '../components/Filter';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Loaded, Time, Title } from '../components/ui';
import { command, number, plural } from '../format';
import { usePolling } from '../poll';
import { useRoute } from '../router';

type Entry = Schemas['AuditEntry'];

const defaultLimit = 100;
const maxLimit = 10_000;

const columns: Column<Entry>[] = [
  { id: 'time', label: 'Time', cell: (e) => <Time time={e.time} /> },
  { id: 'actor', label: 'Actor', cell: (e) => e.actor || <span class="muted">unknown</span> },
  {
    id: 'source',
    label: 'Source',
    cell: (e) =>
      e.source ? (
        <span class="mono">{e.source}</span>
      ) : (
        <span class="muted">{e.actor?.startsWith('admin ') ? 'unix socket' : '–'}</span>
      ),
  },
  { id: 'action', label: 'Action', cell: (e) => <span class="mono">{e.action}</span> },
  { id: 'target', label: 'Target', cell: (e) => <span class="mono">{e.target}</span> },
  {
    id: 'outcome',
    label: 'Outcome',
    cell: (e) => <span class={`badge ${e.outcome === 'ok' ? 'good' : 'bad'}`}>{e.outcome}</span>,
  },
  {
    id: 'detail',
    label: 'Detail',
    breaks: 'wide',
    cell: (e) => (
      <>
        {e.detail}
        {e.repeated ? <div class="muted sub">and {plural(e.repeated, 'similar entry', 'similar entries')}</div> : null}
      </>
    ),
  },
];

export function Audit() {
  const { query } = useRoute();
  const text = (name: string) => query.get(name) ?? '';
  const limit = Math.min(Number(text('limit')) || defaultLimit, maxLimit);
  const filter = {
    actor: text('actor'),
    source: text('source'),
    action: text('action'),
    target: text('target'),
    since: text('since'),
  };
  const search = { ...filter, limit };
  const entries = usePolling(
    async (signal) => (await get('/api/audit', { query: search, signal })).data,
    0,
    JSON.stringify(search),
  );
  const flags = Object.entries(filter).flatMap(([name, value]) => (value ? [`--${name}`, value] : []));
  return (
    <>
      <Title text="Audit">
        <div class="buttons">
          <CopyButton
            label="Copy the command"
            text={command('audit', ...flags, ...(limit !== defaultLimit ? ['--limit', String(limit)] : []))}
          />
          <button type="button" onClick={entries.refresh}>
            Refresh
          </button>
        </div>
      </Title>
      <Filter
        submit="Search"
        fields={[
          { name: 'actor', label: 'Actor', placeholder: 'admin alice, key ops' },
          { name: 'source', label: 'Source', placeholder: '10.0.0.7' },
          { name: 'action', label: 'Action', placeholder: 'sinks, keys.create' },
          { name: 'target', label: 'Target' },
          { name: 'since', label: 'Since', placeholder: '2h, 1d or a time' },
          { name: 'limit', label: 'Max. entries', options: ['500', '1000', '10000'], none: String(defaultLimit) },
        ]}
      />
      <Loaded of={entries}>
        {(all) =>
          all.length ? (
            <>
              <Table
                caption="Audit log, the newest entry first"
                columns={columns}
                rows={all}
                rowKey={(e) => `${e.time} ${e.action} ${e.target ?? ''} ${e.actor ?? ''} ${e.detail ?? ''}`}
              />
              <p class="muted count">
                {all.length >= limit
                  ? `These are the newest ${number(limit)} entries. Earlier ones can exist: raise the limit or search.`
                  : plural(all.length, 'entry', 'entries')}
              </p>
            </>
          ) : (
            <Empty>No entry of the audit log matches the search.</Empty>
          )
        }
      </Loaded>
    </>
  );
}
