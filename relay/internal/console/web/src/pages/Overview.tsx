import type { ComponentChildren } from 'preact';
import type { Schemas } from '../api';
import { Plot } from '../components/Plot';
import { BacklogPlot, ThroughputPlot } from '../components/SinkPlots';
import { type Column, Table } from '../components/Table';
import { Count, Empty, Facts, Loaded, State, Time, Title } from '../components/ui';
import { bytes, isSet, number, plural, rate, sentence } from '../format';
import { hasMixedVersions, type Node, readiness, useNodes } from '../nodes';
import { href } from '../router';
import { allSinks, eventSeries, useSinks, useStatus } from '../series';
import { sinkStates } from './Sinks';

type Sink = Schemas['Sink'];
type Status = Schemas['Status'];

/** From this share of its limit on, the storage is a problem. */
const storageWarning = 0.9;

function severity(s: Sink): number {
  return sinkStates.indexOf(s.state) * 2 - (s.dead ? 1 : 0);
}

const isProblem = (s: Sink) => ['down', 'failed', 'disabled', 'throttled'].includes(s.state) || s.dead > 0;

const columns: Column<Sink>[] = [
  {
    id: 'sink',
    label: 'Sink',
    cell: (s) => (
      <a class="mono" href={href(['sinks', s.name])}>
        {s.name}
      </a>
    ),
  },
  { id: 'state', label: 'State', cell: (s) => <State state={s.state} /> },
  { id: 'since', label: 'Since', cell: (s) => <Time time={s.state_changed_at} ago /> },
  {
    id: 'dead',
    label: 'Dead',
    numeric: true,
    cell: (s) =>
      s.dead ? (
        <a class="bad" href={href(['sinks', s.name, 'deadletters'])}>
          {number(s.dead)}
        </a>
      ) : (
        <Count n={0} />
      ),
  },
  { id: 'backlog', label: 'Waiting + retrying', numeric: true, cell: (s) => <Count n={s.waiting + s.retrying} /> },
  {
    id: 'problem',
    label: 'Problem',
    breaks: 'wide',
    cell: (s) => (s.state !== 'active' && s.reason ? sentence(s.reason) : (s.last_error ?? '')),
  },
];

export function Overview() {
  const sinks = useSinks();
  const status = useStatus();
  const nodes = useNodes();
  return (
    <>
      <Title text="Overview" />
      <Loaded of={status}>
        {(s) => (
          <>
            {sinks.data ? <Headline status={s} sinks={sinks.data} nodes={nodes.data ?? []} /> : null}
            <Relay status={s} nodes={nodes.data ?? []} />
          </>
        )}
      </Loaded>
      <Loaded of={sinks}>{(all) => <Sinks sinks={all} />}</Loaded>
    </>
  );
}

/** Headline says whether the relay has problems, and which of them are not about a sink. */
function Headline({ status: s, sinks, nodes }: { status: Status; sinks: Sink[]; nodes: Node[] }) {
  const full = s.storage.max_bytes > 0 && s.storage.used_bytes >= s.storage.max_bytes * storageWarning;
  const problems: ComponentChildren[] = [];
  if (s.not_ready) problems.push(`Node ${s.node} is not ready. ${sentence(s.not_ready)}`);
  if (s.config_warning) problems.push(sentence(s.config_warning));
  const others = nodes.filter((n) => n.name !== s.node);
  for (const n of others) {
    if (n.not_ready) problems.push(`Node ${n.name} is not ready. ${sentence(n.not_ready)}`);
    if (n.config_warning) problems.push(`Node ${n.name}: ${sentence(n.config_warning)}`);
  }
  const unready = s.not_ready || others.some((n) => n.not_ready);
  if (full) problems.push('The storage is almost full. The relay rejects events when it is full.');
  const failing = sinks.filter(isProblem).length;
  const count = problems.length + failing;
  return (
    <div class={`notice headline ${count ? (unready || full ? 'bad' : 'warn') : 'good'}`} role="status">
      <div>
        {count ? `There ${count === 1 ? 'is 1 problem' : `are ${number(count)} problems`}` : 'All is well'}
        {problems.length ? (
          <ul>
            {problems.map((p) => (
              <li key={p}>{p}</li>
            ))}
            {failing ? <li>{plural(failing, 'sink has', 'sinks have')} a problem.</li> : null}
          </ul>
        ) : null}
      </div>
    </div>
  );
}

function Storage({ storage: { used_bytes: used, max_bytes: max } }: { storage: Status['storage'] }) {
  return (
    <>
      {bytes(used)}
      <span class="muted">{max ? ` of ${bytes(max)}` : ', no limit'}</span>
      {max ? (
        <meter aria-label="Used storage" min={0} max={max} high={max * storageWarning} optimum={0} value={used} />
      ) : null}
    </>
  );
}

