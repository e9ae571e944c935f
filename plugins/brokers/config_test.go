package brokers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/hubrelay/hubrelay/relay"
)

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		Kafka: `"addresses":["k"]`, NATS: `"addresses":["n"]`, AMQP: `"addresses":["r"]`, MQTT: `"addresses":["m"]`,
		Redis: `"addresses":["r"]`, Postgres: `"addresses":["p"],"database":"d"`,
	}
	for _, broker := range brokerNames() {
		if err := validate(t, broker, base[broker]); err != nil {
			t.Errorf("minimal configuration of %s: got %v", broker, err)
		}
	}
	for _, c := range []struct{ broker, text, want string }{
		{"", `"addresses":["k"]`, "broker is missing: choose one of kafka, nats, amqp, mqtt, redis, postgres"},
		{"kafak", `"addresses":["k"]`, "did you mean kafka?"},
		{"zeromq", `"addresses":["k"]`, "is not known: choose one of"},
		{Kafka, ``, "addresses is missing: name the broker, such as [kafka.example.com:9092]"},
		{
			Kafka, `"addresses":["kafka://user:` + secret + `@k"]`,
			"addresses.0 is not host:port: remove scheme, user and path",
		},
		{Kafka, `"addresses":["k:0"]`, "addresses.0 is not host:port with a port from 1 to 65535"},
		{Kafka, `"addresses":["a:b:c"]`, "addresses.0 is not host:port"},
		{Kafka, base[Kafka] + `,"stream":"s"`, "stream is a key of redis, not of kafka"},
		{
			NATS, base[NATS] + `,"topic":"s"`,
			"topic is a key of kafka and mqtt, not of nats, which has subject, token_file, creds_file",
		},
		{
			Kafka, base[Kafka] + `,"topic":"a b"`,
			`topic expands to "a b": a topic may contain only letters, digits, '.', '_' and '-'`,
		},
		{
			Kafka, base[Kafka] + `,"topic":"a.{topc}"`,
			"topic has the placeholder {topc}, which is not known; did you mean {topic}?",
		},
		{Kafka, base[Kafka] + `,"topic":"a.{colour}"`, "the placeholders are {topic}, {topic_path}, {hub}, {account}"},
		{Kafka, base[Kafka] + `,"topic":"a.{topic"`, "topic has a { without a }"},
		{Kafka, base[Kafka] + `,"topic":"a.topic}"`, "topic has a } without a {"},
		{
			Kafka, base[Kafka] + `,"topic":"` + strings.Repeat("a", 250) + `"`,
			"topic expands to a name of 250 bytes, and the broker allows 249",
		},
		{Kafka, base[Kafka] + `,"key":"hubs"`, `key "hubs" is not known: did you mean hub?`},
		{
			Kafka, base[Kafka] + `,"sasl":"scram"`,
			`sasl "scram" is not known: choose one of plain, scram-sha-256, scram-sha-512`,
		},
		{Kafka, base[Kafka] + `,"sasl":"plain"`, "user is missing: sasl needs a user"},
		{Kafka, base[Kafka] + `,"compression":"zip"`, `compression "zip" is not known: did you mean gzip?`},
		{Kafka, base[Kafka] + `,"max_message_bytes":1`, "max_message_bytes is 1: choose from 1024 to 67108864"},
		{Kafka, base[Kafka] + `,"password":"` + secret + `"`, "user is missing: a password needs a user"},
		{
			Kafka, base[Kafka] + `,"user":"u","password":"a","password_file":"b"`,
			"password_file cannot be combined with password",
		},
		{Kafka, base[Kafka] + `,"tls":{"cert_file":"c"}`, "tls has only one of cert_file and key_file"},
		{NATS, base[NATS] + `,"user":"u","token_file":"f"`, "user, token_file and creds_file exclude each other"},
		{
			NATS, base[NATS] + `,"subject":"a..{topic}"`,
			"a subject must not begin or end with a dot, or contain two dots in a row",
		},
		{NATS, base[NATS] + `,"subject":"$JS.API"`, "subjects that begin with $ are reserved by the server"},
		{NATS, base[NATS] + `,"subject":"a.>"`, "a subject must not contain white space, '*' or '>'"},
		{AMQP, base[AMQP] + `,"routing_key":"a.#"`, "a routing key must not contain white space, '*' or '#'"},
		{MQTT, base[MQTT] + `,"topic":"a/+"`, "a topic must not contain control characters, noncharacters, '+' or '#'"},
		{MQTT, base[MQTT] + `,"topic":"$SYS/x"`, "topics that begin with $ are reserved by the broker"},
		{Redis, `"addresses":["a","b"]`, "set cluster: true, or set sentinel_master to the master that they watch"},
		{
			Redis, base[Redis] + `,"cluster":true,"sentinel_master":"m"`,
			"sentinel_master cannot be combined with cluster",
		},
		{Redis, base[Redis] + `,"maxlen":-1`, "maxlen is -1: set the number of entries to keep, or 0 for all"},
		{Redis, base[Redis] + `,"db":1,"cluster":true`, "db is 1: choose 0 or more, and 0 with cluster"},
		{Redis, base[Redis] + `,"stream":"a b"`, "a key must not contain white space"},
		{Postgres, `"addresses":["p"]`, "database is missing: name the database that has the table"},
		{Postgres, base[Postgres] + `,"table":"Events"`, "a table may contain only lower-case letters, digits and '_'"},
		{Postgres, base[Postgres] + `,"table":"t_{hub}"`, "table has {hub}, so each new name of a hub would create a table"},
		{Postgres, base[Postgres] + `,"table":"a; drop table b"`, "a table may contain only lower-case letters, " +
			"digits and '_'"},
	} {
		err := validate(t, c.broker, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s {%s}\n got %v\nwant %s", c.broker, c.text, err, c.want)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%v contains a password", err)
		}
	}
}

