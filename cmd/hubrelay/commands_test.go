package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	good := writeFile(t, dir, "good.yaml", daemonConfig{redis: `url: "memory:"`}.renderYAML())
	for _, tc := range []struct {
		args  string
		code  int
		parts []string // in standard error for a failure, otherwise in standard output
	}{
		{"", 0, []string{"hubrelay demo"}},
		{"--help", 0, []string{"serve", "listen"}},
		{"version", 0, []string{"hubrelay"}},
		{"version --json", 0, []string{`"version":`}},
		{"topics container.instance.*", 0, []string{"container.instance.health.status.changed"}},
		{"topics hubrelay.*", 0, []string{"hubrelay.sink.disabled", "hubrelay.deadletter.created"}},
		{"topics hubrelay.sink.disabeld", 1, []string{"hubrelay.sink.disabled"}},
		{"topics contaner.*", 1, []string{"contaner.*", "container.created"}},
		{"config check -c " + good, 0, []string{"good", "2 keys"}},
		{"config check -c " + dir + "/nothing.yaml", 1, []string{"nothing.yaml"}},
		{"serve -c " + dir + "/nothing.yaml", 1, []string{"nothing.yaml"}},
		{"config check", 2, []string{"-c FILE", "--help"}},
		{"serve", 2, []string{"-c FILE"}},
		{"serve -c", 2, []string{"--help"}},
		{"sevre", 2, []string{"sevre", "serve"}},
		{"config chek", 2, []string{"chek", "check"}},
		{"version now", 2, []string{"--help"}},
		{"topics --jsno", 2, []string{"--jsno"}},
		{"publish", 2, []string{"HUBRELAY_KEY"}},
		{"publish --key k", 2, []string{"--topic"}},
		{"publish --key k --topic job.created file.json", 2, []string{"not both"}},
		{"publish --key k --account acme file.json", 2, []string{"context.account_id"}},
		{"publish --key k --object x -", 2, []string{"--object requires --topic", "object.id in each"}},
		{"publish --key k --state x file.json", 2, []string{"object.state"}},
		{"publish --key k --error x file.json", 2, []string{"object.error"}},
		{"publish --key k --environment x file.json", 2, []string{"context.environments"}},
		{"publish --key k --cluster x file.json", 2, []string{"context.clusters"}},
		{"publish --key k --container x file.json", 2, []string{"context.containers"}},
		{"publish --key k --dns-zone x file.json", 2, []string{"context.dns_zones"}},
		{"publish --key k --idempotency-key x -", 2, []string{"publish a file instead"}},
		{"keys new --webhook --name x", 2, []string{"--name is for API keys"}},
		{"listen --key k --url localhost", 2, []string{"http://127.0.0.1:8080"}},
		{"publish --key k nothing.json", 1, []string{"nothing.json"}},
		{`publish --key k {"topic":"job.created"}`, 1, []string{"no such file", "standard input", "--topic"}},
		{"publish --key k container.created", 1, []string{"--topic for a single event"}},
		{"sinks list --jsn -c hubrelay.yaml", 2, []string{"unknown flag: --jsn (did you mean --json?)"}},
		{"sink list -c hubrelay.yaml", 2, []string{`unknown command "sink" (did you mean "sinks"?)`}},
		{"connections close x -c hubrelay.yaml", 2, []string{`unknown command "close"`}},
		{"publish --key k --url http://127.0.0.1:1 --topic job.created", 1, []string{"127.0.0.1:1"}},
		{"demo --every 0s", 2, []string{"1ms"}},
	} {
		out, errOut, code := call(t, nil, "", strings.Fields(tc.args)...)
		text := out
		if tc.code != 0 {
			text = errOut
			if n := strings.Count(strings.TrimSpace(errOut), "\n"); n != 0 || out != "" {
				t.Errorf("hubrelay %s printed %q and more than a line of errors:\n%s", tc.args, out, errOut)
			}
		}
		if err := errors.Join(hasAll(text, tc.parts...)...); code != tc.code || err != nil {
			t.Errorf("hubrelay %s ended with %d, want %d, %v:\n%s%s", tc.args, code, tc.code, err, out, errOut)
		}
	}
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	t.Run("check names the place of every mistake", func(t *testing.T) {
		file := writeFile(t, dir, "broken.yaml", `server:
  listne: 127.0.0.1:8080
auth:
  keys:
    - {name: ops, key: short, hubs: ["*"], capabilities: [notification-publish]}
sinks:
  billing: {type: webhook, url: "http://127.0.0.1:9/", topics: ["biling.*"], timeout: soon}
  local: {type: webhook, url: "http://localhost:9/"}
  typo: {type: webhok, url: "https://example.com/"}
`)
		out, errOut, code := call(t, nil, "", "config", "check", "-c", file)
		err := errors.Join(hasAll(errOut, file+":2:3: ", `did you mean "listen"`, file+":5:", "notifications-publish",
			file+":7:", "timeout", file+":8:", "loopback", "allow_cidrs", file+":9:", `"webhook"`)...)
		if code != 1 || out != "" || err != nil {
			t.Errorf("ended with %d, %v:\n%s%s", code, err, out, errOut)
		}
		_, served, code := call(t, nil, "", "serve", "-c", file)
		if code != 1 || served != errOut {
			t.Errorf("serve ended with %d and says\n%s", code, served)
		}
	})
	t.Run("print shows no secret", func(t *testing.T) {
		writeFile(t, dir, "file.key", "from-a-file-0123456789abcdef\n")
		file := writeFile(t, dir, "secrets.yaml", daemonConfig{
			redis: `url: "redis://user:hidden-password@127.0.0.1:1/0"`,
			keys: `
    - {name: file, key_file: file.key, hubs: ["*"]}
    - {name: env, key: "${FROM_ENV}", hubs: ["*"]}`,
			sinks: webhookSink("hook", "https://example.com/hidden-path?sig=hidden-query", ""),
		}.renderYAML())
		env := []string{"FROM_ENV=from-env-0123456789abcdef", "HUBRELAY_AUTH__TOKEN_TTL=7s"}
		out, errOut, code := call(t, env, "", "config", "print", "-c", file)
		if err := errors.Join(hasAll(out, "token_ttl: 7s", "name: env", "example.com", "data_dir")...); code != 0 ||
			err != nil {
			t.Fatalf("ended with %d, %v:\n%s%s", code, err, out, errOut)
		}
		for _, secret := range []string{
			opsKey, readerKey, "from-a-file", "from-env", strings.TrimPrefix(webhookSecret, "whsec_"),
			"hidden-password", "hidden-path", "hidden-query",
		} {
			if strings.Contains(out+errOut, secret) {
				t.Errorf("%s is shown:\n%s%s", secret, out, errOut)
			}
		}
	})
	t.Run("schema is JSON Schema", func(t *testing.T) {
		out, _, code := call(t, nil, "", "config", "schema")
		var schema struct {
			Schema     string         `json:"$schema"`
			Properties map[string]any `json:"properties"`
		}
		if err := json.Unmarshal([]byte(out), &schema); code != 0 || err != nil || schema.Schema == "" ||
			schema.Properties["sinks"] == nil {
			t.Errorf("ended with %d, %v:\n%s", code, err, out)
		}
	})
}

