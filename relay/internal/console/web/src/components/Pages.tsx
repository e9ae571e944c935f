import { href, parseRoute } from '../router';

/** Pages links the first and the next page of a list. The position is the value after of the address. */
export function Pages({ after, next, label }: { after: string; next: string; label: string }) {
  if (!after && !next) return null;
  const { path, query } = parseRoute();
  const values: Record<string, string[]> = {};
  for (const name of query.keys()) values[name] = query.getAll(name);
  return (
    <nav class="buttons" aria-label="Pages of the list">
      {after ? <a href={href(path, { ...values, after: '' })}>First page</a> : null}
      {next ? <a href={href(path, { ...values, after: next })}>{label}</a> : <span class="muted">Last page</span>}
    </nav>
  );
}