const perSecond = (n: number | null) => (n === null ? <span class="muted">–</span> : `${rate(n)}/s`);

/** Nodes lists the names of all nodes, which of them have problems, and which of them responds to the console. */
function Nodes({ status: s, nodes }: { status: Status; nodes: Node[] }) {
  return (
    <ul class="plain">
      {s.nodes.map((name) => {
        const node = nodes.find((n) => n.name === name);
        return (
          <li key={name}>
            <a class="mono" href={href(['nodes'])}>
              {name}
            </a>
            {name === s.node ? <span class="muted">, responds to this console</span> : null}
            {node?.not_ready ? (
              <>
                {' '}
                <State state={readiness(node)} />
              </>
            ) : null}
            {node?.config_warning ? (
              <>
                {' '}
                <span class="badge warn">configuration</span>
              </>
            ) : null}
          </li>
        );
      })}
      {hasMixedVersions(nodes) ? <li class="muted">The nodes run different versions.</li> : null}
    </ul>
  );
}

function Relay({ status: s, nodes }: { status: Status; nodes: Node[] }) {
  return (
    <section>
      <h2>Relay</h2>
      <Facts
        facts={[
          { label: 'Events', value: <a href="#/live">{perSecond(eventSeries.last('events'))}</a> },
          {
            label: 'Events in the log',
            value: (
              <>
                {number(s.log.events)}
                {isSet(s.log.oldest_at) ? (
                  <span class="muted">
                    , the oldest <Time time={s.log.oldest_at} ago />
                  </span>
                ) : null}
              </>
            ),
          },
          { label: 'Storage', value: <Storage storage={s.storage} /> },
          {
            label: `Clients of ${s.node}`,
            value: (
              <>
                <a href="#/streams">{number(s.streams.clients)}</a>
                {s.streams.queued_bytes ? <span class="muted">, {bytes(s.streams.queued_bytes)} queued</span> : null}
              </>
            ),
          },
          { label: plural(s.nodes.length, 'node'), value: <Nodes status={s} nodes={nodes} /> },
          {
            label: `Start of ${s.node}`,
            value: (
              <>
                <Time time={s.started_at} ago />
                <span class="muted">, {s.version}</span>
              </>
            ),
          },
        ]}
      />
    </section>
  );
}

function Sinks({ sinks: all }: { sinks: Sink[] }) {
  const sum = (f: (s: Sink) => number) => all.reduce((n, s) => n + f(s), 0);
  const problems = all.filter(isProblem).sort((a, b) => severity(a) - severity(b));
  const oldest = all
    .map((s) => s.oldest_at)
    .filter(isSet)
    .sort()[0];
  return (
    <>
      {problems.length ? (
        <section>
          <h2>Sinks with problems</h2>
          <Table stack caption="Sinks with problems" columns={columns} rows={problems} rowKey={(s) => s.name} />
        </section>
      ) : null}
      <section>
        <h2>Deliveries of all sinks</h2>
        <Facts
          large
          facts={[
            { label: 'Delivered', value: perSecond(allSinks.last('delivered')) },
            { label: 'Failed', value: perSecond(allSinks.last('failed')) },
            { label: 'Waiting', value: <Count n={sum((s) => s.waiting)} /> },
            { label: 'Retrying', value: <Count n={sum((s) => s.retrying)} tone="warn" /> },
            { label: 'Dead', value: <Count n={sum((s) => s.dead)} tone="bad" /> },
            { label: 'Dropped', value: <Count n={sum((s) => s.dropped)} tone="bad" /> },
            { label: 'Oldest undelivered', value: <Time time={oldest} ago /> },
          ]}
        />
        <div class="plots">
          <Plot
            title="Events per second"
            format={rate}
            lines={[{ series: eventSeries, name: 'events', label: 'events', color: 'accent' }]}
          />
          <ThroughputPlot series={allSinks} />
          <BacklogPlot series={allSinks} />
        </div>
        <p class="muted count">The plots start when you open the console.</p>
      </section>
      <section>
        <h2>{plural(all.length, 'sink')}</h2>
        {all.length ? (
          <Facts
            large
            facts={[...sinkStates].reverse().map((state) => {
              const n = all.filter((s) => s.state === state).length;
              return {
                label: state,
                value: n ? <a href={href(['sinks'], { state })}>{number(n)}</a> : <Count n={0} />,
              };
            })}
          />
        ) : (
          <Empty>No sinks are configured. Add them under sinks in the configuration.</Empty>
        )}
      </section>
    </>
  );
}
