import type { Schemas } from '../api';
import { type Column, Table } from '../components/Table';
import { Count, Empty, Loaded, State, Time, Title } from '../components/ui';
import { href, setQuery, useRoute } from '../router';
import { useSinks } from '../series';

type Sink = Schemas['Sink'];

export const sinkStates = ['failed', 'down', 'disabled', 'throttled', 'paused', 'removed', 'active'] as const;

const columns: Column<Sink>[] = [
  {
    id: 'name',
    label: 'Sink',
    sort: (s) => s.name,
    cell: (s) => (
      <>
        <a class="mono" href={href(['sinks', s.name])}>
          {s.name}
        </a>
        <div class="muted sub">{s.type}</div>
      </>
    ),
  },
  {
    id: 'state',
    label: 'State',
    sort: (s) => sinkStates.indexOf(s.state),
    cell: (s) => (
      <>
        <State state={s.state} />
        {s.state_changed_at && s.state !== 'active' ? (
          <div class="muted sub">
            <Time time={s.state_changed_at} ago />
          </div>
        ) : null}
      </>
    ),
  },
  { id: 'waiting', label: 'Waiting', numeric: true, sort: (s) => s.waiting, cell: (s) => <Count n={s.waiting} /> },
  {
    id: 'retrying',
    label: 'Retrying',
    numeric: true,
    sort: (s) => s.retrying,
    cell: (s) => <Count n={s.retrying} tone="warn" />,
  },
  {
    id: 'dead',
    label: 'Dead',
    numeric: true,
    sort: (s) => s.dead,
    cell: (s) =>
      s.dead ? (
        <a class="bad" href={href(['sinks', s.name, 'deadletters'])}>
          <Count n={s.dead} />
        </a>
      ) : (
        <Count n={0} />
      ),
  },
  {
    id: 'success',
    label: 'Last success',
    sort: (s) => s.last_success_at ?? '',
    cell: (s) => <Time time={s.last_success_at} ago />,
  },
  {
    id: 'error',
    label: 'Last error',
    breaks: 'wide',
    sort: (s) => s.last_error_at ?? '',
    cell: (s) =>
      s.last_error ? (
        <>
          <span class="clip" title={s.last_error}>
            {s.last_error}
          </span>
          <div class="muted sub">
            <Time time={s.last_error_at} ago />
          </div>
        </>
      ) : (
        <span class="muted">–</span>
      ),
  },
];

export function Sinks() {
  const { query } = useRoute();
  const name = query.get('name') ?? '';
  const state = query.get('state') ?? '';
  const sinks = useSinks();
  return (
    <>
      <Title text="Sinks" />
      <search class="filters">
        <label class="field">
          <span class="label">Name</span>
          <input type="search" value={name} onInput={(e) => setQuery({ name: e.currentTarget.value })} />
        </label>
        <label class="field">
          <span class="label">State</span>
          <select value={state} onChange={(e) => setQuery({ state: e.currentTarget.value })}>
            <option value="">All</option>
            {sinkStates.map((s) => (
              <option key={s} value={s}>
                {s}
              </option>
            ))}
            <option>removed</option>
          </select>
        </label>
      </search>
      <Loaded of={sinks}>
        {(all) => {
          const rows = all.filter((s) => s.name.includes(name.trim().toLowerCase()) && (!state || s.state === state));
          if (all.length === 0)
            return <Empty>No sinks are configured. Add them under sinks in the configuration.</Empty>;
          return (
            <>
              <p class="muted count" aria-live="polite">
                {rows.length === all.length ? `${all.length} sinks` : `${rows.length} of ${all.length} sinks`}
              </p>
              {rows.length === 0 ? (
                <Empty>No sink matches the filter.</Empty>
              ) : (
                <Table stack caption="Sinks" columns={columns} rows={rows} rowKey={(s) => s.name} />
              )}
            </>
          );
        }}
      </Loaded>
    </>
  );
}
