import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useReducer, useRef } from 'preact/hooks';

/** Shorter lists are rendered as a whole. */
const minWindow = 80;
/** The number of rows that are rendered before and after the visible ones. */
const margin = 16;
/** The range changes in steps, so that most scroll events render nothing. */
const step = 8;
/** onEnd is called when fewer rows than this follow the visible ones. */
const nearEnd = 60;

/** Heights stores the height of each row: the measured one, or an estimate. */
class Heights {
  /** 0 means that the row was not measured. */
  private measured = new Float32Array(0);
  private offsets = new Float64Array(1);
  private count = 0;
  /** The offsets up to this row are valid. */
  private valid = 0;
  private hasEstimate = false;

  constructor(private estimate: number) {}

  reset() {
    this.measured.fill(0);
    this.valid = 0;
    this.hasEstimate = false;
  }

  private height(index: number): number {
    return this.measured[index] || this.estimate;
  }

  /** set reports whether offsets change. Most rows have the estimated height, so they change none. */
  set(index: number, height: number): boolean {
    if (index >= this.count || height <= 0) return false;
    const before = this.height(index);
    this.measured[index] = height;
    if (!this.hasEstimate) {
      // The estimate stays, because a change of it moves all rows.
      this.hasEstimate = true;
      this.estimate = height;
      this.valid = 0;
    }
    if (Math.abs(before - height) < 0.5) {
      this.measured[index] = before;
      return false;
    }
    this.valid = Math.min(this.valid, index);
    return true;
  }

  resize(count: number) {
    if (count >= this.offsets.length) {
      const capacity = Math.max(count, 2 * this.count);
      const [measured, offsets] = [new Float32Array(capacity), new Float64Array(capacity + 1)];
      measured.set(this.measured);
      offsets.set(this.offsets);
      this.measured = measured;
      this.offsets = offsets;
    }
    this.measured.fill(0, count, this.count);
    this.count = count;
    this.valid = Math.min(this.valid, count);
    let sum = this.offset(this.valid);
    for (; this.valid < count; this.valid++) {
      sum += this.height(this.valid);
      this.offsets[this.valid + 1] = sum;
    }
  }

  /** offset is the distance of a row from the start of the list. */
  offset(index: number): number {
    return this.offsets[index] ?? 0;
  }

