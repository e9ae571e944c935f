import { useState } from 'preact/hooks';
import { get, type Schemas } from '../api';
import { ChangeDeliveries, type DeliveryRef } from '../components/ChangeDeliveries';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Loaded, State, Time, Title } from '../components/ui';
import { command, list, number, plural, toFlags } from '../format';
import { usePages } from '../pages';
import { href, useRoute } from '../router';
import { useSinks } from '../series';
import { useRole } from '../session';
import { EventLink } from './Sink';

type Delivery = Schemas['Delivery'];

const states = ['waiting', 'retrying', 'dead', 'dropped', 'delivered'] as const;

const idOf = (d: Delivery) => d.delivery_id || d.event_id;
const isScheduled = (d: Delivery) => (d.state === 'waiting' || d.state === 'retrying') && d.event_id !== '';
// A row stays selected after another attempt. The history can contain several results of one delivery.
const keyOf = (d: Delivery) =>
  [d.event_id, d.delivery_id ?? '', d.sink, d.state, isScheduled(d) ? '' : (d.last_attempt_at ?? '')].join(' ');

const columns = (operator: boolean): Column<Delivery>[] => [
  {
    id: 'event',
    label: 'Event',
    cell: (d) => (
      <>
        {d.event_id ? (
          <EventLink id={d.event_id} />
        ) : d.digest_events ? (
          `digest of ${plural(d.digest_events, 'event')}`
        ) : (
          d.delivery_id
        )}
        <div class="muted sub mono">{d.topic}</div>
      </>
    ),
  },
  {
    id: 'sink',
    label: 'Sink',
    cell: (d) => (
      <a class="mono" href={href(['sinks', d.sink])}>
        {d.sink}
      </a>
    ),
  },
  {
    id: 'state',
    label: 'State',
    cell: (d) =>
      d.state === 'dead' && operator ? (
        <a href={href(['sinks', d.sink, 'deadletters', idOf(d)])}>
          <State state={d.state} />
        </a>
      ) : (
        <State state={d.state} />
      ),
  },
  { id: 'attempts', label: 'Attempts', numeric: true, cell: (d) => number(d.attempts) },
  { id: 'last', label: 'Last attempt', cell: (d) => <Time time={d.last_attempt_at} ago /> },
  { id: 'next', label: 'Next attempt', cell: (d) => <Time time={d.next_attempt_at} ago /> },
  {
    id: 'error',
    label: 'Error',
    breaks: 'wide',
    cell: (d) => (
      <span class="clip" title={d.error}>
        {d.error}
      </span>
    ),
  },
];

export function Deliveries() {
  const { query } = useRoute();
  const operator = useRole('operator');
  const sinks = useSinks();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [change, setChange] = useState<{ change: 'retry' | 'drop'; deliveries: DeliveryRef[] } | null>(null);
  const search = {
    sink: query.get('sink') ?? '',
    states: query.getAll('states'),
    topics: list(query.get('topics')),
    since: query.get('since') ?? '',
  };
  const deliveries = usePages(
    (page, signal) => get('/api/deliveries', { query: { ...search, ...page }, signal }),
    keyOf,
    10_000,
    JSON.stringify(search),
  );
  return (
    <>
      <Title text="Deliveries">
        <div class="buttons">
          <CopyButton
            label="Copy the command"
            text={command(
              ...['deliveries', 'list', search.sink || '--all-sinks'],
              ...toFlags({ states: search.states, topics: search.topics, since: search.since }),
            )}
          />
          <button type="button" onClick={deliveries.refresh}>
            Refresh
          </button>
        </div>
      </Title>
      <Filter
        submit="Filter"
        fields={[
          { name: 'topics', label: 'Topics', placeholder: 'job.*, *.error' },
          { name: 'sink', label: 'Sink', options: (sinks.data ?? []).map((s) => s.name) },
          { name: 'since', label: 'Since', placeholder: '2h, 1d or a time' },
          { name: 'states', label: 'States', checks: states },
        ]}
      />
      <Loaded of={deliveries}>
        {(page) => {
          const chosen = page.data.filter((d) => selected.has(keyOf(d)) && isScheduled(d));
          const open = (c: 'retry' | 'drop') =>
            setChange({
              change: c,
              deliveries: chosen.map((d) => ({ sink: d.sink, id: idOf(d), isGroup: !!d.delivery_id })),
            });
          return (
            <>
              {page.data.length ? (
                <Table
                  stack
                  caption="Deliveries"
                  columns={columns(operator)}
                  rows={page.data}
                  rowKey={keyOf}
                  paged={deliveries}
                  {...(operator
                    ? { selected: new Set(chosen.map(keyOf)), onSelect: setSelected, canSelect: isScheduled }
                    : {})}
                />
              ) : (
                <Empty>
                  {page.next
                    ? 'Nothing on this page matches the filter. Continue with Load more.'
                    : 'No delivery matches the filter. Delivered and dropped ones are found as long as the history has them.'}
                </Empty>
              )}
              <More of={deliveries} />
              {operator && page.data.some(isScheduled) ? (
                <div class="bar buttons">
                  <span aria-live="polite">{number(chosen.length)} selected</span>
                  <button type="button" disabled={!chosen.length} onClick={() => open('retry')}>
                    Retry selected
                  </button>
                  <button type="button" disabled={!chosen.length} onClick={() => open('drop')}>
                    Drop selected
                  </button>
                  <span class="muted">Only deliveries that are waiting or retrying can be selected.</span>
                </div>
              ) : null}
            </>
          );
        }}
      </Loaded>
      {change ? (
        <ChangeDeliveries
          {...change}
          onClose={() => setChange(null)}
          onDone={() => {
            setSelected(new Set());
            deliveries.refresh();
          }}
        />
      ) : null}
    </>
  );
}
