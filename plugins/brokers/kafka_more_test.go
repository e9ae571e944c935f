package brokers

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hubrelay/hubrelay/relay"
)

// outageSwitch lets a cluster refuse all that producers ask, with the connection closed in the middle of it.
type outageSwitch struct{ down atomic.Bool }

func newSwitch(cluster *kfake.Cluster) *outageSwitch {
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
		r, cluster := kafkaRig(t)
		var record *kgo.Record
		r.read = kafkaReader(t, cluster.ListenAddrs(), func(k *kgo.Record) { record = k })
		r.config.Key = key
		d := delivery(1)
		if err := r.deliver(t, started(t, r.config), d); err != nil {
			t.Fatal(err)
		}
		r.find(t, map[string]relay.Delivery{d.ID: d})
		if string(record.Key) != want {
			t.Errorf("key: %s gives %q, not %q", key, record.Key, want)
		}
		for name, value := range map[string]string{
			headerID: d.ID, headerTopic: "container.created", headerHub: "hub.1", headerAccount: "a", headerType: contentType,
			"_watermill_message_uuid": d.ID,
		} {
			if got := headerOf(record, name); got != value {
				t.Errorf("header %s is %q, not %q", name, got, value)
			}
		}
	}
}

// TestKafkaCompression looks at the batches as brokers get them, whose attributes name the codec, and has another client unpack them.
func TestKafkaCompression(t *testing.T) {
	t.Parallel()
	for compression, codec := range map[string]int16{"": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4} {
		r, cluster := kafkaRig(t)
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
		r.read = kafkaReader(t, cluster.ListenAddrs(), nil)
		r.config.Compression = compression
		s, want := started(t, r.config), map[string]relay.Delivery{}
		for i := range 5 {
			d := delivery(i)
			want[d.ID] = d
			if err := r.deliver(t, s, d); err != nil {
				t.Fatal(err)
			}
		}
		r.find(t, want)
		mu.Lock()
		if len(seen) == 0 || slices.ContainsFunc(seen, func(c int16) bool { return c != codec }) {
			t.Errorf("compression %q makes batches of the codecs %v, not %d", compression, seen, codec)
		}
		mu.Unlock()
	}
}

func TestKafkaRefusals(t *testing.T) {
	t.Parallel()
	t.Run("no such topic", func(t *testing.T) {
		r, _ := kafkaRig(t)
		r.config.Topic = "elsewhere"
		refused(t, r.config, relay.OutcomeRetry, "topic", "elsewhere", "create it")
	})
	t.Run("too large", func(t *testing.T) {
		r, _ := kafkaRig(t)
		r.config.MaxMessageBytes = 1024
		d := delivery(1)
		d.Notifications[0].Data = append(d.Notifications[0].Data, make([]byte, 2000)...)
		for i := range d.Notifications[0].Data[len(d.Notifications[0].Data)-2000:] {
			d.Notifications[0].Data[len(d.Notifications[0].Data)-2000+i] = ' '
		}
		err := r.deliver(t, started(t, r.config), d)
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent {
			t.Fatalf("a message that is too large led to %v", err)
		}
		t.Log(err)
	})
	t.Run("not allowed", func(t *testing.T) {
		r, cluster := kafkaRig(t)
		cluster.ControlKey(int16(kmsg.Produce), func(k kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			p, _ := k.(*kmsg.ProduceRequest)
			out, _ := p.ResponseKind().(*kmsg.ProduceResponse)
			for _, topic := range p.Topics {
				answer := kmsg.NewProduceResponseTopic()
				answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
				for _, partition := range topic.Partitions {
					part := kmsg.NewProduceResponseTopicPartition()
					part.Partition, part.ErrorCode = partition.Partition, kerr.TopicAuthorizationFailed.Code
					answer.Partitions = append(answer.Partitions, part)
				}
				out.Topics = append(out.Topics, answer)
			}
			return out, nil, true
		})
		refused(t, r.config, relay.OutcomeRetry, "may not write")
	})
	t.Run("nobody listens", func(t *testing.T) {
		refused(t, Config{Broker: Kafka, Addresses: []string{local(freePort(t))}}, relay.OutcomeRetry, "127.0.0.1")
	})
}

func TestKafkaLogins(t *testing.T) {
	t.Parallel()
	for sasl, method := range map[string]string{saslPlain: "PLAIN", saslSHA256: "SCRAM-SHA-256", saslSHA512: "SCRAM-SHA-512"} {
		t.Run(sasl, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "hubrelay"), kfake.EnableSASL(), kfake.Superuser(method, testUser, secret))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			c := Config{
				Broker: Kafka, Addresses: cluster.ListenAddrs(), User: testUser, SASL: sasl,
				PasswordFile: write(t, "password", secret+"\n"),
			}
			if err := (rig{}).deliver(t, started(t, c), delivery(1)); err != nil {
				t.Fatal(err)
			}
			c.PasswordFile, c.Password = "", "wrong-"+secret
			refused(t, c, relay.OutcomeRetry, "user", testUser, "password")
			// kfake hangs up; Kafka says why.
			cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(k kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				answer, _ := k.ResponseKind().(*kmsg.SASLAuthenticateResponse)
				answer.ErrorCode = kerr.SaslAuthenticationFailed.Code
				return answer, nil, true
			})
			refused(t, c, relay.OutcomeRetry, "refuse", testUser, "password")
		})
	}
}

// TestKafkaLogin_PasswordFileChanges expects each connection to use the current content of the password file.
func TestKafkaLogin_PasswordFileChanges(t *testing.T) {
	t.Parallel()
	s := New(&Config{Broker: Kafka, User: testUser, PasswordFile: write(t, "password", "first\n")})
	login := s.kafkaLogin()
	for _, password := range []string{"first", "second"} {
		write(t, s.config.PasswordFile, password+"\n")
		_, message, err := login.Authenticate(t.Context(), "")
		if want := "\x00" + testUser + "\x00" + password; err != nil || string(message) != want {
			t.Errorf("got %q (%v), want %q", message, err, want)
		}
	}
}
