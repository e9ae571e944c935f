package brokers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/xdg-go/scram"

	"github.com/hubrelay/hubrelay/relay"
)

// What a record is keyed by: records of one key go to one partition, in order.
const (
	keyHub       = "hub"
	keyContainer = "container"
	keyNone      = "none"
)

const (
	// defaultMaxMessage is what a broker allows unless its message.max.bytes says otherwise, less what surrounds a record.
	defaultMaxMessage = 1_000_000
	kafkaRetries      = 5
	kafkaBackoff      = 250 * time.Millisecond
)

var kafkaTopic = nameRule{
	maxBytes: 249,
	allowed:  func(r rune) bool { return plainLetter(r) || r == '.' },
	check: func(text string) error {
		if text == "" || text == "." || text == ".." {
			return errors.New("that is no name of a topic")
		}
		return every(func(r rune) bool { return plainLetter(r) || r == '.' }, "a topic has letters, digits, '.', '_' and '-' alone")(text)
	},
}

func (c *Config) checkKafka() error {
	var errs []error
	choose := func(key, value string, list ...string) {
		if value == "" || slices.Contains(list, value) {
			return
		}
		hint := "choose one of " + strings.Join(list, ", ")
		if nearest := relay.ClosestName(value, list); nearest != "" {
			hint = "did you mean " + nearest + "?"
		}
		errs = append(errs, fieldError(key, "%q is not known: %s", relay.Truncate(value, 40), hint))
	}
	choose("key", c.Key, keyHub, keyContainer, keyNone)
	choose("sasl", c.SASL, saslPlain, saslSHA256, saslSHA512)
	choose("compression", c.Compression, "none", "gzip", "snappy", "lz4", "zstd")
	if c.SASL != "" && c.User == "" {
		errs = append(errs, fieldError("user", "is missing beside sasl"))
	}
	if c.MaxMessageBytes != 0 && (c.MaxMessageBytes < 1024 || c.MaxMessageBytes > 64<<20) {
		errs = append(errs, fieldError("max_message_bytes", "is %d: choose from 1024 to 67108864", c.MaxMessageBytes))
	}
	return errors.Join(errs...)
}

// How a user is told to Kafka.
const (
	saslPlain  = "plain"
	saslSHA256 = "scram-sha-256"
	saslSHA512 = "scram-sha-512"
)

// kafkaConnection makes new connections by itself, but with the password that it has.
type kafkaConnection struct {
	*kafka.Publisher
	cancelableLifetime
}

func openKafka(s *Sink) opener {
	return func(context.Context) (brokerConn, error) {
		config, err := s.saramaConfig()
		if err != nil {
			return nil, err
		}
		publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
			Brokers: s.config.hostPorts(), Marshaler: keyedMarshaler{key: s.config.Key}, OverwriteSaramaConfig: config,
		}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		return &kafkaConnection{publisher, newMortal()}, nil
	}
}

// Publish waits for the broker. A refused password ends the connection, so that the next one has what the file holds then.
func (c *kafkaConnection) Publish(topic string, messages ...*message.Message) error {
	err := c.Publisher.Publish(topic, messages...)
	if errors.Is(err, sarama.ErrSASLAuthenticationFailed) {
		defer c.kill(err)
	}
	return err
}

func (s *Sink) saramaConfig() (*sarama.Config, error) {
	c := sarama.NewConfig()
	c.Version = sarama.V2_1_0_0 // the oldest that brokers of version 4 still speak
	c.ClientID = "hubrelay"
	c.Net.DialTimeout, c.Net.ReadTimeout, c.Net.WriteTimeout = dialTime, 2*dialTime, 2*dialTime
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 1, kafkaBackoff
	c.Metadata.Timeout = 2 * dialTime
	// All replicas that are in sync have a record before it counts, and what is sent again over a broken connection is not
	// stored twice. That wants one request at a time for each broker; each holds what has gathered meanwhile.
	c.Producer.RequiredAcks, c.Producer.Idempotent, c.Net.MaxOpenRequests = sarama.WaitForAll, true, 1
	c.Producer.Return.Successes = true
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = kafkaRetries, kafkaBackoff
	c.Producer.MaxMessageBytes = s.config.maxMessage()
	switch s.config.Compression {
	case "gzip":
		c.Producer.Compression = sarama.CompressionGZIP
	case "snappy":
		c.Producer.Compression = sarama.CompressionSnappy
	case "lz4":
		c.Producer.Compression = sarama.CompressionLZ4
	case "zstd":
		c.Producer.Compression = sarama.CompressionZSTD
	}
	secured, err := s.tlsConfig("")
	if err != nil {
		return nil, err
	}
	c.Net.TLS.Enable, c.Net.TLS.Config = secured != nil, secured
	return c, s.saramaLogin(c)
}

