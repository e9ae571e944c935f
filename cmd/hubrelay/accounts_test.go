package main_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestAccountsErase deletes one of two accounts from the log, a queue, scheduled retries, a batch, an open digest, dead
// letters and the quarantine. The file of the embedded Redis does not contain it afterward.
func TestAccountsErase(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	data := filepath.Join(dir, "redis")
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		status := map[string]int{"/queue": 204, "/retry": 500, "/batch": 500, "/digest": 500, "/dead": 400}[h.path]
		w.WriteHeader(status)
	})
	sink := func(name, more string) string {
		return fmt.Sprintf("  %s: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], secrets: [%q]%s}\n", name,
			hooks.url+"/"+name, webhookSecret, more)
	}
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("data_dir: %q", data),
		sinks: sink("queue", "") + sink("retry", ", retry: {schedule: [1h]}") +
			fmt.Sprintf("  lines: {type: file, path: %q}\n", filepath.Join(dir, "lines")) +
			sink("digest", ", retry: {schedule: [1h]}, digest: {wait: 1h}") +
			sink("dead", ", retry: {schedule: []}") +
			sink("batch", ", retry: {schedule: [1h]}, batch: {max: 4, wait: 1m}"),
	})
	command := func(wantCode int, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, "", append(args, "--admin", d.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s %s", args, code, out, errOut)
		}
		return out + errOut
	}
	command(0, "sinks", "pause", "queue")
	var body strings.Builder
	for _, account := range []string{"acme", "other", "acme", "other"} {
		fmt.Fprintf(&body, `{"topic":"job.created","context":{"account_id":%q},"mark":"data-of-%s"}`+"\n", account,
			account)
	}
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	d.Publish(t, "hub-1", "application/x-ndjson", body.String(), nil)
	for _, values := range [][]string{
		{"data", `{"context":{"account_id":["acme"]},"x":"data-of-acme"}`},
		{"data", `<acme data-of-acme>`},
		{"data", `{"context":{"account_id":"other"},"x":"data-of-other"}`},
		{"wrong", `{"context":{"account_id":"acme"},"x":"data-of-acme"}`},
	} {
		if err := store.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:inbox", Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all deliveries to be where they belong", func() error {
		for _, m := range []struct {
			metric string
			want   float64
		}{
			{`hubrelay_sink_waiting{sink="queue"}`, 4},
			{`hubrelay_sink_retrying{sink="retry"}`, 4},
			{`hubrelay_sink_retrying{sink="batch"}`, 1},
			{`hubrelay_sink_dead{sink="dead"}`, 4},
			{`hubrelay_inbox_entries_total{result="quarantined"}`, 4},
		} {
			if got := d.Metric(t, m.metric); got != m.want {
				return fmt.Errorf("%s is %v", m.metric, got)
			}
		}
		// Deliveries in progress are not erased.
		if out := command(0, "sinks", "show", "digest", "--json"); !strings.Contains(out, `"waiting_in_digests":4`) {
			return errors.New("the digest does not have all events")
		}
		// 16 notifications were attempted, half of them of each account.
		if got := d.Metric(t, "hubrelay_history_records_total"); got < 12 {
			return fmt.Errorf("the history has %v records", got)
		}
		return nil
	})
	if found := keysWith(t, store, "data-of-acme"); len(found) < 7 {
		t.Fatalf("the data of the account is only in %v", found)
	}
	if found := filesWith(t, data, "data-of-acme"); len(found) == 0 {
		t.Fatal("the data of the account is in no file")
	}
	if out := command(2, "accounts", "erase", "acme"); !strings.Contains(out, "--yes") {
		t.Errorf("without confirmation: %s", out)
	}
	if out := command(1, "accounts", "erase", "*", "--yes"); !strings.Contains(out, "name one") {
		t.Errorf("erase of all accounts: got %s", out)
	}
	out := command(0, "accounts", "erase", "acme", "--yes")
	const want = "deleted 0 entries of the inbox and 2 of the log, 2 waiting and 4 retrying deliveries, 2 dead letters, " +
		"3 entries of the quarantine, "
	if !strings.HasPrefix(out, want) || strings.Contains(out, " 0 records of the history") || !strings.Contains(out, "lines (file)") || !strings.Contains(out, "audit log") {
		t.Errorf("got %q, want %q and what remains", out, want)
	}
	if found := filesWith(t, data, "data-of-acme"); len(found) > 0 {
		t.Errorf("data of the account is still in %v", found)
	}
	if found := keysWith(t, store, "data-of-acme"); len(found) > 0 {
		t.Errorf("data of the account is still in %v", found)
	}
	for _, key := range []string{"hubrelay:records:retry", "hubrelay:records:batch", "hubrelay:deadletters:dead", "hubrelay:quarantine"} {
		if !slices.Contains(keysWith(t, store, "data-of-other"), key) {
			t.Errorf("data of the other account is missing in %s", key)
		}
	}
	command(0, "sinks", "resume", "queue")
	testkit.Eventually(t, "the other account's deliveries", func() error {
		delivered := hooks.of("/queue")
		for _, h := range delivered {
			if strings.Contains(h.body, "data-of-acme") {
				t.Fatalf("deleted data was delivered: %s", h.body)
			}
		}
		if len(delivered) != 2 {
			return fmt.Errorf("%d deliveries", len(delivered))
		}
		return nil
	})
	if out := command(0, "audit", "--action", "accounts"); !strings.Contains(out, "accounts.erase") ||
		!strings.Contains(out, "acme") {
		t.Errorf("the audit log is %s", out)
	}
}

