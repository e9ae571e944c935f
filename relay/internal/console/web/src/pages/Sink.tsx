import { useState } from 'preact/hooks';
import { collect, get, type Schemas } from '../api';
import { Plot } from '../components/Plot';
import { type SinkAction, SinkActionDialog } from '../components/SinkActionDialog';
import { BacklogPlot, ThroughputPlot } from '../components/SinkPlots';
import { type Column, Table } from '../components/Table';
import { Command, Count, Empty, Facts, Loaded, State, Time, Title } from '../components/ui';
import { command, isSet, milliseconds, number, plural, sentence } from '../format';
import { usePolling } from '../poll';
import { href } from '../router';
import { sinkSeries, useSinks } from '../series';
import { useRole } from '../session';

type Sink = Schemas['Sink'];
type Delivery = Schemas['Delivery'];

const maxDeliveries = 1000;
const maxRows = 20;

export function SinkPage({ name }: { name: string }) {
  const operator = useRole('operator');
  const [action, setAction] = useState<SinkAction | null>(null);
  const sink = usePolling(
    async (signal) => (await get('/api/sinks/{name}', { params: { name }, signal })).data,
    3000,
    name,
  );
  const failures = usePolling(
    (signal) =>
      collect(
        (after) =>
          get('/api/deliveries', { query: { sink: name, states: ['dead', 'retrying'], after, limit: 500 }, signal }),
        maxDeliveries,
      ),
    15000,
    name,
  );
  const refresh = () => {
    sink.refresh();
    failures.refresh();
  };
  const state = sink.data?.state;
  return (
    <>
      <p class="crumbs">
        <a href="#/sinks">Sinks</a>
      </p>
      <Title text={name} mono>
        {sink.data ? <State state={sink.data.state} /> : null}
        {sink.data ? <span class="muted">{sink.data.configured ? sink.data.type : 'not configured'}</span> : null}
        {operator && sink.data && !sink.data.configured ? (
          <div class="buttons">
            <button type="button" onClick={() => setAction('forget')}>
              Forget
            </button>
          </div>
        ) : null}
        {operator && sink.data?.configured ? (
          <div class="buttons">
            {state === 'paused' || state === 'disabled' || state === 'throttled' ? (
              <button type="button" class="primary" onClick={() => setAction('resume')}>
                Resume
              </button>
            ) : null}
            {state === 'paused' || state === 'disabled' ? null : (
              <button type="button" onClick={() => setAction('pause')}>
                Pause
              </button>
            )}
            <button type="button" onClick={() => setAction('retry')}>
              Retry now
            </button>
            <button type="button" onClick={() => setAction('test')}>
              Test
            </button>
            <button type="button" onClick={() => setAction('replay')}>
              Replay
            </button>
          </div>
        ) : null}
      </Title>
      <Loaded of={sink}>
        {(s) => (
          <>
            <Status sink={s} />
            <Plots sink={name} />
            {action ? (
              <SinkActionDialog sink={s} action={action} onClose={() => setAction(null)} onDone={refresh} />
            ) : null}
          </>
        )}
      </Loaded>
      <Loaded of={failures}>
        {(page) => (
          <>
            {operator ? <Response sink={name} deliveries={page.data} /> : null}
            <Causes deliveries={page.data} complete={!page.next} />
            <Failures sink={name} deliveries={page.data} complete={!page.next} />
          </>
        )}
      </Loaded>
      {sink.data ? <Changes sink={sink.data} /> : null}
      <details>
        <summary>Show this sink in a terminal</summary>
        <Command text={command('sinks', 'show', name)} />
      </details>
    </>
  );
}

function Plots({ sink }: { sink: string }) {
  useSinks();
  const series = sinkSeries(sink);
  return (
    <section class="plots" aria-label="Plots since you opened the console">
      <ThroughputPlot series={series} />
      <Plot
        title="Mean duration of attempts"
        format={milliseconds}
        lines={[{ series, name: 'attempt_ms', label: 'duration', color: 'accent' }]}
      />
      <BacklogPlot series={series} />
    </section>
  );
}

function MissingOn({ nodes }: { nodes: string[] }) {
  if (nodes.length === 0) return null;
  return (
    <div class="notice warn">
      <p>
        <strong>The sink is not configured on {nodes.join(', ')}</strong>, so it may get no new events. Give all nodes
        the same configuration.
      </p>
    </div>
  );
}

function FailedOn({ nodes }: { nodes: string[] }) {
  if (nodes.length === 0) return null;
  return (
    <div class="notice warn">
      <p>
        <strong>The sink has failed on {nodes.join(', ')}</strong>. See the log there.
      </p>
    </div>
  );
}

function FailingAccounts({ accounts }: { accounts: string[] }) {
  if (accounts.length === 0) return null;
  return (
    <div class="notice warn">
      <p>
        <strong>The destination fails for {plural(accounts.length, 'account')}</strong>, and works for others. This node
        postpones deliveries of <span class="mono">{accounts.join(', ')}</span>.
      </p>
    </div>
  );
}

