import type { ComponentChildren } from 'preact';
import { post } from '../api';
import { command, plural } from '../format';
import { Confirm } from './Confirm';

export interface DeliveryRef {
  sink: string;
  id: string;
  /** isGroup is set for a batch or digest, which is changed as a whole. */
  isGroup?: boolean;
}

interface Props {
  change: 'retry' | 'drop';
  deliveries: DeliveryRef[];
  onClose: () => void;
  onDone: () => void;
  children?: ComponentChildren;
}

const unchanged: Record<string, string> = {
  running: 'A node attempts it now, or when the sink is resumed.',
  ordering: 'It follows an earlier delivery with its ordering key.',
  waiting: 'It was not attempted yet. A node attempts it as soon as possible.',
  digest: 'It is part of an open digest.',
  dead: 'It is a dead letter.',
  missing: 'It was delivered or dropped, or it is part of a batch or digest.',
  unknown: 'Redis was too slow to find it. Try again.',
};

/** ChangeDeliveries retries or drops deliveries that are scheduled. */
export function ChangeDeliveries({ change, deliveries, onClose, onDone, children }: Props) {
  const sinks = [...new Set(deliveries.map((d) => d.sink))];
  const idsOf = (sink: string) => [...new Set(deliveries.filter((d) => d.sink === sink).map((d) => d.id))];
  const retry = change === 'retry';
  const verb = retry ? 'Retry' : 'Drop';
  const count = sinks.reduce((n, sink) => n + idsOf(sink).length, 0);
  const what = count === 1 ? 'the delivery' : plural(count, 'delivery', 'deliveries');
  const to = sinks.length === 1 ? sinks[0] : plural(sinks.length, 'sink');
  return (
    <Confirm
      title={`${verb} ${what} to ${to}${retry ? ' now' : ''}?`}
      confirm={`${verb} ${what}`}
      danger={!retry}
      command={sinks.map((sink) => command('deliveries', change, sink, ...idsOf(sink))).join('\n')}
      onClose={onClose}
      action={async () => {
        const path = retry ? '/api/sinks/{name}/deliveries/retry' : '/api/sinks/{name}/deliveries/drop';
        const others: { id: string; reason: string }[] = [];
        const errors: string[] = [];
        for (const name of sinks) {
          try {
            const { data } = await post(path, { params: { name }, body: { ids: idsOf(name) } });
            others.push(...data.unchanged);
          } catch (e) {
            errors.push(`${name}: ${e instanceof Error ? e.message : String(e)}`);
          }
        }
        onDone();
        if (others.length === 0 && errors.length === 0) return null;
        return (
          <>
            {errors.map((e) => (
              <p key={e} class="notice bad">
                {e}
              </p>
            ))}
            {others.length ? <p>{plural(others.length, 'delivery stays', 'deliveries stay')} unchanged.</p> : null}
            <ul>
              {others.slice(0, 20).map((o) => (
                <li key={o.id}>
                  <span class="mono">{o.id}</span> {unchanged[o.reason] ?? o.reason}
                </li>
              ))}
            </ul>
          </>
        );
      }}
    >
      <p>
        {retry
          ? 'The next attempts become due now. If they fail, the deliveries continue their schedule.'
          : `They are removed permanently. ${sinks.join(', ')} never ${sinks.length === 1 ? 'receives' : 'receive'} them.`}
      </p>
      {deliveries.some((d) => d.isGroup) ? (
        <p class="notice warn">
          A batch or digest is one delivery. All of its events are {retry ? 'retried' : 'dropped'}.
        </p>
      ) : null}
      {children}
    </Confirm>
  );
}
