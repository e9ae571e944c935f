package brokers

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// outageSwitch makes a cluster close the connection on every request of a producer.
type outageSwitch struct{ down atomic.Bool }

func newOutageSwitch(cluster *kfake.Cluster) *outageSwitch {
	s := &outageSwitch{}
	cluster.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		_, fetch := r.(*kmsg.FetchRequest)
		if !s.down.Load() || fetch {
			return nil, nil, false
		}
		return nil, errors.New("away"), true
	})
	return s
}

func (s *outageSwitch) on()  { s.down.Store(true) }
func (s *outageSwitch) off() { s.down.Store(false) }

func TestKafkaKeysAndHeaders(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{keyHub: "hub.1", keyContainer: "c-1", keyNone: ""} {
		r, cluster := newKafkaRig(t)
		var record *kgo.Record
		r.read = newKafkaReader(t, cluster.ListenAddrs(), func(k *kgo.Record) { record = k })
		r.config.Key = key
		d := newDelivery(1)
		if err := r.deliver(t, startSink(t, r.config), d); err != nil {
			t.Fatal(err)
		}
		r.waitForAll(t, map[string]relay.Delivery{d.ID: d})
		if string(record.Key) != want {
			t.Errorf("key: %s: got %q, want %q", key, record.Key, want)
		}
		for name, value := range map[string]string{
			headerID: d.ID, headerTopic: "container.created",
			headerHub: "hub.1", headerAccount: "a", headerType: contentType,
			"_watermill_message_uuid": d.ID,
		} {
			if got := headerValue(record, name); got != value {
				t.Errorf("header %s: got %q, want %q", name, got, value)
			}
		}
	}
}

// TestKafkaCompression checks the codec in the attributes of the record batches, and that a consumer can read them.
func TestKafkaCompression(t *testing.T) {
	t.Parallel()
	for compression, codec := range map[string]int16{"": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4} {
		r, cluster := newKafkaRig(t)
		var mu sync.Mutex
		var seen []int16
		cluster.ControlKey(int16(kmsg.Produce), func(k kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			p, _ := k.(*kmsg.ProduceRequest)
			for _, topic := range p.Topics {
				for _, partition := range topic.Partitions {
					var batch kmsg.RecordBatch
					if err := batch.ReadFrom(partition.Records); err != nil {
						t.Error(err)
					}
					mu.Lock()
					seen = append(seen, batch.Attributes&7)
					mu.Unlock()
				}
			}
			return nil, nil, false
		})
		r.read = newKafkaReader(t, cluster.ListenAddrs(), nil)
		r.config.Compression = compression
		s, want := startSink(t, r.config), map[string]relay.Delivery{}
		for i := range 5 {
			d := newDelivery(i)
			want[d.ID] = d
			if err := r.deliver(t, s, d); err != nil {
				t.Fatal(err)
			}
		}
		r.waitForAll(t, want)
		mu.Lock()
		if len(seen) == 0 || slices.ContainsFunc(seen, func(c int16) bool { return c != codec }) {
			t.Errorf("compression %q: got codecs %v, want %d", compression, seen, codec)
		}
		mu.Unlock()
	}
}

