#!/usr/bin/env node
// Prints the notifications of a hub as they come, each as one JSON line.
//
// Needs Node 18 or later and the package `ws`. Reads HUBRELAY_URL, HUBRELAY_KEY and HUBRELAY_HUB; arguments are
// topic patterns, such as 'container.*' '!*.error'.

import { setTimeout as sleep } from "node:timers/promises";
import WebSocket from "ws";

const base = process.env.HUBRELAY_URL ?? "http://127.0.0.1:8080";
const headers = {
  Authorization: `Bearer ${process.env.HUBRELAY_KEY ?? ""}`,
  "X-Hub-Id": process.env.HUBRELAY_HUB ?? "",
};
const patterns = process.argv.slice(2);

// The relay pings every 25 seconds. A connection on which nothing came for twice as long is dead, whatever TCP says.
const SILENCE = 60_000;

class Refused extends Error {}

// streamURL asks for a token, which opens one websocket, soon.
async function streamURL() {
  const url = new URL("/v1/hubs/current/notifications", base);
  const answer = await fetch(url, { headers, signal: AbortSignal.timeout(10_000) });
  if (answer.status === 401 || answer.status === 403) throw new Refused(await answer.text());
  if (!answer.ok) throw new Error(`the relay answered ${answer.status}: ${await answer.text()}`);
  const { data } = await answer.json();
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.searchParams.set("token", data.token);
  if (patterns.length > 0) url.searchParams.set("topics", patterns.join(","));
  return url;
}

// listen resolves when the connection ends and rejects when it fails.
function listen(url, opened) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(url, { maxPayload: 1 << 20 });
    const alive = setTimeout(() => socket.terminate(), SILENCE);
    socket.on("open", opened);
    socket.on("ping", () => alive.refresh());
    socket.on("message", (data) => {
      alive.refresh();
      handle(JSON.parse(data));
    });
    // An upgrade that is refused for what it asks, such as a misspelled pattern, will be refused again.
    socket.on("unexpected-response", async (_, answer) => {
      let text = "";
      for await (const part of answer) text += part;
      const problem = `${answer.statusCode}: ${text}`;
      reject([403, 422].includes(answer.statusCode) ? new Refused(problem) : new Error(problem));
    });
    socket.on("error", reject);
    socket.on("close", (code, reason) => {
      clearTimeout(alive);
      resolve(`${code} ${reason}`);
    });
  });
}

// handle is yours to change.
function handle(notification) {
  console.log(JSON.stringify(notification));
}

for (let pause = 1000; ; pause = Math.min(pause * 2, 30_000)) {
  try {
    const why = await listen(await streamURL(), () => {
      pause = 500;
      console.error(`listening to hub ${headers["X-Hub-Id"]}`);
    });
    console.error(`the connection was closed: ${why}`);
  } catch (error) {
    if (error instanceof Refused) {
      console.error(`the relay refused: ${error.message}`);
      process.exit(1);
    }
    console.error(`the connection was lost: ${error.message}`);
  }
  await sleep(pause);
}
