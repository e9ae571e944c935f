import { Component, type ComponentChildren } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Page, Paged } from '../pages';
import { setQuery, useRoute } from '../router';
import { useWindow } from '../window';

export interface Column<T> {
  id: string;
  label: string;
  cell: (row: T) => ComponentChildren;
  /** sort returns the value to sort by. Columns without it cannot be sorted. */
  sort?: (row: T) => string | number;
  numeric?: boolean;
  /** Columns with a width may break lines. The others are as wide as their texts. */
  breaks?: 'short' | 'wide';
}

interface Props<T> {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
  /** paged is the list of which rows are the pages that were read. */
  paged?: Paged<Page<T>>;
  /** boxed gives the table an area that scrolls, so what follows it stays in reach. */
  boxed?: boolean;
  /** stack shows each row as a card on phones, so no column is out of sight. The order cannot be changed there. */
  stack?: boolean;
  selected?: Set<string>;
  onSelect?: (keys: Set<string>) => void;
  /** canSelect reports whether a row has a checkbox. */
  canSelect?: (row: T) => boolean;
}

interface RowProps<T> {
  id: string;
  row: T;
  index: number;
  columns: Column<T>[];
  /** isPart reports whether the table has more rows than the rendered ones. */
  isPart: boolean;
  /** isSelected is undefined in a table without selection. */
  isSelected: boolean | undefined;
  canSelect: boolean;
  onSelect: (key: string, isSelected: boolean) => void;
}

/** Row is rendered again only if it has changed, so scrolling renders only the rows that come into view. */
class Row<T> extends Component<RowProps<T>> {
  override shouldComponentUpdate(next: RowProps<T>) {
    return (Object.keys(next) as (keyof RowProps<T>)[]).some((name) => next[name] !== this.props[name]);
  }

  override render({ id, row, index, columns, isPart, isSelected, canSelect, onSelect }: RowProps<T>) {
    return (
      <tr
        data-row={index}
        data-key={id}
        aria-rowindex={isPart ? index + 2 : undefined}
        class={isSelected ? 'selected' : ''}
      >
        {isSelected === undefined ? null : (
          <td class="check">
            {canSelect ? (
              <input
                type="checkbox"
                aria-label={`Select ${id}`}
                checked={isSelected}
                onChange={(e) => onSelect(id, e.currentTarget.checked)}
              />
            ) : null}
          </td>
        )}
        {columns.map((c) => (
          <td key={c.id} data-label={c.label} class={c.numeric ? 'number' : (c.breaks ?? '')}>
            {c.cell(row)}
          </td>
        ))}
      </tr>
    );
  }
}

/** A request changes at most this number of rows. */
const maxSelected = 500;

