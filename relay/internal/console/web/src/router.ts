import { useEffect, useState } from 'preact/hooks';

/** Route is the part of the address after #. Filters, tabs and pages are in the query. */
export interface Route {
  path: string[];
  query: URLSearchParams;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parseRoute(hash = location.hash): Route {
  const [path = '', query = ''] = hash.replace(/^#/, '').split(/\?(.*)/s);
  return { path: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

type Values = Record<string, string | string[] | undefined>;

function format(path: string[], query: URLSearchParams): string {
  return `#/${path.map(encodeURIComponent).join('/')}${query.size ? `?${query}` : ''}`;
}

/** href returns the address of a page. Empty values are left out. */
export function href(path: string[], values: Values = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const v of Array.isArray(value) ? value : [value]) if (v) query.append(name, v);
  }
  return format(path, query);
}

export function navigate(to: string) {
  location.hash = to;
}

/** setQuery changes values of the query. With replace, the change is not a step of its own in the history. */
export function setQuery(values: Values, replace = true) {
  const { path, query } = parseRoute();
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const v of Array.isArray(value) ? value : [value]) if (v) query.append(name, v);
  }
  const to = format(path, query);
  if (!replace) return navigate(to);
  history.replaceState(null, '', to);
  dispatchEvent(new HashChangeEvent('hashchange'));
}

/** setPosition changes the value after of the address. It renders nothing, because the list is there already. */
export function setPosition(after: string) {
  const { path, query } = parseRoute();
  if ((query.get('after') ?? '') === after) return;
  query.delete('after');
  if (after) query.set('after', after);
  history.replaceState(null, '', format(path, query));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute());
  useEffect(() => {
    const update = () => setRoute(parseRoute());
    addEventListener('hashchange', update);
    return () => removeEventListener('hashchange', update);
  }, []);
  return route;
}
