import { number } from '../format';
import type { Page, Paged } from '../pages';
import { href, parseRoute } from '../router';
import { Failed } from './ui';

/** More ends a list. It loads the next page for users that do not scroll. */
export function More({ of }: { of: Paged<Page<unknown>> }) {
  const { data, start } = of;
  if (!data || (!start && !data.next && !of.hasPages)) return null;
  const { path, query } = parseRoute();
  const values: Record<string, string[]> = {};
  for (const name of query.keys()) values[name] = query.getAll(name);
  return (
    <>
      {of.moreError ? <Failed error={of.moreError} /> : null}
      <nav class="buttons" aria-label="Pages of the list">
        {start ? <a href={href(path, { ...values, after: '' })}>First page</a> : null}
        {data.next ? (
          // A disabled button loses the focus.
          <button type="button" aria-disabled={of.isLoading} onClick={of.more}>
            {of.isLoading ? 'Loading…' : 'Load more'}
          </button>
        ) : null}
        <span class="muted count" role="status">
          {number(data.data.length)} loaded{data.next ? '' : ', the end of the list'}
        </span>
        {of.isPaused ? (
          <button
            type="button"
            class="small quiet"
            onClick={of.refresh}
            title="A list of several pages does not refresh itself"
          >
            Refresh the list
          </button>
        ) : null}
      </nav>
    </>
  );
}
