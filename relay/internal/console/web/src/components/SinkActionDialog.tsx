import type { ComponentChildren } from 'preact';
import { post, type Schemas } from '../api';
import { command, plural } from '../format';
import { Attempts } from './Attempts';
import { Confirm } from './Confirm';
import { Forget } from './Forget';
import { Replay } from './Replay';

export type SinkAction = 'pause' | 'resume' | 'retry' | 'test' | 'replay' | 'forget';

interface Props {
  sink: Schemas['Sink'];
  action: SinkAction;
  onClose: () => void;
  onDone: () => void;
}

/** SinkActionDialog says what an action on a sink does, and starts it. */
export function SinkActionDialog({ sink, action, onClose, onDone }: Props) {
  const { name } = sink;
  const params = { name };
  const common = { onClose, command: command('sinks', action, name) };
  const undelivered = plural(sink.waiting, 'event is', 'events are');
  const after = (result: ComponentChildren) => {
    onDone();
    return result;
  };
  switch (action) {
    case 'forget':
      return <Forget sink={sink} onClose={onClose} />;
    case 'replay':
      return <Replay sink={name} onClose={onClose} onDone={onDone} />;
    case 'pause':
      return (
        <Confirm
          {...common}
          title={`Pause ${name}?`}
          confirm="Pause the sink"
          action={async () => {
            await post('/api/sinks/{name}/pause', { params });
            return after(null);
          }}
        >
          <p>
            All nodes stop deliveries to this sink within about a second. Events are kept up to the limit of the
            backlog. {undelivered} waiting now.
          </p>
        </Confirm>
      );
    case 'resume':
      return (
        <Confirm
          {...common}
          title={`Resume ${name}?`}
          confirm="Resume the sink"
          action={async () => {
            await post('/api/sinks/{name}/resume', { params });
            return after(null);
          }}
        >
          <p>
            Deliveries continue with the backlog: {undelivered} waiting, and{' '}
            {plural(sink.retrying, 'delivery is', 'deliveries are')} retrying.
          </p>
        </Confirm>
      );
    case 'retry':
      return (
        <Confirm
          {...common}
          title={`Retry the deliveries of ${name} now?`}
          confirm={`Retry ${plural(sink.retrying, 'delivery', 'deliveries')}`}
          action={async () => {
            const { data } = await post('/api/sinks/{name}/retry', { params });
            return after(<p>{plural(data.started, 'delivery is', 'deliveries are')} due now.</p>);
          }}
        >
          <p>
            The next attempts of {plural(sink.retrying, 'retrying delivery', 'retrying deliveries')} become due now.
            They start as fast as the limits of the sink allow. Dead letters are not retried.
          </p>
          {sink.state === 'down' ? <p>The sink is down, so one attempt probes the destination first.</p> : null}
        </Confirm>
      );
    case 'test':
      return (
        <Confirm
          {...common}
          title={`Test ${name}?`}
          confirm="Send a sample"
          action={async () => {
            const { data } = await post('/api/sinks/{name}/test', { params });
            return after(
              <div class="stack">
                <p>{data.outcome === 'delivered' ? 'The destination accepted the sample.' : 'The attempt failed.'}</p>
                <Attempts attempts={[data]} />
              </div>,
            );
          }}
        >
          <p>
            The relay sends one sample to the destination, with the address, secrets and limits of the sink. The sample
            is not stored and not retried.
          </p>
        </Confirm>
      );
  }
}
