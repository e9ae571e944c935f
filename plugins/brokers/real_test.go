//go:build unix

package brokers

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// withTestLogin adds the address and the login of a server.
func withTestLogin(t *testing.T, s *server, c Config) Config {
	t.Helper()
	c.Addresses, c.User, c.PasswordFile = []string{localAddr(s.port)}, testUser, writeFile(t, "password", secret+"\n")
	return c
}

// withWrongPassword replaces the password.
func withWrongPassword(c Config) Config {
	c.PasswordFile, c.Password = "", "wrong-"+secret
	return c
}

func TestNATS(t *testing.T) {
	t.Parallel()
	s := startNATS(t)
	url := "nats://" + localAddr(s.port)
	r := s.rig(withTestLogin(t, s, Config{Broker: NATS}), func(t *testing.T) []received { return readNATS(t, url) })
	expectFailure(t, r.config, relay.OutcomeRetry, "subject", "hubrelay.container.created", "no stream")
	createStream(t, url, everything, natsLogin)
	runSuite(t, r)
	expectFailure(t, withWrongPassword(r.config), relay.OutcomeRetry, "login", "password")
	createStream(t, url, jetstream.StreamConfig{Name: "narrow", Subjects: []string{"narrow.>"}, MaxMsgSize: 100},
		natsLogin)
	narrow := r.config
	narrow.Subject = "narrow.{hub}"
	expectFailure(t, narrow, relay.OutcomePermanent, "max_msg_size", "narrow.hub_1")
	denied := r.config
	denied.Subject = "hubrelay.denied.{hub}"
	expectFailure(t, denied, relay.OutcomeRetry, "may not publish", "hubrelay.denied.hub_1")
	r.testTooLarge(t)
}

// TestNATSToken uses a server with a token instead of users. The file is read for each connection.
func TestNATSToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conf := s.file("nats.conf", fmt.Sprintf("listen: 127.0.0.1:%d\njetstream: {store_dir: %q}\n"+
		"authorization: {token: %q}\n", s.port, s.dir, secret))
	s.command = []string{program(t, "nats-server", "/usr/sbin/nats-server"), "-c", conf}
	s.start()
	js := createStream(t, "nats://"+localAddr(s.port), everything, nats.Token(secret))
	token := writeFile(t, "token", "wrong-"+secret+"\n")
	c := Config{Broker: NATS, Addresses: []string{localAddr(s.port)}, TokenFile: token}
	expectFailure(t, c, relay.OutcomeRetry, "login", "token_file")
	sink := startSink(t, c)
	if err := (rig{}).deliver(t, sink, newDelivery(1)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("wrong token: got %v", err)
	}
	writeFile(t, c.TokenFile, secret+"\n")
	rig{}.expectRecovery(t, sink, newDelivery(2))
	stream, err := js.Stream(t.Context(), "all")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("got stream %+v (%v), want 1 message", info, err)
	}
	expectFailure(t, Config{Broker: NATS, Addresses: c.Addresses}, relay.OutcomeRetry, "login")
}

// TestNATSOverTLS needs a separate server, because NATS starts without encryption.
func TestNATSOverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, cert, key := a.issue()
	s := newServer(t)
	s.command = []string{
		program(t, "nats-server", "/usr/sbin/nats-server"), "-a", "127.0.0.1", "-p", strconv.Itoa(s.port),
		"-js", "-sd", s.dir, "--tlsverify", "--tlscert", cert, "--tlskey", key, "--tlscacert", a.file,
	}
	s.start()
	_, cert, key = a.issue()
	createStream(t, "nats://"+localAddr(s.port), everything, nats.RootCAs(a.file), nats.ClientCert(cert, key))
	testTLS(t, a, Config{Broker: NATS, Addresses: []string{localAddr(s.port)}})
}

// testTLSProxy connects to the server through a TLS proxy.
func (r rig) testTLSProxy(t *testing.T) {
	t.Helper()
	a := newAuthority(t)
	c := r.config
	c.Addresses = []string{startTLSProxy(t, a, c.Addresses[0])}
	testTLS(t, a, c)
}

