import { get, type Schemas } from '../api';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Loaded, Time, Title } from '../components/ui';
import { command, plural, toFlags } from '../format';
import { usePages } from '../pages';
import { useRoute } from '../router';

type Entry = Schemas['AuditEntry'];

const columns: Column<Entry>[] = [
  { id: 'time', label: 'Time', cell: (e) => <Time time={e.time} /> },
  { id: 'actor', label: 'Actor', cell: (e) => e.actor || <span class="muted">unknown</span> },
  { id: 'account', label: 'Account', cell: (e) => e.account_id },
  {
    id: 'address',
    label: 'Address',
    cell: (e) =>
      e.address ? (
        <span class="mono">{e.address}</span>
      ) : (
        <span class="muted">{e.actor?.startsWith('admin ') ? 'unix socket' : '–'}</span>
      ),
  },
  { id: 'action', label: 'Action', cell: (e) => <span class="mono">{e.action}</span> },
  { id: 'target', label: 'Target', cell: (e) => <span class="mono">{e.target}</span> },
  {
    id: 'result',
    label: 'Result',
    cell: (e) => <span class={`badge ${e.result === 'ok' ? 'good' : 'bad'}`}>{e.result}</span>,
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
  const filter = {
    actor: text('actor'),
    account_id: text('account_id'),
    address: text('address'),
    action: text('action'),
    target: text('target'),
    since: text('since'),
  };
  const entries = usePages(
    (page, signal) => get('/api/audit', { query: { ...filter, ...page }, signal }),
    (e) => e.id,
    0,
    JSON.stringify(filter),
  );
  return (
    <>
      <Title text="Audit">
        <div class="buttons">
          <CopyButton label="Copy the command" text={command('audit', ...toFlags(filter))} />
          <button type="button" onClick={entries.refresh}>
            Refresh
          </button>
        </div>
      </Title>
      <Filter
        submit="Search"
        fields={[
          { name: 'actor', label: 'Actor', placeholder: 'admin alice, key ops' },
          { name: 'account_id', label: 'Account' },
          { name: 'address', label: 'Address', placeholder: '10.0.0.7' },
          { name: 'action', label: 'Action', placeholder: 'sinks, keys.create' },
          { name: 'target', label: 'Target' },
          { name: 'since', label: 'Since', placeholder: '2h, 1d or a time' },
        ]}
      />
      <Loaded of={entries}>
        {(page) => (
          <>
            {page.data.length ? (
              <Table
                caption="Audit log, the newest entry first"
                columns={columns}
                rows={page.data}
                rowKey={(e) => e.id}
                paged={entries}
              />
            ) : (
              <Empty>{entries.start ? 'No entries follow.' : 'No entry of the audit log matches the search.'}</Empty>
            )}
            <More of={entries} />
          </>
        )}
      </Loaded>
    </>
  );
}
