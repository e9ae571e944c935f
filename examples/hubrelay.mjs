// A client of hubrelay for browsers and Node 18 or later, in one file without dependencies. Copy it.
//
//   const client = new Hubrelay({ url: "https://relay.example.com", key, hub: "my-hub" });
//   for await (const notification of client.listen({ topics: ["container.*"], signal })) {
//     console.log(notification.topic);
//   }
// In CommonJS, use require("./hubrelay.mjs") (Node 20.19 or later) or await import("./hubrelay.mjs").
// Node has a built-in WebSocket since version 22. Earlier versions need the package ws: npm install ws.
// A page must not have a key. It uses `address`, a function that asks your backend; see listen-browser/.

const NOTIFICATIONS = "/v1/hubs/current/notifications";
const REQUEST_TIMEOUT = 30_000;
const HANDSHAKE_TIMEOUT = 15_000;
const HEARTBEAT = 30_000;
const SILENCE = 75_000; // maximum silence if pings are visible, as in the package ws
const MAX_MESSAGE = 1 << 20;
const MAX_WAITING = 8 << 20; // maximum characters that wait for the caller
const MAX_RETRY_AFTER = 300_000;
const LATER = 2_000; // minimum pause after close code 1013, for a caller that was too slow
const MAX_REFUSALS = 3; // consecutive rejections of fresh tokens before listen throws
const MAX_REFUSAL = 1 << 16; // maximum characters of an error response
// A redirect would turn a publication into a GET, whose response looks like success.
const PLAIN = /** @type {const} */ ({ redirect: "manual", credentials: "omit", cache: "no-store" });
const NEVER = new AbortController().signal;

/**
 * @typedef {{ id: string, state: string, error: string, [member: string]: unknown }} About
 * @typedef {{ hub_id: string, account_id: string, environments: string[], dns_zones: string[], clusters: string[],
 *   containers: string[], [member: string]: unknown }} Context
 * @typedef {{ topic: string, object: About, context: Context, flags: null, id?: string, time?: string,
 *   cursor?: string }} Notification
 *   The topic hubrelay.resync means that notifications were lost: read the current state.
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
 * @property {string} [url] The address of the relay, with a path if the API is below one.
 * @property {string} [key] The API key. Never use it in a page.
 * @property {string} [hub] The hub for publishing and listening; empty for the account pipeline.
 * @property {(signal: AbortSignal) => Promise<string>} [address] Replaces url and key: returns a new websocket
 *   address with a token, as in the Link header of the token response. Called for every connection.
 * @property {any} [WebSocket] The class for connections if none is built in.
 *
 * @typedef {object} ListenOptions
 * @property {string[]} [topics] Topic patterns; empty for every topic.
 * @property {string} [after] The cursor of the last notification, to start after it.
 * @property {boolean} [metadata] Adds the id and the time of acceptance to each notification.
 * @property {AbortSignal} [signal] Ends the loop, without an error.
 * @property {() => void} [onopen] Called for each connection. Notifications accepted later arrive.
 * @property {(error: Error, pause: number) => void} [onclose] Called after a connection or an attempt has ended,
 *   if another follows after pause milliseconds.
 * @property {number} [leastPause] Minimum of the increasing pause between attempts, in milliseconds (500).
 * @property {number} [mostPause] Maximum of it (30,000). A longer pause that the server requests is used, up to five
 *   minutes.
 * @property {number} [silence] Maximum time without data, in milliseconds, before a new connection resumes after the
 *   last notification. Pings count if they are visible, as in the package ws (75,000). A built-in WebSocket does not
 *   show pings, so there it is off by default: in a quiet hub it costs a token and a connection each time. Without
 *   it, a dead connection is noticed when the system gives up sending the message of every 30 s, which can take a
 *   quarter of an hour.
 */

/** @returns {Promise<any>} the class of the package ws, for versions of Node without a WebSocket */
async function importWebSocket() {
  const name = "ws"; // a variable, so bundlers for browsers do not look for it
  try {
    return (await import(name)).WebSocket;
  } catch {
    throw new TypeError("no WebSocket: use Node 22 or later, or npm install ws");
  }
}

