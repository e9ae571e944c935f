package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// freePorts returns an environment in which several daemons can run on one machine.
func freePorts() []string {
	return []string{"HUBRELAY_SERVER__LISTEN=127.0.0.1:0", "HUBRELAY_HEALTH__LISTEN=127.0.0.1:0"}
}

// The configuration is valid, the daemon starts with it, and the key has the documented capabilities.
func TestInit(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	lines := "file,path=./events.jsonl,topics=container.*,topics=!*.updated"
	out, errOut, code := callIn(t, dir, nil, "", "init", "--sink", lines, "--sink",
		"webhook,name=billing,url=https://example.com/hook", "--sink", "stdout")
	if code != 0 || errOut != "" {
		t.Fatalf("%d: %s", code, errOut)
	}
	_, key, _ := strings.Cut(out, "HUBRELAY_KEY=")
	key, _, _ = strings.Cut(key, "\n")
	text, err := os.ReadFile(filepath.Join(dir, "hubrelay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "hubrelay.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v: %v", info.Mode(), err)
	}
	if len(key) < 40 || strings.Contains(string(text), key) {
		t.Errorf("the file contains the key %q, or there is no key", key)
	}
	_, secret, _ := strings.Cut(string(text), "whsec_")
	secret, _, _ = strings.Cut(secret, `"`)
	if len(secret) < 40 || !strings.Contains(out, "whsec_"+secret) {
		t.Errorf("the webhook's secret %q is not told:\n%s", secret, out)
	}
	if out, errOut, code := callIn(t, dir, nil, "", "config", "check", "-c", "hubrelay.yaml"); code != 0 ||
		errOut != "" || !strings.Contains(out, "1 key, 3 sinks") {
		t.Errorf("check says %d %s%s", code, out, errOut)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".hubrelay-init*")); err != nil || left != nil {
		t.Errorf("%v remains: %v", left, err)
	}

	d := serveIn(t, dir, "hubrelay.yaml", freePorts()...)
	for _, topic := range []string{"container.updated", "container.created"} {
		d.Do(t, testkit.Request{
			Method: "POST", Key: key, Hub: "hub-1", ContentType: "application/json",
			Body: `{"topic":"` + topic + `","object":{"id":"web-1"},"context":{}}`,
		})
	}
	testkit.Eventually(t, "the line in the file", func() error {
		text, _ := os.ReadFile(filepath.Join(dir, "events.jsonl"))
		written := testkit.Output{}
		_, _ = written.Write(text)
		return written.Contains(`"topic":"container.created"`)()
	})
	if text, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")); strings.Contains(string(text), "container.updated") {
		t.Errorf("the file has what was excluded: %s", text)
	}
}

