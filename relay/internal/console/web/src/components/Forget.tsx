import { useState } from 'preact/hooks';
import { post, type Schemas } from '../api';
import { command, plural } from '../format';
import { navigate } from '../router';
import { Confirm } from './Confirm';

/** Forget deletes the data of a sink that is no longer configured. */
export function Forget({ sink, onClose }: { sink: Schemas['Sink']; onClose: () => void }) {
  const [deadLetters, setDeadLetters] = useState(false);
  const { name } = sink;
  return (
    <Confirm
      title={`Forget ${name}?`}
      confirm={`Forget ${name}`}
      danger
      command={command('sinks', 'forget', name, deadLetters && '--dead-letters')}
      onClose={onClose}
      action={async () => {
        await post('/api/sinks/{name}/forget', { params: { name }, body: { dead_letters: deadLetters } });
        navigate('#/sinks');
        return null;
      }}
    >
      <p>
        The relay deletes what {name} has not delivered permanently: {plural(sink.waiting, 'waiting event')} and{' '}
        {plural(sink.retrying, 'retrying delivery', 'retrying deliveries')}. It also deletes the state and the position
        in the log.
      </p>
      <label class="choice">
        <input type="checkbox" checked={deadLetters} onChange={(e) => setDeadLetters(e.currentTarget.checked)} />
        Delete {plural(sink.dead, 'dead letter')}, too
      </label>
    </Confirm>
  );
}
