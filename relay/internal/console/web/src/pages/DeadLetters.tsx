import { useState } from 'preact/hooks';
import { get, post, type Schemas } from '../api';
import { Attempts } from '../components/Attempts';
import { Confirm } from '../components/Confirm';
import { Filter } from '../components/Filter';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Facts, Json, Loaded, State, Time, Title } from '../components/ui';
import { command, list, number, plural, toFlags } from '../format';
import { usePages } from '../pages';
import { usePolling } from '../poll';
import { href, navigate, useRoute } from '../router';
import { useRole } from '../session';
import { EventLink } from './Sink';

type DeadLetter = Schemas['DeadLetter'];
type Change = 'replay' | 'drop';

/** A change with more dead letters names their filter. */
const maxIDs = 500;

/** Selected is either IDs, or all dead letters that match the filter. */
type Selected = { ids: string[] } | { topics: string[]; hub_id: string; since: string };

export function DeadLetters({ sink }: { sink: string }) {
  const { query } = useRoute();
  const operator = useRole('operator');
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [change, setChange] = useState<{ change: Change; selected: Selected; count: number | undefined } | null>(null);
  const filter = {
    topics: list(query.get('topics')),
    hub_id: query.get('hub_id') ?? '',
    since: query.get('since') ?? '',
  };
  const filtered = filter.topics.length > 0 || filter.hub_id !== '' || filter.since !== '';
  const letters = usePages(
    (page, signal) =>
      get('/api/sinks/{name}/deadletters', { params: { name: sink }, query: { ...filter, ...page }, signal }),
    (d) => d.id,
    10000,
    `${sink} ${JSON.stringify(filter)}`,
  );
  const total = usePolling(
    async (signal) => (await get('/api/sinks/{name}', { params: { name: sink }, signal })).data.dead,
    10000,
    sink,
  );

  const columns: Column<DeadLetter>[] = [
    {
      id: 'id',
      label: 'Delivery',
      cell: (d) =>
        operator ? (
          <a class="mono" href={href(['sinks', sink, 'deadletters', d.id])}>
            {d.id}
          </a>
        ) : (
          <span class="mono">{d.id}</span>
        ),
    },
    { id: 'topic', label: 'Topic', cell: (d) => <span class="mono">{d.topic}</span> },
    { id: 'hub', label: 'Hub', cell: (d) => <span class="mono">{d.hub_id}</span> },
    { id: 'account', label: 'Account', cell: (d) => <span class="mono">{d.account_id}</span> },
    { id: 'attempts', label: 'Attempts', numeric: true, cell: (d) => number(d.attempts) },
    { id: 'last_attempt_at', label: 'Last attempt', cell: (d) => <Time time={d.last_attempt_at} /> },
    { id: 'reason', label: 'Reason', cell: (d) => d.reason },
    { id: 'error', label: 'Error', breaks: 'wide', cell: (d) => d.error },
  ];

  return (
    <>
      <p class="crumbs">
        <a href="#/sinks">Sinks</a> / <a href={href(['sinks', sink])}>{sink}</a>
      </p>
      <Title text={`Dead letters of ${sink}`}>
        {total.data === undefined ? null : <span class="muted">{number(total.data)} in total</span>}
        <div class="buttons">
          <CopyButton label="Copy the command" text={command('deadletters', 'list', sink, ...toFlags(filter))} />
        </div>
      </Title>
      <Filter
        submit="Filter"
        fields={[
          { name: 'topics', label: 'Topics', placeholder: 'job.*, *.error' },
          { name: 'hub_id', label: 'Hub' },
          { name: 'since', label: 'Since', placeholder: '2h, 1d or a time' },
        ]}
      />
      <Loaded of={letters}>
        {(page) => {
          const chosen = page.data.filter((d) => selected.has(d.id)).map((d) => d.id);
          // All that are on this page are named by their IDs, so later ones are not changed.
          const isComplete = !letters.start && !page.next && page.data.length <= maxIDs;
          const open = (c: Change, all: boolean) => {
            const ids = all ? page.data.map((d) => d.id) : chosen;
            if (!all || isComplete) setChange({ change: c, selected: { ids }, count: ids.length });
            else setChange({ change: c, selected: filter, count: filtered ? undefined : total.data });
          };
          return (
            <>
              {page.data.length ? (
                <Table
                  stack
                  caption={`Dead letters of ${sink}, the oldest first`}
                  columns={columns}
                  rows={page.data}
                  rowKey={(d) => d.id}
                  paged={letters}
                  {...(operator ? { selected: new Set(chosen), onSelect: setSelected } : {})}
                />
              ) : (
                <Empty>
                  {page.next
                    ? 'Nothing on this page matches the filter.'
                    : filtered || letters.start
                      ? 'No dead letter matches the filter.'
                      : 'This sink has no dead letters.'}
                </Empty>
              )}
              <More of={letters} />
              {operator && page.data.length ? (
                <div class="bar buttons">
                  <span aria-live="polite">{number(chosen.length)} selected</span>
                  <button type="button" disabled={!chosen.length} onClick={() => open('replay', false)}>
                    Replay selected
                  </button>
                  <button type="button" disabled={!chosen.length} onClick={() => open('drop', false)}>
                    Drop selected
                  </button>
                  <button type="button" onClick={() => open('replay', true)}>
                    {filtered ? 'Replay all that match' : 'Replay all'}
                  </button>
                  <button type="button" onClick={() => open('drop', true)}>
                    {filtered ? 'Drop all that match' : 'Drop all'}
                  </button>
                </div>
              ) : null}
            </>
          );
        }}
      </Loaded>
      {change ? (
        <ChangeDialog
          sink={sink}
          {...change}
          onClose={() => setChange(null)}
          onDone={() => {
            setSelected(new Set());
            letters.refresh();
            total.refresh();
          }}
        />
      ) : null}
    </>
  );
}

