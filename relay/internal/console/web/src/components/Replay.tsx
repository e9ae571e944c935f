import { useState } from 'preact/hooks';
import { post, type Schemas } from '../api';
import { command, list, number, plural } from '../format';
import { Confirm } from './Confirm';

/** Replay delivers events of the log to a sink again. It counts them first. */
export function Replay({ sink, onClose, onDone }: { sink: string; onClose: () => void; onDone: () => void }) {
  const [after, setAfter] = useState('1h');
  const [until, setUntil] = useState('');
  const [topics, setTopics] = useState('');
  const [failedOnly, setFailedOnly] = useState(true);
  const [preview, setPreview] = useState<Schemas['ReplayResult'] | null>(null);

  const request: Schemas['ReplayRequest'] = {
    after: after.trim(),
    until: until.trim(),
    topics: list(topics),
    failed_only: failedOnly,
  };
  const flags = list(topics).flatMap((t) => ['--topic', t]);
  const field = (label: string, value: string, set: (v: string) => void, help: string, required = false) => (
    <label class="field">
      <span class="label">{label}</span>
      <input
        value={value}
        required={required}
        onInput={(e) => {
          set(e.currentTarget.value);
          setPreview(null);
        }}
      />
      <span class="help">{help}</span>
    </label>
  );

  return (
    <Confirm
      title={`Replay events to ${sink}`}
      confirm={preview ? `Replay ${plural(preview.replayed, 'event')}` : 'Count the events'}
      disabled={preview?.replayed === 0 || !request.after}
      command={command(
        ...['sinks', 'replay', sink, '--since', request.after || '1h'],
        ...(request.until ? ['--until', request.until] : []),
        ...flags,
        failedOnly && '--failed-only',
      )}
      onClose={onClose}
      action={async () => {
        const { data } = await post('/api/sinks/{name}/replay', {
          params: { name: sink },
          body: { ...request, dry_run: !preview },
        });
        if (!preview) {
          setPreview(data);
          return false;
        }
        onDone();
        return <p>{plural(data.replayed, 'delivery was', 'deliveries were')} scheduled.</p>;
      }}
    >
      <p>The sink receives events of the log again, with the same IDs. Its filter still applies.</p>
      {field('Since', after, setAfter, 'An age such as 2h, a time (RFC 3339), or a cursor of a stream.', true)}
      {field('Until', until, setUntil, 'An age or a time. Empty means now.')}
      {field('Topics', topics, setTopics, "Patterns such as 'job.*', separated by commas. Empty means all.")}
      <label class="choice">
        <input
          type="checkbox"
          checked={failedOnly}
          onChange={(e) => {
            setFailedOnly(e.currentTarget.checked);
            setPreview(null);
          }}
        />
        Only events that the sink has not accepted, without those that a full queue dropped
      </label>
      <div aria-live="polite">
        {preview ? (
          <p class={`notice ${preview.replayed ? 'warn' : ''}`}>
            {preview.replayed
              ? `The sink would receive ${plural(preview.replayed, 'event')} again.`
              : 'No events match.'}
            {preview.skipped ? ` Skipped, because they still wait or are retried: ${number(preview.skipped)}.` : ''}
            {preview.complete ? '' : ' The log no longer contains everything since then.'}
          </p>
        ) : null}
      </div>
    </Confirm>
  );
}
