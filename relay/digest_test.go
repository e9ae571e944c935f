package relay

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDelivery_Payload(t *testing.T) {
	one := Notification{
		ID: "65f0c2a00000000000000001", Topic: "container.created",
		Data: json.RawMessage(`{"topic":"container.created", "n":1.0}`),
	}
	for name, c := range map[string]struct {
		d       Delivery
		want    string
		problem string
	}{
		"one":  {d: Delivery{ID: "a", Notifications: []Notification{one}}, want: string(one.Data)},
		"none": {d: Delivery{ID: "a"}, problem: "delivery a has 0 events but is neither"},
		"several": {
			d:       Delivery{ID: "a", Notifications: []Notification{one, one}},
			problem: "has 2 events but is neither",
		},
		"empty": {d: Delivery{ID: "a", Digest: &Digest{Count: 3}}, problem: "digest a has no event"},
		"broken": {
			d:       Delivery{ID: "a", Digest: &Digest{}, Notifications: []Notification{{ID: "b", Data: []byte("{")}}},
			problem: "data of event b is not a JSON object",
		},
		"batch": {
			d:    Delivery{ID: "a", Batch: true, Notifications: []Notification{one, one}},
			want: `[` + string(one.Data) + `,` + string(one.Data) + `]`,
		},
		"batch of 1": {
			d: Delivery{ID: "a", Batch: true, Notifications: []Notification{one}}, want: `[` + string(one.Data) + `]`,
		},
		"batch of 0": {
			d: Delivery{ID: "a", Batch: true}, problem: "delivery a is not a batch, or has no event",
		},
		"bad batch": {
			d: Delivery{
				ID: "a", Batch: true, Notifications: []Notification{one, {ID: "b", Data: []byte(`{"a":1`)}},
			},
			problem: "data of event b is not a JSON object",
		},
		"digest of 1": {
			d: Delivery{ID: "a", Digest: &Digest{}, Notifications: []Notification{one}},
			want: `{"topic":"hubrelay.digest","digest":{"count":1,"more":0,"first":"2024-03-12T21:01:20Z",` +
				`"last":"2024-03-12T21:01:20Z","by":{},"topics":{"container.created":1}},"notifications":[` +
				string(one.Data) + `]}`,
		},
	} {
		got, err := c.d.Payload()
		if string(got) != c.want || (err == nil) != (c.problem == "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestDelivery_WithMetadata(t *testing.T) {
	t.Parallel()
	const id = "6b050022000000df2e27fe14"
	d := Delivery{ID: id, Notifications: []Notification{
		{ID: id, Topic: "x", Data: []byte("{\"topic\":\"x\"}")},
		{Topic: "y", Data: []byte(`{"topic":"y"}`)},
	}}
	got := d.WithMetadata()
	want := []string{`{"topic":"x","id":"` + id + `","time":"2026-11-24T03:10:26Z"}`, `{"topic":"y"}`}
	for i, n := range got.Notifications {
		if string(n.Data) != want[i] {
			t.Errorf("got %s, want %s", n.Data, want[i])
		}
	}
	if string(d.Notifications[0].Data) != `{"topic":"x"}` {
		t.Errorf("the original was changed: %s", d.Notifications[0].Data)
	}
}
