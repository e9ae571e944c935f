package config

import "reflect"

// describe returns the description of a key: the tag doc, followed by the details that do not fit into a tag.
func describe(owner reflect.Type, key, doc string) string {
	if owner.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
		return doc
	}
	if more := details()[owner.Name()+"."+key]; more != "" {
		return doc + " " + more
	}
	return doc
}

// details returns further sentences about a key, by the struct and the key.
func details() map[string]string {
	return map[string]string{
		"Server.public_url":      "The form is http(s)://host[:port][/path]. If empty, it is taken from the request.",
		"Server.allowed_origins": "Each is https://host[:port], or * for all. The own host is always allowed.",
		"Admin.listen":           "It requires tokens. If empty, the listener is the unix socket admin.sock in redis.data_dir.",
		"Admin.tokens":           "Create a token with 'hubrelay keys new --admin'.",
		"AdminToken.role":        "viewer reads; operator also controls sinks and dead letters; admin may do everything.",
		"Redis.url": "redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or memory:. If empty, the " +
			"relay starts an embedded redis-server.",
		"Redis.data_dir":   "It is relative to the directory of the configuration file.",
		"Redis.partitions": "The number cannot change once there is data.",
		"Redis.min_replicas": "An event, a migration, an erasure, a revoked key, or a change of the state of a sink is confirmed " +
			"only when that many replicas have it. If fewer have it within a second, the request returns 503.",
		"Redis.retention": "Sinks do not depend on it: undelivered events stay in the queues of the sinks.",
		"Websocket.queue": "A client that exceeds the limit is closed as a slow consumer.",
		"Websocket.gather": "Events within the interval are sent together, which saves CPU at high rates. 0 disables " +
			"it.",
		"Websocket.compression": "The extension is permessage-deflate, RFC 7692.",
		"Websocket.recent": "The memory holds the newest events of all partitions, so replays need not read Redis. " +
			"Events that replays read from Redis use up to half as much again, and account streams over several " +
			"partitions use the same amount again.",
		"Websocket.ping_interval":    "Keep it below the idle timeout of proxies.",
		"Websocket.pong_timeout":     "The check runs with each ping.",
		"Websocket.max_connections":  "0 derives the limit from the limit of open files, minus a reserve.",
		"Compression.enabled":        "Event streams (SSE) are not compressed.",
		"Compression.cpu":            "Further messages are sent uncompressed.",
		"Notifications.extra_topics": "'hubrelay topics' lists the built-in ones.",
		"Auth.token_ttl":             "A token of an event stream is valid for the same time after the stream has ended.",
		"Auth.stream_ttl": "The client of an event stream reconnects with its token up to this age. Then the stream " +
			"ends, and the client needs a new token.",
		"Redis.max_memory": "0 means half of the memory of the machine, or of the memory limit of the container.",
		"Redis.full_at": "Publishing then gets 503.storage-full until there is room, and the inbox waits. Accounts that have stored " +
			"little may use half of the rest, which is for deliveries and retries. The limit of your own Redis is its maxmemory.",
		"Retention.max_bytes": "The log may be larger for a moment, and keeps what sinks have not received.",
		"Auth.jwt":            "A key of auth.keys has precedence. Streams end when their JWT expires.",
		"JWT.jwks_url": "It is fetched when it is needed, every 15 minutes, and for unknown key IDs. While it cannot " +
			"be fetched, known keys are used for a day. After that, requests get 503.auth-unavailable.",
		"JWT.algorithms": "All algorithms for public keys of RFC 7518 and EdDSA are possible, and none for shared " +
			"secrets.",
		"JWT.account_claim": "The claim is a string; * means all accounts. Without it, the bearer sees only " +
			"events without an account.",
		"JWT.hubs_claim":         "The claim is a list of strings, or a string with spaces; * means all hubs.",
		"JWT.capabilities_claim": "The claim is a list of strings, or a string with spaces.",
		"Auth.forward": "It verifies credentials other than keys and JWTs. It receives POST " +
			`{"credential":"…","hub_id":"…"}, and responds with 401 or with 200 and {"name":"…","account_id":"…",` +
			`"hubs":["…"],"capabilities":["…"],"expires":"RFC 3339"}. Streams end at expires, at most after an ` +
			"hour. An event hub.api_key.state.changed makes the decisions about its hub and account invalid.",
		"Forward.stale_ttl": "After that, requests get 503.auth-unavailable.",
		"MTLS.ca_file":      "Keys with san authenticate with a certificate of these CAs. The file is read at the start.",
		"Key.san":           "It is a DNS name, an email address or a URI, and replaces the secret. auth.mtls is required.",
		"Key.networks":      "Such as 10.0.0.0/8. Tokens of the key may be used from everywhere.",
		"Audit.hash_chain": "hubrelay audit verify then detects changed and removed lines. Only one node may write to " +
			"the file.",
		"Audit.file": "The file is opened for each write, so it can be rotated. It is relative to the working " +
			"directory.",
		"Server.body_memory": "An account, or a key without one, may hold as much as remains free: one alone gets half, two get a third " +
			"each. Beyond it, requests wait for five seconds, then get 503 " +
			"with Retry-After.",
		"Server.body_min_rate": "It counts in each ten seconds of a body that has not ended.",
		"Server.max_connections": "0 derives the limit from the limit of open files, minus a reserve for Redis, " +
			"sinks and the other listeners. At the limit, the longest idle connection is closed for a new one. One account may " +
			"send a quarter as many request bodies at once; more get 503.",
		"Server.max_connections_per_ip": "0 means half of max_connections. Loopback and trusted proxies have no " +
			"limit. An IPv6 /64 counts as one address.",
		"Server.trusted_proxies": "Each is an address or a network such as 10.0.0.0/8. They may also use the " +
			"PROXY protocol.",
		"Server.trusted_proxies_header": "It is X-Forwarded-For, Forwarded (RFC 7239), or another header with a list of " +
			"addresses. Only this header counts, because proxies pass others on as the client wrote them.",
		"Quotas.account": "The limit does not apply to keys without an account or for all accounts.",
		"Quotas.ip":      "Loopback and trusted proxies have no limit. An IPv6 /64 counts as one address.",
		"Quotas.requests": "These are requests for tokens and event streams, migrations and lists of tasks. Rejected " +
			"ones get 429 with Retry-After.",
		"Quota.bytes":       "Rejected requests count too.",
		"Quota.burst":       "A larger request is accepted after a pause, and delays the next one.",
		"Key.key_sha256":    "With the digest, the key itself is stored nowhere.",
		"Key.account_id":    "* sees everything in its hubs. If empty, the key sees only events without an account.",
		"Key.hubs":          "* means all hubs.",
		"Key.capabilities":  "Each is notifications-publish or containers-instances-migrate.",
		"Key.expires":       "The form is 2027-01-31 or 2027-01-31T12:00:00Z. If empty, the key never expires.",
		"Sink.environments": "One of them is enough.",
		"Sink.clusters":     "One of them is enough.",
		"Sink.containers":   "One of them is enough.",
		"Sink.topics":       "* matches any run of characters, and a leading ! excludes. If empty, all topics match.",
		"Sink.when": "It uses topic, object and context, such as object.state == \"unhealthy\". If empty, all events " +
			"match.",
		"Sink.disable_after": "A disabled sink keeps its backlog. 0 means never.",
		"Sink.backlog": "If a queue is full, its oldest events are dropped and counted. A node delivers what it has " +
			"already read. The same limit applies to scheduled retries, after which fresh deliveries wait, and to dead letters.",
		"Sink.account_share": "It applies if the queue has events of several accounts, to its number of events. The " +
			"newest events of an account with more are dropped and counted. If there are more dead letters than backlog, old ones " +
			"of such an account are dropped first. 100 sets no limit.",
		"Sink.backlog_bytes": "It applies to the queue, in addition to backlog, and drops the oldest events. It is checked every " +
			"5 seconds, and when an eighth of it was added. The same limit applies to scheduled retries, after which fresh " +
			"deliveries wait (except with batch), and to the events in open digests, which only count further ones. Deliveries in progress may exceed " +
			"it. 0 gives the sink its part of a quarter of the memory of Redis, and of another one for digests; further events " +
			"wait in the log.",
		"Sink.ordering": "Deliveries are in order for each hub or container, or not at all.",
		"Sink.rate":     "All nodes share it. The form is 10/s, 90/m or 1000/h. If empty, there is no limit.",
		"Sink.burst":    "It requires a rate. 0 means the number that the rate allows per second.",
		"Retry.max_attempts": "The count includes the first attempt, up to 100. If the schedule is shorter, its last " +
			"delay repeats. 0 means the length of the schedule.",
		"Digest.max":    "Further events are only counted.",
		"Digest.by":     "If empty, all events are combined.",
		"Source.hub_id": "If empty, the relay receives everything that the key's account may see.",
		"Source.topics": "* matches any run of characters, and a leading ! excludes. If empty, all topics are " +
			"requested.",
		"Source.ca_file":   "They replace the system's authorities. The file is read again for each connection.",
		"Migration.driver": "Without it, migrations are disabled.",
		"Migration.inventory_file": "It is imported at the start and after each change. Servers are defined only " +
			"here.",
		"Migration.server_concurrency": "The range is 1 to 1024. All nodes share the limit.",
		"Migration.stall_timeout": "After that the driver is stopped and called again. The value must exceed the " +
			"longest time without progress, such as the time of a health check.",
	}
}
