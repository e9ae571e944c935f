import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import { useWindow } from '../window';

interface Props<T> {
  label: string;
  rows: T[];
  rowKey: (row: T) => string;
  /** rowHeight is the height of every row in pixels. */
  rowHeight: number;
  children: (row: T) => ComponentChildren;
}

/** VirtualList renders only the visible rows. Rows that are added at the start do not move the visible ones. */
export function VirtualList<T>({ label, rows, rowKey, rowHeight, children }: Props<T>) {
  const area = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const keyOf = (i: number) => rowKey(rows[i] as T);
  const { indexes, offset } = useWindow({ list, area, count: rows.length, keyOf, rowHeight });
  return (
    <div ref={area} class="virtual">
      <ul ref={list} aria-label={label} style={{ height: `${rows.length * rowHeight}px` }}>
        {indexes.map((i) => (
          <li
            key={keyOf(i)}
            data-row={i}
            data-key={keyOf(i)}
            aria-setsize={rows.length}
            aria-posinset={i + 1}
            style={{ height: `${rowHeight}px`, transform: `translateY(${offset(i)}px)` }}
          >
            {children(rows[i] as T)}
          </li>
        ))}
      </ul>
    </div>
  );
}