interface ChangeProps {
  sink: string;
  change: Change;
  selected: Selected;
  count: number | undefined;
  onClose: () => void;
  onDone: () => void;
}

/** changeDeadLetters repeats a request with all until no dead letters follow. */
async function changeDeadLetters(sink: string, change: Change, selected: Selected) {
  const sum = { changed: 0, missing: 0, unreadable: 0 };
  const isUnreadable = (u: Schemas['Unchanged']) => u.reason === 'unreadable';
  const path = change === 'replay' ? '/api/sinks/{name}/deadletters/replay' : '/api/sinks/{name}/deadletters/drop';
  let after: string | undefined = '';
  do {
    const body: Schemas['ChangeDeadLettersRequest'] =
      'ids' in selected ? selected : { ...selected, all: true, limit: 1000, ...(after ? { after } : {}) };
    const { data } = await post(path, { params: { name: sink }, body });
    sum.changed += data.changed;
    const unreadable = data.unchanged.filter(isUnreadable).length;
    sum.unreadable += unreadable;
    sum.missing += data.unchanged.length - unreadable;
    after = data.next;
  } while (after);
  return sum;
}

export function ChangeDialog({ sink, change, selected, count, onClose, onDone }: ChangeProps) {
  const what =
    'ids' in selected
      ? plural(selected.ids.length, 'dead letter')
      : count === undefined
        ? 'all matching dead letters'
        : `all dead letters (${number(count)} now)`;
  const verb = change === 'replay' ? 'Replay' : 'Drop';
  return (
    <Confirm
      title={`${verb} ${what}?`}
      confirm={`${verb} ${what}`}
      danger={change === 'drop'}
      command={command(
        'deadletters',
        change,
        sink,
        ...('ids' in selected ? selected.ids : ['--all', ...toFlags(selected)]),
      )}
      onClose={onClose}
      action={async () => {
        const r = await changeDeadLetters(sink, change, selected);
        onDone();
        return (
          <p>
            {plural(r.changed, 'dead letter was', 'dead letters were')} {change === 'replay' ? 'replayed' : 'dropped'}.
            {r.missing ? ` ${number(r.missing)} no longer existed.` : ''}
            {r.unreadable ? ` ${number(r.unreadable)} cannot be decoded, so they stay.` : ''}
          </p>
        );
      }}
    >
      <p>
        {change === 'replay'
          ? `${sink} receives them again, with the same IDs and a new retry schedule.`
          : `They are removed permanently. ${sink} never receives them.`}
      </p>
      {count === undefined ? <p>The filter selects them. Their number is known after the change.</p> : null}
    </Confirm>
  );
}

export function DeadLetterPage({ sink, id }: { sink: string; id: string }) {
  const operator = useRole('operator');
  const [change, setChange] = useState<Change | null>(null);
  const [changed, setChanged] = useState(false);
  const letter = usePolling(
    async (signal) => (await get('/api/sinks/{name}/deadletters/{id}', { params: { name: sink, id }, signal })).data,
    0,
    `${sink} ${id}`,
  );
  return (
    <>
      <p class="crumbs">
        <a href="#/sinks">Sinks</a> / <a href={href(['sinks', sink])}>{sink}</a> /{' '}
        <a href={href(['sinks', sink, 'deadletters'])}>Dead letters</a>
      </p>
      <Title text={id} mono>
        <State state="dead" />
        {operator && letter.data ? (
          <div class="buttons">
            <button type="button" onClick={() => setChange('replay')}>
              Replay
            </button>
            <button type="button" onClick={() => setChange('drop')}>
              Drop
            </button>
          </div>
        ) : null}
      </Title>
      <Loaded of={letter}>
        {(d) => (
          <>
            <Facts
              facts={[
                { label: 'Topic', value: <span class="mono">{d.topic}</span> },
                { label: 'Hub', value: <span class="mono">{d.hub_id || '–'}</span> },
                { label: 'Account', value: <span class="mono">{d.account_id || '–'}</span> },
                { label: 'Last attempt', value: <Time time={d.last_attempt_at} /> },
                { label: 'Reason', value: d.reason },
                { label: 'Error', value: d.error },
                d.digest && { label: 'Digest', value: plural(d.digest.count, 'event') },
                d.batch && { label: 'Batch', value: plural(d.events.length, 'event') },
                !d.digest && !d.batch && { label: 'Event', value: <EventLink id={d.id} /> },
              ]}
            />
            <section>
              <h2>Attempts</h2>
              {d.attempts.length ? <Attempts attempts={d.attempts} /> : <Empty>No attempts are recorded.</Empty>}
            </section>
            <section>
              <h2>{d.events.length > 1 ? `Payload of ${plural(d.events.length, 'event')}` : 'Payload'}</h2>
              {d.raw ? (
                <>
                  <p class="muted">The delivery cannot be decoded. This is its stored text.</p>
                  <Json value={d.raw} />
                </>
              ) : (
                <Json value={d.events.length === 1 ? d.events[0] : d.events} />
              )}
            </section>
          </>
        )}
      </Loaded>
      {change ? (
        <ChangeDialog
          sink={sink}
          change={change}
          selected={{ ids: [id] }}
          count={1}
          onClose={() => (changed ? navigate(href(['sinks', sink, 'deadletters'])) : setChange(null))}
          onDone={() => setChanged(true)}
        />
      ) : null}
    </>
  );
}
