// Uses all functions of the module, in Node and in a page, and returns the results.

import { Hubrelay, HubrelayError } from "../hubrelay.mjs";

const EACH = 50;

// numbered publishes batches of notifications and receives them. Connections are cut before the first and after every
// third batch.
async function numbered(client, cut, batches) {
  const abort = new AbortController();
  const received = [];
  let connections = 0;
  let open = false;
  let closed = () => {};
  let opened = () => {};
  const options = {
    topics: ["container.*", "!*.error"],
    signal: abort.signal,
    leastPause: 1,
    mostPause: 1,
    onopen: () => {
      connections++;
      open = true;
      opened();
    },
    onclose: () => {
      open = false;
      closed();
    },
  };
  const listening = (async () => {
    for await (const { object, cursor } of client.listen(options)) {
      received.push(cursor ? object.id : `${object.id} without a cursor`);
      if (object.id === "last") abort.abort();
    }
    return "ended";
  })();
  const loseConnection = async () => {
    // A cut during a connection attempt would count twice.
    if (!open) await Promise.race([new Promise((resolve) => (opened = resolve)), listening]);
    const lost = new Promise((resolve) => (closed = resolve));
    await fetch(cut, { mode: "no-cors" });
    await lost;
  };
  await loseConnection();
  for (let batch = 0; batch < batches; batch++) {
    const lines = Array.from({ length: EACH }, (_, n) => ({
      topic: "container.created",
      object: { id: `${batch * EACH + n}` },
    }));
    await again(() => client.publish(lines, { idempotencyKey: `batch-${batch}` }));
    if (batch % 3 === 2) await loseConnection();
  }
  const last = [{ topic: "container.error" }, { topic: "container.created", object: { id: "last" } }];
  await again(() => client.publish(last, { idempotencyKey: "last" }));
  return { end: await listening, heard: received, connections };
}

// again publishes until there is a response.
async function again(publish) {
  for (;;) {
    try {
      return await publish();
    } catch (error) {
      if (error instanceof HubrelayError) throw error;
    }
  }
}

// moved migrates an instance and follows the job.
async function moved(client) {
  const id = await client.migrate("shop", "shop-1", { to: "b", copyVolumes: true, idempotencyKey: "move" });
  const twice = await client.migrate("shop", "shop-1", { to: "b", copyVolumes: true, idempotencyKey: "move" });
  for (;;) {
    const job = await client.job(id);
    if (["completed", "error", "expired"].includes(job.state.current)) {
      return { same: id === twice && id === job.id, state: job.state.current, error: job.state.error?.message ?? "" };
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// forgotten listens to a relay that does not know its cursor after a reconnect, as if it was set up again.
async function forgotten({ url, key, hub, cut, WebSocket = globalThis.WebSocket }, publisher) {
  class Forgetful extends WebSocket {
    set onmessage(take) {
      super.onmessage = ({ data }) => take({ data: data.replace(/"cursor":"[^"]*"/, '"cursor":"forgotten"') });
    }
  }
  const topics = [];
  const onopen = () => publisher.publish({ topic: "container.created" });
  const client = new Hubrelay({ url, key, hub, WebSocket: Forgetful });
  for await (const { topic } of client.listen({ onopen, leastPause: 1, mostPause: 1 })) {
    if (topics.push(topic) === 1) await fetch(cut, { mode: "no-cors" });
    if (topics.length === 3) return topics;
  }
}

async function first(notifications) {
  for await (const notification of notifications) return notification;
}

// refused returns the error.
async function refused(call) {
  try {
    await call;
    return { code: "none" };
  } catch (error) {
    const { name, status, code, source, extra, message } = error;
    return { name, status, code, source, extra, message };
  }
}

export async function scenario(setting) {
  const { url, direct, key, hub, cut, batches, WebSocket } = setting;
  const client = new Hubrelay({ url, key, hub, WebSocket });
  const plain = new Hubrelay({ url: direct, key, hub, WebSocket });
  const stranger = new Hubrelay({ url: direct, key: "wrong", hub, WebSocket });
  return {
    numbered: await numbered(client, cut, batches),
    forgotten: await forgotten(setting, plain),
    wrongKey: await refused(first(stranger.listen())),
    wrongPublish: await refused(plain.publish({ topic: "container.craeted" })),
    wrongJob: await refused(plain.job("no/job")),
    wrongTopics: await refused(first(plain.listen({ topics: ["contaner.created"] }))),
    wrongAfter: await refused(first(plain.listen({ after: "nonsense" }))),
    aborted: (await first(plain.listen({ signal: AbortSignal.abort() }))) ?? "ended",
    unreached: await unreached(WebSocket),
    moved: hub === "hub-moved" ? await moved(plain) : undefined,
  };
}

// unreached connects to a closed port until the third attempt, and aborts during a request or a pause.
async function unreached(WebSocket) {
  const abort = new AbortController();
  const closed = new Hubrelay({ url: "http://127.0.0.1:9", WebSocket });
  const pauses = [];
  const onclose = (_, pause) => pauses.push(pause) === 3 && setTimeout(() => abort.abort());
  await first(closed.listen({ signal: abort.signal, onclose, leastPause: 4, mostPause: 8 }));
  return pauses.map((pause, n) => pause >= [2, 4, 4][n] && pause <= [4, 8, 8][n]);
}