/** An error response of the relay, with the members of its error envelope. */
export class HubrelayError extends Error {
  /**
   * @param {number} status
   * @param {{ code?: string, title?: string, detail?: string, source?: string, extra?: Record<string, unknown> }}
   *   [envelope]
   * @param {number} [retryAfter]
   */
  constructor(status, { code = "", title = "", detail = "", source = "", extra = {} } = {}, retryAfter = 0) {
    super(
      code
        ? `${detail || title} (${code}${source && ` at ${source}`})`
        : `the server answered ${status || "with a redirect"} without an error of a relay; check the address`,
    );
    this.name = "HubrelayError";
    /** The HTTP status; 0 for a redirect in a page, which cannot read its status. */
    this.status = status;
    /** The status, a dot and a slug; empty if the response is not from a relay. */
    this.code = code;
    this.title = title;
    this.detail = detail;
    /** A JSON pointer into the request body. */
    this.source = source;
    this.extra = extra;
    /** The pause that the server requested, in milliseconds, or 0. */
    this.retryAfter = retryAfter;
  }

  /** @param {Response} response with a status other than 2xx, also of your own backend */
  static async of(response) {
    return errorOf(response.status, response.headers.get("Retry-After"), await response.text().catch(() => ""));
  }
}

/** A client of one relay with one key. Methods may be called concurrently. */
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

  /**
   * Returns a new token, which opens one stream.
   * @param {{ signal?: AbortSignal }} [options]
   * @returns {Promise<string>}
   */
  async token({ signal } = {}) {
    return (await this.#call("GET", NOTIFICATIONS, { signal })).token;
  }

  /**
   * Publishes one notification or several, all or nothing, and returns their ids in order. With an idempotencyKey it
   * is safe to call it again after an error with an unknown result.
   * @param {NewNotification | NewNotification[]} notifications
   * @param {{ idempotencyKey?: string, signal?: AbortSignal }} [options]
   * @returns {Promise<string[]>}
   */
  async publish(notifications, options = {}) {
    return (await this.#call("POST", NOTIFICATIONS, { ...options, body: notifications })).ids;
  }

  /**
   * Requests a move of an instance to the server `to`, and returns the id of the job.
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
   * Yields notifications as they arrive. It requests a token for every connection and reconnects, with increasing
   * pauses, until the signal aborts. Each connection starts after the last notification that was yielded, or at the
   * start of the first connection. So it yields each notification once while the relay still stores it. If
   * notifications are lost, it yields one with the topic hubrelay.resync instead, when the stream is open again. It
   * throws only errors that a repetition cannot fix, such as a wrong key or pattern. Temporary errors, such as a page
   * of a load balancer, do not end it.
   * @param {ListenOptions} [options]
   * @returns {AsyncGenerator<Notification, void, undefined>}
   */
  async *listen(options = {}) {
    const { topics = [], after = "", metadata = false, signal = NEVER, onopen, onclose } = options;
    const { leastPause = 500, mostPause = 30_000, silence = 0 } = options;
    this.#WebSocket ??= await importWebSocket();
    let cursor = after; // of the last notification, or of the start of the stream
    let lost = false; // the relay no longer knows its cursor
    let connected = false; // at least once
    let failures = 0; // attempts since a connection that lasted longer than the pause before it
    let paused = 0;
    const tokens = { fresh: false, refusals: 0 }; // the last attempt got a token; consecutive rejections
    while (!signal.aborted) {
      let since = Infinity;
      let calling = false; // in onopen, whose errors are for the caller
      let connection;
      try {
        connection = await this.#connect(tokens, silence, signal, () => {
          return this.#stream(topics, cursor, metadata, signal);
        });
        connected = true;
        tokens.refusals = 0;
        since = performance.now();
        calling = true;
        onopen?.();
        calling = false;
        for await (const notification of connection) {
          const begins = notification.topic === "hubrelay.cursor"; // only the position of the stream
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
        const error = thrown ?? new Error("no address");
        if (isStale(error) && cursor !== after) {
          cursor = "";
          lost = true;
        } else if (isPermanent(error, connected, tokens)) throw error;
        // One message does not reset the pause, because it can be all that a connection gets.
        if (performance.now() - since > paused) failures = 0;
        const full = Math.min(leastPause * 2 ** failures++, mostPause);
        paused = full / 2 + Math.random() * (full / 2);
        const later = error.closed === 1013 ? Math.min(LATER * (1 + Math.random()), mostPause) : 0;
        const pause = Math.max(paused, later, Math.min(Number(error.retryAfter) || 0, MAX_RETRY_AFTER));
        onclose?.(error, pause);
        await sleep(pause, signal);
      } finally {
        connection?.end(new Error("the caller has stopped"));
      }
    }
  }

  /**
   * @param {{ fresh: boolean, refusals: number }} tokens @param {number} silence @param {AbortSignal} signal
   * @param {() => Promise<URL>} stream returns an address
   */
  async #connect(tokens, silence, signal, stream) {
    tokens.fresh = false;
    const address = await stream();
    tokens.fresh = true;
    const connection = new Connection(this.#WebSocket, address, silence, signal);
    try {
      await connection.opened;
    } catch (/** @type {any} */ error) {
      let reason = connection.showsStatus ? error : await rejection(address, signal);
      if (reason?.status === 401 && ++tokens.refusals >= MAX_REFUSALS && !connection.showsStatus) {
        // A lost upgrade may have consumed the token, so use a new one.
        reason = await rejection(await stream(), signal);
      }
      throw reason ?? error;
    }
    return connection;
  }

  /** @param {string[]} topics @param {string} cursor @param {boolean} metadata @param {AbortSignal} signal */
  async #stream(topics, cursor, metadata, signal) {
    const address = new URL(await bounded(signal, REQUEST_TIMEOUT, this.#address));
    address.searchParams.set("cursor", "true");
    if (metadata) address.searchParams.set("metadata", "true");
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
      const response = await fetch(this.#url + path, { ...PLAIN, method, headers, body: JSON.stringify(body), signal });
      if (!response.ok) throw await HubrelayError.of(response);
      const envelope = await response.json().catch(() => null);
      if (!envelope?.data) throw new Error("the response is not from a relay; check the address");
      return envelope.data;
    });
  }
}

