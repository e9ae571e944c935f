import { collect, get, type Schemas } from './api';
import { sharePolling } from './poll';

type Sink = Schemas['Sink'];

const interval = 2000;
const maxPoints = 900;
/** After a longer time without a poll, such as that of a hidden page, a plot shows a gap. */
const maxGap = 10;

/** Series are values at the same times. A value is null if it is unknown. */
export class Series<Name extends string> {
  readonly times: number[] = [];
  readonly values = {} as Record<Name, (number | null)[]>;

  constructor(readonly names: readonly Name[]) {
    for (const name of names) this.values[name] = [];
  }

  add(time: number, point: Record<Name, number | null>) {
    const last = this.times.at(-1);
    if (last !== undefined && time <= last) return;
    if (last !== undefined && time - last > maxGap) this.push(last + 0.001, null);
    this.push(time, point);
    const excess = this.times.length - maxPoints;
    if (excess <= 0) return;
    this.times.splice(0, excess);
    for (const name of this.names) this.values[name].splice(0, excess);
  }

  private push(time: number, point: Record<Name, number | null> | null) {
    this.times.push(time);
    for (const name of this.names) this.values[name].push(point?.[name] ?? null);
  }

  last(name: Name): number | null {
    return this.values[name].at(-1) ?? null;
  }
}

const sinkNames = ['delivered', 'failed', 'attempt_ms', 'waiting', 'retrying', 'dead'] as const;
export type SinkSeries = Series<(typeof sinkNames)[number]>;
const newSinkSeries = (): SinkSeries => new Series(sinkNames);

/** eventSeries has the events per second. */
export const eventSeries = new Series(['events']);
/** allSinks has the sums of all sinks. */
export const allSinks = newSinkSeries();
const sinks = new Map<string, SinkSeries>();

export function sinkSeries(name: string): SinkSeries {
  let series = sinks.get(name);
  if (!series) {
    series = newSinkSeries();
    sinks.set(name, series);
  }
  return series;
}

export const failedAttempts = (s: Sink) => Object.values(s.failed_attempts).reduce((sum, n) => sum + n, 0);

interface Counts {
  delivered: number;
  failed: number;
  seconds: number;
}
interface Before {
  time: number;
  sinks: Map<string, Counts>;
}
let before: Before | null = null;
let storedBefore: { time: number; stored: number } | null = null;

/** growth returns the growth of a counter, or null if a node has lost counts. */
const growth = (now: number, then: number) => (now >= then ? now - then : null);

const sum = (numbers: (number | null)[]) => numbers.reduce<number>((n, m) => n + (m ?? 0), 0);

function addSinks(list: Sink[]) {
  const time = Date.now() / 1000;
  const elapsed = before ? time - before.time : 0;
  const counts = new Map<string, Counts>();
  const points: { delivered: number | null; failed: number | null; seconds: number | null }[] = [];
  for (const s of list) {
    const c = { delivered: s.delivered, failed: failedAttempts(s), seconds: s.attempt_seconds };
    const b = elapsed > 0 && elapsed <= maxGap ? before?.sinks.get(s.name) : undefined;
    counts.set(s.name, c);
    const point = {
      delivered: b ? growth(c.delivered, b.delivered) : null,
      failed: b ? growth(c.failed, b.failed) : null,
      seconds: b ? growth(c.seconds, b.seconds) : null,
    };
    points.push(point);
    sinkSeries(s.name).add(time, {
      ...rates([point], elapsed),
      waiting: s.waiting,
      retrying: s.retrying,
      dead: s.dead,
    });
  }
  allSinks.add(time, {
    ...rates(points, elapsed),
    waiting: sum(list.map((s) => s.waiting)),
    retrying: sum(list.map((s) => s.retrying)),
    dead: sum(list.map((s) => s.dead)),
  });
  for (const name of sinks.keys()) if (!counts.has(name)) sinks.delete(name);
  before = { time, sinks: counts };
}

function rates(points: { delivered: number | null; failed: number | null; seconds: number | null }[], elapsed: number) {
  const known = points.filter((p) => p.delivered !== null && p.failed !== null);
  if (known.length === 0) return { delivered: null, failed: null, attempt_ms: null };
  const delivered = sum(known.map((p) => p.delivered));
  const failed = sum(known.map((p) => p.failed));
  const seconds = sum(known.map((p) => p.seconds));
  const attempts = delivered + failed;
  return {
    delivered: delivered / elapsed,
    failed: failed / elapsed,
    attempt_ms: attempts > 0 ? (seconds / attempts) * 1000 : null,
  };
}

/** useSinks returns all sinks, and adds their stats to the series. */
export const useSinks = sharePolling(async (signal) => {
  const { data } = await collect((after) => get('/api/sinks', { query: { after }, signal }));
  addSinks(data);
  return data;
}, interval);

/** useStatus returns the status of the relay, and adds it to the series. */
export const useStatus = sharePolling(async (signal) => {
  const { data } = await get('/api/status', { signal });
  const now = { time: Date.now() / 1000, stored: data.log.stored };
  const elapsed = storedBefore ? now.time - storedBefore.time : 0;
  const known = storedBefore && now.stored >= 0 && elapsed > 0 && elapsed <= maxGap;
  const n = known && storedBefore ? growth(now.stored, storedBefore.stored) : null;
  eventSeries.add(now.time, { events: n === null ? null : n / elapsed });
  storedBefore = now;
  return data;
}, interval);
