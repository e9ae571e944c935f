// What the module makes of a server that refuses and hangs up; each hub of it does another thing. It returns what it saw.

import { Hubrelay } from "../hubrelay.js";

export async function scenario({ url, key, WebSocket }) {
  // heard listens until the first ordinary notification, or until it has failed a number of times or pauses long enough.
  async function heard(hub, { most = 20, enough = Infinity, ...options } = {}) {
    const abort = new AbortController();
    const seen = { topics: [], errors: [], pauses: [], thrown: "" };
    const onclose = (error, pause) => {
      seen.errors.push(error.message);
      if (seen.pauses.push(pause) === most || pause >= enough) abort.abort();
    };
    const client = new Hubrelay({ url, key, hub, WebSocket });
    try {
      for await (const { topic, cursor } of client.listen({ signal: abort.signal, onclose, leastPause: 4, mostPause: 8, ...options })) {
        seen.topics.push(`${topic} ${cursor}`);
        if (topic === "container.created") break;
      }
    } catch (error) {
      seen.thrown = error.message;
    }
    return seen;
  }
  return {
    closes: await heard("closes"),
    refused: await heard("refused"),
    lost: await heard("lost"),
    page: await heard("page"),
    silent: await heard("silent", { silence: 1000 }),
    stale: await heard("stale"),
    busy: await heard("busy", { most: 1 }),
    quiet: await heard("quiet", { silence: 1500, most: 4 }),
    short: await heard("short", { leastPause: 50, mostPause: 1000, enough: 100 }),
    later: await heard("later", { mostPause: 10_000, most: 1 }),
    onopen: await heard("onopen", { onopen: () => { throw new Error("the caller's"); } }),
    address: await strange(),
  };

  // strange has an address whose errors are none, and returns the pauses.
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
