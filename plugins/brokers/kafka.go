package brokers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// Values of the setting key. Records with the same key go to one partition, in order.
const (
	keyHub       = "hub"
	keyContainer = "container"
	keyNone      = "none"
)

// Values of the setting sasl.
const (
	saslPlain  = "plain"
	saslSHA256 = "scram-sha-256"
	saslSHA512 = "scram-sha-512"
)

const (
	// defaultMaxMessage is the default message.max.bytes of a broker minus the overhead of a record batch.
	defaultMaxMessage = 1_000_000
	kafkaRetries      = 5
	kafkaBackoff      = 250 * time.Millisecond
	// watermillID is the header in which Watermill's subscriber for Kafka expects the ID of a message.
	watermillID = "_watermill_message_uuid"
)

var kafkaTopic = nameRule{
	maxBytes: 249,
	allowed:  func(r rune) bool { return isPlainLetter(r) || r == '.' },
	check: func(text string) error {
		if text == "" || text == "." || text == ".." {
			return errors.New("this is not a valid topic")
		}
		return checkRunes(func(r rune) bool { return isPlainLetter(r) || r == '.' },
			"a topic may contain only letters, digits, '.', '_' and '-'")(text)
	},
}

func (c *Config) checkKafka() error {
	var errs []error
	choose := func(key, value string, list ...string) {
		if value == "" || slices.Contains(list, value) {
			return
		}
		hint := "choose one of " + strings.Join(list, ", ")
		if nearest := suggest.ClosestName(value, list); nearest != "" {
			hint = "did you mean " + nearest + "?"
		}
		errs = append(errs, fieldError(key, "%q is not known: %s", relay.Truncate(value, 40), hint))
	}
	choose("key", c.Key, keyHub, keyContainer, keyNone)
	choose("sasl", c.SASL, saslPlain, saslSHA256, saslSHA512)
	choose("compression", c.Compression, "none", "gzip", "snappy", "lz4", "zstd")
	if c.SASL != "" && c.User == "" {
		errs = append(errs, fieldError("user", "is missing: sasl needs a user"))
	}
	if c.MaxMessageBytes != 0 && (c.MaxMessageBytes < 1024 || c.MaxMessageBytes > 64<<20) {
		errs = append(errs, fieldError("max_message_bytes", "is %d: choose from 1024 to 67108864", c.MaxMessageBytes))
	}
	return errors.Join(errs...)
}

// kafkaConnection is a client that reconnects by itself. It reads the password and the TLS files for each connection.
// Its lifetime ends only if a topic was deleted and created again.
type kafkaConnection struct {
	cancelableLifetime
	client *kgo.Client
	// single has at most one record, so each of its batches is one record. It connects when the first record needs it.
	single  *kgo.Client
	key     string
	lastErr lastBrokerError
}

func openKafka(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		c := &kafkaConnection{cancelableLifetime: newLifetime(), key: s.config.Key}
		var err error
		if c.client, err = kgo.NewClient(append(s.kafkaOptions(), kgo.WithHooks(&c.lastErr))...); err != nil {
			return nil, err
		}
		if err := c.client.Ping(ctx); err != nil {
			c.client.Close()
			if s.config.User != "" && errors.Is(err, io.EOF) {
				err = errKafkaLogin
			}
			return nil, err
		}
		if c.single, err = kgo.NewClient(
			append(s.kafkaOptions(), kgo.WithHooks(&c.lastErr), kgo.MaxBufferedRecords(1))...); err != nil {
			c.client.Close()
			return nil, err
		}
		return c, nil
	}
}

// errKafkaLogin is the error of a broker that closes the first connection. Later, a broker may do so because it stops.
var errKafkaLogin = errors.New("the brokers close the connection during the login")

func (s *Sink) kafkaOptions() []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(s.config.hostPorts()...), kgo.ClientID("hubrelay"), kgo.DisableClientMetrics(),
		kgo.Dialer(s.dialBroker), kgo.BrokerMaxReadBytes(maxReplyBytes), kgo.FetchMaxBytes(maxReplyBytes),
		kgo.RequestTimeoutOverhead(dialTimeout), kgo.ProduceRequestTimeout(dialTimeout),
		kgo.RetryBackoffFn(func(int) time.Duration { return kafkaBackoff }), kgo.MetadataMinAge(kafkaBackoff),
		kgo.RequestRetries(1), kgo.RecordRetries(kafkaRetries), kgo.AllowAutoTopicCreation(),
		// A record is acknowledged when all in-sync replicas have it, and the client's own retries store it once. A
		// canceled attempt is final for the client, because the relay repeats it: the consumer may then see it twice.
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.AllowIdempotentProduceCancellation(), kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(int32(s.config.maxMessage())), kgo.ProducerBatchCompression(s.config.kafkaCodec()),
		// This hash is the one of Sarama, which published the records before: a key stays in its partition.
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(hashFNV32a))),
	}
	if s.config.User != "" {
		options = append(options, kgo.SASL(s.kafkaLogin()))
	}
	return options
}

func hashFNV32a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key)
	return h.Sum32()
}

