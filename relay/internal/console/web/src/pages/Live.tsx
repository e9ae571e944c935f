import { useEffect, useState } from 'preact/hooks';
import { get, type Schemas } from '../api';
import { Filter } from '../components/Filter';
import { CopyButton, Empty, Facts, Json, Loaded, Time, Title } from '../components/ui';
import { VirtualList } from '../components/VirtualList';
import { command, list, plural, rate } from '../format';
import { areShortcutsOn, isTyping } from '../keyboard';
import { useLive } from '../live';
import { usePolling } from '../poll';
import { href, setQuery, useRoute } from '../router';
import { useStatus } from '../series';
import { useRole } from '../session';
import { PublisherName } from './Events';

const rowHeight = 30;

const fields = [
  { name: 'topics', label: 'Topics', placeholder: 'job.*, *.error' },
  { name: 'hub_id', label: 'Hub' },
  { name: 'account_id', label: 'Account' },
];

export function Live() {
  const { query } = useRoute();
  const [paused, setPaused] = useState(false);
  const filter = {
    topics: list(query.get('topics')),
    hub_id: query.get('hub_id') ?? '',
    account_id: query.get('account_id') ?? '',
  };
  const { polled, live } = useLive(filter, paused);
  useStatus();
  const open = query.get('event');

  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      if (e.key === 'Escape' && !document.querySelector('dialog[open]')) setQuery({ event: '' });
      if (e.key !== ' ' || e.ctrlKey || e.metaKey || e.altKey || isTyping(e) || !areShortcutsOn()) return;
      if (document.querySelector('dialog[open]') || (e.target instanceof Element && e.target.closest('pre'))) return;
      e.preventDefault();
      setPaused((p) => !p);
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);

  return (
    <>
      <Title text="Live">
        {live && !paused ? <span class="muted rate">{rate(live.rate)} events/s</span> : null}
        {paused ? <PausedCount /> : null}
        <div class="buttons">
          <CopyButton
            label="Copy the command"
            text={command(
              ...['events', 'tail'],
              ...filter.topics.flatMap((t) => ['--topic', t]),
              ...(filter.hub_id ? ['--hub', filter.hub_id] : []),
              ...(filter.account_id ? ['--account', filter.account_id] : []),
            )}
          />
          <button type="button" class={paused ? 'primary' : ''} onClick={() => setPaused(!paused)} title="Space">
            {paused ? 'Resume' : 'Pause'}
          </button>
        </div>
      </Title>
      <Filter submit="Filter" fields={fields} />
      {live?.skipped ? (
        <p class="notice warn">More events arrive than the console can show. Some are missing.</p>
      ) : null}
      <Loaded of={{ ...polled, data: live ?? undefined, loading: !live && !polled.error && !polled.disconnected }}>
        {({ rows }) => (
          <div class={open ? 'split' : ''}>
            {rows.length ? (
              <VirtualList label="Events, the newest first" rows={rows} rowKey={(e) => e.id} rowHeight={rowHeight}>
                {(e) => <Row event={e} open={e.id === open} />}
              </VirtualList>
            ) : (
              <Empty>No event matches. New events appear here as they arrive.</Empty>
            )}
            {open ? <Side id={open} /> : null}
          </div>
        )}
      </Loaded>
    </>
  );
}

const clock = (time: string) => {
  const d = new Date(time);
  return `${d.toTimeString().slice(0, 8)}.${String(d.getMilliseconds()).padStart(3, '0')}`;
};

function Row({ event: e, open }: { event: Schemas['Event']; open: boolean }) {
  return (
    <button type="button" class="row" aria-pressed={open} onClick={() => setQuery({ event: open ? '' : e.id })}>
      <span class="muted">{clock(e.time)}</span>
      <span class={e.topic.endsWith('.error') ? 'bad' : ''}>{e.topic}</span>
      <span>{e.hub_id}</span>
      <span>{e.account_id}</span>
      <span>{e.object_id}</span>
      <span class="muted">{e.id}</span>
    </button>
  );
}

/** PausedCount counts the events that were stored since it was mounted. */
function PausedCount() {
  const { data, refresh } = useStatus();
  const [old] = useState(data);
  const [start, setStart] = useState<number | null>(null);
  // The status at the time of the pause can be some seconds old, so the next one is the start.
  useEffect(refresh, []);
  useEffect(() => {
    if (data && data !== old && data.log.stored >= 0) setStart((s) => s ?? data.log.stored);
  }, [data, old]);
  return (
    <span class="badge info" role="status">
      paused{data && start !== null ? `, ${plural(data.log.stored - start, 'event')} of all hubs stored since` : ''}
    </span>
  );
}

function Side({ id }: { id: string }) {
  const operator = useRole('operator');
  const event = usePolling(async (signal) => (await get('/api/events/{id}', { params: { id }, signal })).data, 0, id);
  return (
    <aside class="card stack" aria-label={`Event ${id}`}>
      <header class="title">
        <h2 class="mono">{id}</h2>
        <div class="buttons">
          <a href={href(['events', id])}>Deliveries</a>
          <button type="button" class="small" onClick={() => setQuery({ event: '' })}>
            Close
          </button>
        </div>
      </header>
      <Loaded of={event}>
        {(e) => (
          <>
            <Facts
              facts={[
                { label: 'Time', value: <Time time={e.time} /> },
                { label: 'Topic', value: <span class="mono">{e.topic}</span> },
                { label: 'Hub', value: <span class="mono">{e.hub_id || '–'}</span> },
                { label: 'Publisher', value: <PublisherName publisher={e.publisher} /> },
              ]}
            />
            {e.payload != null ? (
              <Json value={e.payload} />
            ) : (
              <Empty>
                {operator ? 'The event is no longer in the log.' : 'Your role is viewer. Only operators see payloads.'}
              </Empty>
            )}
          </>
        )}
      </Loaded>
    </aside>
  );
}
