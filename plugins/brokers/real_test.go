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

// withLogin adds what all servers here ask for.
func withLogin(t *testing.T, s *server, c Config) Config {
	t.Helper()
	c.Addresses, c.User, c.PasswordFile = []string{local(s.port)}, testUser, write(t, "password", secret+"\n")
	return c
}

// wrongLogin has another password.
func wrongLogin(c Config) Config {
	c.PasswordFile, c.Password = "", "wrong-"+secret
	return c
}

func TestNATS(t *testing.T) {
	t.Parallel()
	s := startNATS(t)
	url := "nats://" + local(s.port)
	r := s.rig(withLogin(t, s, Config{Broker: NATS}), func(t *testing.T) []received { return readNATS(t, url) })
	refused(t, r.config, relay.OutcomeRetry, "subject", "hubrelay.container.created", "no stream")
	stream(t, url, everything, known)
	suite(t, r)
	refused(t, wrongLogin(r.config), relay.OutcomeRetry, "login", "password")
	stream(t, url, jetstream.StreamConfig{Name: "narrow", Subjects: []string{"narrow.>"}, MaxMsgSize: 100}, known)
	narrow := r.config
	narrow.Subject = "narrow.{hub}"
	refused(t, narrow, relay.OutcomePermanent, "max_msg_size", "narrow.hub_1")
	r.tooLarge(t)
}

// TestNATSToken has a server that knows a token in place of users. The file is read for each connection.
func TestNATSToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conf := s.file("nats.conf", fmt.Sprintf("listen: 127.0.0.1:%d\njetstream: {store_dir: %q}\nauthorization: {token: %q}\n", s.port, s.dir, secret))
	s.command = []string{program(t, "nats-server", "/usr/sbin/nats-server"), "-c", conf}
	s.start()
	js := stream(t, "nats://"+local(s.port), everything, nats.Token(secret))
	c := Config{Broker: NATS, Addresses: []string{local(s.port)}, TokenFile: write(t, "token", "wrong-"+secret+"\n")}
	refused(t, c, relay.OutcomeRetry, "login", "token_file")
	sink := started(t, c)
	if err := (rig{}).deliver(t, sink, delivery(1)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a wrong token led to %v", err)
	}
	write(t, c.TokenFile, secret+"\n")
	rig{}.recovers(t, sink, delivery(2))
	stream, err := js.Stream(t.Context(), "all")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("the stream holds %+v (%v)", info, err)
	}
	refused(t, Config{Broker: NATS, Addresses: c.Addresses}, relay.OutcomeRetry, "login")
}

// TestNATSOverTLS has a server of its own, since NATS begins in clear.
func TestNATSOverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, cert, key := a.issue()
	s := newServer(t)
	s.command = []string{
		program(t, "nats-server", "/usr/sbin/nats-server"), "-a", "127.0.0.1", "-p", strconv.Itoa(s.port), "-js", "-sd", s.dir,
		"--tlsverify", "--tlscert", cert, "--tlskey", key, "--tlscacert", a.file,
	}
	s.start()
	_, cert, key = a.issue()
	stream(t, "nats://"+local(s.port), everything, nats.RootCAs(a.file), nats.ClientCert(cert, key))
	overTLS(t, a, Config{Broker: NATS, Addresses: []string{local(s.port)}})
}

// encrypted tries a server through what takes TLS off.
func (r rig) encrypted(t *testing.T) {
	t.Helper()
	a := newAuthority(t)
	c := r.config
	c.Addresses = []string{terminate(t, a, c.Addresses[0])}
	overTLS(t, a, c)
}

// tooLarge wants a message that the server does not take to be given up, with nothing else.
func (r rig) tooLarge(t *testing.T) {
	t.Helper()
	large := relay.Delivery{ID: "large", Notifications: []relay.Notification{{
		ID: "large", Topic: "container.created", Hub: "h", Data: []byte(`{"text":"` + strings.Repeat("x", 2<<20) + `"}`),
	}}}
	s := started(t, r.config)
	err := r.deliver(t, s, large)
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent {
		t.Errorf("2 MiB led to %v", err)
	}
	t.Log(err)
	if err := r.deliver(t, s, delivery(1)); err != nil {
		t.Errorf("what follows it: %v", err)
	}
}

// known is the login of a server with users.
var known = nats.UserInfo(testUser, secret)

var everything = jetstream.StreamConfig{Name: "all", Subjects: []string{"hubrelay.>"}}

func stream(t *testing.T, url string, c jetstream.StreamConfig, options ...nats.Option) jetstream.JetStream {
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

// readNATS reads the stream from its beginning.
func readNATS(t *testing.T, url string) []received {
	t.Helper()
	conn, js := natsClient(t, url, known)
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
			beside := map[string]string{}
			for name := range m.Headers() {
				beside[name] = m.Headers().Get(name)
			}
			all = append(all, received{m.Subject(), m.Headers().Get(headerID), string(m.Data()), beside})
		}
		if len(all) == before {
			return all
		}
	}
}

