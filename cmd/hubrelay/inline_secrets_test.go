package main_test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestConfigCheck_InlineSecrets checks a file that every user of the machine can read.
func TestConfigCheck_InlineSecrets(t *testing.T) {
	t.Parallel()
	file := writeFile(t, tempDir(t), "hubrelay.yaml", `
auth: {keys: [{name: a, key_sha256: `+strings.Repeat("9f86d081", 8)+`, account_id: acme, hubs: [h]}]}
sinks:
  signed: {type: webhook, url: "https://example.com/", secrets: ["`+webhookSecret+`"], headers: {X-Plain: x, X-Api-Key: abc}}
  bearer: {type: webhook, url: "https://example.com/", secrets: ["${SECRET}"], bearer: abcdefghijkl}
  chat: {type: slack, url: "https://hooks.slack.com/services/T1/B2/abc"}
  mail: {type: email, host: mail.example.com, sender: a@example.com, to: [b@example.com], username: u, password: abc}
  command: {type: exec, command: [/bin/cat], env: [PATH, "API_TOKEN=abc", "MODE=x"]}
`)
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := call(t, []string{"SECRET=" + webhookSecret}, "", "config", "check", "-c", file)
	if code != 0 {
		t.Fatalf("got %d\n%s%s", code, out, errOut)
	}
	var got []string
	for line := range strings.Lines(errOut) {
		if before, _, ok := strings.Cut(line, ": is a secret in a file that every user of this machine can read"); ok {
			got = append(got, before[strings.LastIndex(before, " ")+1:])
		}
	}
	want := []string{
		"sinks.signed.secrets[0]", "sinks.signed.headers.X-Api-Key", "sinks.bearer.bearer", "sinks.chat.url",
		"sinks.mail.password", "sinks.command.env[1]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got warnings about %q, want %q\n%s", got, want, errOut)
	}
}
