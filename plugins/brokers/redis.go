package brokers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hubrelay/hubrelay/relay"
)

var redisKey = nameRule{
	maxBytes: 1024,
	allowed:  printableExcept(""),
	check: func(text string) error {
		if text == "" {
			return errors.New("a key must not be empty")
		}
		return checkRunes(printableExcept(""), "a key must not contain white space")(text)
	},
}

// redisConnection is a client that reconnects by itself.
type redisConnection struct {
	*redisstream.Publisher
	endlessLifetime
	cluster *redis.ClusterClient // nil without a cluster
}

// Publish waits for the server. After a failure it reloads the slots of a cluster, which the library does only once a
// minute.
func (c *redisConnection) Publish(stream string, messages ...*message.Message) error {
	startedAt := time.Now()
	err := explainRedisTimeout(c.Publisher.Publish(stream, messages...), time.Since(startedAt))
	if err != nil && c.cluster != nil {
		c.cluster.ReloadState(context.Background()) // does not block
	}
	return err
}

// explainRedisTimeout replaces the error of a message that ran out of time.
func explainRedisTimeout(err error, elapsed time.Duration) error {
	switch {
	case errors.Is(err, redis.ErrPoolTimeout):
		return fmt.Errorf("all connections were in use for %s, so the message was not sent", elapsed.Round(100*time.Millisecond))
	case isTimeout(err):
		return fmt.Errorf("%w; it may have stored the message, and a repeat has the same ID", &noResponseError{elapsed, err})
	}
	return err
}

func openRedis(s *Sink) opener {
	redis.SetLogger(noopLogger{}) // the errors of deliveries are sufficient
	return func(ctx context.Context) (brokerConn, error) {
		client := redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs: s.config.hostPorts(), DB: s.config.DB,
			MasterName: s.config.SentinelMaster, IsClusterMode: s.config.Cluster,
			Dialer: s.dialBroker, ClientName: "hubrelay",
			CredentialsProviderContext: func(context.Context) (string, string, error) {
				password, err := s.readPassword()
				return s.config.User, password, err
			},
			// If the response was lost, a retry by the library would add the entry twice.
			MaxRetries: -1, DialerRetries: 1,
			DialTimeout: dialTimeout, ReadTimeout: 2 * dialTimeout, WriteTimeout: 2 * dialTimeout,
			ContextTimeoutEnabled: true,
			// Redis 7.0 and earlier support neither.
			DisableIdentity:          true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{
			Client: client, Marshaller: entryMarshaler{}, DefaultMaxlen: s.config.MaxLen,
		}, watermill.NopLogger{})
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // a read observes only the deadline of ctx
			err = client.Ping(ctx).Err()
			stop()
			err = explainDialTimeout(ctx, err)
		}
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		c := &redisConnection{Publisher: publisher}
		c.cluster, _ = client.(*redis.ClusterClient)
		return c, nil
	}
}

type noopLogger struct{}

func (noopLogger) Printf(context.Context, string, ...any) {}

// entryMarshaler makes entries with the same fields as the log of the relay.
type entryMarshaler struct{}

func (entryMarshaler) Marshal(_ string, m *message.Message) (map[string]any, error) {
	fields := map[string]any{"id": m.UUID, "data": []byte(m.Payload)}
	for field, name := range map[string]string{"topic": headerTopic, "hub": headerHub, "account": headerAccount} {
		fields[field] = m.Metadata.Get(name)
	}
	return fields, nil
}

// explainRedis shows all fields except the payload as headers.
func explainRedis(s *Sink, stream string, m *message.Message) (relay.Preview, error) {
	fields, err := entryMarshaler{}.Marshal(stream, m)
	if err != nil {
		return relay.Preview{}, err
	}
	headers := []relay.Header{{Name: "stream", Value: stream}}
	if s.config.MaxLen > 0 {
		headers = append(headers, relay.Header{Name: "maxlen", Value: fmt.Sprintf("~ %d", s.config.MaxLen)})
	}
	metadata := map[string]string{}
	for name, value := range fields {
		if text, ok := value.(string); ok {
			metadata[name] = text
		}
	}
	payload, _ := fields["data"].([]byte)
	return relay.Preview{Headers: append(headers, sortedHeaders(metadata)...), Payload: payload}, nil
}

func classifyRedis(s *Sink, stream string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "WRONGTYPE"):
		return fmt.Errorf("redis: the key %q exists and is not a stream: change stream", stream)
	case strings.Contains(text, "MOVED ") && !s.config.Cluster:
		return errors.New("redis: the server belongs to a cluster: set cluster: true")
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"),
		strings.Contains(text, "invalid password"):
		return fmt.Errorf("redis: the server rejects %s with this password: correct user or password", s.userName())
	case strings.Contains(text, "NOPERM"):
		return fmt.Errorf("redis: %s may not XADD to %q: allow it, or change user or stream", s.userName(), stream)
	case strings.Contains(text, "OOM "):
		return errors.New("redis: the server's memory is full (maxmemory): raise it, or set maxlen")
	}
	return err
}
