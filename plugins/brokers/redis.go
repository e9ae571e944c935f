package brokers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hubrelay/hubrelay/relay"
)

var redisKey = nameRule{
	maxBytes: 1024,
	allowed:  printableBut(""),
	check: func(text string) error {
		if text == "" {
			return errors.New("a key is not empty")
		}
		return every(printableBut(""), "a key has no white space")(text)
	},
}

// redisConnection makes new connections by itself.
type redisConnection struct {
	*redisstream.Publisher
	endlessLifetime
	cluster *redis.ClusterClient // nil for a server alone
}

// Publish waits for the server. After a failure a cluster is asked who has which slot now, which the library does once a minute.
func (c *redisConnection) Publish(stream string, messages ...*message.Message) error {
	err := c.Publisher.Publish(stream, messages...)
	if err != nil && c.cluster != nil {
		c.cluster.ReloadState(context.Background()) // in the background
	}
	return err
}

func openRedis(s *Sink) opener {
	redis.SetLogger(noopLogger{}) // what goes wrong is in the errors of deliveries
	return func(ctx context.Context) (brokerConn, error) {
		secured, err := s.tlsConfig("")
		if err != nil {
			return nil, err
		}
		client := redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs: s.config.hostPorts(), DB: s.config.DB, MasterName: s.config.SentinelMaster, IsClusterMode: s.config.Cluster,
			TLSConfig: secured, ClientName: "hubrelay",
			CredentialsProviderContext: func(context.Context) (string, string, error) {
				password, err := s.readPassword()
				return s.config.User, password, err
			},
			// An entry is added once for each attempt: after a lost answer a library that asks again makes two of it.
			MaxRetries: -1, DialerRetries: 1, DialTimeout: dialTime, ReadTimeout: 2 * dialTime, WriteTimeout: 2 * dialTime,
			ContextTimeoutEnabled: true,
			// Redis 7.0 and older know neither.
			DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{
			Client: client, Marshaller: entryMarshaler{}, DefaultMaxlen: s.config.MaxLen,
		}, watermill.NopLogger{})
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // a read looks at the deadline of ctx alone
			err = client.Ping(ctx).Err()
			stop()
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

// entryMarshaler is an entry of the stream, with the fields of the relay's own log.
type entryMarshaler struct{}

func (entryMarshaler) Marshal(_ string, m *message.Message) (map[string]any, error) {
	fields := map[string]any{"id": m.UUID, "data": []byte(m.Payload)}
	for field, name := range map[string]string{"topic": headerTopic, "hub": headerHub, "account": headerAccount} {
		fields[field] = m.Metadata.Get(name)
	}
	return fields, nil
}

// showRedis shows the fields but the payload's as headers.
func showRedis(s *Sink, stream string, m *message.Message) (relay.Explanation, error) {
	fields, err := entryMarshaler{}.Marshal(stream, m)
	if err != nil {
		return relay.Explanation{}, err
	}
	headers := []relay.Header{{Name: "stream", Value: stream}}
	if s.config.MaxLen > 0 {
		headers = append(headers, relay.Header{Name: "maxlen", Value: fmt.Sprintf("~ %d", s.config.MaxLen)})
	}
	beside := map[string]string{}
	for name, value := range fields {
		if text, ok := value.(string); ok {
			beside[name] = text
		}
	}
	payload, _ := fields["data"].([]byte)
	return relay.Explanation{Headers: append(headers, sortedHeaders(beside)...), Payload: payload}, nil
}

func judgeRedis(s *Sink, where string, err error) error {
	said := err.Error()
	switch {
	case strings.Contains(said, "WRONGTYPE"):
		return fmt.Errorf("redis: the key %q is there already and is no stream: change stream", where)
	case strings.Contains(said, "MOVED ") && !s.config.Cluster:
		return errors.New("redis: the server is one of a cluster: set cluster: true")
	case strings.Contains(said, "WRONGPASS"), strings.Contains(said, "NOAUTH"), strings.Contains(said, "invalid password"):
		return fmt.Errorf("redis: the server refuses %s with this password: correct user or password", s.userName())
	case strings.Contains(said, "NOPERM"):
		return fmt.Errorf("redis: %s may not XADD to %q: allow it, or change user or stream", s.userName(), where)
	case strings.Contains(said, "OOM "):
		return errors.New("redis: the server's memory is full (maxmemory): give it more, or set maxlen")
	}
	return err
}
