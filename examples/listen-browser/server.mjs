#!/usr/bin/env node
// Serves the page beside it with the client, ../hubrelay.js, and hands it a fresh websocket address whenever it asks. The API key stays here: a page
// never sees it, only a token that opens one websocket within a minute.
//
// Needs Node 18 or later. Reads HUBRELAY_URL, HUBRELAY_KEY, HUBRELAY_HUB, and PORT (8000). The relay must allow
// this server's origin: server.allowed_origins: ["http://127.0.0.1:8000"]

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const relay = new URL("/v1/hubs/current/notifications", process.env.HUBRELAY_URL ?? "http://127.0.0.1:8080");
const headers = {
  Authorization: `Bearer ${process.env.HUBRELAY_KEY ?? ""}`,
  "X-Hub-Id": process.env.HUBRELAY_HUB ?? "",
};

const files = {
  "/": { path: "index.html", type: "text/html" },
  "/hubrelay.js": { path: "../hubrelay.js", type: "text/javascript" },
};

// askForStream asks the relay for a token; the Link header of the answer is the whole websocket address. What the page has to
// know is passed on: that trying again is of no use (401), or how long to wait (429, 503).
async function askForStream() {
  const answer = await fetch(relay, { headers, signal: AbortSignal.timeout(10_000) });
  const text = await answer.text();
  if (!answer.ok) console.error(`the relay answered ${answer.status}: ${text}`);
  if ([401, 429, 503].includes(answer.status)) {
    const wait = answer.headers.get("Retry-After");
    return { status: answer.status, more: wait ? { "Retry-After": wait } : {}, text };
  }
  const link = /<([^>]+)>;\s*rel="notifications"/.exec(answer.headers.get("link") ?? "");
  if (!answer.ok || !link) throw new Error("the relay gave no websocket address");
  return { status: 200, more: {}, text: JSON.stringify({ url: link[1] }) };
}

const server = createServer(async (request, response) => {
  try {
    const file = files[request.url];
    if (file) {
      const content = await readFile(new URL(file.path, import.meta.url));
      response.writeHead(200, { "Content-Type": `${file.type}; charset=utf-8` }).end(content);
    } else if (request.url === "/stream-address") {
      // In a real site: check first that this visitor may see the hub.
      const { status, more, text } = await askForStream();
      response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store", ...more }).end(text);
    } else {
      response.writeHead(404).end();
    }
  } catch (error) {
    console.error(error.message); // for you; of any other mistake the visitor learns only that it failed
    response.writeHead(502).end();
  }
});

server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
