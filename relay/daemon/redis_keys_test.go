package daemon

import (
	"os"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/auth/forward"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// Operators read these names, and a change would lose data.
func TestRedisKeys_MatchArchitecture(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	k, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	newer, older := eventlog.ClientIdempotencyKeys(k, 0, "<client>")
	for documented, key := range map[string]string{
		"inbox":                          inbox.Key(k),
		"inbox:position:{p}":             inbox.PositionKey(k, 0),
		"quarantine":                     inbox.QuarantineKey(k),
		"log:{p}":                        eventlog.Key(k, 0),
		"dispatched:{p}":                 eventlog.DispatchPositionKey(k, 0),
		"idempotency:{p}:<hash>":         eventlog.IdempotencyKey(k, 0, "<hash>"),
		"idempotency:newer:{p}:<client>": newer,
		"idempotency:older:{p}:<client>": older,
		"sinks:{p}":                      queue.SinkPositionsKey(k, 0),
		"queue:<sink>:{p}":               queue.Key(k, "<sink>", 0),
		"source:<name>:{p}":              sourcestore.PositionKey(k, "<name>", 0),
		"source:taken:<name>:{p}":        sourcestore.StepKey(k, "<name>", 0),
		"quarantine:source:<name>":       sourcestore.QuarantineStepKey(k, "<name>"),
		"source:status:<name>":           sourcestore.StatusKey(k, "<name>"),
		"retry:<sink>":                   store.RetryKey(k, "<sink>"),
		"records:<sink>":                 store.RecordsKey(k, "<sink>"),
		"arrivals:<sink>":                store.ArrivalKey(k, "<sink>"),
		"order:<sink>":                   store.OrderKey(k, "<sink>"),
		"ordermembers:<sink>":            store.OrderMembersKey(k, "<sink>"),
		"deadletters:<sink>":             store.DeadLettersKey(k, "<sink>"),
		"deadindex:<sink>":               store.DeadLetterIndexKey(k, "<sink>"),
		"failing:<sink>":                 store.FailureStartKey(k, "<sink>"),
		"stats:<sink>":                   store.StatsKey(k, "<sink>"),
		"digests:<sink>":                 store.DigestsKey(k, "<sink>"),
		"digest:<sink>:<group>":          store.DigestKey(k, "<sink>", "<group>"),
		"digestcount:<sink>":             store.DigestCountKey(k, "<sink>"),
		"digestbytes:<sink>":             store.DigestBytesKey(k, "<sink>"),
		"batchids:<sink>":                store.BatchedIDsKey(k, "<sink>"),
		"batchlog:<sink>":                store.BatchLogKey(k, "<sink>"),
		"shared:<sink>:<hash>":           store.SharedStateKey(k, "<sink>", "<hash>"),
		"sink:<sink>":                    store.StateKey(k, "<sink>"),
		"rate:<name>":                    store.RateKey(k, "<name>"),
		"sinkchanges":                    store.ChangesKey(k),
		"lease:<name>":                   lease.Key(k, "<name>"),
		"status:<node>":                  lease.RecordKey(k, "<node>"),
		"node:<n>":                       strings.TrimSuffix(lease.NodeKey(k, 0), "0") + "<n>",
		"partitions":                     redisconn.PartitionsKey(k),
		"probe":                          redisconn.ProbeKey(k),
		"relay-id":                       redisconn.RelayIDKey(k),
		"cursorkey":                      redisconn.CursorKeyKey(k),
		"apikeys":                        keystore.KeysKey(k),
		"apikeyuse":                      keystore.UseKey(k),
		"credentialchanges":              forward.ChangesKey(k),
	} {
		want := "hubrelay:" + strings.ReplaceAll(documented, "{p}", "{0}")
		if key != want {
			t.Errorf("key %q: got %q, want %q", documented, key, want)
		}
		if !strings.Contains(string(text), "`"+documented+"`") {
			t.Errorf("ARCHITECTURE.md does not document %q", documented)
		}
	}
}