func TestAMQP(t *testing.T) {
	t.Parallel()
	s := startRabbitMQ(t)
	url := fmt.Sprintf("amqp://%s:%s@%s/", testUser, secret, local(s.port))
	c := &amqpReader{url: url}
	r := s.rig(withLogin(t, s, Config{Broker: AMQP}), c.read)
	testkit.Eventually(t, "RabbitMQ to be ready", func() error { return c.declare("all", "amq.topic", "elsewhere.#") })
	refused(t, r.config, relay.OutcomeRetry, "routing key", "hubrelay.container.created", "amq.topic")
	if err := c.declare("all", "amq.topic", "hubrelay.#"); err != nil {
		t.Fatal(err)
	}
	suite(t, r)
	refused(t, wrongLogin(r.config), relay.OutcomeRetry, "user", testUser, "password")
	other := r.config
	nowhere := "nowhere"
	other.Exchange = &nowhere
	refused(t, other, relay.OutcomeRetry, "exchange", "nowhere")
	direct := ""
	other.Exchange, other.RoutingKey = &direct, "no-such-queue"
	refused(t, other, relay.OutcomeRetry, "no queue", "no-such-queue")
	other.Exchange, other.VHost = nil, "missing"
	refused(t, other, relay.OutcomeRetry, "vhost", "missing")
	r.encrypted(t)
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

// read takes what the queue holds and adds it to what it has read before.
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
			t.Errorf("%s came with %+v", m.MessageId, m.Headers)
		}
		beside := map[string]string{
			"exchange": m.Exchange, "type": m.Type, "app_id": m.AppId, "message_id": m.MessageId, "content_type": m.ContentType,
			"delivery_mode": strconv.Itoa(int(m.DeliveryMode)),
		}
		for name, value := range m.Headers {
			beside[name] = fmt.Sprint(value)
		}
		a.all = append(a.all, received{m.RoutingKey, m.MessageId, string(m.Body), beside})
	}
}

func TestMQTT(t *testing.T) {
	t.Parallel()
	s := startMosquitto(t)
	read := subscribe(t, s)
	r := s.rig(withLogin(t, s, Config{Broker: MQTT, ClientID: "hubrelay-test"}), read)
	// Mosquitto writes what it has acknowledged to the disk when it ends, and not before it acknowledges.
	r.kill = func() { s.end(syscall.SIGTERM) }
	r.config.ClientID = ""
	suite(t, r)
	for _, got := range read(t) {
		if got.id == delivery(1).ID && got.where != "hubrelay/hub_1/container/created" {
			t.Errorf("it came by %s", got.where)
		}
	}
	refused(t, wrongLogin(r.config), relay.OutcomeRetry, "user", testUser, "password")
	r.tooLarge(t)
	other := r.config
	other.Topic = "forbidden/{topic}"
	refused(t, other, relay.OutcomeRetry, "authorized", "forbidden/container.created")
	r.encrypted(t)
}

// subscribe has mosquitto_sub write what it gets to a file, in a session that outlives the broker.
func subscribe(t *testing.T, s *server) func(*testing.T) []received {
	t.Helper()
	path := filepath.Join(s.dir, "received")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, "mosquitto_sub"), "-V", "5", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-u", testUser, "-P", secret,
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
		if !strings.Contains(string(text), "reader 1 hubrelay/#") { // what is published before it is acknowledged, and gone
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
				continue // it is being written
			}
			got := received{where: words[0], payload: string(payload), beside: map[string]string{}}
			for _, word := range words[1 : len(words)-1] {
				if name, value, ok := strings.Cut(word, ":"); ok {
					got.beside[name] = value
				}
			}
			got.id = got.beside[headerID]
			all = append(all, got)
		}
		return all
	}
}

// TestEndsWhileItDials wants a plugin to end at once though its broker does not answer.
func TestEndsWhileItDials(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Broker: NATS}, {Broker: AMQP}, {Broker: MQTT}, {Broker: Redis}, {Broker: Postgres, Database: "x", User: "x"},
	} {
		t.Run(c.Broker, func(t *testing.T) {
			t.Parallel()
			c.Addresses = []string{silent(t)}
			s := started(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			err := s.Deliver(ctx, delivery(1))
			if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), c.Addresses[0]) {
				t.Errorf("a server that says nothing led to %v", err)
			}
			if took := time.Since(begun); took >= dialTime { // after which the dial would have ended by itself
				t.Errorf("an attempt of 1 s took %s", took)
			}
		})
	}
}
