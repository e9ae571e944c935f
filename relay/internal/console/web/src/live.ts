import { useEffect, useRef, useState } from 'preact/hooks';
import { get, type Schemas } from './api';
import { usePolling } from './poll';

type Event = Schemas['Event'];

const interval = 500;
const maxRows = 2000;
const maxPages = 4;
const pageSize = 500;
/** An event can appear later than a newer one, because of the clocks of several Redis servers. Each poll overlaps. */
const overlap = 5000;
const rateSeconds = 5;

export interface LiveFilter {
  topics: string[];
  hub_id: string;
  account_id: string;
}

interface Live {
  /** The newest events, the newest first. */
  rows: Event[];
  rate: number;
  /** skipped reports that more events arrived than one poll reads. */
  skipped: boolean;
}

class Log {
  rows: Event[] = [];
  private ids = new Set<string>();
  private arrivals: { time: number; count: number }[] = [];
  /** The time of the newest event of all at the last poll, in milliseconds. */
  private until = 0;
  private skipped = false;

  async read(filter: LiveFilter, signal: AbortSignal): Promise<Live> {
    // Without this, a filter that matches little would search the log back to its last match again and again.
    const isFiltered = filter.topics.length > 0 || filter.hub_id !== '' || filter.account_id !== '';
    const newest = isFiltered ? (await get('/api/events', { query: { limit: 1 }, signal })).data[0] : undefined;
    const since = this.until ? new Date(this.until - overlap).toISOString() : '';
    const fresh: Event[] = [];
    let after = '';
    for (let page = 0; page < (since ? maxPages : 1); page++) {
      const limit = since ? pageSize : 100;
      const { data, next } = await get('/api/events', { query: { ...filter, since, after, limit }, signal });
      fresh.push(...data.filter((e) => !this.ids.has(e.id)));
      after = next;
      if (!next) break;
    }
    // The overlap alone can fill all pages. Events before them can be missing only if none of these is known.
    if (since && after && fresh.length >= maxPages * pageSize) this.skipped = true;
    this.add(fresh, since !== '');
    const until = newest ?? this.rows[0];
    if (until) this.until = Date.parse(until.time);
    return { rows: this.rows, rate: this.rate(), skipped: this.skipped };
  }

  private add(fresh: Event[], count: boolean) {
    // A page can contain an event of the page before it again.
    const unique = [...new Map(fresh.map((e) => [e.id, e])).values()];
    this.arrivals.push({ time: performance.now(), count: count ? unique.length : 0 });
    if (unique.length === 0) return;
    const newest = this.rows[0] ? Date.parse(this.rows[0].time) : 0;
    const rows = [...unique, ...this.rows];
    // Only events of the overlap can be out of order.
    if (unique.some((e) => Date.parse(e.time) < newest)) rows.sort((a, b) => Date.parse(b.time) - Date.parse(a.time));
    this.rows = rows.slice(0, maxRows);
    this.ids = new Set(this.rows.map((e) => e.id));
  }

  /** rate returns the events per second of the last seconds. */
  private rate(): number {
    const now = performance.now();
    this.arrivals = this.arrivals.filter((a) => now - a.time <= rateSeconds * 1000);
    const first = this.arrivals[0];
    const elapsed = first ? (now - first.time) / 1000 : 0;
    return elapsed > 0 ? this.arrivals.slice(1).reduce((n, a) => n + a.count, 0) / elapsed : 0;
  }
}

/** useLive reads new events, unless it is paused. */
export function useLive(filter: LiveFilter, paused: boolean) {
  const deps = JSON.stringify(filter);
  const log = useRef({ deps, log: new Log() });
  if (log.current.deps !== deps) log.current = { deps, log: new Log() };
  const held = useRef(paused);
  held.current = paused;
  const [last, setLast] = useState<{ deps: string; live: Live } | null>(null);
  const live = usePolling(
    async (signal) => {
      if (held.current) return null;
      const live = await log.current.log.read(filter, signal);
      setLast({ deps, live });
      return live;
    },
    interval,
    deps,
  );
  const { refresh } = live;
  useEffect(() => {
    if (!paused) refresh();
  }, [paused, refresh]);
  return { polled: live, live: last?.deps === deps ? last.live : null };
}
