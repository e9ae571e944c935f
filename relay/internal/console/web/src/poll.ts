import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { NetworkError } from './api';

export interface Polled<T> {
  /** The last data, also while the daemon is disconnected. */
  data: T | undefined;
  /** The error of the last request. A NetworkError is in disconnected instead. */
  error: Error | undefined;
  disconnected: boolean;
  loading: boolean;
  refresh: () => void;
}

interface State<T> {
  data?: T;
  error?: Error;
  disconnected: boolean;
}

type Fetch<T> = (signal: AbortSignal) => Promise<T>;

const maxBackoff = 30_000;

/**
 * poll calls fetch now and after each interval in milliseconds while the document is visible. An interval of 0 means that
 * it does not repeat. It returns a function that ends it.
 */
function poll<T>(fetch: Fetch<T>, interval: number, update: (change: (before: State<T>) => State<T>) => void) {
  const controller = new AbortController();
  let timer = 0;
  let failures = 0;
  let running = false;
  let loaded = false;

  async function run() {
    if (running || document.hidden) return;
    running = true;
    clearTimeout(timer);
    let delay = interval;
    try {
      const data = await fetch(controller.signal);
      if (controller.signal.aborted) return;
      failures = 0;
      loaded = true;
      update(() => ({ data, disconnected: false }));
    } catch (e) {
      if (controller.signal.aborted) return;
      const error = e instanceof Error ? e : new Error(String(e));
      const disconnected = error instanceof NetworkError;
      update((before) => ({
        ...(before.data !== undefined ? { data: before.data } : {}),
        ...(disconnected ? {} : { error }),
        disconnected,
      }));
      if (interval > 0 || disconnected) delay = Math.max(interval, Math.min(1000 * 2 ** failures++, maxBackoff));
    }
    running = false;
    if (delay > 0) timer = setTimeout(run, delay);
  }

  const onVisible = () => {
    if (!document.hidden && (interval > 0 || !loaded)) void run();
  };
  void run();
  document.addEventListener('visibilitychange', onVisible);
  return () => {
    controller.abort();
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', onVisible);
  };
}

const polled = <T>(s: State<T>, refresh: () => void): Polled<T> => ({
  data: s.data,
  error: s.error,
  disconnected: s.disconnected,
  loading: s.data === undefined && !s.error && !s.disconnected,
  refresh,
});

/** usePolling polls while the component is mounted. It starts again when deps changes. */
export function usePolling<T>(fetch: Fetch<T>, interval: number, deps: string): Polled<T> {
  const [state, setState] = useState<State<T> & { deps: string }>({ deps, disconnected: false });
  const [turn, setTurn] = useState(0);
  const latest = useRef(fetch);
  latest.current = fetch;
  useEffect(
    () =>
      poll<T>(
        (signal) => latest.current(signal),
        interval,
        (change) => setState((s) => ({ ...change(s.deps === deps ? s : { disconnected: false }), deps })),
      ),
    [deps, interval, turn],
  );
  const refresh = useCallback(() => setTurn((n) => n + 1), []);
  return polled(state.deps === deps ? state : { disconnected: state.disconnected }, refresh);
}

/** sharePolling returns a hook. All components that use it share one poller and its last data. */
export function sharePolling<T>(fetch: Fetch<T>, interval: number): () => Polled<T> {
  let state: State<T> = { disconnected: false };
  let stop = () => {};
  const listeners = new Set<() => void>();
  const start = () => {
    stop();
    // An error of the time before is not shown, for example that of a session that has ended.
    state = { ...(state.data !== undefined ? { data: state.data } : {}), disconnected: state.disconnected };
    stop = poll(fetch, interval, (change) => {
      state = change(state);
      for (const listener of listeners) listener();
    });
  };
  return () => {
    const [, render] = useState(0);
    useEffect(() => {
      const listener = () => render((n) => n + 1);
      listeners.add(listener);
      if (listeners.size === 1) start();
      return () => {
        listeners.delete(listener);
        if (listeners.size === 0) stop();
      };
    }, []);
    return polled(state, start);
  };
}
