import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

interface Props<T> {
  label: string;
  rows: T[];
  rowKey: (row: T) => string;
  /** rowHeight is the height of every row in pixels. */
  rowHeight: number;
  /** added is the number of rows that were ever added at the start. */
  added: number;
  children: (row: T) => ComponentChildren;
}

const margin = 6;

/** VirtualList renders only the visible rows. Rows that are added at the start do not move the visible ones. */
export function VirtualList<T>({ label, rows, rowKey, rowHeight, added, children }: Props<T>) {
  const area = useRef<HTMLDivElement>(null);
  const before = useRef(added);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);

  useEffect(() => {
    const div = area.current;
    if (!div) return;
    const resize = new ResizeObserver(() => setHeight(div.clientHeight));
    resize.observe(div);
    return () => resize.disconnect();
  }, []);

  useLayoutEffect(() => {
    const div = area.current;
    if (div && div.scrollTop > 0) div.scrollTop += (added - before.current) * rowHeight;
    before.current = added;
  }, [added, rowHeight]);

  const first = Math.max(0, Math.floor(top / rowHeight) - margin);
  const visible = rows.slice(first, Math.ceil((top + height) / rowHeight) + margin);
  return (
    <div ref={area} class="virtual" onScroll={(e) => setTop(e.currentTarget.scrollTop)}>
      <ul aria-label={label} style={{ height: `${rows.length * rowHeight}px` }}>
        {visible.map((row, i) => (
          <li
            key={rowKey(row)}
            aria-setsize={rows.length}
            aria-posinset={first + i + 1}
            style={{ height: `${rowHeight}px`, transform: `translateY(${(first + i) * rowHeight}px)` }}
          >
            {children(row)}
          </li>
        ))}
      </ul>
    </div>
  );
}