// kafkaLogin reads the password file for each connection.
func (s *Sink) kafkaLogin() sasl.Mechanism {
	scramAuth := func(context.Context) (scram.Auth, error) {
		password, err := s.readPassword()
		return scram.Auth{User: s.config.User, Pass: password}, err
	}
	switch s.config.SASL {
	case saslSHA256:
		return scram.Sha256(scramAuth)
	case saslSHA512:
		return scram.Sha512(scramAuth)
	}
	return plain.Plain(func(context.Context) (plain.Auth, error) {
		password, err := s.readPassword()
		return plain.Auth{User: s.config.User, Pass: password}, err
	})
}

func (c *Config) kafkaCodec() kgo.CompressionCodec {
	switch c.Compression {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

var errPartitionFailed = errors.New("an earlier message of the same partition was not acknowledged in time")

// Publish waits until the brokers have acknowledged the messages.
func (c *kafkaConnection) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		err := c.client.ProduceSync(m.Context(), kafkaRecord(c.key, topic, m)).FirstErr()
		if isKafkaTooLarge(err) {
			// A broker with a smaller limit than max_message_bytes rejects a batch as a whole, and the client fails all
			// records of the partition. Only the response to a batch of one record counts for that record.
			err = c.single.ProduceSync(m.Context(), kafkaRecord(c.key, topic, m)).FirstErr()
		}
		switch {
		case errors.Is(err, kgo.ErrRecordRetries):
			return c.lastErr.orElse(err)
		case errors.Is(err, kerr.UnknownTopicID):
			// The client refuses to publish to a topic that was created again. Only a new client is safe: with the same
			// producer ID, the brokers could mistake new records for repeats.
			c.kill(err)
			return err
		case isContextError(err) && m.Context().Err() == nil:
			return errPartitionFailed // the client fails all records of a partition together
		case err != nil:
			return err
		}
	}
	return nil
}

// isKafkaTooLarge reports whether a broker rejected a batch because of its size: it is larger than max.message.bytes, or
// larger than a segment of the topic.
func isKafkaTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// Close discards the records that are not acknowledged. It may be called twice.
func (c *kafkaConnection) Close() error {
	c.kill(nil)
	c.client.Close()
	c.single.Close()
	return nil
}

// lastBrokerError is the latest error of a connection. The client itself reports only the number of its retries.
type lastBrokerError struct{ err atomic.Pointer[error] }

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (l *lastBrokerError) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		l.err.Store(&err)
	}
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (l *lastBrokerError) OnBrokerE2E(_ kgo.BrokerMetadata, _ int16, request kgo.BrokerE2E) {
	if err := request.Err(); err != nil {
		l.err.Store(&err)
	}
}

func (l *lastBrokerError) orElse(err error) error {
	if last := l.err.Load(); last != nil {
		return *last
	}
	return err
}

func kafkaRecord(keySetting, topic string, m *message.Message) *kgo.Record {
	headers := []kgo.RecordHeader{{Key: watermillID, Value: []byte(m.UUID)}}
	for _, h := range sortedHeaders(m.Metadata) {
		headers = append(headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
	}
	record := &kgo.Record{Topic: topic, Value: m.Payload, Headers: headers}
	key := m.Metadata.Get(headerHub)
	if container := m.Metadata.Get(headerKey); keySetting == keyContainer && container != "" {
		key = container
	}
	if keySetting != keyNone && key != "" {
		record.Key = []byte(key)
	}
	return record
}

// explainKafka shows the record as a consumer receives it.
func explainKafka(s *Sink, topic string, m *message.Message) (relay.Preview, error) {
	record := kafkaRecord(s.config.Key, topic, m)
	headers := []relay.Header{{Name: "topic", Value: record.Topic}}
	if record.Key != nil {
		headers = append(headers, relay.Header{Name: "key", Value: string(record.Key)})
	}
	for _, h := range record.Headers {
		headers = append(headers, relay.Header{Name: h.Key, Value: string(h.Value)})
	}
	return relay.Preview{Headers: headers, Payload: record.Value}, nil
}

func classifyKafka(s *Sink, topic string, err error) error {
	switch {
	case errors.Is(err, kerr.RecordListTooLarge):
		return relay.Permanent(fmt.Errorf("kafka: the message is larger than a segment of topic %q (segment.bytes): "+
			"raise it, or make digests shorter", topic))
	case errors.Is(err, kerr.MessageTooLarge):
		return relay.Permanent(fmt.Errorf("kafka: the message is larger than max_message_bytes (%d), or larger than "+
			"the brokers (message.max.bytes) or topic %q (max.message.bytes) accept: raise them, or make digests shorter",
			s.config.maxMessage(), topic))
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("kafka: there is no topic %q, and the brokers do not create topics: "+
			"create it, or change topic", topic)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("kafka: %s may not write to topic %q: allow it, or change user or topic", s.userName(), topic)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("kafka: the brokers reject %s with this password: correct user, password or sasl",
			s.userName())
	case errors.Is(err, errKafkaLogin):
		return fmt.Errorf("kafka: the brokers close the connection while %s logs in: "+
			"correct user, password, sasl or tls", s.userName())
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Errorf("kafka: the brokers do not support sasl %s: choose another (%w)", s.config.SASL, err)
	case errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		return fmt.Errorf("kafka: too few replicas of topic %q are in sync (min.insync.replicas)", topic)
	}
	return err
}

func (c *Config) maxMessage() int {
	if c.MaxMessageBytes > 0 {
		return c.MaxMessageBytes
	}
	return defaultMaxMessage
}
