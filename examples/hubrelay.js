// A client of hubrelay for browsers and Node 18 or later, in one file without dependencies: copy it.
//
//   const client = new Hubrelay({ url: "https://relay.example.com", key, hub: "my-hub" });
//   for await (const notification of client.listen({ topics: ["container.*"], signal })) console.log(notification.topic);
//
// Node has WebSocket built in from version 22 on; before, take that of the package ws: new Hubrelay({ …, WebSocket }).
// A page gets no key but `address`, a function that asks your backend: see listen-browser/.

const NOTIFICATIONS = "/v1/hubs/current/notifications";
const REQUEST_TIMEOUT = 30_000;
const HANDSHAKE_TIMEOUT = 15_000;
const HEARTBEAT = 30_000;
const SILENCE = 75_000; // longest, where the server's pings can be seen, as by the package ws alone
const MAX_MESSAGE = 1 << 20;
const MAX_WAITING = 8 << 20; // characters that may wait for the caller
const MAX_RETRY_AFTER = 300_000;
const LATER = 2_000; // for how long at least a relay is left alone that says "try again later" to a slow caller
const MAX_REFUSALS = 3; // how often in a row a fresh token may be refused before that is believed
const MAX_REFUSAL = 1 << 16; // characters of what is said then
// A redirected publication would arrive as a GET, whose answer looks like success.
const PLAIN = /** @type {const} */ ({ redirect: "manual", credentials: "omit", cache: "no-store" });
const NEVER = new AbortController().signal;

/**
 * @typedef {{ id: string, state: string, error: string, [member: string]: unknown }} About
 * @typedef {{ hub_id: string, account_id: string, environments: string[], dns_zones: string[], clusters: string[],
 *   containers: string[], [member: string]: unknown }} Context
 * @typedef {{ topic: string, object: About, context: Context, flags: null, cursor?: string }} Notification
 *   Of the topic hubrelay.resync: something was lost, so look at how things are now.
 * @typedef {{ topic: string, object?: Partial<About>, context?: Partial<Context> }} NewNotification
 * @typedef {"new" | "queued" | "scheduled" | "running" | "completed" | "error" | "expired"} JobState
 * @typedef {{ message: string }} JobFailure
 * @typedef {{ id: string, caption: string, state: { current: JobState, changed: string | null }, error: JobFailure | null,
 *   progress: number }} Task
 * @typedef {{ id: string, hub_id: string, caption: string,
 *   state: { current: JobState, changed: string, error: JobFailure | null },
 *   events: { queued: string | null, started: string | null, completed: string | null }, tasks: Task[] }} Job
 *
 * @typedef {object} Settings
 * @property {string} [url] The relay's address, with a path where the API stands below one.
 * @property {string} [key] The API key. It does not belong into a page.
 * @property {string} [hub] The hub to publish to and to listen to; none for the account pipeline.
 * @property {(signal: AbortSignal) => Promise<string>} [address] Gets a fresh websocket address, token included, instead
 *   of url and key: what the relay sends in the header Link beside a token. Called for every connection.
 * @property {any} [WebSocket] The class to connect with where none is built in.
 *
 * @typedef {object} ListenOptions
 * @property {string[]} [topics] Topic patterns; none for every topic.
 * @property {string} [after] The cursor of the last notification that was seen, to begin behind it.
 * @property {AbortSignal} [signal] Ends the loop, without an error.
 * @property {() => void} [onopen] Called for each connection: what the relay accepts from then on arrives.
 * @property {(error: Error, pause: number) => void} [onclose] Called when a connection or an attempt has ended and
 *   another follows after pause milliseconds.
 * @property {number} [leastPause] Bounds the growing pause between attempts, in milliseconds (500).
 * @property {number} [mostPause] The same (30,000). A server that names a longer one is obeyed, up to five minutes.
 * @property {number} [silence] How long a connection may bring nothing, in milliseconds, before another takes its place behind
 *   what came last. Pings count where they can be seen, by the package ws (75,000). A WebSocket that is built in does not show
 *   them: there it is off unless set, since a quiet hub costs a token and a connection each time. Without it a line that died
 *   without a word is noticed when the system gives up what is sent every 30 s, which can take a quarter of an hour.
 */

