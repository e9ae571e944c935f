import { useState } from 'preact/hooks';
import { get, post, type Schemas } from '../api';
import { Confirm } from '../components/Confirm';
import { More } from '../components/More';
import { type Column, Table } from '../components/Table';
import { CopyButton, Empty, Facts, Loaded, Time, Title } from '../components/ui';
import { bytes, command, number, plural, sentence } from '../format';
import { usePages } from '../pages';
import { usePolling } from '../poll';
import { href, navigate } from '../router';
import { useRole } from '../session';

type Entry = Schemas['QuarantinedEntry'];

export function Quarantine() {
  const operator = useRole('operator');
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [dropping, setDropping] = useState<string[] | null>(null);
  const entries = usePages(
    (page, signal) => get('/api/quarantine', { query: page, signal }),
    (e) => e.id,
    10_000,
    '',
  );
  const columns: Column<Entry>[] = [
    {
      id: 'id',
      label: 'Entry',
      cell: (e) =>
        operator ? (
          <a class="mono" href={href(['quarantine', e.id])}>
            {e.id}
          </a>
        ) : (
          <span class="mono">{e.id}</span>
        ),
    },
    { id: 'time', label: 'Rejected', cell: (e) => <Time time={e.time} /> },
    { id: 'from', label: 'From', cell: (e) => (e.source ? `source ${e.source}` : 'inbox') },
    { id: 'size', label: 'Size', numeric: true, cell: (e) => bytes(e.size) },
    { id: 'reason', label: 'Reason', breaks: 'wide', cell: (e) => sentence(e.reason) },
  ];
  return (
    <>
      <Title text="Quarantine">
        <div class="buttons">
          <CopyButton label="Copy the command" text={command('quarantine', 'list')} />
        </div>
      </Title>
      <Loaded of={entries}>
        {(page) => {
          const chosen = page.data.filter((e) => selected.has(e.id)).map((e) => e.id);
          return (
            <>
              {page.data.length ? (
                <Table
                  stack
                  caption="Rejected entries, the oldest first"
                  columns={columns}
                  rows={page.data}
                  rowKey={(e) => e.id}
                  paged={entries}
                  {...(operator ? { selected: new Set(chosen), onSelect: setSelected } : {})}
                />
              ) : (
                <Empty>
                  {entries.start
                    ? 'No entries follow.'
                    : 'The quarantine is empty. Invalid entries of the inbox and of sources appear here.'}
                </Empty>
              )}
              <More of={entries} />
              {operator && page.data.length ? (
                <div class="bar buttons">
                  <span aria-live="polite">{number(chosen.length)} selected</span>
                  <button type="button" disabled={!chosen.length} onClick={() => setDropping(chosen)}>
                    Drop selected
                  </button>
                </div>
              ) : null}
            </>
          );
        }}
      </Loaded>
      {dropping ? (
        <DropEntries
          ids={dropping}
          onClose={() => setDropping(null)}
          onDone={() => {
            setSelected(new Set());
            entries.refresh();
          }}
        />
      ) : null}
    </>
  );
}

function DropEntries({ ids, onClose, onDone }: { ids: string[]; onClose: () => void; onDone: () => void }) {
  const what = plural(ids.length, 'entry', 'entries');
  return (
    <Confirm
      title={`Drop ${what}?`}
      confirm={`Drop ${what}`}
      danger
      command={command('quarantine', 'drop', ...ids)}
      onClose={onClose}
      action={async () => {
        const { data } = await post('/api/quarantine/drop', { body: { ids } });
        onDone();
        const missing = data.unchanged.length;
        return missing ? <p>{plural(missing, 'entry', 'entries')} no longer existed.</p> : null;
      }}
    >
      <p>They are removed permanently and never published.</p>
    </Confirm>
  );
}

export function QuarantinedEntry({ id }: { id: string }) {
  const operator = useRole('operator');
  const [data, setData] = useState<string | null>(null);
  const [action, setAction] = useState<'replay' | 'drop' | null>(null);
  const [replayed, setReplayed] = useState(false);
  const entry = usePolling(
    async (signal) => (await get('/api/quarantine/{id}', { params: { id }, signal })).data,
    0,
    id,
  );
  const original = entry.data?.data ?? '';
  const text = data ?? original;
  const changed = text !== original;
  return (
    <>
      <p class="crumbs">
        <a href="#/quarantine">Quarantine</a>
      </p>
      <Title text={id} mono>
        {operator && entry.data ? (
          <div class="buttons">
            <button type="button" class="primary" disabled={!text} onClick={() => setAction('replay')}>
              {changed ? 'Replay the corrected entry' : 'Replay'}
            </button>
            <button type="button" onClick={() => setAction('drop')}>
              Drop
            </button>
          </div>
        ) : null}
      </Title>
      <Loaded of={entry}>
        {(e) => (
          <>
            <div class="notice warn">{sentence(e.reason)}</div>
            <Facts
              facts={[
                { label: 'Rejected', value: <Time time={e.time} /> },
                { label: 'From', value: e.source ? `source ${e.source}` : 'inbox' },
                !!e.inbox_id && { label: 'ID in the inbox', value: <span class="mono">{e.inbox_id}</span> },
                !!e.idempotency_key && {
                  label: 'Idempotency key',
                  value: <span class="mono">{e.idempotency_key}</span>,
                },
                { label: 'Size', value: bytes(e.size) },
              ]}
            />
            <label class="field">
              <span class="label">Content. You can correct it before the replay.</span>
              <textarea
                class="mono tall"
                spellcheck={false}
                value={text}
                onInput={(event) => setData(event.currentTarget.value)}
              />
            </label>
            {changed ? (
              <div class="buttons">
                <button type="button" class="small" onClick={() => setData(null)}>
                  Undo the changes
                </button>
              </div>
            ) : null}
          </>
        )}
      </Loaded>
      {action === 'drop' ? (
        <DropEntries ids={[id]} onClose={() => setAction(null)} onDone={() => navigate('#/quarantine')} />
      ) : null}
      {action === 'replay' ? (
        <Confirm
          title={`Replay ${id}?`}
          confirm={changed ? 'Replay the corrected entry' : 'Replay the entry'}
          command={command(
            'quarantine',
            'replay',
            id,
            ...(changed || entry.data?.source ? ['--data', 'event.json'] : []),
          )}
          onClose={() => (replayed ? navigate('#/quarantine') : setAction(null))}
          action={async () => {
            // An entry of a source needs the content, because it is not an entry of the inbox.
            const body = changed || entry.data?.source ? { data: text } : {};
            const { data: event } = await post('/api/quarantine/{id}/replay', { params: { id }, body });
            setReplayed(true);
            return (
              <p>
                The entry is in the inbox again, as <span class="mono">{event.topic}</span> of hub{' '}
                <span class="mono">{event.hub_id}</span>.
              </p>
            );
          }}
        >
          <p>The relay checks the content. If it is valid, the relay publishes it. Otherwise nothing changes.</p>
        </Confirm>
      ) : null}
    </>
  );
}
