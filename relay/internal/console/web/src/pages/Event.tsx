import { useState } from 'preact/hooks';
import { get, post, type Schemas } from '../api';
import { Attempts } from '../components/Attempts';
import { ChangeDeliveries } from '../components/ChangeDeliveries';
import { Confirm } from '../components/Confirm';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Facts, Json, Loaded, State, Time, Title } from '../components/ui';
import { command, isSet, plural, sentence } from '../format';
import { usePolling } from '../poll';
import { href } from '../router';
import { useRole } from '../session';
import { ChangeDialog } from './DeadLetters';
import { PublisherName } from './Events';

type EventSink = Schemas['EventSink'];
type Action = 'retry' | 'drop' | 'replay' | 'replay dead letter';

/** deliveryID is the ID of the batch or digest that contains the event, or of the event itself. */
const deliveryID = (sink: EventSink, id: string) => sink.attempts.at(-1)?.delivery_id || id;

export function EventPage({ id }: { id: string }) {
  const operator = useRole('operator');
  const [action, setAction] = useState<{ action: Action; sink: EventSink } | null>(null);
  const event = usePolling(
    async (signal) => (await get('/api/events/{id}', { params: { id }, signal })).data,
    5000,
    id,
  );
  return (
    <>
      <p class="crumbs">
        <a href="#/events">Events</a>
      </p>
      <Title text={id} mono>
        <div class="buttons">
          <CopyButton label="Copy the command" text={command('events', 'show', id)} />
        </div>
      </Title>
      <Loaded of={event}>
        {(e) => {
          const matched = e.sinks.filter((s) => s.state !== 'not_matched');
          const others = e.sinks.filter((s) => s.state === 'not_matched');
          return (
            <>
              <Facts
                facts={[
                  { label: 'Time', value: <Time time={e.time} /> },
                  { label: 'Topic', value: <span class="mono">{e.topic || '–'}</span> },
                  { label: 'Hub', value: <span class="mono">{e.hub_id || '–'}</span> },
                  { label: 'Account', value: <span class="mono">{e.account_id || '–'}</span> },
                  { label: 'Object', value: <span class="mono">{e.object_id || '–'}</span> },
                  { label: 'Publisher', value: <PublisherName publisher={e.publisher} /> },
                ]}
              />
              {e.incomplete ? (
                <p class="notice warn">The history was too large to be read in time. Attempts may be missing.</p>
              ) : null}
              <section>
                <h2>Sinks</h2>
                {matched.length ? (
                  matched.map((s) => (
                    <SinkCard
                      key={s.sink}
                      sink={s}
                      onAction={operator ? (a) => setAction({ action: a, sink: s }) : undefined}
                    />
                  ))
                ) : (
                  <Empty>No sink receives this event.</Empty>
                )}
                {others.length ? (
                  <details>
                    <summary>{plural(others.length, 'sink does', 'sinks do')} not match the event</summary>
                    <Table
                      caption="Sinks that do not match"
                      columns={otherColumns}
                      rows={others}
                      rowKey={(s) => s.sink}
                    />
                  </details>
                ) : null}
              </section>
              <section>
                <h2>Streams</h2>
                {e.streams.length ? (
                  <Table caption="Clients of streams" columns={streamColumns} rows={e.streams} rowKey={(s) => s.node} />
                ) : (
                  <Empty>No client of a stream received this event.</Empty>
                )}
              </section>
              <section>
                <h2>Payload</h2>
                {e.payload != null ? (
                  <Json value={e.payload} />
                ) : (
                  <Empty>
                    {operator
                      ? 'The event is no longer in the log.'
                      : 'Your role is viewer. Payloads contain data of accounts, so only operators see them.'}
                  </Empty>
                )}
              </section>
            </>
          );
        }}
      </Loaded>
      {action ? <ActionDialog id={id} {...action} onClose={() => setAction(null)} onDone={event.refresh} /> : null}
    </>
  );
}

const otherColumns: Column<EventSink>[] = [
  {
    id: 'sink',
    label: 'Sink',
    cell: (s) => (
      <a class="mono" href={href(['sinks', s.sink])}>
        {s.sink}
      </a>
    ),
  },
  { id: 'reason', label: 'Filter', breaks: 'wide', cell: (s) => s.detail || s.reason },
];

const streamColumns: Column<Schemas['EventStream']>[] = [
  { id: 'node', label: 'Node', cell: (s) => s.node },
  { id: 'clients', label: 'Clients', numeric: true, cell: (s) => s.clients },
  { id: 'keys', label: 'Keys', breaks: 'wide', cell: (s) => s.keys?.join(', ') ?? '' },
];

function SinkCard({ sink: s, onAction }: { sink: EventSink; onAction?: ((action: Action) => void) | undefined }) {
  const pending = s.state === 'waiting' || s.state === 'retrying';
  return (
    <article class="card stack">
      <header class="title">
        <h3 class="mono">
          <a href={href(['sinks', s.sink])}>{s.sink}</a>
        </h3>
        <State state={s.state} />
        {s.reason ? <span class="muted">{s.reason.replaceAll('_', ' ')}</span> : null}
        {isSet(s.next_attempt_at) ? (
          <span class="muted">
            next attempt <Time time={s.next_attempt_at} ago />
          </span>
        ) : null}
        {onAction ? (
          <div class="buttons">
            {s.state === 'retrying' ? (
              <button type="button" class="small" onClick={() => onAction('retry')}>
                Retry now
              </button>
            ) : null}
            {pending ? (
              <button type="button" class="small" onClick={() => onAction('drop')}>
                Drop
              </button>
            ) : (
              <button
                type="button"
                class="small"
                onClick={() => onAction(s.state === 'dead' ? 'replay dead letter' : 'replay')}
              >
                Replay
              </button>
            )}
          </div>
        ) : null}
      </header>
      {s.detail ? <p>{sentence(s.detail)}</p> : null}
      {s.attempts.length ? <Attempts attempts={s.attempts} /> : <p class="muted">No attempts are recorded.</p>}
    </article>
  );
}

interface ActionProps {
  id: string;
  action: Action;
  sink: EventSink;
  onClose: () => void;
  onDone: () => void;
}

function ActionDialog({ id, action, sink, onClose, onDone }: ActionProps) {
  const name = sink.sink;
  const delivery = deliveryID(sink, id);
  if (action === 'replay dead letter') {
    return (
      <ChangeDialog
        sink={name}
        change="replay"
        selected={{ ids: [delivery] }}
        count={1}
        onClose={onClose}
        onDone={onDone}
      />
    );
  }
  if (action === 'replay') {
    return (
      <Confirm
        title={`Replay the event to ${name}?`}
        confirm="Replay the event"
        command={command('sinks', 'replay', name, '--id', id)}
        onClose={onClose}
        action={async () => {
          const { data } = await post('/api/sinks/{name}/replay', { params: { name }, body: { event_ids: [id] } });
          onDone();
          if (data.replayed) return null;
          return <p>Nothing was replayed. The event is still to be delivered, or it is no longer in the log.</p>;
        }}
      >
        <p>{name} receives the event again, with the same ID.</p>
        {sink.state === 'delivered' ? <p>It has already accepted the event once.</p> : null}
      </Confirm>
    );
  }
  return (
    <ChangeDeliveries change={action} deliveries={[{ sink: name, id: delivery }]} onClose={onClose} onDone={onDone}>
      {delivery !== id ? <p>The event is part of a batch or digest. The other events in it are changed, too.</p> : null}
    </ChangeDeliveries>
  );
}
