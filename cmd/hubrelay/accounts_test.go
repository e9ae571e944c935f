package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestAccountsErase deletes one of two accounts from the log, a queue, scheduled retries, a batch and dead letters.
func TestAccountsErase(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		status := map[string]int{"/queue": 204, "/retry": 500, "/batch": 500, "/dead": 400}[h.path]
		w.WriteHeader(status)
	})
	sink := func(name, more string) string {
		return fmt.Sprintf("  %s: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], secrets: [%q]%s}\n", name,
			hooks.url+"/"+name, webhookSecret, more)
	}
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		sinks: sink("queue", "") + sink("retry", ", retry: {schedule: [1h]}") +
			sink("dead", ", retry: {schedule: []}") +
			sink("batch", ", retry: {schedule: [1h]}, batch: {max: 4, wait: 1s}"),
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
	d.Publish(t, "hub-1", "application/x-ndjson", body.String(), nil)
	testkit.Eventually(t, "all deliveries to be where they belong", func() error {
		for _, m := range []struct {
			metric string
			want   float64
		}{
			{`hubrelay_sink_backlog{sink="queue"}`, 4},
			{`hubrelay_sink_parked{sink="retry"}`, 4},
			{`hubrelay_sink_parked{sink="batch"}`, 1},
			{`hubrelay_sink_dead_letters{sink="dead"}`, 4},
		} {
			if got := d.Metric(t, m.metric); got != m.want {
				return fmt.Errorf("%s is %v", m.metric, got)
			}
		}
		return nil
	})
	if found := keysWith(t, store, "data-of-acme"); len(found) < 5 {
		t.Fatalf("the data of the account is only in %v", found)
	}
	if out := command(2, "accounts", "erase", "acme"); !strings.Contains(out, "--yes") {
		t.Errorf("without confirmation: %s", out)
	}
	out := command(0, "accounts", "erase", "acme", "--yes")
	if want := "deleted 2 entries of the log, 2 queued and 3 scheduled deliveries, 2 dead letters\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if found := keysWith(t, store, "data-of-acme"); len(found) > 0 {
		t.Errorf("data of the account is still in %v", found)
	}
	for _, key := range []string{"hubrelay:parked:retry", "hubrelay:parked:batch", "hubrelay:deadletters:dead"} {
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