func validate(t *testing.T, broker, text string) error {
	t.Helper()
	if text != "" {
		text = "," + text
	}
	var c Config
	if err := json.Unmarshal([]byte(`{"broker":"`+broker+`"`+text+`}`), &c); err != nil {
		t.Fatal(err)
	}
	return c.Validate()
}

func TestNameTemplate_Expand(t *testing.T) {
	t.Parallel()
	odd := nameValues{topic: "container.state.changed", hub: "Hub 1.*/#>+ü\x00", account: ""}
	for _, c := range []struct{ broker, text, want string }{
		{Kafka, "h.{topic}.{hub}.{account}", "h.container.state.changed.Hub_1________._"},
		{NATS, "h.{topic}.{hub}", "h.container.state.changed.Hub_1__/#_+ü_"},
		{AMQP, "{topic}.{hub}", "container.state.changed.Hub_1__/_>+ü_"},
		{MQTT, "h/{hub}/{topic_path}", "h/Hub_1_*__>_ü_/container/state/changed"},
		{Redis, "{hub}:{topic}", "Hub_1_*/#>+ü_:container.state.changed"},
		{Postgres, "s.t_{topic}_{account}", "s.t_container_state_changed__"},
		{Postgres, "s.t_{hub}", "s.t_hub_1________"},
	} {
		k := brokerSpecs()[c.broker]
		n, err := parseName(k.nameSetting, c.text, k.rule)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got, err := n.expand(odd); err != nil || got != c.want {
			t.Errorf("%s of %s: got %q (%v), want %q", c.text, c.broker, got, err, c.want)
		}
	}
}

// TestSink_NameTooLong expects a permanent error that names the setting.
func TestSink_NameTooLong(t *testing.T) {
	t.Parallel()
	s := startSink(t, Config{Broker: Kafka, Addresses: []string{"127.0.0.1:1"}, Topic: "{hub}"})
	d := newDelivery(1)
	d.Notifications[0].Hub = strings.Repeat("h", 300)
	err := rig{}.deliver(t, s, d)
	outcome, _ := relay.Classify(err)
	if outcome != relay.OutcomePermanent || !strings.Contains(err.Error(), "topic expands to a name of 300 bytes") {
		t.Errorf("got %v", err)
	}
	d.Batch = true
	if err := (rig{}).deliver(t, s, d); err == nil || !strings.Contains(err.Error(), "300 bytes") {
		t.Errorf("batch: got %v", err)
	}
}

func TestSink_StartChecksFiles(t *testing.T) {
	t.Parallel()
	empty, text := writeFile(t, "empty", "\n"), writeFile(t, "text", "no certificate")
	for _, c := range []struct {
		config Config
		want   string
	}{
		{
			Config{Broker: Kafka, User: "u", PasswordFile: "none"},
			"password_file cannot be read: no such file",
		},
		{Config{Broker: Kafka, User: "u", PasswordFile: empty}, "is empty"},
		{Config{Broker: NATS, CredsFile: "none"}, "creds_file cannot be read: no such file"},
		{
			Config{Broker: NATS, TLS: &TLS{CAFile: text}},
			"tls.ca_file names " + text + ", which contains no certificate",
		},
		{Config{Broker: NATS, TLS: &TLS{CertFile: text, KeyFile: text}}, "tls.cert_file and key_file cannot be used:"},
	} {
		c.config.Addresses = []string{"x"}
		if err := New(&c.config).Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// TestConfig_ShippedExamples validates the examples in configs/brokers.yaml and expects one per broker.
func TestConfig_ShippedExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "configs", "brokers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Sinks map[string]struct{ Config map[string]any }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for name, sink := range file.Sinks {
		data, err := json.Marshal(sink.Config)
		if err != nil {
			t.Fatal(err)
		}
		var c Config
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen = append(seen, c.Broker)
	}
	for _, broker := range brokerNames() {
		if !slices.Contains(seen, broker) {
			t.Errorf("configs/brokers.yaml has no example of %s", broker)
		}
	}
}
