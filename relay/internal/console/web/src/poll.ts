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

const maxBackoff = 30_000;

/**
 * usePolling calls fetch now, when an element of deps changes, and after each interval in milliseconds while the document
 * is visible. An interval of 0 means that it does not repeat.
 */
export function usePolling<T>(fetch: (signal: AbortSignal) => Promise<T>, interval: number, deps: string): Polled<T> {
  const [state, setState] = useState<{ deps: string; data?: T; error?: Error; disconnected: boolean }>({
    deps,
    disconnected: false,
  });
  const [turn, setTurn] = useState(0);
  const latest = useRef(fetch);
  latest.current = fetch;

  useEffect(() => {
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
        const data = await latest.current(controller.signal);
        failures = 0;
        loaded = true;
        setState({ deps, data, disconnected: false });
      } catch (e) {
        if (controller.signal.aborted) return;
        const error = e instanceof Error ? e : new Error(String(e));
        const disconnected = error instanceof NetworkError;
        setState((s) => ({
          deps,
          ...(s.deps === deps && s.data !== undefined ? { data: s.data } : {}),
          ...(disconnected ? {} : { error }),
          disconnected,
        }));
        if (disconnected) delay = Math.min(1000 * 2 ** failures++, maxBackoff);
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
  }, [deps, interval, turn]);

  const current = state.deps === deps;
  return {
    data: current ? state.data : undefined,
    error: current ? state.error : undefined,
    disconnected: state.disconnected,
    loading: !current || (state.data === undefined && !state.error && !state.disconnected),
    refresh: useCallback(() => setTurn((n) => n + 1), []),
  };
}