func TestKafkaRejections(t *testing.T) {
	t.Parallel()
	t.Run("no such topic", func(t *testing.T) {
		r, _ := newKafkaRig(t)
		r.config.Topic = "elsewhere"
		expectFailure(t, r.config, relay.OutcomeRetry, "topic", "elsewhere", "create it")
	})
	t.Run("too large", func(t *testing.T) {
		r, _ := newKafkaRig(t)
		r.config.MaxMessageBytes = 1024
		d := newDelivery(1)
		d.Notifications[0].Data = append(d.Notifications[0].Data, make([]byte, 2000)...)
		for i := range d.Notifications[0].Data[len(d.Notifications[0].Data)-2000:] {
			d.Notifications[0].Data[len(d.Notifications[0].Data)-2000+i] = ' '
		}
		err := r.deliver(t, startSink(t, r.config), d)
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent {
			t.Fatalf("message that is too large: got %v", err)
		}
		t.Log(err)
	})
	t.Run("not allowed", func(t *testing.T) {
		r, cluster := newKafkaRig(t)
		cluster.ControlKey(int16(kmsg.Produce), func(k kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			p, _ := k.(*kmsg.ProduceRequest)
			out, _ := p.ResponseKind().(*kmsg.ProduceResponse)
			for _, topic := range p.Topics {
				response := kmsg.NewProduceResponseTopic()
				response.Topic, response.TopicID = topic.Topic, topic.TopicID
				for _, partition := range topic.Partitions {
					part := kmsg.NewProduceResponseTopicPartition()
					part.Partition, part.ErrorCode = partition.Partition, kerr.TopicAuthorizationFailed.Code
					response.Partitions = append(response.Partitions, part)
				}
				out.Topics = append(out.Topics, response)
			}
			return out, nil, true
		})
		expectFailure(t, r.config, relay.OutcomeRetry, "may not write")
	})
	t.Run("no broker", func(t *testing.T) {
		expectFailure(t, Config{Broker: Kafka, Addresses: []string{localAddr(freePort(t))}}, relay.OutcomeRetry,
			"127.0.0.1")
	})
}

func TestKafkaLogins(t *testing.T) {
	t.Parallel()
	for sasl, method := range map[string]string{
		saslPlain: "PLAIN", saslSHA256: "SCRAM-SHA-256", saslSHA512: "SCRAM-SHA-512",
	} {
		t.Run(sasl, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "hubrelay"), kfake.EnableSASL(),
				kfake.Superuser(method, testUser, secret))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			c := Config{
				Broker: Kafka, Addresses: cluster.ListenAddrs(), User: testUser, SASL: sasl,
				PasswordFile: writeFile(t, "password", secret+"\n"),
			}
			s := startSink(t, c)
			deliver := func() error { return rig{}.deliver(t, s, newDelivery(1)) }
			if err := testkit.Poll(deliver); err != nil { // a login may take longer than a connection may, on a busy machine
				t.Fatal(err)
			}
			c.PasswordFile, c.Password = "", "wrong-"+secret
			expectFailure(t, c, relay.OutcomeRetry, "user", testUser, "password")
			// kfake closes the connection. Kafka returns an error code first.
			cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(k kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				response, _ := k.ResponseKind().(*kmsg.SASLAuthenticateResponse)
				response.ErrorCode = kerr.SaslAuthenticationFailed.Code
				return response, nil, true
			})
			expectFailure(t, c, relay.OutcomeRetry, "reject", testUser, "password")
		})
	}
}

// TestKafkaLogin_PasswordFileChanges expects each connection to use the current content of the password file.
func TestKafkaLogin_PasswordFileChanges(t *testing.T) {
	t.Parallel()
	s := New(&Config{Broker: Kafka, User: testUser, PasswordFile: writeFile(t, "password", "first\n")})
	login := s.kafkaLogin()
	for _, password := range []string{"first", "second"} {
		writeFile(t, s.config.PasswordFile, password+"\n")
		_, message, err := login.Authenticate(t.Context(), "")
		if want := "\x00" + testUser + "\x00" + password; err != nil || string(message) != want {
			t.Errorf("got %q (%v), want %q", message, err, want)
		}
	}
}

// TestKafka_RecreatedTopic replaces the cluster with a new one at the same address, in which the topic has another ID.
func TestKafka_RecreatedTopic(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	start := func() *kfake.Cluster {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.SeedTopics(2, "hubrelay"))
		if err != nil {
			t.Fatal(err)
		}
		return cluster
	}
	first := start()
	s := startSink(t, Config{Broker: Kafka, Addresses: []string{localAddr(port)}})
	if err := (rig{}).deliver(t, s, newDelivery(1)); err != nil {
		t.Fatal(err)
	}
	first.Close()
	err := rig{}.deliver(t, s, newDelivery(2))
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without brokers: got %v, want the reason", err)
	}
	second := start()
	t.Cleanup(second.Close)
	for i := range 20 {
		rig{}.expectRecovery(t, s, newDelivery(3+i))
	}
}