// TestAccountsErase_ReadDeliveries erases an account while the node has read its deliveries, and a first attempt is in progress.
func TestAccountsErase_ReadDeliveries(t *testing.T) {
	t.Parallel()
	const perAccount = 20
	erased := make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		<-erased
		status := http.StatusNoContent
		if strings.Contains(h.body, "data-of-acme") {
			status = http.StatusInternalServerError
		}
		w.WriteHeader(status)
	})
	server := redistest.Start(t)
	var sinks strings.Builder
	for name, more := range map[string]string{
		"plain": "", "ordered": ", ordering: hub", "batch": ", batch: {max: 100, wait: 30s}",
	} {
		sinks.WriteString(webhookSink(name, hooks.url+"/"+name, ", concurrency: 1"+more))
	}
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks.String()})
	var body strings.Builder
	for range perAccount {
		for _, account := range []string{"acme", "other"} {
			fmt.Fprintf(&body, `{"topic":"job.created","context":{"account_id":%q},"mark":"data-of-%s"}`+"\n", account, account)
		}
	}
	d.Publish(t, "hub-1", "application/x-ndjson", body.String(), nil)
	testkit.Eventually(t, "the first attempts", func() error {
		if len(hooks.of("/plain")) != 1 || len(hooks.of("/ordered")) != 1 {
			return errors.New("no attempt")
		}
		return nil
	})
	store := redisAt(t, server.Socket)
	var command sync.WaitGroup
	command.Go(func() {
		out, errOut, code := call(t, nil, "", "accounts", "erase", "acme", "--yes", "--admin", d.Admin)
		if code != 0 {
			t.Errorf("erase exited with %d: %s %s", code, out, errOut)
		}
	})
	testkit.Eventually(t, "the start of the command", func() error {
		if store.Exists(t.Context(), "hubrelay:erasures").Val() != 1 {
			return errors.New("it has not started")
		}
		return nil
	})
	d.Publish(t, "hub-1", "application/json", `{"topic":"job.created","context":{"account_id":"acme"},"mark":"later"}`, nil)
	command.Wait()
	close(erased)
	testkit.Eventually(t, "the other account's deliveries, and what was published during the command", func() error {
		for _, path := range []string{"/plain", "/ordered", "/batch"} {
			isLater := func(h hook) bool { return strings.Contains(h.body, `"later"`) }
			if !slices.ContainsFunc(hooks.of(path), isLater) {
				return fmt.Errorf("%s has not got the later event", path)
			}
		}
		for path, want := range map[string]int{"/plain": perAccount, "/ordered": perAccount, "/batch": 1} {
			n := 0
			for _, h := range hooks.of(path) {
				n += min(strings.Count(h.body, "data-of-other"), 1)
			}
			if n != want {
				return fmt.Errorf("%s has got %d requests, want %d", path, n, want)
			}
		}
		return nil
	})
	for path, want := range map[string]int{"/plain": 1, "/ordered": 1, "/batch": 0} { // the attempts in progress
		n := 0
		for _, h := range hooks.of(path) {
			n += strings.Count(h.body, "data-of-acme")
		}
		if n != want {
			t.Errorf("%s has got %d erased events, want %d", path, n, want)
		}
	}
	testkit.Eventually(t, "the queues to be empty", func() error {
		if found := keysWith(t, store, "data-of-acme"); len(found) > 0 {
			return fmt.Errorf("data of the account is in %v", found)
		}
		return nil
	})
}

// filesWith returns the files below dir that contain text.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), text) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// keysWith returns the sorted keys of Redis whose values contain text.
func keysWith(t *testing.T, store *redis.Client, text string) []string {
	t.Helper()
	ctx := t.Context()
	keys, err := store.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, key := range keys {
		var value any
		switch store.Type(ctx, key).Val() {
		case "stream":
			value = store.XRange(ctx, key, "-", "+").Val()
		case "hash":
			value = store.HGetAll(ctx, key).Val()
		case "list":
			value = store.LRange(ctx, key, 0, -1).Val()
		case "zset":
			value = store.ZRange(ctx, key, 0, -1).Val()
		case "string":
			value = store.Get(ctx, key).Val()
		case "none": // deleted since it was listed
		default:
			t.Fatalf("%s has an unknown type", key)
		}
		if strings.Contains(fmt.Sprint(value), text) {
			found = append(found, key)
		}
	}
	slices.Sort(found)
	return found
}