  /** indexAt returns the row at a distance from the start of the list. */
  indexAt(offset: number): number {
    let low = 0;
    let high = Math.max(0, this.count - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offset(middle) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

const rowsOf = (list: HTMLElement) => list.querySelectorAll<HTMLElement>(':scope > [data-row]');

interface Place {
  index: number;
  key: string;
}

interface Options {
  /** list contains the rows. Each has its index in the attribute data-row. */
  list: RefObject<HTMLElement | null>;
  /** area is the element that scrolls. Without it, the page scrolls. */
  area?: RefObject<HTMLElement | null> | undefined;
  count: number;
  keyOf: (index: number) => string;
  /** rowHeight is the height of each row. Without it, the rows are measured. */
  rowHeight?: number;
  onEnd?: (() => void) | undefined;
  /** onFirst receives the index of the first visible row. */
  onFirst?: ((index: number) => void) | undefined;
}

export interface Window {
  /** The rows to render, in order. They have gaps. */
  indexes: number[];
  offset: (index: number) => number;
}

/**
 * useWindow selects the rows of a long list to render: the ones in view, some around them, and the one with the focus. When
 * rows are added or removed before the first visible row, the rows in view stay at their place.
 */
export function useWindow({ list, area, count, keyOf, rowHeight, onEnd, onFirst }: Options): Window {
  const [, render] = useReducer((n: number) => n + 1, 0);
  const heights = useRef<Heights>(null);
  heights.current ??= new Heights(rowHeight ?? 34);
  const h = heights.current;
  h.resize(count);
  /** The first visible row, if rows precede the view, and the pixels of it that are out of view. */
  const anchor = useRef<(Place & { hidden: number }) | null>(null);
  const focus = useRef<Place | null>(null);
  const view = useRef({ height: 900, scroll: 0, width: 0 });

  /** find updates the index of a place. */
  const find = (place: Place) => {
    if (place.index < count && keyOf(place.index) === place.key) return true;
    for (let i = 0; i < count; i++) {
      if (keyOf(i) !== place.key) continue;
      place.index = i;
      return true;
    }
    return false;
  };
  const range = () => {
    const top = anchor.current ? h.offset(anchor.current.index) + anchor.current.hidden : 0;
    const last = h.indexAt(top + view.current.height);
    const first = anchor.current?.index ?? 0;
    const start = Math.max(0, Math.floor((first - margin) / step) * step);
    const end = Math.min(count, Math.max(Math.ceil((last + 1 + margin) / step) * step, anchor.current ? 0 : minWindow));
    return count <= minWindow ? { start: 0, end: count, last: count } : { start, end, last };
  };

  if (anchor.current && !find(anchor.current)) {
    const index = Math.min(anchor.current.index, Math.max(0, count - 1));
    anchor.current = count ? { index, key: keyOf(index), hidden: 0 } : null;
  }
  const { start, end, last } = range();
  const indexes = Array.from({ length: end - start }, (_, i) => start + i);
  if (focus.current && find(focus.current)) {
    const { index } = focus.current;
    if (index < start) indexes.unshift(index);
    else if (index >= end) indexes.push(index);
  }

  const scroller = () => area?.current ?? document.scrollingElement ?? document.documentElement;
  const viewTop = () => (area?.current ? area.current.getBoundingClientRect().top : 0);

  /** read reads the position of the view. */
  const read = () => {
    const element = list.current;
    if (!element) return;
    const box = element.getBoundingClientRect();
    const top = viewTop();
    const bottom = area?.current ? Math.min(innerHeight, top + area.current.clientHeight) : innerHeight;
    const before = top - box.top;
    view.current.scroll = scroller().scrollTop;
    view.current.height = Math.max(0, before > 0 ? bottom - top : bottom - box.top);
    anchor.current = null;
    if (before <= 0 || count === 0) return;
    // The rows can have another height than the measured one since then.
    for (const row of rowsOf(element)) {
      const { top: start, bottom: end } = row.getBoundingClientRect();
      const index = Number(row.dataset.row);
      if (start > top || index >= count) break;
      if (end > top) anchor.current = { index, key: keyOf(index), hidden: top - start };
    }
    if (anchor.current) return;
    const index = h.indexAt(before);
    anchor.current = { index, key: keyOf(index), hidden: before - h.offset(index) };
  };
  const shown = useRef({ start, end });
  shown.current = { start, end };
  const onScroll = () => {
    read();
    onFirst?.(anchor.current?.index ?? 0);
    const now = range();
    if (now.start !== shown.current.start || now.end !== shown.current.end) render(0);
  };
  const latest = useRef(onScroll);
  latest.current = onScroll;

  useEffect(() => {
    const element = list.current;
    if (!element) return;
    const scrolled = () => latest.current();
    // The capture phase also receives the events of areas that scroll.
    addEventListener('scroll', scrolled, { capture: true, passive: true });
    const frame = element.closest('.table, .virtual');
    const resize = new ResizeObserver(() => {
      if (frame && frame.clientWidth !== view.current.width) {
        view.current.width = frame.clientWidth;
        if (rowHeight === undefined) h.reset();
        render(0);
      }
      latest.current();
    });
    if (frame) resize.observe(frame);
    addEventListener('resize', scrolled);
    const focused = (e: FocusEvent) => {
      const row =
        e.type === 'focusin' && e.target instanceof Element ? e.target.closest<HTMLElement>('[data-row]') : null;
      const key = row?.dataset.key;
      focus.current = row && key !== undefined ? { index: Number(row.dataset.row), key } : null;
    };
    element.addEventListener('focusin', focused);
    element.addEventListener('focusout', focused);
    return () => {
      removeEventListener('scroll', scrolled, { capture: true });
      removeEventListener('resize', scrolled);
      resize.disconnect();
      element.removeEventListener('focusin', focused);
      element.removeEventListener('focusout', focused);
    };
  }, [h, list, rowHeight]);

  useLayoutEffect(() => {
    const element = list.current;
    if (!element) return;
    let isNew = false;
    if (rowHeight === undefined)
      for (const row of rowsOf(element))
        if (h.set(Number(row.dataset.row), row.getBoundingClientRect().height)) isNew = true;
    const area = scroller();
    // A scroll position that no event has reported yet is the one of the user.
    if (area.scrollTop !== view.current.scroll) read();
    else if (anchor.current) {
      const row = element.querySelector(`:scope > [data-row="${anchor.current.index}"]`);
      const move = row ? row.getBoundingClientRect().top + anchor.current.hidden - viewTop() : 0;
      if (Math.abs(move) > 1) area.scrollTop += move;
      view.current.scroll = area.scrollTop;
    }
    if (isNew) render(0);
  });

  useEffect(() => {
    if (last >= count - nearEnd) onEnd?.();
  });
  return { indexes, offset: (index) => h.offset(index) };
}
