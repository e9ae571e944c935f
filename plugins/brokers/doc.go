// Package brokers publishes notifications to a broker: Kafka, NATS JetStream, AMQP 0-9-1 (RabbitMQ), MQTT 5, Redis Streams or a
// table of PostgreSQL. It is a program of its own, hubrelay-brokers, and a sink of the daemon:
//
//	sinks:
//	  events:
//	    type: plugin
//	    command: [hubrelay-brokers]
//	    topics: ["container.*"]
//	    config: {broker: kafka, addresses: ["kafka-1:9092", "kafka-2:9092"], topic: "hubrelay.{topic}"}
//
// # What every broker has
//
//	broker                   kafka, nats, amqp, mqtt, redis or postgres
//	addresses                host:port, or host for the usual port; several are tried in turn, or are those of one cluster
//	user                     and password or password_file; the file is read again for each new connection
//	tls                      {ca_file, cert_file, key_file, server_name}; {} trusts the system's authorities; left out: in clear
//
// Paths begin in the folder of the daemon's configuration file. A key that belongs to another broker is refused.
//
// # What a message is
//
// The payload is the notification's JSON, byte for byte as every other receiver gets it; of a sink with a digest it is the digest's
// document, and of a batch each notification is a message of its own, one after the other. Beside it, as headers, properties or metadata: hubrelay-id (the id of the delivery, the same in every attempt and
// replay, as webhook-id is), hubrelay-topic, hubrelay-hub, hubrelay-account, hubrelay-container where it concerns exactly one, and
// content-type. Nothing else of a client or of the relay travels along.
//
// Where it goes is a name with placeholders, one for each notification: {topic}, {hub}, {account}, and {topic_path}, which is the
// topic with slashes for dots. What a broker does not take in names becomes "_" in their values, and so does a dot in a hub or an
// account, since it would begin another word; two hubs may meet in one name, which hubrelay-hub tells apart. A digest has the topic
// hubrelay.digest, and a hub where all that it gathered are of one.
//
//	kafka     topic (hubrelay). key: hub (default), container or none: what has one key is in one partition, in order; of several
//	          or no containers the hub. sasl: plain (default), scram-sha-256, scram-sha-512. compression: none, gzip, snappy, lz4,
//	          zstd. max_message_bytes (1000000) as the brokers' message.max.bytes. Acknowledged by all replicas in sync, by an
//	          idempotent producer. Kafka 2.1 and later.
//	nats      subject (hubrelay.{topic}), which some stream must take. token_file or creds_file in place of user. Nats-Msg-Id is
//	          the id, so that a stream stores no repeat within its duplicate window.
//	amqp      exchange (amq.topic; "" is the default exchange, whose routing keys are queues), routing_key (hubrelay.{topic}),
//	          vhost (/). Messages are persistent, mandatory and confirmed: what no queue takes is a failure.
//	mqtt      topic (hubrelay/{hub}/{topic_path}). client_id: left out, the broker gives one; two nodes of the relay with the same
//	          would end each other's connections. Quality of service 1, nothing is retained.
//	redis     stream (notifications), its fields those of the relay's own log: id, topic, hub, account, data. maxlen: about how
//	          many entries it keeps (0: all). db, cluster, sentinel_master. Not a name that begins with the relay's own prefix.
//	postgres  database, table (notifications; schema.table), which is made unless create_table is false: Watermill's table, which
//	          its subscribers read, with payload and metadata as JSON, and a unique index over uuid, the id. A repeat adds no row.
//	          Of several addresses the one that can be written to.
//
// # Delivery
//
// A delivery succeeds once the broker has acknowledged it. Attempts run at once, as many as the sink's `concurrency` (16) allows, on one
// connection (ten for PostgreSQL); for order, give the sink an `ordering`. Whatever may pass is retried: a broker that is away,
// refuses the login or the name, is full. Dead at once is what this broker will never take: what is too large, or has an impossible
// name. An attempt never outlasts the sink's `timeout`. One whose acknowledgement was lost comes again, so that consumers see
// some ids twice; NATS (within its window) and PostgreSQL see to that themselves.
//
// The first delivery dials. NATS, AMQP and MQTT are dialled again by this package, once at a time, with pauses that grow to two seconds;
// the libraries of the others do so themselves. So a broker that comes back within an attempt's time costs no attempt.
//
// Brokers are addressed by the configuration alone and mostly live on private networks, so that addresses are not judged as those of
// webhooks are.
//
// # What it says of itself
//
// Before it runs it finds mistakes in its configuration, files that cannot be read included, and shows what an event becomes, made by
// the code that publishes; neither dials the broker.
//
// # Publishers
//
// Each broker is a message.Publisher of Watermill: its own for Kafka, Redis and PostgreSQL. Its one for NATS waits without a
// context, its one for AMQP does not look at what is returned as unroutable and races at reconnecting, and there is none for
// MQTT; those three are ours, on the brokers' official clients.
//
// Like every plugin it imports relay and plugins/sdk only (the latter in cmd), and those clients. Retries, schedules and rates must not
// come in.
package brokers
