#!/usr/bin/env node
// Serves the page with the client, ../hubrelay.mjs, and returns a new websocket address for each request. The API key
// stays on the server. The page gets only a token that opens one websocket within a minute.
//
// Needs Node 18 or later. Reads HUBRELAY_URL, HUBRELAY_KEY, HUBRELAY_HUB, and PORT (8000). The relay must allow the
// origin of this server: server.allowed_origins: ["http://127.0.0.1:8000"]

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const relay = new URL("/v1/hubs/current/notifications", process.env.HUBRELAY_URL ?? "http://127.0.0.1:8080");
const headers = {
  Authorization: `Bearer ${process.env.HUBRELAY_KEY ?? ""}`,
  "X-Hub-Id": process.env.HUBRELAY_HUB ?? "",
};

const files = {
  "/": { path: "index.html", type: "text/html" },
  "/hubrelay.mjs": { path: "../hubrelay.mjs", type: "text/javascript" },
};

// requestStream requests a token from the relay. The Link header of the response is the complete websocket address.
// Errors that the page needs are forwarded: 401, because a repetition is useless, and 429 and 503 with their pause.
async function requestStream() {
  const response = await fetch(relay, { headers, signal: AbortSignal.timeout(10_000) });
  const text = await response.text();
  if (!response.ok) console.error(`the relay responded with ${response.status}: ${text}`);
  if ([401, 429, 503].includes(response.status)) {
    const wait = response.headers.get("Retry-After");
    return { status: response.status, headers: wait ? { "Retry-After": wait } : {}, text };
  }
  const link = /<([^>]+)>;\s*rel="notifications"/.exec(response.headers.get("link") ?? "");
  if (!response.ok || !link) throw new Error("the relay returned no websocket address");
  return { status: 200, headers: {}, text: JSON.stringify({ url: link[1] }) };
}

const server = createServer(async (request, response) => {
  try {
    const file = files[request.url];
    if (file) {
      const content = await readFile(new URL(file.path, import.meta.url));
      response.writeHead(200, { "Content-Type": `${file.type}; charset=utf-8` }).end(content);
    } else if (request.url === "/stream-address") {
      // A real site must check first if this visitor may see the hub.
      const { status, headers, text } = await requestStream();
      const all = { "Content-Type": "application/json", "Cache-Control": "no-store", ...headers };
      response.writeHead(status, all).end(text);
    } else {
      response.writeHead(404).end();
    }
  } catch (error) {
    console.error(error.message); // not for visitors, who only see that the request failed
    response.writeHead(502).end();
  }
});

server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
