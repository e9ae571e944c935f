import type { Schemas } from '../api';
import { type Column, Table } from '../components/Table';
import { Count, Empty, Facts, Loaded, State, Time, Title } from '../components/ui';
import { isSet, number, plural, sentence } from '../format';
import { href } from '../router';
import { sinkStates, useSinks } from './Sinks';

type Sink = Schemas['Sink'];

function severity(s: Sink): number {
  return sinkStates.indexOf(s.state) * 2 - (s.dead ? 1 : 0);
}

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
  { id: 'since', label: 'Since', cell: (s) => <Time time={s.since} ago /> },
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
    wide: true,
    cell: (s) => (s.state !== 'active' && s.reason ? sentence(s.reason) : (s.last_error ?? '')),
  },
];

export function Overview() {
  const sinks = useSinks();
  return (
    <>
      <Title text="Overview" />
      <Loaded of={sinks}>
        {(all) => {
          const sum = (f: (s: Sink) => number) => all.reduce((n, s) => n + f(s), 0);
          const problems = all
            .filter((s) => ['down', 'failed', 'disabled', 'throttled'].includes(s.state) || s.dead > 0)
            .sort((a, b) => severity(a) - severity(b));
          const oldest = all
            .map((s) => s.oldest_at)
            .filter(isSet)
            .sort()[0];
          return (
            <>
              <section>
                <h2>{plural(all.length, 'sink')}</h2>
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
              </section>
              <section>
                <h2>Problems</h2>
                {problems.length ? (
                  <Table caption="Sinks with problems" columns={columns} rows={problems} rowKey={(s) => s.name} />
                ) : (
                  <Empty>All sinks accept events, and there are no dead letters.</Empty>
                )}
              </section>
              <section>
                <h2>Deliveries of all sinks</h2>
                <Facts
                  large
                  facts={[
                    { label: 'Waiting', value: <Count n={sum((s) => s.waiting)} /> },
                    { label: 'Retrying', value: <Count n={sum((s) => s.retrying)} tone="warn" /> },
                    { label: 'Dead', value: <Count n={sum((s) => s.dead)} tone="bad" /> },
                    { label: 'Delivered', value: number(sum((s) => s.delivered)) },
                    { label: 'Dropped', value: <Count n={sum((s) => s.dropped)} tone="bad" /> },
                    { label: 'Oldest undelivered', value: <Time time={oldest} ago /> },
                  ]}
                />
              </section>
            </>
          );
        }}
      </Loaded>
    </>
  );
}
