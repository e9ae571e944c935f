// Listens when the limit of connections is reached, and returns the error and the pause.

import { Hubrelay } from "../hubrelay.mjs";

export async function scenario({ url, key, hub, WebSocket }) {
  const abort = new AbortController();
  let result;
  const onclose = ({ status, code, retryAfter, message }, pause) => {
    result = { status, code, retryAfter, message, pause };
    abort.abort();
  };
  const client = new Hubrelay({ url, key, hub, WebSocket });
  for await (const { topic } of client.listen({ signal: abort.signal, onclose, leastPause: 1, mostPause: 1 })) {
    throw new Error(topic);
  }
  return result;
}
