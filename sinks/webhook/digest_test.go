package webhook

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// gathered is a digest of 57 that lists three.
func gathered() relay.Delivery {
	d := relay.Delivery{ID: "6560c2a0fedcba9876543210", Attempt: 1, Digest: &relay.Digest{
		Count:  57,
		First:  time.Date(2026, 11, 20, 23, 59, 58, 0, time.UTC),
		Last:   time.Date(2026, 11, 21, 0, 0, 7, 250e6, time.UTC),
		Shared: map[string]string{"hub": "hub1", "cluster": `prod "<eu>"`},
		Topics: map[string]int{"container.state.changed": 44, "container.error": 12, "container.created": 1},
	}}
	for i, data := range []string{
		`{"topic":"container.error","object":{"id":"a","state":"","error":"<b> & \u00e9 é"},` +
			`"context":{"hub_id":"hub1"},"flags":null}`,
		`{ "topic" : "container.created", "object":{"n":12345678901234567890.10, "n2":1e400},"flags":null}`,
		`{"topic":"container.state.changed","object":{"id":"c","state":"running","error":""},"z":1,"a":{"z":[1, 2],` +
			`"a":""}}`,
	} {
		d.Notifications = append(d.Notifications, relay.Notification{
			ID: "65f0c2a00123456789abcde" + string(rune('0'+i)), Topic: "container.error", Hub: "hub1",
			Data: json.RawMessage(data),
		})
	}
	return d
}

func TestDigestGolden(t *testing.T) {
	t.Parallel()
	for _, format := range []string{formatNotification, formatStandard} {
		got, err := encodeBody(format, metadataBatches, gathered())
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "digest_"+format+".json")
		if *update {
			if err := os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
			t.Errorf("run go test -update and read the difference:\n%s", diff)
		}
		for range 20 { // the order of maps is random
			if again, err := encodeBody(format, metadataBatches, gathered()); err != nil || !bytes.Equal(again, got) {
				t.Fatalf("another attempt sends other bytes (%v)", err)
			}
		}
	}
}

type sentDigest struct {
	Topic, Type   string
	Timestamp     time.Time
	Digest        json.RawMessage
	Notifications []json.RawMessage
	Data          struct {
		Digest        json.RawMessage
		Notifications []json.RawMessage
	}
}

// A receiver finds each notification as it was published, under the id of the digest, and can check who sent it.
func TestDigestAsSent(t *testing.T) {
	t.Parallel()
	d := gathered()
	for _, format := range []string{formatNotification, formatStandard} {
		srv, last := capture(t, nil)
		if err := openTest(t,
			&Config{
				URL: srv.URL, Format: format,
				Secrets: []string{secretA, secretB},
			}).Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		r, sent := last()
		if r.Header.Get("webhook-id") != d.ID || !verify(t, secretA, r.Header, sent) ||
			!verify(t, secretB, r.Header, sent) {
			t.Errorf("%s: headers %v do not fit", format, r.Header)
		}
		var got sentDigest
		if err := json.Unmarshal(sent, &got); err != nil {
			t.Fatalf("%v in %s", err, sent)
		}
		list := append(got.Notifications, got.Data.Notifications...)
		if len(list) != len(d.Notifications) {
			t.Fatalf("%s: %d events in %s", format, len(list), sent)
		}
		for i, n := range d.Notifications {
			if !bytes.Equal(list[i], n.Data) {
				t.Errorf("%s: event %d is %s, want %s", format, i, list[i], n.Data)
			}
		}
		if got.Topic+got.Type != relay.TopicDigest || format == formatStandard && !got.Timestamp.Equal(d.Digest.Last) {
			t.Errorf("%s: sent %s", format, sent)
		}
	}
}

// Missing members of a digest are derived from its notifications, so every member is present.
func TestDigestWithoutDetails(t *testing.T) {
	t.Parallel()
	one, three := sinktest.Sample("65f0c2a00123456789abcdef"), gathered()
	one.Digest, three.Digest = &relay.Digest{Count: 1}, &relay.Digest{}
	three.Notifications[2].Cursor, three.Notifications[2].ID = "1763700000123-4", "no time"
	const listed = `"digest":{"count":1,"more":0,"first":"2024-03-12T21:01:20Z","last":"2024-03-12T21:01:20Z",` +
		`"by":{},"topics":{"container.created":1}}`
	for _, tc := range []struct {
		d      relay.Delivery
		format string
		want   string
	}{
		{one, formatNotification, `{"topic":"hubrelay.digest",` + listed + `,"notifications":[{`},
		{
			one, formatStandard,
			`{"type":"hubrelay.digest","timestamp":"2024-03-12T21:01:20Z","data":{` + listed + `,"notifications":[{`,
		},
		{
			three, formatNotification,
			`"count":3,"more":0,"first":"2024-03-12T21:01:20Z","last":"2025-11-21T04:40:00.123Z","by":{},` +
				`"topics":{"container.error":3}}`,
		},
	} {
		got, err := encodeBody(tc.format, metadataBatches, tc.d)
		if err != nil || !strings.Contains(string(got), tc.want) || !json.Valid(got) {
			t.Errorf("%s, %v: lacks %s", got, err, tc.want)
		}
	}
}

// A delivery that cannot be sent fails permanently with a reason.
func TestDigestRefused(t *testing.T) {
	t.Parallel()
	several, empty, broken, missing := gathered(), gathered(), gathered(), gathered()
	several.Digest, empty.Notifications = nil, nil
	broken.Notifications[1].Data = []byte(`{"a":`)
	missing.Notifications[2].Data = nil
	late := gathered()
	late.Digest.Last = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		d    relay.Delivery
		want string
	}{
		{several, "has 3 events but is neither"},
		{relay.Delivery{ID: "x"}, "has 0"},
		{empty, "has no event"},
		{broken, "65f0c2a00123456789abcde1"},
		{missing, "65f0c2a00123456789abcde2"},
		{late, "year outside"},
	} {
		s := openTest(t, &Config{URL: "http://127.0.0.1:9/"})
		err := s.Deliver(t.Context(), tc.d)
		if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
		}
		if _, err := s.Preview(t.Context(), tc.d); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Explain: %v, want %s", err, tc.want)
		}
	}
}
