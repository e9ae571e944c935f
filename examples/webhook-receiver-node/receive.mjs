#!/usr/bin/env node
// Receives webhooks, verifies their signatures with the official library, and prints each notification once as a JSON
// line.
//
// Needs Node 18 or later and the package `standardwebhooks`. Reads WEBHOOK_SECRET (whsec_…) and PORT (9000).

import { createServer } from "node:http";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

if (!process.env.WEBHOOK_SECRET) {
  console.error("set WEBHOOK_SECRET to the secret of the sink, whsec_…");
  process.exit(2);
}
const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const MAX_BODY = 1 << 20;

// A webhook can arrive several times with the same id. Store the ids in your database in the same transaction as the
// result.
const seen = new Set();
function isNew(id) {
  if (seen.has(id)) return false;
  seen.add(id);
  if (seen.size > 10_000) seen.delete(seen.values().next().value); // the oldest
  return true;
}

async function read(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > MAX_BODY) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks); // unchanged bytes, because the signature covers them
}

// Statuses mean: 2xx delivered; 400, 413 and 422 dead letter immediately; 410 disable the sink; any other retry later.
async function receive(request) {
  if (request.method !== "POST") return 405;
  const body = await read(request);
  if (body === undefined) return 413;
  try {
    webhook.verify(body, request.headers);
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    console.error(`rejected: ${error.message}`);
    return 401; // retried, so a mistyped secret loses nothing
  }
  if (isNew(request.headers["webhook-id"])) handle(JSON.parse(body.toString("utf8")));
  return 204;
}

// Change handle for your program. Respond before long work, because the relay waits 15 seconds.
function handle(notification) {
  console.log(JSON.stringify(notification));
}

const server = createServer(async (request, response) => {
  let status = 500;
  try {
    status = await receive(request);
  } catch (error) {
    console.error(`failed: ${error.message}`);
  }
  response.writeHead(status).end();
});

server.listen(Number(process.env.PORT ?? 9000), "127.0.0.1", () => {
  console.error(`receiving on http://127.0.0.1:${server.address().port}`);
});
