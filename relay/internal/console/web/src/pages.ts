import { useEffect, useReducer, useRef } from 'preact/hooks';
import { type Polled, usePolling } from './poll';
import { parseRoute, setPosition, useRoute } from './router';

export interface Page<T> {
  data: T[];
  next: string;
}

interface Request {
  after: string;
  limit: number;
}

type Row<P extends Page<unknown>> = P['data'][number];
type Read<P> = (page: Request, signal: AbortSignal) => Promise<P>;

const firstPage = 100;
const laterPage = 500;

/** Store contains the pages of a list that were read. */
class Store<P extends Page<unknown>> {
  rows: Row<P>[] = [];
  /** The last page that was read. */
  last: P | undefined;
  /** The position of each page, and the index of its first row. */
  pages: { after: string; first: number }[] = [];
  isLoading = false;
  isStale = false;
  error: Error | undefined;
  /** The first visible row. */
  first = 0;
  readonly controller = new AbortController();

  constructor(
    readonly deps: string,
    readonly start: string,
    private keyOf: (row: Row<P>) => string,
  ) {}

  /** add returns the rows with the ones of a page that are new. A page can repeat rows of an earlier one. */
  private add(rows: Row<P>[], page: P): Row<P>[] {
    const known = new Set(rows.slice(-2 * laterPage).map(this.keyOf));
    return [...rows, ...page.data.filter((row) => !known.has(this.keyOf(row)))];
  }

  /** reload reads the pages up to the visible row again. */
  async reload(read: Read<P>, signal: AbortSignal) {
    const pages: { after: string; first: number }[] = [];
    let rows: Row<P>[] = [];
    let after = this.start;
    let page: P;
    const until = this.pages.length > 1 ? this.first + firstPage : 0;
    do {
      page = await read({ after, limit: pages.length ? laterPage : firstPage }, signal);
      pages.push({ after, first: rows.length });
      rows = this.add(rows, page);
      after = page.next;
    } while (after && rows.length < until);
    return { rows, pages, last: page, isStale: false, error: undefined };
  }

  /** loadMore reads the next page. */
  async loadMore(read: Read<P>) {
    const after = this.last?.next;
    if (!after) return;
    const { pages } = this;
    const page = await read({ after, limit: laterPage }, this.controller.signal);
    if (pages !== this.pages) return; // the list was read again
    this.pages = [...pages, { after, first: this.rows.length }];
    this.rows = this.add(this.rows, page);
    this.last = page;
  }
}

export interface Paged<P extends Page<unknown>> extends Polled<P> {
  /** start is the position of the first page. Empty means the start of the list. */
  start: string;
  /** hasPages reports whether several pages are shown. */
  hasPages: boolean;
  /** isPaused reports whether the list does not refresh itself, because several pages are shown. */
  isPaused: boolean;
  isLoading: boolean;
  moreError: Error | undefined;
  more: () => void;
  /** onEnd loads the next page when the end is near. */
  onEnd: () => void;
  onFirst: (index: number) => void;
}

/**
 * usePages reads a list page by page. The value after of the address is the page at the top of the view, so a reload and the
 * history return to it. Rows of all pages are in data.
 */
export function usePages<T>(
  read: Read<Page<T>>,
  keyOf: (row: T) => string,
  interval: number,
  deps: string,
): Paged<Page<T>> {
  const start = useRoute().query.get('after') ?? '';
  const key = `${deps}\n${start}`;
  const [, render] = useReducer((n: number) => n + 1, 0);
  const store = useRef<Store<Page<T>>>(null);
  if (store.current?.deps !== key) store.current = new Store<Page<T>>(key, start, keyOf);
  const s = store.current;
  const polled = usePolling(
    async (signal) => {
      const s = store.current as Store<Page<T>>;
      if (s.pages.length > 1 && !s.isStale) return s.pages;
      const { pages } = s;
      const fresh = await s.reload(read, signal);
      // A page that was added during the request stays, unless a change made it stale.
      if (s.pages === pages || s.isStale) Object.assign(s, fresh);
      return s.pages;
    },
    interval,
    key,
  );
  const timer = useRef(0);
  useEffect(() => {
    const { controller } = store.current as Store<Page<T>>;
    return () => {
      controller.abort();
      clearTimeout(timer.current);
    };
  }, [key]);

  async function more() {
    if (s.isLoading || s.isStale || !s.last?.next) return;
    s.isLoading = true;
    s.error = undefined;
    render(0);
    try {
      await s.loadMore(read);
    } catch (e) {
      if (s.controller.signal.aborted) return;
      s.error = e instanceof Error ? e : new Error(String(e));
    } finally {
      s.isLoading = false;
    }
    render(0);
  }
  const { last } = s;
  return {
    ...polled,
    data: polled.data && last ? { ...last, data: s.rows } : undefined,
    refresh: () => {
      s.isStale = true;
      polled.refresh();
    },
    start,
    hasPages: s.pages.length > 1,
    isPaused: interval > 0 && s.pages.length > 1,
    isLoading: s.isLoading,
    moreError: s.error,
    more,
    // A page without rows is the part of a search. It continues with the button.
    onEnd: () => {
      if (!s.error && last?.data.length) void more();
    },
    onFirst: (index) => {
      s.first = index;
      clearTimeout(timer.current);
      const { path } = parseRoute();
      timer.current = setTimeout(() => {
        if (path.join('/') !== parseRoute().path.join('/')) return;
        setPosition(s.pages.findLast((p) => p.first <= index)?.after ?? '');
      }, 200);
    },
  };
}