// testTooLarge expects that a message that is too large fails permanently, and that the next one succeeds.
func (r rig) testTooLarge(t *testing.T) {
	t.Helper()
	large := relay.Delivery{ID: "large", Notifications: []relay.Notification{{
		ID: "large", Topic: "container.created", Hub: "h",
		Data: []byte(`{"text":"` + strings.Repeat("x", 2<<20) + `"}`),
	}}}
	s := startSink(t, r.config)
	err := r.deliver(t, s, large)
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent {
		t.Errorf("message of 2 MiB: got %v", err)
	}
	t.Log(err)
	if err := r.deliver(t, s, newDelivery(1)); err != nil {
		t.Errorf("next message: got %v", err)
	}
}

var natsLogin = nats.UserInfo(testUser, secret)

var everything = jetstream.StreamConfig{Name: "all", Subjects: []string{"hubrelay.>"}}

func createStream(t *testing.T, url string, c jetstream.StreamConfig, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	_, js := natsClient(t, url, options...)
	if _, err := js.CreateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return js
}

func natsClient(t *testing.T, url string, options ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}

// readNATS reads the stream from its start.
func readNATS(t *testing.T, url string) []received {
	t.Helper()
	conn, js := natsClient(t, url, natsLogin)
	defer conn.Close()
	consumer, err := js.OrderedConsumer(t.Context(), "all", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var all []received
	for {
		got, err := consumer.Fetch(1000, jetstream.FetchMaxWait(300*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		before := len(all)
		for m := range got.Messages() {
			metadata := map[string]string{}
			for name := range m.Headers() {
				metadata[name] = m.Headers().Get(name)
			}
			all = append(all, received{m.Subject(), m.Headers().Get(headerID), string(m.Data()), metadata})
		}
		if len(all) == before {
			return all
		}
	}
}

func TestAMQP(t *testing.T) {
	t.Parallel()
	s := startRabbitMQ(t)
	url := fmt.Sprintf("amqp://%s:%s@%s/", testUser, secret, localAddr(s.port))
	c := &amqpReader{url: url}
	r := s.rig(withTestLogin(t, s, Config{Broker: AMQP}), c.read)
	testkit.Eventually(t, "RabbitMQ to be ready", func() error { return c.declare("all", "amq.topic", "elsewhere.#") })
	expectFailure(t, r.config, relay.OutcomeRetry, "routing key", "hubrelay.container.created", "amq.topic")
	if err := c.declare("all", "amq.topic", "hubrelay.#"); err != nil {
		t.Fatal(err)
	}
	runSuite(t, r)
	expectFailure(t, withWrongPassword(r.config), relay.OutcomeRetry, "user", testUser, "password")
	other := r.config
	nowhere := "nowhere"
	other.Exchange = &nowhere
	expectFailure(t, other, relay.OutcomeRetry, "exchange", "nowhere")
	direct := ""
	other.Exchange, other.RoutingKey = &direct, "no-such-queue"
	expectFailure(t, other, relay.OutcomeRetry, "no queue", "no-such-queue")
	other.Exchange, other.VHost = nil, "missing"
	expectFailure(t, other, relay.OutcomeRetry, "vhost", "missing")
	r.testTLSProxy(t)
	r.testFrozenServer(t)
	r.testUnroutableCopies(t)
	r.testTooLargeAmongOthers(t, rabbitMaxMessage+1)
	r.testAMQPPermissions(t, s)
}

// testTooLargeAmongOthers publishes messages above the limit of the broker, which closes the channel. They become dead
// letters, and cost the others no attempt.
func (r rig) testTooLargeAmongOthers(t *testing.T, size int) {
	s := startSink(t, r.config)
	want := map[string]relay.Delivery{}
	var all sync.WaitGroup
	for i := range 100 {
		const firstNumber = 5_000_000
		d, isLarge := newDelivery(firstNumber+i), i%10 == 5
		if isLarge {
			d.Notifications[0].Data = fmt.Appendf(nil, `{"topic":"container.created","pad":%q}`, strings.Repeat("x", size))
		} else {
			want[d.ID] = d
		}
		all.Go(func() {
			err := r.deliver(t, s, d)
			outcome, _ := relay.Classify(err)
			switch {
			case isLarge && (outcome != relay.OutcomePermanent || !strings.Contains(err.Error(), "max_message_size")):
				t.Errorf("a message of %d bytes: got %v, want a permanent error about max_message_size", size, err)
			case !isLarge && err != nil:
				t.Errorf("a small message: got %v", err)
			}
		})
	}
	all.Wait()
	r.waitForAll(t, want)
}

// amqpReader consumes a queue.
type amqpReader struct {
	url string
	mu  sync.Mutex
	all []received
}

func (a *amqpReader) declare(queue, exchange, key string) error {
	conn, err := amqp.Dial(a.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	return channel.QueueBind(queue, key, exchange, false, nil)
}

// read consumes the queue and returns all messages so far.
func (a *amqpReader) read(t *testing.T) []received {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	conn, err := amqp.Dial(a.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, ok, err := channel.Get("all", true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return a.all
		}
		if m.DeliveryMode != amqp.Persistent || m.Headers[headerID] != m.MessageId || m.ContentType != contentType {
			t.Errorf("got %s with %+v", m.MessageId, m.Headers)
		}
		metadata := map[string]string{
			"exchange": m.Exchange, "type": m.Type, "app_id": m.AppId, "message_id": m.MessageId,
			"content_type":  m.ContentType,
			"delivery_mode": strconv.Itoa(int(m.DeliveryMode)),
		}
		for name, value := range m.Headers {
			metadata[name] = fmt.Sprint(value)
		}
		a.all = append(a.all, received{m.RoutingKey, m.MessageId, string(m.Body), metadata})
	}
}

func TestMQTT(t *testing.T) {
	t.Parallel()
	s := startMosquitto(t)
	read := subscribeMQTT(t, s)
	r := s.rig(withTestLogin(t, s, Config{Broker: MQTT, ClientID: "hubrelay-test"}), read)
	// Mosquitto acknowledges before it writes to the disk, so it must end in an orderly way.
	r.kill = func() { s.stop(syscall.SIGTERM) }
	r.config.ClientID = ""
	runSuite(t, r)
	for _, got := range read(t) {
		if got.id == newDelivery(1).ID && got.name != "hubrelay/hub_1/container/created" {
			t.Errorf("got topic %s", got.name)
		}
	}
	expectFailure(t, withWrongPassword(r.config), relay.OutcomeRetry, "user", testUser, "password")
	r.testTooLarge(t)
	other := r.config
	other.Topic = "forbidden/{topic}"
	expectFailure(t, other, relay.OutcomeRetry, "authorized", "forbidden/container.created")
	r.testTLSProxy(t)
}

// subscribeMQTT starts mosquitto_sub, which writes received messages to a file, in a session that outlives the broker.
func subscribeMQTT(t *testing.T, s *server) func(*testing.T) []received {
	t.Helper()
	path := filepath.Join(s.dir, "received")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, "mosquitto_sub"), "-V", "5", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port),
		"-u", testUser, "-P", secret,
		"-t", "hubrelay/#", "-q", "1", "-i", "reader", "-c", "-x", "3600", "-F", "%t %P %x")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
	})
	testkit.Eventually(t, "the subscription", func() error {
		text, _ := os.ReadFile(s.log.Name())
		if !strings.Contains(string(text), "reader 1 hubrelay/#") { // earlier messages would be lost
			return errNotYet
		}
		return nil
	})
	return func(t *testing.T) []received {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var all []received
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			payload, err := hex.DecodeString(words[len(words)-1])
			if err != nil || !strings.HasSuffix(line, "\n") {
				continue // the line is incomplete
			}
			got := received{name: words[0], payload: string(payload), metadata: map[string]string{}}
			for _, word := range words[1 : len(words)-1] {
				if name, value, ok := strings.Cut(word, ":"); ok {
					got.metadata[name] = value
				}
			}
			got.id = got.metadata[headerID]
			all = append(all, got)
		}
		return all
	}
}

// TestSink_StopWhileDialing expects that attempts and Stop do not wait for a broker that does not respond.
func TestSink_StopWhileDialing(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Broker: NATS}, {Broker: AMQP}, {Broker: MQTT}, {Broker: Redis}, {Broker: Postgres, Database: "x", User: "x"},
	} {
		t.Run(c.Broker, func(t *testing.T) {
			t.Parallel()
			c.Addresses = []string{startSilentServer(t)}
			s := startSink(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := s.Deliver(ctx, newDelivery(1))
			if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry ||
				!strings.Contains(err.Error(), c.Addresses[0]) {
				t.Errorf("silent server: got %v", err)
			}
		})
	}
}
