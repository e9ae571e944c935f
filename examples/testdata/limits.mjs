// Listens where no place is left, and returns what the client says of it before it waits.

import { Hubrelay } from "../hubrelay.js";

export async function scenario({ url, key, hub, WebSocket }) {
  const abort = new AbortController();
  let told;
  const onclose = ({ status, code, retryAfter, message }, pause) => {
    told = { status, code, retryAfter, message, pause };
    abort.abort();
  };
  const client = new Hubrelay({ url, key, hub, WebSocket });
  for await (const { topic } of client.listen({ signal: abort.signal, onclose, leastPause: 1, mostPause: 1 })) throw new Error(topic);
  return told;
}