/** What the relay answered where it refused; the members are those of its error envelope. */
export class HubrelayError extends Error {
  /**
   * @param {number} status
   * @param {{ code?: string, title?: string, detail?: string, source?: string, extra?: Record<string, unknown> }} [envelope]
   * @param {number} [retryAfter]
   */
  constructor(status, { code = "", title = "", detail = "", source = "", extra = {} } = {}, retryAfter = 0) {
    super(
      code
        ? `${code}${source && ` at ${source}`}: ${detail || title}`
        : `the server answered ${status || "with a redirect"} without an error of a relay; check the address`,
    );
    this.name = "HubrelayError";
    /** The HTTP status; 0 for a redirect in a page, which sees no more of it. */
    this.status = status;
    /** The status, a dot and a slug; empty where something else than a relay answered. */
    this.code = code;
    this.title = title;
    this.detail = detail;
    /** A JSON pointer into what was sent. */
    this.source = source;
    this.extra = extra;
    /** How long the server asked to wait, in milliseconds, or 0. */
    this.retryAfter = retryAfter;
  }

  /** @param {Response} answer of a status other than 2xx; of your own backend, too */
  static async of(answer) {
    return refused(answer.status, answer.headers.get("Retry-After"), await answer.text().catch(() => ""));
  }
}

/** Speaks for one key to one relay. All methods may be called at any time. */
export class Hubrelay {
  #url;
  #headers;
  #address;
  #WebSocket;

  /** @param {Settings} settings */
  constructor({ url = "", key = "", hub = "", address, WebSocket = globalThis.WebSocket }) {
    if (!address && !/^https?:\/\/[^/]/.test(url)) throw new TypeError("url must look like https://relay.example");
    this.#url = url.replace(/[?#].*$/, "").replace(/\/+$/, "");
    this.#headers = new Headers({ Authorization: `Bearer ${key}`, ...(hub && { "X-Hub-Id": hub }) });
    this.#address = address ?? ((signal) => this.#ownAddress(signal));
    this.#WebSocket = WebSocket;
  }