func TestTopicsCommand(t *testing.T) {
	t.Parallel()
	out, _, code := call(t, nil, "", "topics", "--json")
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		var topic struct{ Topic, Meaning string }
		if err := json.Unmarshal([]byte(line), &topic); err != nil || topic.Meaning == "" {
			t.Errorf("%q: %v", line, err)
		}
		seen[topic.Topic] = true
	}
	if code != 0 || len(seen) != 93 || !seen["dns.zone.certificate.ready"] {
		t.Errorf("ended with %d and %d topics", code, len(seen))
	}
}

// TestClientCommands publishes in every way and listens, with a key from keys new.
func TestClientCommands(t *testing.T) {
	t.Parallel()
	out, _, code := call(t, nil, "", "keys", "new", "--name", "script", "--json")
	var made struct {
		Name, Key string
		SHA256    string `json:"key_sha256"`
	}
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.Name != "script" {
		t.Fatalf("keys new ended with %d, %v: %s", code, err, out)
	}
	d := serve(t, daemonConfig{redis: `url: "memory:"`, keys: fmt.Sprintf(`
    - {name: script, key_sha256: %s, hubs: [hub-1], capabilities: [notifications-publish]}`, made.SHA256)})
	env := []string{"HUBRELAY_URL=http://" + d.Public, "HUBRELAY_KEY=" + made.Key, "HUBRELAY_HUB=hub-1"}
	if _, errOut, code := call(t, env, "", "publish", "--topic", "container.created", "--account", "acme"); code != 1 ||
		!strings.Contains(errOut, "account_id") {
		t.Errorf("publish for an account that the key is not of ended with %d: %s", code, errOut)
	}
	all := start(t, env, "listen", "--json")
	some := start(t, env, "listen", "--topic", "container.*,!*.error")
	testkit.Eventually(t, "both listeners to be connected", func() error {
		return errors.Join(all.Err.Contains("connected")(), some.Err.Contains("connected")())
	})

	dir := tempDir(t)
	array := writeFile(t, dir, "array.json", "[\n"+plain+",\n"+everyKindFor("hub-1")+"\n]\n")
	many := writeFile(t, dir, "many.ndjson", lines(3))
	var ids []string
	for _, args := range [][]string{
		{"publish", array},
		{"publish", many, "--json"},
		{
			"publish", "--topic", "container.error", "--container", "c1", "--error", "out of memory", "--cluster",
			"production",
		},
	} {
		out, errOut, code := call(t, env, "", args...)
		if code != 0 {
			t.Fatalf("%v ended with %d: %s", args, code, errOut)
		}
		for line := range strings.Lines(out) {
			ids = append(ids, strings.NewReplacer(`{"id":"`, "", `"}`, "").Replace(strings.TrimSpace(line)))
		}
	}
	ids = append(ids, publishStream(t, env)...)

	testkit.Eventually(t, "every event", func() error {
		if n := strings.Count(all.Out.String(), "\n"); n != len(ids) {
			return fmt.Errorf("%d lines were printed, want %d", n, len(ids))
		}
		return nil
	})
	frames := strings.Split(strings.TrimSpace(all.Out.String()), "\n")
	ids[1] = "5f9c2b1e8a3d4c0017e5a921"
	if got := objectIDs(frames); !slices.Equal(got, ids) {
		t.Errorf("listen printed %v, want %v", got, ids)
	}
	if want := `"object":{"id":"` + ids[5] +
		`","state":"","error":"out of memory"},"context":{"hub_id":"hub-1","account_id":"",` +
		`"environments":[],"dns_zones":[],"clusters":["production"],"containers":["c1"]}`; !strings.Contains(frames[5],
		want) {
		t.Errorf("the flags became %s, want %s", frames[5], want)
	}
	testkit.Eventually(t, "the last at the second listener", some.Out.Contains(ids[len(ids)-1]))
	if text := some.Out.String(); strings.Contains(text, "container.error") || strings.Contains(text, "\x1b") {
		t.Errorf("listen with topics printed\n%s", text)
	}
	_, errOut, code := call(t, env, "", "publish", "--topic", "container.craeted")
	if err := errors.Join(hasAll(errOut, "422.invalid-argument", "container.created")...); code != 1 || err != nil {
		t.Errorf("a typo ended with %d, %v: %s", code, err, errOut)
	}
	for _, p := range []*testkit.Process{all, some} {
		p.Signal(syscall.SIGINT)
		if code := p.Exit(t); code != 0 {
			t.Errorf("listen ended with %d after SIGINT: %s", code, p.Err.String())
		}
	}
}