const tone = { active: '', throttled: 'warn', paused: '', down: 'bad', disabled: 'bad', failed: 'bad', removed: '' };

function Status({ sink: s }: { sink: Sink }) {
  return (
    <>
      {s.state !== 'active' || s.reason ? (
        <div class={`notice ${s.state === 'active' ? 'warn' : tone[s.state]}`}>
          <p>
            <strong>The sink is {s.state}</strong>
            {isSet(s.state_changed_at) ? (
              <>
                {' '}
                since <Time time={s.state_changed_at} /> (<Time time={s.state_changed_at} ago />)
              </>
            ) : null}
            .{s.reason ? ` ${sentence(s.reason)}` : ''}
            {isSet(s.next_attempt_at) ? (
              <>
                {' '}
                Next attempt <Time time={s.next_attempt_at} ago />.
              </>
            ) : null}
          </p>
        </div>
      ) : null}
      <MissingOn nodes={s.missing_on ?? []} />
      <FailedOn nodes={s.failed_on ?? []} />
      <FailingAccounts accounts={s.failing_accounts ?? []} />
      <section aria-label="Numbers">
        <Facts
          facts={[
            {
              label: 'Waiting',
              value: (
                <>
                  <Count n={s.waiting} />
                  {s.waiting_in_digests ? (
                    <small class="muted"> {number(s.waiting_in_digests)} in digests</small>
                  ) : null}
                  {s.catching_up ? <small class="muted"> and more in the log</small> : null}
                </>
              ),
            },
            { label: 'Retrying', value: <Count n={s.retrying} tone="warn" /> },
            {
              label: 'Dead',
              value: s.dead ? (
                <a class="bad" href={href(['sinks', s.name, 'deadletters'])}>
                  {number(s.dead)}
                </a>
              ) : (
                <Count n={0} />
              ),
            },
            { label: 'In flight', value: <Count n={s.in_flight} /> },
            { label: 'Delivered', value: number(s.delivered) },
            { label: 'Retries', value: <Count n={s.retries} /> },
            { label: 'Dropped', value: <Count n={s.dropped} tone="bad" /> },
          ]}
          large
        />
        <Facts
          facts={[
            { label: 'Last success', value: <Time time={s.last_success_at} ago /> },
            { label: 'Oldest undelivered event', value: <Time time={s.oldest_at} ago /> },
            {
              label: 'Topics',
              value: s.topics.length ? <span class="mono">{s.topics.join(', ')}</span> : 'all',
            },
            Object.keys(s.failed_attempts).length > 0 && {
              label: 'Failed attempts by reason',
              value: Object.entries(s.failed_attempts)
                .sort((a, b) => b[1] - a[1])
                .map(([reason, n]) => `${reason} ${number(n)}`)
                .join(', '),
            },
          ]}
        />
      </section>
      {s.last_error ? (
        <section>
          <header>
            <h2>Last error</h2>
            <Time time={s.last_error_at} />
            <span class="muted">
              <Time time={s.last_error_at} ago />
            </span>
          </header>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling area must be reachable with the keyboard */}
          <pre tabIndex={0}>{s.last_error}</pre>
        </section>
      ) : null}
    </>
  );
}

interface Cause {
  text: string;
  dead: number;
  retrying: number;
  last: string;
  example: string;
}

/** groupByCause groups deliveries by their errors. Digits are ignored, except those of the status code. */
export function groupByCause(deliveries: Delivery[]): Cause[] {
  const causes = new Map<string, Cause>();
  for (const d of deliveries) {
    const key = `${d.status} ${d.error.replace(/\d+/g, '#')}`;
    const cause = causes.get(key) ?? { text: d.error, dead: 0, retrying: 0, last: '', example: '' };
    if (d.state === 'dead') cause.dead++;
    else cause.retrying++;
    if ((d.last_attempt_at ?? '') >= cause.last) {
      cause.last = d.last_attempt_at ?? '';
      cause.example = d.event_id;
      cause.text = d.error;
    }
    causes.set(key, cause);
  }
  return [...causes.values()].sort((a, b) => b.dead + b.retrying - a.dead - a.retrying);
}

const causeColumns: Column<Cause>[] = [
  {
    id: 'cause',
    label: 'Error',
    breaks: 'wide',
    cell: (c) => c.text || <span class="muted">No error was recorded</span>,
  },
  { id: 'dead', label: 'Dead', numeric: true, cell: (c) => <Count n={c.dead} tone="bad" /> },
  { id: 'retrying', label: 'Retrying', numeric: true, cell: (c) => <Count n={c.retrying} tone="warn" /> },
  { id: 'last', label: 'Last attempt', cell: (c) => <Time time={c.last} ago /> },
  {
    id: 'example',
    label: 'Newest event',
    cell: (c) => (c.example ? <EventLink id={c.example} /> : <span class="muted">–</span>),
  },
];