func (s *Sink) saramaLogin(c *sarama.Config) error {
	if s.config.User == "" {
		return nil
	}
	password, err := s.readPassword()
	if err != nil {
		return err
	}
	c.Net.SASL.Enable, c.Net.SASL.User, c.Net.SASL.Password = true, s.config.User, password
	switch s.config.SASL {
	case saslSHA256:
		c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA256
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256} }
	case saslSHA512:
		c.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512} }
	default:
		c.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	}
	return nil
}

// scramClient is one login.
type scramClient struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *scramClient) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err != nil {
		return err
	}
	c.ClientConversation = client.NewConversation()
	return nil
}

// keyedMarshaler gives records their keys.
type keyedMarshaler struct {
	kafka.DefaultMarshaler
	key string
}

func (k keyedMarshaler) Marshal(topic string, m *message.Message) (*sarama.ProducerMessage, error) {
	record, err := k.DefaultMarshaler.Marshal(topic, m)
	if err != nil {
		return nil, err
	}
	key := m.Metadata.Get(headerHub)
	if container := m.Metadata.Get(headerKey); k.key == keyContainer && container != "" {
		key = container
	}
	if k.key != keyNone && key != "" {
		record.Key = sarama.StringEncoder(key)
	}
	return record, nil
}

// showKafka is the record, as a consumer gets it.
func showKafka(s *Sink, topic string, m *message.Message) (relay.Explanation, error) {
	record, err := keyedMarshaler{key: s.config.Key}.Marshal(topic, m)
	if err != nil {
		return relay.Explanation{}, err
	}
	value, err := record.Value.Encode()
	if err != nil {
		return relay.Explanation{}, err
	}
	headers := []relay.Header{{Name: "topic", Value: record.Topic}}
	if record.Key != nil {
		key, err := record.Key.Encode()
		if err != nil {
			return relay.Explanation{}, err
		}
		headers = append(headers, relay.Header{Name: "key", Value: string(key)})
	}
	beside := map[string]string{}
	for _, h := range record.Headers {
		beside[string(h.Key)] = string(h.Value)
	}
	return relay.Explanation{Headers: append(headers, sortedHeaders(beside)...), Payload: value}, nil
}

func judgeKafka(s *Sink, where string, err error) error {
	var refused sarama.ConfigurationError
	switch {
	case errors.Is(err, sarama.ErrMessageSizeTooLarge), errors.As(err, &refused) && strings.Contains(string(refused), "MaxMessageBytes"):
		return relay.Permanent(fmt.Errorf("kafka: the message is larger than max_message_bytes (%d) or the brokers' message.max.bytes allow: raise both, or have digests list less",
			s.config.maxMessage()))
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return fmt.Errorf("kafka: there is no topic %q, and the brokers make none by themselves: create it, or change topic", where)
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		return fmt.Errorf("kafka: %s may not write to topic %q: allow it, or change user or topic", s.userName(), where)
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		return fmt.Errorf("kafka: the brokers refuse %s with this password: correct user, password or sasl", s.userName())
	case s.config.User != "" && errors.Is(err, sarama.ErrOutOfBrokers) && errors.Is(err, io.EOF):
		return fmt.Errorf("kafka: the brokers hang up while %s logs in: correct user, password, sasl or tls", s.userName())
	case errors.Is(err, sarama.ErrUnsupportedSASLMechanism):
		return fmt.Errorf("kafka: the brokers do not take sasl %s: choose another (%w)", s.config.SASL, err)
	case errors.Is(err, sarama.ErrNotEnoughReplicas), errors.Is(err, sarama.ErrNotEnoughReplicasAfterAppend):
		return fmt.Errorf("kafka: too few replicas of topic %q are in sync (min.insync.replicas)", where)
	}
	return err
}

func (c *Config) maxMessage() int {
	if c.MaxMessageBytes > 0 {
		return c.MaxMessageBytes
	}
	return defaultMaxMessage
}
