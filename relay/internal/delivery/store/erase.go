package store

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

//go:embed scripts/replace.lua
var replaceRecordSource string

var replaceRecordScript = redisconn.NewScript(retryQueueSource + replaceRecordSource)

// EraseAccount removes the notifications of an account that were stored until a time from the scheduled deliveries of a sink,
// and returns the number of changed deliveries. A delivery without other notifications is removed.
func (rt *Retries) EraseAccount(ctx context.Context, sink, account string, until time.Time) (changed int, err error) {
	for cursor := uint64(0); ; {
		start := time.Now()
		page, next, err := rt.client.HScan(ctx, RecordsKey(rt.keys, sink), cursor, "", scanPage).Result()
		if err != nil {
			return changed, redisconn.WrapError("read the scheduled deliveries", err)
		}
		for i := 0; i+1 < len(page); i += 2 {
			replaced, err := rt.eraseFromRecord(ctx, sink, page[i], page[i+1], account, until)
			if err != nil {
				return changed, err
			}
			if replaced {
				changed++
			}
		}
		if cursor = next; cursor == 0 {
			return changed, rt.signalChange(ctx) // the next delivery of an ordered sink may be due
		}
		if err := Yield(ctx, time.Since(start)); err != nil {
			return changed, err
		}
	}
}

func (rt *Retries) eraseFromRecord(
	ctx context.Context, sink, id, text, account string, until time.Time,
) (bool, error) {
	r, err := DecodeRecord(text)
	if err != nil {
		return false, nil // nobody can read whose it is
	}
	if !r.eraseAccount(account, until) {
		return false, nil
	}
	replacement := ""
	if len(r.Notifications) > 0 {
		if replacement, err = r.Encode(); err != nil {
			return false, err
		}
	}
	n, err := replaceRecordScript.Run(ctx, rt.client, rt.retryKeys(sink), id, text, replacement).Int()
	if err != nil {
		return false, redisconn.WrapError("change a scheduled delivery", err)
	}
	return n == 1, nil
}

// eraseAccount removes the notifications of an account that were stored until a time, and reports whether it removed any. If a
// digest then lists nothing, but counts others, a stand-in of these is left, because they may belong to other accounts.
func (r *Record) eraseAccount(account string, until time.Time) bool {
	var kept, erased []Notification
	for _, n := range r.Notifications {
		if n.Account == account && IsStoredUntil(n.Cursor, until) {
			erased = append(erased, n)
		} else {
			kept = append(kept, n)
		}
	}
	if len(erased) == 0 {
		return false
	}
	r.Notifications, r.Attempts = kept, r.attemptsOfPart()
	if r.Digest == nil {
		return true
	}
	r.Digest.Count -= len(erased)
	for topic, n := range countTopics(erased) {
		if rest := r.Digest.Topics[topic] - n; rest > 0 {
			r.Digest.Topics[topic] = rest
		} else {
			delete(r.Digest.Topics, topic)
		}
	}
	if len(kept) == 0 && len(r.Digest.Topics) > 0 && r.Digest.Shared[SharedAccount] != account {
		r.Notifications, r.IsStandIn = []Notification{newStandIn(r.Digest, erased[0].Cursor)}, true
	}
	return true
}

// newStandIn returns a notification that represents a digest. It has only the values that all notifications of the digest share.
func newStandIn(d *relay.Digest, cursor string) Notification {
	bySeverity := func(a, b string) int {
		return cmp.Or(cmp.Compare(relay.SeverityOf(a, relay.Object{}), relay.SeverityOf(b, relay.Object{})), strings.Compare(a, b))
	}
	topic := slices.MaxFunc(slices.Collect(maps.Keys(d.Topics)), bySeverity)
	none, clusters := []string{}, []string{}
	hub := d.Shared[SharedHub]
	if text := d.Shared[SharedCluster]; text != "" {
		clusters = strings.Split(text, ", ")
	}
	data, _ := json.Marshal(struct { // strings always marshal
		relay.Envelope
		Flags any `json:"flags"`
	}{Envelope: relay.Envelope{Topic: topic, Object: relay.Object{State: "unlisted"}, Context: relay.Context{
		HubID: hub, AccountID: d.Shared[SharedAccount], Environments: none, DNSZones: none, Clusters: clusters, Containers: none,
	}}})
	return Notification{
		ID: NewDeliveryID(d.Last), Topic: topic, Hub: hub, Account: d.Shared[SharedAccount], Cursor: cursor, Data: string(data),
	}
}

// EraseAccount drops the dead letters of a sink that contain only notifications of an account that were stored until a time.
// shared is the number of dead letters that stay, because they also contain other notifications.
func (d *DeadLetters) EraseAccount(
	ctx context.Context, sink, account string, until time.Time,
) (dropped, shared int, err error) {
	for after := ""; ; {
		page, err := d.List(ctx, sink, Selection{After: after, Limit: scanPage})
		if err != nil {
			return dropped, shared, err
		}
		var ids []string
		for i := range page.Letters {
			letter, err := d.Get(ctx, sink, page.Letters[i].ID)
			switch {
			case errors.Is(err, ErrNoDeadLetter): // it was dropped or replayed in the meantime
				continue
			case err != nil:
				return dropped, shared, err
			}
			of := 0
			for k := range letter.Notifications {
				if n := &letter.Notifications[k]; n.Account == account && IsStoredUntil(n.Cursor, until) {
					of++
				}
			}
			switch {
			case of == 0:
			case of == len(letter.Notifications):
				ids = append(ids, letter.ID)
			default:
				shared++
			}
		}
		result, err := d.Drop(ctx, sink, ids)
		if dropped += result.Done; err != nil {
			return dropped, shared, err
		}
		if after = page.Next; after == "" {
			return dropped, shared, nil
		}
	}
}
