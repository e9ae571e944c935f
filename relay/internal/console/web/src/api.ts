import type { components, paths } from './api.gen';

export type Schemas = components['schemas'];
export type Role = 'viewer' | 'operator' | 'admin';

/** Session is the response of /api/session. */
export interface Session {
  name: string;
  role: Role;
  relay: string;
  version: string;
  node: string;
  can_sign_out: boolean;
}

/** ApiError is an error of the admin API. Its text is for operators. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
  ) {
    super(detail || title);
  }
}

/** NetworkError means that the daemon did not respond. */
export class NetworkError extends Error {}

let signedOut = () => {};

/** onSignedOut sets the function that is called after a response with 401. */
export function onSignedOut(f: () => void) {
  signedOut = f;
}

type Method = 'get' | 'post';
type PathsWith<M extends Method> = {
  [P in keyof paths]: paths[P] extends { [K in M]: object } ? P : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
type Result<O> = O extends { responses: { 200: { content: { 'application/json': infer B } } } } ? B : never;
type Query<O> = O extends { parameters: { query?: infer Q } } ? Q : never;
type Params<O> = O extends { parameters: { path: infer Q } } ? Q : never;
type Body<O> = O extends { requestBody?: { content: { 'application/json': infer B } } } ? B : never;

interface Options<O> {
  params?: Params<O>;
  query?: Query<O>;
  body?: Body<O>;
  signal?: AbortSignal;
}

/** A search returns after about two seconds, so a longer time means that the connection hangs. */
const readTimeout = 15_000;

/** parse keeps integers of payloads that JavaScript would round, if the browser can, so people see and copy what was published. */
function parse(text: string): unknown {
  const { rawJSON } = JSON as typeof JSON & { rawJSON?: (source: string) => unknown };
  return JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    const isRounded = typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value);
    return isRounded && rawJSON && context?.source ? rawJSON(context.source) : value;
  });
}

async function send(method: string, url: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(`.${url}`, {
      method,
      signal:
        method === 'GET' ? AbortSignal.any([AbortSignal.timeout(readTimeout), ...(signal ? [signal] : [])]) : null,
      credentials: 'same-origin',
      headers: body === undefined ? {} : { 'Content-Type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new NetworkError('The daemon does not respond.');
  }
  let value: unknown = null;
  try {
    const text = await response.text();
    value = text ? parse(text) : null;
  } catch (error) {
    if (signal?.aborted) throw error;
    // Proxies send errors that are not JSON.
  }
  if (response.ok) return value;
  const e = (value as { error?: Partial<Schemas['Error']> } | null)?.error;
  if (!e && response.status >= 500)
    throw new NetworkError(`The response was ${response.status} without an explanation.`);
  throw new ApiError(response.status, e?.code ?? '', e?.title ?? `Status ${response.status}`, e?.detail ?? '');
}

async function call(method: string, path: string, o: Options<unknown>): Promise<unknown> {
  const params = (o.params ?? {}) as Record<string, string>;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries((o.query ?? {}) as Record<string, unknown>)) {
    for (const v of Array.isArray(value) ? value : [value])
      if (v !== undefined && v !== '') query.append(name, String(v));
  }
  const url = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? ''));
  try {
    return await send(method, query.size ? `${url}?${query}` : url, o.body, o.signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) signedOut();
    throw error;
  }
}

export function get<P extends PathsWith<'get'>>(path: P, options: Options<Operation<P, 'get'>> = {}) {
  return call('GET', path, options as Options<unknown>) as Promise<Result<Operation<P, 'get'>>>;
}

export function post<P extends PathsWith<'post'>>(path: P, options: Options<Operation<P, 'post'>> = {}) {
  return call('POST', path, options as Options<unknown>) as Promise<Result<Operation<P, 'post'>>>;
}

/** getSession returns null if nobody is signed in. */
export async function getSession(signal?: AbortSignal): Promise<Session | null> {
  try {
    return ((await send('GET', '/api/session', undefined, signal)) as { data: Session }).data;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

export async function signIn(token: string): Promise<Session> {
  return ((await send('POST', '/api/session', { token })) as { data: Session }).data;
}

export async function signOut(): Promise<void> {
  await send('DELETE', '/api/session', undefined);
}

interface Page<T> {
  data: T[];
  next: string;
}

/** collect reads all pages, or at most ten until it has max entries. next is empty if there are no others. */
export async function collect<T>(page: (after: string) => Promise<Page<T>>, max = Infinity): Promise<Page<T>> {
  const all: Page<T> = { data: [], next: '' };
  for (let requests = 0; requests < 10 || max === Infinity; requests++) {
    const p = await page(all.next);
    all.data.push(...p.data);
    all.next = p.next;
    if (!p.next || all.data.length >= max) break;
  }
  return all;
}
