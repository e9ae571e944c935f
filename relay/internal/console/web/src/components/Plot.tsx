import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Series } from '../series';
import { onThemeChange } from '../theme';

export interface Line<Name extends string> {
  series: Series<Name>;
  name: NoInfer<Name>;
  label: string;
  /** color is the name of a color of the style sheet. */
  color: 'accent' | 'good' | 'warn' | 'bad' | 'muted';
}

interface Props {
  title: string;
  // biome-ignore lint/suspicious/noExplicitAny: lines can be of series with different names
  lines: Line<any>[];
  format: (n: number) => string;
}

/** resolve returns a color for a canvas, which does not know variables and light-dark. */
function resolve(probe: HTMLElement, color: string): string {
  probe.style.color = `var(--${color})`;
  return getComputedStyle(probe).color;
}

/** minSeconds is the shortest time that a plot shows. */
const minSeconds = 60;
const font = '11px system-ui, sans-serif';

/** Plot shows lines of one series over time. Its legend has the values at the pointer, or the last ones. */
export function Plot({ title, lines, format }: Props) {
  const area = useRef<HTMLDivElement>(null);
  const probe = useRef<HTMLSpanElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  const series = lines[0]?.series;
  const data = () =>
    [series?.times ?? [], ...lines.map((l) => l.series.values[l.name] ?? [])] as unknown as uPlot.AlignedData;

  // The lines of a plot change only with its series.
  useEffect(() => {
    const [div, span] = [area.current, probe.current];
    if (!div || !span) return;
    const axis = {
      stroke: () => resolve(span, 'muted'),
      grid: { stroke: () => resolve(span, 'border'), width: 1 },
      ticks: { show: false },
      font,
    };
    const u = new uPlot(
      {
        width: div.clientWidth,
        height: 130,
        padding: [6, 20, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: {
            // uPlot shows a day around a single value.
            range: ({ data: [times] }) => {
              const end = times.at(-1) ?? Date.now() / 1000; // without data, the last minute
              return [Math.min(times[0] ?? end, end - minSeconds), end];
            },
          },
          y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] },
        },
        axes: [
          {
            ...axis,
            size: 26,
            space: 70,
            values: (_, times) => times.map((t) => new Date(t * 1000).toTimeString().slice(0, 8)),
          },
          { ...axis, size: 54, space: 32, values: (_, values) => values.map(format) },
        ],
        series: [
          {},
          ...lines.map((l) => ({
            label: l.label,
            stroke: () => resolve(span, l.color),
            width: 1.5,
            points: { show: false },
          })),
        ],
        hooks: { setCursor: [(self) => setIndex(self.cursor.idx ?? null)] },
      },
      data(),
      div,
    );
    plot.current = u;
    const resize = new ResizeObserver(() => {
      if (div.clientWidth !== u.width) u.setSize({ width: div.clientWidth, height: 130 });
    });
    resize.observe(div);
    const end = onThemeChange(() => u.redraw());
    return () => {
      end();
      resize.disconnect();
      u.destroy();
      plot.current = null;
    };
  }, [series]);

  const newest = series?.times.at(-1);
  useEffect(() => plot.current?.setData(data()), [series, newest]);

  const value = (l: Line<string>) => {
    const values = l.series.values[l.name];
    const v = index === null ? values?.at(-1) : values?.[index];
    return v == null ? '–' : format(v);
  };
  return (
    <figure class="plot card">
      <figcaption>
        <h3>{title}</h3>
        <ul>
          {lines.map((l) => (
            <li key={l.name}>
              <i class={l.color} aria-hidden="true" />
              <span class="muted">{l.label}</span> <strong>{value(l)}</strong>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={area} aria-hidden="true" />
      <span ref={probe} hidden />
    </figure>
  );
}
