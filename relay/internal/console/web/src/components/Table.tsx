import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { setQuery, useRoute } from '../router';

export interface Column<T> {
  id: string;
  label: string;
  cell: (row: T) => ComponentChildren;
  /** sort returns the value to sort by. Columns without it cannot be sorted. */
  sort?: (row: T) => string | number;
  numeric?: boolean;
  /** wide columns may break lines. */
  wide?: boolean;
}

interface Props<T> {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  /** stack shows each row as a card on phones, so no column is out of sight. The order cannot be changed there. */
  stack?: boolean;
  selected?: Set<string>;
  onSelect?: (keys: Set<string>) => void;
  /** canSelect reports whether a row has a checkbox. */
  canSelect?: (row: T) => boolean;
}

/** Table sorts by the values sort and desc of the address. */
export function Table<T>({
  caption,
  columns,
  rows,
  rowKey,
  stack,
  selected,
  onSelect,
  canSelect = () => true,
}: Props<T>) {
  const { query } = useRoute();
  const area = useRef<HTMLDivElement>(null);
  const [scrolls, setScrolls] = useState(false);
  useLayoutEffect(() => {
    const div = area.current;
    if (!div) return;
    const measure = () => setScrolls(div.scrollWidth > div.clientWidth);
    measure();
    const resize = new ResizeObserver(measure);
    resize.observe(div);
    for (const child of div.children) resize.observe(child);
    return () => resize.disconnect();
  }, []);
  const by = columns.find((c) => c.sort && c.id === query.get('sort'));
  const desc = query.get('desc') === '1';
  const sort = by?.sort;
  const sorted = sort
    ? [...rows].sort((a, b) => {
        const [x, y] = [sort(a), sort(b)];
        return (x < y ? -1 : x > y ? 1 : 0) * (desc ? -1 : 1);
      })
    : rows;
  const selectable = rows.filter(canSelect).map(rowKey);

  function toggleSort(column: Column<T>) {
    const first = column.numeric ? '1' : undefined;
    if (by !== column) setQuery({ sort: column.id, desc: first });
    else setQuery({ desc: desc ? undefined : '1' });
  }

  return (
    // An area that scrolls must be reachable with the keyboard, also if it contains no links.
    <div
      ref={area}
      class={stack ? 'table stack' : 'table'}
      {...(scrolls ? { tabIndex: 0, role: 'region', 'aria-label': caption } : {})}
    >
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {onSelect && selected ? (
              <th scope="col" class="check">
                <input
                  type="checkbox"
                  aria-label="Select all on this page"
                  checked={selectable.length > 0 && selectable.every((k) => selected.has(k))}
                  onChange={(e) => onSelect(new Set(e.currentTarget.checked ? selectable : []))}
                />
              </th>
            ) : null}
            {columns.map((c) => (
              <th
                key={c.id}
                scope="col"
                class={c.numeric ? 'number' : ''}
                aria-sort={by === c ? (desc ? 'descending' : 'ascending') : undefined}
              >
                {c.sort ? (
                  <button type="button" class="sort" onClick={() => toggleSort(c)}>
                    {c.label}
                    <span aria-hidden="true">{by === c ? (desc ? ' ↓' : ' ↑') : ''}</span>
                  </button>
                ) : (
                  c.label
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.map((row) => {
            const k = rowKey(row);
            return (
              <tr key={k} class={selected?.has(k) ? 'selected' : ''}>
                {onSelect && selected ? (
                  <td class="check">
                    {canSelect(row) ? (
                      <input
                        type="checkbox"
                        aria-label={`Select ${k}`}
                        checked={selected.has(k)}
                        onChange={(e) => {
                          const keys = new Set(selected);
                          if (e.currentTarget.checked) keys.add(k);
                          else keys.delete(k);
                          onSelect(keys);
                        }}
                      />
                    ) : null}
                  </td>
                ) : null}
                {columns.map((c) => (
                  <td key={c.id} data-label={c.label} class={`${c.numeric ? 'number' : ''}${c.wide ? 'wide' : ''}`}>
                    {c.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