// All commands report an unknown topic with the same text.
func TestUnknownTopic_HasOneErrorText(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	file := d.Cmd.Args[len(d.Cmd.Args)-1]
	env := []string{"HUBRELAY_URL=http://" + d.Public, "HUBRELAY_KEY=" + opsKey, "HUBRELAY_HUB=hub-1"}
	for topic, want := range map[string]string{
		"container.craeted": `; the nearest topic is container.created`,
		"nothing.like.it":   `; 'hubrelay topics' lists all`,
		"hubrelay.sink.disabled": `there is no topic "hubrelay.sink.disabled" to publish: ` +
			`topics that start with "hubrelay." are reserved for the relay`,
	} {
		note := fmt.Sprintf(`{"topic":%q}`, topic)
		said := map[string]string{}
		_, said["publish"], _ = call(t, env, "", "publish", "--topic", topic)
		_, said["publish -"], _ = call(t, env, note, "publish", "-")
		_, said["explain"], _ = call(t, nil, note, "sinks", "explain", "-c", file, "--hub", "hub-1", "--event", "-")
		var e envelope
		r := d.Do(t, testkit.Request{
			Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json",
			Body: note,
		})
		if err := json.Unmarshal([]byte(r.Body), &e); err != nil || !strings.HasSuffix(r.Body, "}\n") {
			t.Errorf("%v: %q", err, r.Body)
		}
		said["POST"] = e.Error.Detail
		if !strings.HasPrefix(topic, "hubrelay.") {
			_, said["listen"], _ = call(t, env, "", "listen", topic)
			_, said["topics"], _ = call(t, nil, "", "topics", topic)
		}
		for who, text := range said {
			if !strings.Contains(text, want) {
				t.Errorf("%s: topic %s: %s", who, topic, text)
			}
		}
	}
}

// everyKindFor returns everyKind without the account, which the key of the script does not have.
func everyKindFor(hub string) string {
	return strings.NewReplacer(`"account_id":"acme",`, "", `"hub_id":"hub-1"`, fmt.Sprintf(`"hub_id":%q`, hub)).Replace(
		everyKind)
}

// publishStream sends lines to standard input. It waits for the id of each before it sends the next.
func publishStream(t *testing.T, env []string) []string {
	t.Helper()
	p := start(t, env, "publish", "-")
	for i := range 3 {
		if _, err := io.WriteString(p.In, plain+"\n"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the id of a line", func() error {
			if n := strings.Count(p.Out.String(), "\n"); n != i+1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
	}
	_ = p.In.Close()
	if code := p.Exit(t); code != 0 {
		t.Errorf("publish - ended with %d: %s", code, p.Err.String())
	}
	return strings.Fields(p.Out.String())
}

// Cobra would print the help of the parent and report success.
func TestHelp_RejectsUnknownCommand(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"nonsense --help": 2, "nonsense -h": 2, "--help nonsense": 2, "help nonsense": 2, "sinks nonsense --help": 2,
		"--help": 0, "help": 0, "help sinks": 0, "sinks --help": 0, "sinks list --help": 0, "completion bash --help": 0,
	} {
		out, errOut, code := call(t, nil, "", strings.Fields(args)...)
		if code != want || want == 2 && (out != "" || !strings.Contains(errOut, `unknown command "nonsense"`)) {
			t.Errorf("hubrelay %s: got exit code %d, want %d: %s%s", args, code, want, out, errOut)
		}
	}
}
