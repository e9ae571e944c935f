// Listens to a server that rejects and disconnects in a different way for each hub, and returns the results.

import { Hubrelay } from "../hubrelay.mjs";

export async function scenario({ url, key, WebSocket }) {
  // listenTo listens until the first ordinary notification, a number of failures, or a long pause.
  async function listenTo(hub, { maxFailures = 20, maxPause = Infinity, ...options } = {}) {
    const abort = new AbortController();
    const seen = { topics: [], errors: [], pauses: [], thrown: "" };
    const onclose = (error, pause) => {
      seen.errors.push(error.message);
      if (seen.pauses.push(pause) === maxFailures || pause >= maxPause) abort.abort();
    };
    const client = new Hubrelay({ url, key, hub, WebSocket });
    try {
      const all = { signal: abort.signal, onclose, leastPause: 4, mostPause: 8, ...options };
      for await (const { topic, cursor } of client.listen(all)) {
        seen.topics.push(`${topic} ${cursor}`);
        if (topic === "container.created") break;
      }
    } catch (error) {
      seen.thrown = error.message;
    }
    return seen;
  }
  return {
    closes: await listenTo("closes"),
    refused: await listenTo("refused"),
    lost: await listenTo("lost"),
    page: await listenTo("page"),
    silent: await listenTo("silent", { silence: 10_000 }),
    stale: await listenTo("stale"),
    busy: await listenTo("busy", { maxFailures: 1 }),
    quiet: await listenTo("quiet", { silence: 1500, maxFailures: 4 }),
    short: await listenTo("short", { leastPause: 50, mostPause: 1000, maxPause: 100 }),
    later: await listenTo("later", { mostPause: 10_000, maxFailures: 1 }),
    onopen: await listenTo("onopen", { onopen: () => { throw new Error("the caller's"); } }),
    address: await strange(),
  };

  // strange has an address function that rejects with other values than errors, and returns the pauses.
  async function strange() {
    const abort = new AbortController();
    const errors = [null, "no", Object.assign(new Error("no"), { retryAfter: "soon" })];
    const pauses = [];
    const client = new Hubrelay({ address: () => Promise.reject(errors[pauses.length]), WebSocket });
    const onclose = (_, pause) => pauses.push(pause) === errors.length && abort.abort();
    for await (const _ of client.listen({ signal: abort.signal, onclose, leastPause: 4, mostPause: 4 }));
    return { pauses };
  }
}