/** One websocket. Messages wait for the caller. If they are too many, the connection ends and can be resumed. */
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
    const socket = new WebSocket(address.href, [], { maxPayload: MAX_MESSAGE }); // for the package ws only
    /** Whether errors contain the status of a rejected upgrade. */
    this.showsStatus = Boolean(socket.on);
    const maxSilence = silence || (this.showsStatus ? SILENCE : 0);
    const interval = this.showsStatus ? Math.min(HEARTBEAT, maxSilence / 2) : HEARTBEAT;
    const ping = () => (this.showsStatus ? socket.ping() : socket.send(""));
    const silent = () => this.end(new Error("nothing came for too long"));
    // Any data restarts the first timer. If pings are not visible, sending into a dead connection makes it end.
    this.#timers = [
      setTimeout(silent, HANDSHAKE_TIMEOUT),
      setInterval(() => socket.readyState === 1 && ping(), interval),
    ];
    const alive = () => {
      clearTimeout(this.#timers[0]);
      if (maxSilence && !this.#ended) this.#timers[0] = setTimeout(silent, maxSilence);
    };
    /** Resolves once the stream is open. */
    this.opened = new Promise((resolve, reject) => {
      socket.onopen = () => resolve(alive());
      this.#wake = () => this.#ended && reject(this.#ended);
    });
    socket.onmessage = (/** @type {{ data: unknown }} */ { data }) => {
      alive();
      this.#receive(data);
    };
    for (const sign of ["ping", "pong"]) socket.on?.(sign, alive);
    socket.on?.("unexpected-response", async (/** @type {any} */ _, /** @type {any} */ response) => {
      let text = "";
      try {
        for await (const part of response.setEncoding("utf8")) if ((text += part).length > MAX_REFUSAL) break;
      } catch {} // use the part that arrived
      this.end(errorOf(response.statusCode, response.headers["retry-after"], text));
    });
    // Browsers give no reason; Node 20 does not call onclose after it.
    socket.onerror = (/** @type {{ message?: string }} */ { message }) =>
      this.end(new Error(message || "the connection failed"));
    socket.onclose = (/** @type {{ code: number, reason: string }} */ { code, reason }) =>
      this.end(Object.assign(new Error(`the connection was closed: ${code} ${reason}`.trim()), { closed: code }));
    this.#socket = socket;
    this.#signal = signal;
    signal.addEventListener("abort", this.#abort);
    if (signal.aborted) this.#abort();
  }

  /** @param {unknown} data */
  #receive(data) {
    if (this.#ended || typeof data !== "string") return;
    this.#waiting.push(data);
    this.#size += data.length;
    if (this.#size > MAX_WAITING) this.end(new Error("the caller is too slow"));
    this.#wake();
  }

  /**
   * Yields until the connection has ended, then throws the reason.
   * @returns {AsyncGenerator<Notification, never, undefined>}
   */
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

  /** @param {Error} reason */
  end(reason) {
    if (this.#ended) return;
    this.#ended = reason;
    this.#timers.forEach(clearTimeout);
    this.#signal.removeEventListener("abort", this.#abort);
    this.#socket.close();
    this.#wake();
  }
}

/** @param {number} status @param {unknown} retryAfter @param {string} text */
function errorOf(status, retryAfter, text) {
  /** @type {any} */
  let envelope;
  try {
    envelope = JSON.parse(text);
  } catch {} // not a response of a relay
  return new HubrelayError(status, envelope?.error ?? {}, (Number(retryAfter) || 0) * 1000);
}

/**
 * Returns why an upgrade was rejected, because a built-in WebSocket does not. It requests the same address as an
 * event stream, which is rejected for the same reason; the relay counts two rejections. A 401 counts only if it is
 * from a relay.
 * @param {URL} address @param {AbortSignal} signal
 */
function rejection(address, signal) {
  const stream = new URL(address.href.replace(/^ws/, "http"));
  return bounded(signal, REQUEST_TIMEOUT, async (signal) => {
    const response = await fetch(stream, { ...PLAIN, headers: { Accept: "text/event-stream" }, signal });
    if (response.ok || response.status === 426) return undefined;
    const error = await HubrelayError.of(response);
    return error.status === 401 && !error.code ? undefined : error;
  }).catch(() => undefined);
}

/** Reports whether the relay rejects its own cursor, because it was set up again since. @param {any} error */
function isStale(error) {
  return error.status === 422 && error.extra?.parameter === "after";
}

/**
 * Reports whether a repetition cannot succeed. A fresh token can expire before it is used, so its rejection counts
 * only after several repetitions.
 * @param {any} error @param {boolean} connected @param {{ fresh: boolean, refusals: number }} tokens
 */
function isPermanent(error, connected, tokens) {
  if (!(error instanceof HubrelayError)) return false;
  if (error.status === 401) return !tokens.fresh || tokens.refusals >= MAX_REFUSALS;
  if ([403, 422].includes(error.status)) return true;
  if ([408, 425, 429].includes(error.status)) return false;
  return Math.floor(error.status / 100) === 4 && !connected;
}

/** Returns the notification of a relay about lost notifications. @param {string} [cursor] @returns {Notification} */
function resync(cursor) {
  return {
    topic: "hubrelay.resync",
    object: { id: "", state: "gap", error: "the relay no longer knows the cursor; it was set up anew" },
    context: { hub_id: "", account_id: "", environments: [], dns_zones: [], clusters: [], containers: [] },
    flags: null,
    ...(cursor && { cursor }),
  };
}

/** Returns undefined for other messages than notifications. @param {string} text @returns {Notification | undefined} */
function parse(text) {
  try {
    const message = JSON.parse(text);
    return typeof message?.topic === "string" ? message : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Runs work with a signal that aborts after some milliseconds.
 * @template T @param {AbortSignal} signal @param {number} time @param {(signal: AbortSignal) => Promise<T>} work
 * @returns {Promise<T>}
 */
async function bounded(signal, time, work) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  const timer = setTimeout(() => controller.abort(new Error(`no response within ${time / 1000} s`)), time);
  /** @type {Promise<never>} */
  const aborted = new Promise((_, reject) =>
    controller.signal.addEventListener("abort", () => reject(controller.signal.reason)),
  );
  signal.addEventListener("abort", abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([aborted, (async () => work(controller.signal))()]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", abort);
    controller.abort(); // ends the rest of the work
  }
}

/** @param {number} time @param {AbortSignal} signal */
async function sleep(time, signal) {
  await bounded(signal, time, () => new Promise(() => {})).catch(() => {});
}
