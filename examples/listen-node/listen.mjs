#!/usr/bin/env node
// Prints notifications of a hub as they arrive, each as one JSON line.
//
// Needs Node 22 or later, or 18 with the package `ws`. Reads HUBRELAY_URL, HUBRELAY_KEY and HUBRELAY_HUB; arguments are
// topic patterns, such as 'container.*' '!*.error'.

import { Hubrelay } from "../hubrelay.mjs";

const { HUBRELAY_URL: url = "http://127.0.0.1:8080", HUBRELAY_KEY: key = "", HUBRELAY_HUB: hub = "" } = process.env;
const WebSocket = globalThis.WebSocket ?? (await import("ws")).default;
const interrupted = new AbortController();
for (const name of ["SIGINT", "SIGTERM"]) process.once(name, () => interrupted.abort());

// Change handle for your program.
function handle(notification) {
  console.log(JSON.stringify(notification));
}

try {
  const notifications = new Hubrelay({ url, key, hub, WebSocket }).listen({
    topics: process.argv.slice(2),
    signal: interrupted.signal,
    onopen: () => console.error(`listening to hub ${hub}`),
    onclose: (error, pause) =>
      console.error(`${error.cause?.message || error.message}; trying again in ${Math.round(pause)} ms`),
  });
  for await (const notification of notifications) handle(notification);
} catch (error) {
  console.error(error.message); // such as a wrong key, which a repetition cannot fix
  process.exit(1);
}