/** Table sorts by the values sort and desc of the address. */
export function Table<T>({
  caption,
  columns,
  rows,
  rowKey,
  paged,
  boxed,
  stack,
  selected,
  onSelect,
  canSelect = () => true,
}: Props<T>) {
  const { query } = useRoute();
  const area = useRef<HTMLDivElement>(null);
  const [scrolls, setScrolls] = useState(false);
  /** The widths of the columns of a list that is rendered in part. Other rows in view do not change them. */
  const [widths, setWidths] = useState<number[] | null>(null);
  useLayoutEffect(() => {
    const div = area.current;
    if (!div) return;
    let width = div.clientWidth;
    const measure = () => {
      setScrolls(div.scrollWidth > div.clientWidth || div.scrollHeight > div.clientHeight);
      if (div.clientWidth !== width) setWidths(null);
      width = div.clientWidth;
    };
    measure();
    const resize = new ResizeObserver(measure);
    resize.observe(div);
    for (const child of div.children) resize.observe(child);
    return () => resize.disconnect();
  }, []);
  const by = columns.find((c) => c.sort && c.id === query.get('sort'));
  const desc = query.get('desc') === '1';
  // A long list is rendered at each step of scrolling, but sorted only once.
  const sorted = useMemo(() => {
    const sort = by?.sort;
    if (!sort) return rows;
    return [...rows].sort((a, b) => {
      const [x, y] = [sort(a), sort(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (desc ? -1 : 1);
    });
  }, [rows, by?.id, desc]);
  const isSelectable = !!selected;
  const selectable = useMemo(
    () => (isSelectable ? rows.filter(canSelect).slice(0, maxSelected).map(rowKey) : []),
    [isSelectable, rows],
  );
  const body = useRef<HTMLTableSectionElement>(null);
  const keyOf = (i: number) => rowKey(sorted[i] as T);
  const { indexes, offset } = useWindow({
    list: body,
    area: boxed ? area : undefined,
    count: sorted.length,
    keyOf,
    onEnd: paged?.onEnd,
    onFirst: paged?.onFirst,
  });
  const width = columns.length + (selected ? 1 : 0);
  const isWindow = indexes.length < sorted.length;
  const isPart = isWindow || !!paged?.data?.next;
  const locked = isWindow && widths?.length === width ? widths : null;
  useLayoutEffect(() => {
    if (!isWindow) return setWidths(null);
    if (locked) return;
    const found = [...(area.current?.querySelectorAll('th') ?? [])].map((th) => th.getBoundingClientRect().width);
    // Cards have no header.
    if (found.every((w) => w > 0)) setWidths(found);
  }, [isWindow, locked]);
  const gap = (from: number, to: number) =>
    from < to ? (
      // biome-ignore lint/a11y/noAriaHiddenOnFocusable: a row has no focus
      <tr
        key={`gap before ${to === sorted.length ? 'the end' : from === 0 ? 'the view' : 'a row'}`}
        class="gap"
        aria-hidden="true"
      >
        <td colSpan={width} style={{ height: `${offset(to) - offset(from)}px` }} />
      </tr>
    ) : null;

  const latest = useRef({ selected, onSelect });
  latest.current = { selected, onSelect };
  const select = useRef((key: string, isSelected: boolean) => {
    const keys = new Set(latest.current.selected);
    if (isSelected) keys.add(key);
    else keys.delete(key);
    latest.current.onSelect?.(keys);
  });

  function toggleSort(column: Column<T>) {
    const first = column.numeric ? '1' : undefined;
    if (by !== column) setQuery({ sort: column.id, desc: first });
    else setQuery({ desc: desc ? undefined : '1' });
  }

  return (
    // An area that scrolls must be reachable with the keyboard, also if it contains no links.
    <div
      ref={area}
      class={`table${stack ? ' stack' : ''}${boxed ? ' boxed' : ''}`}
      {...(scrolls ? { tabIndex: 0, role: 'region', 'aria-label': caption } : {})}
    >
      <table
        class={locked ? 'fixed' : ''}
        aria-rowcount={isPart ? (paged?.data?.next ? -1 : sorted.length + 1) : undefined}
      >
        <caption class="hidden">{caption}</caption>
        {locked ? (
          <colgroup>
            {locked.map((w, i) => (
              <col key={`${i}`} style={{ width: `${w}px` }} />
            ))}
          </colgroup>
        ) : null}
        <thead>
          <tr aria-rowindex={isPart ? 1 : undefined}>
            {selected ? (
              <th scope="col" class="check">
                <input
                  type="checkbox"
                  aria-label={
                    selectable.length < maxSelected ? 'Select all that are loaded' : `Select the first ${maxSelected}`
                  }
                  checked={selectable.length > 0 && selectable.every((k) => selected.has(k))}
                  onChange={(e) => onSelect?.(new Set(e.currentTarget.checked ? selectable : []))}
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
        <tbody ref={body}>
          {indexes.flatMap((i, n) => {
            const row = sorted[i] as T;
            const k = rowKey(row);
            return [
              gap((indexes[n - 1] ?? -1) + 1, i),
              <Row
                key={k}
                id={k}
                row={row}
                index={i}
                columns={columns}
                isPart={isPart}
                isSelected={selected?.has(k)}
                canSelect={isSelectable && canSelect(row)}
                onSelect={select.current}
              />,
            ];
          })}
          {gap((indexes.at(-1) ?? -1) + 1, sorted.length)}
        </tbody>
      </table>
    </div>
  );
}
