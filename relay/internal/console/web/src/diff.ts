/** Line is a line of a comparison. */
export interface Line {
  kind: 'same' | 'added' | 'removed';
  text: string;
}

/** The effective configuration has the origin of each value. It changes with each line that is added before it. */
const withoutOrigin = (line: string) => line.replace(/\s+# line \d+$/, '');
const maxCells = 4_000_000;

/** diff compares two texts line by line, without the numbers of lines in comments. */
export function diff(before: string, after: string): Line[] {
  const [a, b] = [before, after].map((t) => t.replace(/\n$/, '').split('\n')) as [string[], string[]];
  const [x, y] = [a.map(withoutOrigin), b.map(withoutOrigin)];
  let start = 0;
  while (start < x.length && start < y.length && x[start] === y[start]) start++;
  let end = 0;
  while (end < x.length - start && end < y.length - start && x.at(-1 - end) === y.at(-1 - end)) end++;
  const same = (text: string): Line => ({ kind: 'same', text });
  return [
    ...b.slice(0, start).map(same),
    ...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)),
    ...b.slice(b.length - end).map(same),
  ];
}

/** middle finds the longest common subsequence. */
function middle(a: string[], b: string[]): Line[] {
  const removed = (text: string): Line => ({ kind: 'removed', text });
  const added = (text: string): Line => ({ kind: 'added', text });
  if (a.length * b.length > maxCells) return [...a.map(removed), ...b.map(added)];
  const [x, y] = [a.map(withoutOrigin), b.map(withoutOrigin)];
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => lengths[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i * width + j] = x[i] === y[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  const lines: Line[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && x[i] === y[j]) {
      lines.push({ kind: 'same', text: b[j] ?? '' });
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && at(i + 1, j) >= at(i, j + 1))) lines.push(removed(a[i++] ?? ''));
    else lines.push(added(b[j++] ?? ''));
  }
  return lines;
}