func TestInitJSON(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	out, errOut, code := callIn(t, dir, nil, "", "init", "--json", "-c", "relay.yaml", "--redis",
		"redis://redis:6379/0", "--listen", ":8080")
	var said struct{ File, Key string }
	if err := json.Unmarshal([]byte(out), &said); code != 0 || errOut != "" || err != nil ||
		said.File != "relay.yaml" || said.Key == "" {
		t.Fatalf("%d %s%s: %v", code, out, errOut, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "relay.yaml"))
	if err != nil || !strings.Contains(string(text), "\n  url: \"redis://redis:6379/0\"\n") ||
		!strings.Contains(string(text), "\n  listen: \":8080\"\n") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// Nested keys are written with dots, for all settings of a sink.
func TestInit_NestedKeys(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	sink := "webhook,url=https://example.com/hook,batch.wait=1s,batch.max=5," +
		"headers.X-Of.a=v,retry.schedule=5s,headers.X-B=w,retry.max_age=1h"
	if _, errOut, code := callIn(t, dir, nil, "", "init", "--sink", sink, "--sink",
		"webhook,url=https://example.com,tls.ca_file=none.pem"); code != 1 || !strings.Contains(errOut, "tls.ca_file: the file cannot be read") {
		t.Errorf("%d %s", code, errOut)
	}
	if _, errOut, code := callIn(t, dir, nil, "", "init", "--sink", sink); code != 0 {
		t.Fatalf("%d %s", code, errOut)
	}
	text, err := os.ReadFile(filepath.Join(dir, "hubrelay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`    batch: {wait: "1s", max: 5}`, `    headers: {"X-Of.a": "v", "X-B": "w"}`,
		`    retry: {schedule: ["5s"], max_age: "1h"}`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("%s is not in:\n%s", want, text)
		}
	}
}

// Only the environment of serve may contain a secret. Commands for the running daemon do not need it.
func TestInit_AllowsMissingEnvironmentVariables(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	_, errOut, code := callIn(t, dir, nil, "", "init", "--sink", "slack,url=${SLACK_URL},topics=*.error")
	if code != 0 || errOut != "warning: sinks.slack.url: the environment variable SLACK_URL is not set here; export "+
		"it where serve runs\n" {
		t.Fatalf("%d %s", code, errOut)
	}
	if _, errOut, code := callIn(t, dir, nil, "", "config", "check", "-c", "hubrelay.yaml"); code != 1 ||
		!strings.Contains(errOut, "SLACK_URL is not set") {
		t.Errorf("%d %s", code, errOut)
	}
	serveIn(t, dir, "hubrelay.yaml", append(freePorts(), "SLACK_URL=https://hooks.slack.com/services/T0/B0/x")...)
	out, errOut, code := callIn(t, dir, nil, "", "sinks", "list", "-c", "hubrelay.yaml")
	if code != 0 || !strings.Contains(out, "slack") {
		t.Errorf("%d %s%s", code, out, errOut)
	}
	writeFile(t, dir, "bad.yaml", "admin: {listen: 99}\nsinks: {x: {type: nothing}}\n")
	if _, errOut, code := callIn(t, dir, nil, "", "sinks", "list", "-c", "bad.yaml"); code != 1 ||
		!strings.Contains(errOut, "bad.yaml:1:17: admin.listen") || strings.Contains(errOut, "sinks.x") {
		t.Errorf("%d %s", code, errOut)
	}
}

// An existing file is never overwritten by accident.
func TestInit_KeepsExistingFile(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	writeFile(t, dir, "hubrelay.yaml", "mine")
	_, errOut, code := callIn(t, dir, nil, "", "init")
	if text, _ := os.ReadFile(filepath.Join(dir, "hubrelay.yaml")); code != 1 || string(text) != "mine" ||
		errOut != "hubrelay: hubrelay.yaml already exists: choose another file with -c, or overwrite it with "+
			"--force\n" {
		t.Errorf("%d %s, and the file holds %s", code, errOut, text)
	}
	if _, errOut, code := callIn(t, dir, nil, "", "init", "--force"); code != 0 {
		t.Errorf("%d %s", code, errOut)
	}
	if _, errOut, code := callIn(t, dir, nil, "", "config", "check", "-c", "hubrelay.yaml"); code != 0 {
		t.Errorf("%d %s", code, errOut)
	}
}

// Errors contain no values, because these can be secrets, and no file is written.
func TestInit_RejectsInvalidFlags(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	for _, tt := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{
			"unknown type", `--sink "webhok,url=…": unknown sink type "webhok"; did you mean "webhook"?`, 2,
			[]string{"--sink", "webhok,url=https://s3cret.example.com"},
		},
		{
			"without a type", `--sink "url=…": start with the type, such as webhook,url=https://example.com/hook`, 2,
			[]string{"--sink", "url=https://s3cret.example.com"},
		},
		{"empty", `--sink "": start with the type`, 2, []string{"--sink", ""}},
		{"setting without a value", `settings are written as KEY=VALUE`, 2, []string{"--sink", "webhook,verbose"}},
		{
			"key and nested key", `batch and batch.max exclude each other`, 2,
			[]string{"--sink", "webhook,batch=s3cret,batch.max=5"},
		},
		{
			"nested key and key", `batch.max and batch exclude each other`, 2,
			[]string{"--sink", "webhook,batch.max=5,batch=s3cret"},
		},
		{
			"empty nested key", `"batch." is not a key: write a nested key as batch.max`, 2,
			[]string{"--sink", "webhook,batch.=5"},
		},
		{
			"unknown nested key", `sinks.webhook.batch.mx: unknown key; did you mean "max"?`, 1,
			[]string{"--sink", "webhook,url=https://example.com,batch.mx=5"},
		},
		{
			"an unknown key", `sinks.webhook.urll: unknown key; did you mean "url"?`, 1,
			[]string{"--sink", "webhook,urll=https://s3cret.example.com"},
		},
		{
			"a bad value", `sinks.webhook.url: must begin with https:// or http://`, 1,
			[]string{"--sink", "webhook,url=ftp://s3cret.example.com"},
		},
		{
			"name with a space", `sinks.a b: is not a valid name for a sink`, 1,
			[]string{"--sink", "file,name=a b,path=./x"},
		},
		{"a topic", `the nearest topic is container.created`, 1, []string{"--sink", "file,path=./x,topics=containr.*"}},
		{"an address", `server.listen: "99" is not an address; write host:port`, 1, []string{"--listen", "99"}},
		{"a Redis", `redis.url: is not a URL; write redis://host:6379`, 1, []string{"--redis", "s3cret"}},
		{
			"missing directory",
			`write none/x.yaml: its directory must exist and be writable: no such file or directory`, 1,
			[]string{
				"-c", "none/x.yaml",
			},
		},
		{"an argument", `the argument "x" is unexpected`, 2, []string{"x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errOut, code := callIn(t, dir, nil, "", append([]string{"init"}, tt.args...)...)
			if code != tt.code || out != "" || !strings.Contains(errOut, tt.want) ||
				strings.Contains(errOut, "s3cret") {
				t.Errorf("%d %s%s", code, out, errOut)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%v is there: %v", left, err)
			}
		})
	}
}

// An invalid name, key or value cannot inject settings.
func TestInit_EscapesText(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	const more = "\nhealth: {listen: 0.0.0.0:1}\n#"
	for _, sink := range []string{
		"file,path=./x" + more, `file,"path=./x` + more + `"`, `file,path=./x,"name=a:` + more +
			`"`, `file,path=./x,"from: end` + more + `=1"`,
	} {
		_, errOut, _ := callIn(t, dir, nil, "", "init", "--force", "--sink", sink)
		if _, err := os.Stat(filepath.Join(dir, "hubrelay.yaml")); err != nil {
			continue
		}
		if out, _, _ := callIn(t, dir, nil, "", "config", "print", "-c", "hubrelay.yaml"); !strings.Contains(out,
			"\n  listen: 127.0.0.1:9090") {
			t.Errorf("%q: %s\n%s", sink, errOut, out)
		}
	}
}