export function EventLink({ id }: { id: string }) {
  return (
    <a class="mono" href={href(['events', id])}>
      {id}
    </a>
  );
}

/** Response shows the text that the destination sent for the newest dead letter. The errors have only its status. */
function Response({ sink, deliveries }: { sink: string; deliveries: Delivery[] }) {
  const newest = deliveries
    .filter((d) => d.state === 'dead')
    .sort((a, b) => (b.last_attempt_at ?? '').localeCompare(a.last_attempt_at ?? ''))[0];
  const id = newest ? newest.delivery_id || newest.event_id : '';
  const letter = usePolling(
    async (signal) =>
      id ? (await get('/api/sinks/{name}/deadletters/{id}', { params: { name: sink, id }, signal })).data : null,
    0,
    `${sink} ${id}`,
  );
  const attempt = letter.data?.attempts.at(-1);
  if (!attempt?.response) return null;
  return (
    <section>
      <header>
        <h2>Last response to a dead letter</h2>
        {attempt.status ? <span class="mono">{attempt.status}</span> : null}
        <Time time={attempt.time} />
        <a href={href(['sinks', sink, 'deadletters', id])}>Show the dead letter</a>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling area must be reachable with the keyboard */}
      <pre tabIndex={0}>{attempt.response}</pre>
    </section>
  );
}

function Part({ complete }: { complete: boolean }) {
  return complete ? null : <span class="muted">of the first {number(maxDeliveries)} deliveries</span>;
}

function Causes({ deliveries, complete }: { deliveries: Delivery[]; complete: boolean }) {
  if (deliveries.length === 0) return null;
  return (
    <section>
      <header>
        <h2>Deliveries by error</h2>
        <Part complete={complete} />
      </header>
      <Table
        caption="Dead and retrying deliveries by error"
        columns={causeColumns}
        rows={groupByCause(deliveries)}
        rowKey={(c) => c.text + c.example}
      />
    </section>
  );
}

const failureColumns: Column<Delivery>[] = [
  {
    id: 'event',
    label: 'Event',
    cell: (d) => (d.event_id ? <EventLink id={d.event_id} /> : `digest of ${plural(d.digest_events ?? 0, 'event')}`),
  },
  { id: 'topic', label: 'Topic', cell: (d) => <span class="mono">{d.topic}</span> },
  { id: 'state', label: 'State', cell: (d) => <State state={d.state} /> },
  { id: 'attempts', label: 'Attempts', numeric: true, cell: (d) => number(d.attempts) },
  { id: 'last', label: 'Last attempt', cell: (d) => <Time time={d.last_attempt_at} ago /> },
  { id: 'next', label: 'Next attempt', cell: (d) => <Time time={d.next_attempt_at} ago /> },
  { id: 'error', label: 'Error', breaks: 'wide', cell: (d) => d.error },
];

function Failures({ sink, deliveries, complete }: { sink: string; deliveries: Delivery[]; complete: boolean }) {
  const rows = [...deliveries]
    .sort((a, b) => (b.last_attempt_at ?? '').localeCompare(a.last_attempt_at ?? ''))
    .slice(0, maxRows);
  return (
    <section>
      <header>
        <h2>Recent dead and retrying deliveries</h2>
        <Part complete={complete} />
        <a href={href(['deliveries'], { sink, states: ['dead', 'retrying'] })}>All deliveries</a>
        <a href={href(['sinks', sink, 'deadletters'])}>Dead letters</a>
      </header>
      {rows.length ? (
        <Table
          caption="Recent dead and retrying deliveries"
          columns={failureColumns}
          rows={rows}
          rowKey={(d) => `${d.event_id} ${d.delivery_id ?? ''} ${d.state}`}
        />
      ) : (
        <Empty>No delivery is dead or retrying.</Empty>
      )}
    </section>
  );
}

const changeColumns: Column<Schemas['SinkChange']>[] = [
  { id: 'time', label: 'Time', cell: (c) => <Time time={c.time} /> },
  { id: 'state', label: 'State', cell: (c) => <State state={c.state} /> },
  { id: 'actor', label: 'By', cell: (c) => c.actor },
  { id: 'node', label: 'Node', cell: (c) => c.node ?? <span class="muted">all</span> },
  { id: 'reason', label: 'Reason', breaks: 'wide', cell: (c) => c.reason ?? '' },
];

function Changes({ sink }: { sink: Sink }) {
  return (
    <section>
      <h2>Changes of the state</h2>
      {sink.changes?.length ? (
        <Table
          caption="Changes of the state, the newest first"
          columns={changeColumns}
          rows={sink.changes}
          rowKey={(c) => `${c.time} ${c.state} ${c.node ?? ''}`}
        />
      ) : (
        <Empty>The state has not changed.</Empty>
      )}
    </section>
  );
}