  /** Returns a new token, which opens one stream. @param {{ signal?: AbortSignal }} [options] @returns {Promise<string>} */
  async token({ signal } = {}) {
    return (await this.#call("GET", NOTIFICATIONS, { signal })).token;
  }

  /**
   * Stores one notification or several, all or nothing, and returns their ids in order. With an idempotencyKey it is safe
   * to call again after an error that leaves in doubt what happened.
   * @param {NewNotification | NewNotification[]} notifications
   * @param {{ idempotencyKey?: string, signal?: AbortSignal }} [options]
   * @returns {Promise<string[]>}
   */
  async publish(notifications, options = {}) {
    return (await this.#call("POST", NOTIFICATIONS, { ...options, body: notifications })).ids;
  }

  /**
   * Asks for an instance to be moved to the server `to`, and returns the id of the job that does it.
   * @param {string} container
   * @param {string} instance
   * @param {{ to: string, copyVolumes?: boolean, idempotencyKey?: string, signal?: AbortSignal }} options
   * @returns {Promise<string>}
   */
  async migrate(container, instance, { to, copyVolumes = false, ...options }) {
    const path = `/v1/containers/${encodeURIComponent(container)}/instances/${encodeURIComponent(instance)}/tasks`;
    const value = { destination_server_id: to, ...(copyVolumes && { stateful: { copy_volumes: true } }) };
    return (await this.#call("POST", path, { ...options, body: { action: "migrate", value } })).job_id;
  }

  /** Returns a job. @param {string} id @param {{ signal?: AbortSignal }} [options] @returns {Promise<Job>} */
  job(id, options = {}) {
    return this.#call("GET", `/v1/jobs/${encodeURIComponent(id)}`, options);
  }

  /**
   * Yields notifications as they come. It gets a token for every connection and connects again, with growing pauses, until
   * the signal aborts. Each connection begins behind the last notification that was yielded, or where the first one began, so
   * that nothing is missed or comes twice while the relay has it still; where it has not, a notification of the topic
   * hubrelay.resync comes in place of what is lost, once the stream is open again. It throws only what no repetition mends, such
   * as a wrong key or pattern; what may stand between the two for a while, such as a load balancer's page, ends nothing.
   * @param {ListenOptions} [options]
   * @returns {AsyncGenerator<Notification, void, undefined>}
   */
  async *listen({ topics = [], after = "", signal = NEVER, onopen, onclose, leastPause = 500, mostPause = 30_000, silence = 0 } = {}) {
    if (!this.#WebSocket) throw new TypeError("there is no WebSocket here: it takes Node 22, or the one of npm's ws: new Hubrelay({ …, WebSocket })");
    let cursor = after; // of the last notification, or of where the stream began
    let lost = false; // the relay no longer knows the cursor that it gave
    let connected = false; // at least once
    let failures = 0; // attempts since a connection held for longer than the pause before it
    let paused = 0;
    const tokens = { fresh: false, refusals: 0 }; // whether the last attempt got one, and how many were refused in a row
    while (!signal.aborted) {
      let since = Infinity;
      let calling = false; // the caller's onopen, whose errors are his
      let connection;
      try {
        connection = await this.#connect(tokens, silence, signal, () => this.#stream(topics, cursor, signal));
        connected = true;
        tokens.refusals = 0;
        since = performance.now();
        calling = true;
        onopen?.();
        calling = false;
        for await (const notification of connection) {
          const begins = notification.topic === "hubrelay.cursor"; // where the stream is, and nothing else
          cursor = notification.cursor ?? cursor;
          if (lost) {
            lost = false;
            yield resync(begins ? cursor : undefined);
          }
          if (!begins) yield notification;
          if (signal.aborted) return;
        }
      } catch (/** @type {any} */ thrown) {
        if (signal.aborted) return;
        if (calling) throw thrown;
        const error = thrown ?? new Error("there is no address");
        if (isStale(error) && cursor !== after) {
          cursor = "";
          lost = true;
        } else if (isPermanent(error, connected, tokens)) throw error;
        if (performance.now() - since > paused) failures = 0; // one message is not enough: it may be all that each brings
        const full = Math.min(leastPause * 2 ** failures++, mostPause);
        paused = full / 2 + Math.random() * (full / 2);
        const later = error.closed === 1013 ? Math.min(LATER * (1 + Math.random()), mostPause) : 0;
        const pause = Math.max(paused, later, Math.min(Number(error.retryAfter) || 0, MAX_RETRY_AFTER));
        onclose?.(error, pause);
        await sleep(pause, signal);
      } finally {
        connection?.end(new Error("the caller wants no more"));
      }
    }
  }

  /**
   * @param {{ fresh: boolean, refusals: number }} tokens @param {number} silence @param {AbortSignal} signal
   * @param {() => Promise<URL>} stream gets an address
   */
  async #connect(tokens, silence, signal, stream) {
    tokens.fresh = false;
    const address = await stream();
    tokens.fresh = true;
    const connection = new Connection(this.#WebSocket, address, silence, signal);
    try {
      await connection.opened;
    } catch (/** @type {any} */ error) {
      let said = connection.saysWhy ? error : await refusal(address, signal);
      if (said?.status === 401 && ++tokens.refusals >= MAX_REFUSALS && !connection.saysWhy) {
        // An upgrade that was lost may have used the token up. One that nothing has used tells.
        said = await refusal(await stream(), signal);
      }
      throw said ?? error;
    }
    return connection;
  }

  /** @param {string[]} topics @param {string} cursor @param {AbortSignal} signal */
  async #stream(topics, cursor, signal) {
    const address = new URL(await bounded(signal, REQUEST_TIMEOUT, this.#address));
    address.searchParams.set("cursor", "true");
    address.searchParams.set("after", cursor || "now");
    if (topics.length > 0) address.searchParams.set("topics", topics.join(","));
    return address;
  }

  /** @param {AbortSignal} signal */
  async #ownAddress(signal) {
    const address = new URL(this.#url.replace(/^http/, "ws") + NOTIFICATIONS);
    address.searchParams.set("token", await this.token({ signal }));
    return address.href;
  }

  /**
   * @param {string} method @param {string} path
   * @param {{ body?: unknown, idempotencyKey?: string, signal?: AbortSignal }} options
   */
  #call(method, path, { body, idempotencyKey, signal = NEVER }) {
    const headers = new Headers(this.#headers);
    if (body !== undefined) headers.set("Content-Type", "application/json");
    if (idempotencyKey) headers.set("Idempotency-Key", idempotencyKey);
    return bounded(signal, REQUEST_TIMEOUT, async (signal) => {
      const answer = await fetch(this.#url + path, { ...PLAIN, method, headers, body: JSON.stringify(body), signal });
      if (!answer.ok) throw await HubrelayError.of(answer);
      const envelope = await answer.json().catch(() => null);
      if (!envelope?.data) throw new Error("the answer is not a relay's; check the address");
      return envelope.data;
    });
  }
}

/** One websocket. What has come waits for the caller; where that is too much, the connection ends and can be resumed. */
class Connection {
  #socket;
  #signal;
  /** @type {string[]} */
  #waiting = [];
  #size = 0;
  /** @type {Error | undefined} */
  #ended;
  #wake = () => {};
  #timers;
  #abort = () => this.end(this.#signal.reason);

  /** @param {any} WebSocket @param {URL} address @param {number} silence @param {AbortSignal} signal */
  constructor(WebSocket, address, silence, signal) {
    const socket = new WebSocket(address.href, [], { maxPayload: MAX_MESSAGE }); // of which only the package ws takes heed
    /** Whether a refusal comes with its status. */
    this.saysWhy = Boolean(socket.on);
    const longest = silence || (this.saysWhy ? SILENCE : 0);
    const beat = this.saysWhy ? Math.min(HEARTBEAT, longest / 2) : HEARTBEAT;
    const knock = () => (this.saysWhy ? socket.ping() : socket.send(""));
    const silent = () => this.end(new Error("nothing came for too long"));
    // The first is pushed forward by each sign of life. Where pings cannot be seen, what is sent into a connection that
    // the other side has forgotten makes it end.
    this.#timers = [
      setTimeout(silent, HANDSHAKE_TIMEOUT),
      setInterval(() => socket.readyState === 1 && knock(), beat),
    ];
    const alive = () => {
      clearTimeout(this.#timers[0]);
      if (longest && !this.#ended) this.#timers[0] = setTimeout(silent, longest);
    };
    /** Resolves once the stream is open. */
    this.opened = new Promise((resolve, reject) => {
      socket.onopen = () => resolve(alive());
      this.#wake = () => this.#ended && reject(this.#ended);
    });
    socket.onmessage = (/** @type {{ data: unknown }} */ { data }) => {
      alive();
      this.#take(data);
    };
    for (const sign of ["ping", "pong"]) socket.on?.(sign, alive);
    socket.on?.("unexpected-response", async (/** @type {any} */ _, /** @type {any} */ answer) => {
      let text = "";
      try {
        for await (const part of answer.setEncoding("utf8")) if ((text += part).length > MAX_REFUSAL) break;
      } catch {} // what has come will do
      this.end(refused(answer.statusCode, answer.headers["retry-after"], text));
    });
    // A browser does not say why; Node 20 lets no close follow.
    socket.onerror = (/** @type {{ message?: string }} */ { message }) => this.end(new Error(message || "the connection failed"));
    socket.onclose = (/** @type {{ code: number, reason: string }} */ { code, reason }) =>
      this.end(Object.assign(new Error(`the connection was closed: ${code} ${reason}`.trim()), { closed: code }));
    this.#socket = socket;
    this.#signal = signal;
    signal.addEventListener("abort", this.#abort);
    if (signal.aborted) this.#abort();
  }

  /** @param {unknown} data */
  #take(data) {
    if (this.#ended || typeof data !== "string") return;
    this.#waiting.push(data);
    this.#size += data.length;
    if (this.#size > MAX_WAITING) this.end(new Error("the caller is too slow"));
    this.#wake();
  }

  /** Yields until the connection has ended, then throws why. @returns {AsyncGenerator<Notification, never, undefined>} */
  async *[Symbol.asyncIterator]() {
    for (;;) {
      const batch = this.#waiting;
      this.#waiting = [];
      this.#size = 0;
      for (const text of batch) {
        const notification = parse(text);
        if (notification) yield notification;
      }
      if (this.#waiting.length > 0) continue;
      if (this.#ended) throw this.#ended;
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
    }
  }

  /** @param {Error} why */
  end(why) {
    if (this.#ended) return;
    this.#ended = why;
    this.#timers.forEach(clearTimeout);
    this.#signal.removeEventListener("abort", this.#abort);
    this.#socket.close();
    this.#wake();
  }
}

/** @param {number} status @param {unknown} retryAfter @param {string} text */
function refused(status, retryAfter, text) {
  /** @type {any} */
  let envelope;
  try {
    envelope = JSON.parse(text);
  } catch {} // of something else than a relay
  return new HubrelayError(status, envelope?.error ?? {}, (Number(retryAfter) || 0) * 1000);
}

/**
 * A WebSocket that is built in does not say why an upgrade was refused, so the same is asked for as an event stream, which is
 * refused alike: the relay then counts two refusals. That of a token counts only from a relay.
 * @param {URL} address @param {AbortSignal} signal
 */
function refusal(address, signal) {
  const same = new URL(address.href.replace(/^ws/, "http"));
  return bounded(signal, REQUEST_TIMEOUT, async (signal) => {
    const answer = await fetch(same, { ...PLAIN, headers: { Accept: "text/event-stream" }, signal });
    if (answer.ok || answer.status === 426) return undefined;
    const error = await HubrelayError.of(answer);
    return error.status === 401 && !error.code ? undefined : error;
  }).catch(() => undefined);
}

/** The relay refuses the cursor that it gave itself, since it was set up anew meanwhile. @param {any} error */
function isStale(error) {
  return error.status === 422 && error.extra?.parameter === "after";
}

/**
 * Says whether trying again is of no use. A fresh token that is refused may have expired on the way, so that is believed only
 * when it happens again and again.
 * @param {any} error @param {boolean} connected @param {{ fresh: boolean, refusals: number }} tokens
 */
function isPermanent(error, connected, tokens) {
  if (!(error instanceof HubrelayError)) return false;
  if (error.status === 401) return !tokens.fresh || tokens.refusals >= MAX_REFUSALS;
  if ([403, 422].includes(error.status)) return true;
  if ([408, 425, 429].includes(error.status)) return false;
  return Math.floor(error.status / 100) === 4 && !connected;
}

/** What a relay would say that knew what was lost. @param {string} [cursor] @returns {Notification} */
function resync(cursor) {
  return {
    topic: "hubrelay.resync",
    object: { id: "", state: "gap", error: "the relay no longer knows the cursor; it was set up anew" },
    context: { hub_id: "", account_id: "", environments: [], dns_zones: [], clusters: [], containers: [] },
    flags: null,
    ...(cursor && { cursor }),
  };
}

/** Returns nothing for what is no notification. @param {string} text @returns {Notification | undefined} */
function parse(text) {
  try {
    const message = JSON.parse(text);
    return typeof message?.topic === "string" ? message : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Does the work, to which it gives a signal, for some milliseconds at the most.
 * @template T @param {AbortSignal} signal @param {number} time @param {(signal: AbortSignal) => Promise<T>} work
 * @returns {Promise<T>}
 */
async function bounded(signal, time, work) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  const timer = setTimeout(() => controller.abort(new Error(`no answer within ${time / 1000} s`)), time);
  /** @type {Promise<never>} */
  const over = new Promise((_, reject) => controller.signal.addEventListener("abort", () => reject(controller.signal.reason)));
  signal.addEventListener("abort", abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([over, (async () => work(controller.signal))()]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
    controller.abort(); // ends what is left of the work
  }
}

/** @param {number} time @param {AbortSignal} signal */
async function sleep(time, signal) {
  await bounded(signal, time, () => new Promise(() => {})).catch(() => {});
}
