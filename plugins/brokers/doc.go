// Package brokers publishes notifications to a broker: Kafka, NATS JetStream, AMQP 0-9-1 (RabbitMQ), MQTT 5, Redis
// Streams or a table of PostgreSQL. It is the program hubrelay-brokers, a plugin that the daemon uses as a sink:
//
//	sinks:
//	  events:
//	    type: plugin
//	    command: [hubrelay-brokers]
//	    topics: ["container.*"]
//	    config: {broker: kafka, addresses: ["kafka-1:9092", "kafka-2:9092"], topic: "hubrelay.{topic}"}
//
// # Settings of all brokers
//
//	broker                   kafka, nats, amqp, mqtt, redis or postgres
//	addresses                host:port, or host for the default port; several are dialed in order, or belong to one
//	                         cluster
//	user                     and password or password_file; the file is read for each connection
//	tls                      {ca_file, cert_file, key_file, server_name}; {} trusts the system's authorities; without
//	                         tls, connections are not encrypted
//
// Relative paths start at the directory of the daemon's configuration file. A key of another broker is an error.
//
// # Messages
//
// The payload is the JSON of the notification, with the same bytes that every other sink gets. The payload of a
// digest is the digest's document. Each notification of a batch becomes one message, and they are published in order.
// Headers, properties or metadata of a message are hubrelay-id (the ID of the delivery, the same in all attempts and
// replays, like webhook-id), hubrelay-topic, hubrelay-hub, hubrelay-account, hubrelay-container if the notification
// has exactly one container, and content-type. Nothing about the client or the relay is sent.
//
// The topic, subject, routing key, stream or table is a name with placeholders: {topic}, {hub}, {account}, and
// {topic_path}, which is the topic with slashes instead of dots. A character that the broker does not allow in a name
// becomes "_". So does a dot in a hub or an account, because it would start another word. Two hubs can therefore have
// the same name. The account a_b with the hub c has the same name as a with b_c if the separator of the placeholders is "_",
// or another character that an account can contain.
// hubrelay-hub and hubrelay-account tell them apart. A digest has the topic hubrelay.digest, and a hub if all its
// notifications share it. Publishers may name any number of hubs. If the broker creates topics or streams by itself and
// the name has {hub}, set a limit in the broker.
//
//	kafka     topic (hubrelay). key: hub (default), container or none. Records with the same key go to one partition,
//	          in order. Without exactly one container, the key is the hub. sasl: plain (default), scram-sha-256,
//	          scram-sha-512. compression: none, gzip, snappy, lz4, zstd. max_message_bytes (1000000) limits a batch
//	          of records. If a broker rejects a batch as too large, each record is sent again alone, one at a time.
//	          The producer is idempotent, and all in-sync replicas acknowledge. Needs Kafka 2.1 or later.
//	nats      subject (hubrelay.{topic}), which a stream must have. token_file or creds_file instead of user.
//	          Nats-Msg-Id is the ID, so a stream ignores repeats within its duplicate window.
//	amqp      exchange (amq.topic; "" is the default exchange, whose routing keys are queues), routing_key
//	          (hubrelay.{topic}), vhost (/). Messages are persistent, mandatory and confirmed: an unroutable message
//	          is a failure. The sink learns max_message_size from the first message that is too large, and tries a
//	          larger one again after ten minutes. RabbitMQ closes the shared channel if a topic permission forbids a
//	          routing key. The unconfirmed messages are then sent again alone, so only the forbidden one fails. For ten
//	          minutes, messages with its routing key do not use the shared channel.
//	mqtt      topic (hubrelay/{hub}/{topic_path}). client_id: without it, the broker assigns one. Two nodes of the
//	          relay with the same client_id would end each other's connections. Quality of service 1, not retained.
//	redis     stream (notifications), with the fields of the relay's own log: id, topic, hub, account, data. maxlen:
//	          the approximate number of entries to keep (0: all). db, cluster, sentinel_master. Do not choose a name
//	          that starts with the prefix of the relay.
//	postgres  database, table (notifications; schema.table), created unless create_table is false. A table with {hub}
//	          is not created, because publishers may name any number of hubs. It is the table of Watermill, which its
//	          subscribers read, with payload and metadata as JSON, and a unique index on uuid, the ID. A repeat adds
//	          no row. With several addresses, the one that accepts writes is used.
//
// # Delivery
//
// A delivery succeeds when the broker has acknowledged it. Concurrent attempts, limited by the sink's `concurrency`
// (16), share one connection (ten for PostgreSQL). Set the sink's `ordering` if the order matters. Everything that
// may change is retried: the broker is not available, rejects the login or the name, or is full. A message that can
// never succeed becomes a dead letter at once: it is too large, or its name is invalid. An attempt never exceeds the
// sink's `timeout`. If an acknowledgment is lost, the message is published again, so consumers may see an ID twice.
// NATS (within its window) and PostgreSQL remove such repeats.
//
// The first delivery dials. This package redials NATS, AMQP and MQTT, one dial at a time, with pauses that grow to two
// seconds. The clients of the others reconnect by themselves. If the broker returns within the time of an attempt, the
// attempt succeeds. When a connection of MQTT is lost, the first redial has no pause. Each message without acknowledgment is
// sent again in the same attempt, at most twice.
//
// Addresses come only from the configuration, and brokers are usually on private networks. Therefore the address
// restrictions of webhooks do not apply.
//
// # Checks before the start
//
// The plugin reports problems in its configuration, including files that cannot be read, and explains what an event
// becomes with the code that publishes. Neither dials the broker.
//
// # Publishers
//
// Each broker is a message.Publisher of Watermill. Redis and PostgreSQL use Watermill's own. Watermill's publisher for
// Kafka has no contexts, its publisher for NATS waits without one, and its publisher for AMQP ignores returned messages
// and races while reconnecting. It has no publisher for MQTT. Those four are implemented here, with the usual clients.
//
// Like every plugin, this package imports only relay and, in cmd, plugins/sdk, and the clients of the brokers. Retries,
// schedules and rate limits belong to the daemon and must not be added here.
package brokers
