package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestAudit does what an attacker and an operator do, and searches the audit log for it.
func TestAudit(t *testing.T) {
	t.Parallel()
	hooks := receive(t, nil)
	dir := tempDir(t)
	log := filepath.Join(dir, "audit.log")
	c := daemonConfig{
		redis: `url: "memory:"`, sinks: webhookSink("hook", hooks.url+"/", ""),
		env: []string{"HUBRELAY_AUDIT__FILE=" + log, "HUBRELAY_AUDIT__HASH_CHAIN=true"},
	}
	file := writeFile(t, dir, "hubrelay.yaml", c.renderYAML())
	d := serveFile(t, file, c.env...)

	// Guesses are throttled after a burst. A valid key from the same address is not.
	const guess = "guessed-secret-0123456789"
	var last testkit.Reply
	rejected := 0 // guesses that were status 401
	for ; rejected < 1000; rejected++ {
		if last = d.Do(t, testkit.Request{Method: "GET", Key: guess, Hub: "hub-1"}); last.Status != 401 {
			break
		}
	}
	if last.Status != 429 || rejected < 100 || last.Header.Get("Retry-After") == "" {
		t.Errorf("after %d guesses, got %d %v, want 429 with Retry-After after 100 or more", rejected, last.Status, last.Header)
	}
	token := d.Token(t, opsKey, "hub-1")
	revocation := testkit.Request{
		Method: "DELETE", Path: notificationsPath + "/token", Header: map[string]string{"X-Service-Token": token},
	}
	if r := d.Do(t, revocation); r.Status != 204 {
		t.Errorf("the revocation was answered %d %s", r.Status, r.Body)
	}
	if _, errOut, code := call(t, nil, "", "sinks", "pause", "hook", "--admin", d.Admin); code != 0 {
		t.Fatalf("pause: %d %s", code, errOut)
	}
	for range 3 {
		r := d.Do(t, testkit.Request{Method: "POST", Key: readerKey, Hub: "hub-1", Body: plain})
		if r.Status != 403 {
			t.Errorf("a publish of a reader was answered %d %s", r.Status, r.Body)
		}
	}
	if _, errOut, code := call(t, nil, "", "sinks", "replay", "hook", "--after", "1h", "--admin", d.Admin); code != 0 {
		t.Fatalf("replay: %d %s", code, errOut)
	}
	if _, _, code := call(t, nil, "", "sinks", "replay", "hook", "--after", "foo", "--admin", d.Admin); code != 1 {
		t.Errorf("a replay after an invalid cursor ended with %d, want 1", code)
	}
	c.keys = `    - {name: added, key: another-secret-0123456789, hubs: [hub-1]}`
	c.sinks += webhookSink("second", hooks.url+"/", "")
	d.reconfigure(t, file, c, 1)

	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	admin := fmt.Sprintf("admin user %s (%s)", me.Uid, me.Username)
	find := func(args string) (list []map[string]any) {
		t.Helper()
		out, errOut, code := call(t, nil, "", append([]string{"audit", "--json", "--admin", d.Admin},
			strings.Fields(args)...)...)
		if code != 0 {
			t.Fatalf("audit %s: %d %s", args, code, errOut)
		}
		for line := range strings.Lines(out) {
			var e map[string]any
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		return list
	}
	for args, want := range map[string]map[string]string{
		"--action authenticate --address 127.0.0.1": {
			"result": "401.auth-invalid", "target": "GET /v1/hubs/current/notifications",
		},
		"--action token.revoke": {"actor": "key ops", "address": "127.0.0.1", "result": "ok"},
		"--action sinks.pause":  {"actor": admin, "action": "sinks.pause", "target": "hook", "result": "ok"},
		"--action publish":      {"actor": "key reader", "address": "127.0.0.1", "result": "403.permissions"},
		"--account acme":        {"actor": "key reader", "account_id": "acme", "action": "publish"},
		"--target added":        {"actor": "configuration", "action": "keys.add", "result": "ok"},
		"--action config": {
			"actor": "configuration", "action": "config.reload", "result": "ok",
			"detail": "sinks added: second; keys added: added",
		},
	} {
		testkit.Eventually(t, "the entry of "+args, func() error {
			list := find(args)
			if len(list) == 0 {
				return errors.New("there is none")
			}
			for field, value := range want {
				if list[0][field] != value {
					return fmt.Errorf("got %v, want %v", list[0], want)
				}
			}
			return nil
		})
	}
	if list := find("--action sinks.replay"); len(list) != 2 ||
		!strings.Contains(fmt.Sprint(list[0]["detail"]), "after foo; after is neither the cursor of a stream") ||
		!strings.Contains(fmt.Sprint(list[1]["detail"]), "0 replayed, 0 skipped") {
		t.Errorf("got %v, want a failed replay with its error, and one with its counts", list)
	}
	if n := len(find("--action authenticate --limit 1000")); n != rejected {
		t.Errorf("%d failures are recorded, want the %d that were status 401", n, rejected)
	}
	var text []byte
	testkit.Eventually(t, "the file to have all entries of Redis", func() (err error) {
		text, err = os.ReadFile(log)
		if lines, entries := strings.Count(string(text), "\n"), len(find("--limit 1000")); err == nil && lines != entries {
			err = fmt.Errorf("the file has %d lines, Redis %d entries", lines, entries)
		}
		return err
	})
	for _, secret := range []string{guess, token, opsKey, "another-secret"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the audit log contains the secret %s", secret)
		}
	}
	if out, errOut, code := call(t, nil, "", "audit", "verify", log); code != 0 || !strings.Contains(out, "intact") ||
		!strings.Contains(out, "last hash: ") {
		t.Errorf("verify: got %d\n%s%s", code, out, errOut)
	}
	forged := writeFile(t, dir, "forged.log", strings.Replace(string(text), "127.0.0.1", "127.0.0.9", 1))
	if _, errOut, code := call(t, nil, "", "audit", "verify", forged); code != 1 || !strings.Contains(errOut, "at line 2") {
		t.Errorf("verify of a changed file: got %d\n%s, want 1 and line 2", code, errOut)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	cut := writeFile(t, t.TempDir(), "cut.log", rest)
	if out, errOut, code := call(t, nil, "", "audit", "verify", cut); code != 0 || !strings.Contains(out, "or were removed") {
		t.Errorf("verify without the first line: got %d\n%s%s", code, out, errOut)
	}
	empty := writeFile(t, t.TempDir(), "empty.log", "")
	if out, errOut, code := call(t, nil, "", "audit", "verify", empty); code != 1 || !strings.Contains(errOut, "there is no line") {
		t.Errorf("verify of an empty file: got %d\n%s%s", code, out, errOut)
	}
	if out, _, code := call(t, nil, "", "audit", "--limit", "3", "--admin", d.Admin); code != 0 ||
		!strings.Contains(out, "RESULT") || !strings.Contains(out, "config.reload") {
		t.Errorf("the table: %d\n%s", code, out)
	}
	if _, errOut, code := call(t, nil, "", "audit", "--limit", "0", "--admin", d.Admin); code != 2 {
		t.Errorf("a limit of 0: got %d %s, want 2", code, errOut)
	}
}
