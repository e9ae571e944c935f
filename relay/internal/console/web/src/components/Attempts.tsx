import { milliseconds } from '../format';
import { State, Time } from './ui';

interface Attempt {
  number?: number;
  time: string;
  outcome: string;
  status?: number;
  error?: string;
  duration_ms: number;
  node?: string;
  response?: string;
  delivery_id?: string;
}

const tones: Record<string, string> = { delivered: 'good', retry: 'warn', permanent: 'bad', gone: 'bad' };

/** Attempts shows attempts as a timeline, the oldest first. */
export function Attempts({ attempts }: { attempts: Attempt[] }) {
  return (
    <ol class="timeline">
      {attempts.map((a, i) => (
        <li key={`${a.time} ${i}`} class={tones[a.outcome] ?? ''}>
          <div class="line">
            {a.number ? <span class="muted">#{a.number}</span> : null}
            <Time time={a.time} />
            <State state={a.outcome} />
            {a.status ? <span class="mono">{a.status}</span> : null}
            <span class="muted">{milliseconds(a.duration_ms)}</span>
            {a.node ? <span class="muted">on {a.node}</span> : null}
            {a.delivery_id ? (
              <span class="muted">
                in <span class="mono">{a.delivery_id}</span>
              </span>
            ) : null}
          </div>
          {a.error ? <p>{a.error}</p> : null}
          {a.response ? <p class="mono muted">{a.response}</p> : null}
        </li>
      ))}
    </ol>
  );
}
