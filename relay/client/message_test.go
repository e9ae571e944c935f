package client

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// FuzzDecode checks that every message is rejected or left unchanged.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"topic":"job.created","context":{"hub_id":"h"},"cursor":"1"}`))
	f.Add([]byte(`{"topic":7}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := decodeNotification(data)
		if err == nil && (n.Topic == "" || string(n.Data) != string(data)) {
			t.Errorf("%q became %+v", data, n)
		}
	})
}

// Member names are case-sensitive, so an unknown member cannot replace one that routing uses.
func TestDecodeNotification_NamesAreCaseSensitive(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		data string
		want relay.Notification
		bad  bool
	}{
		{
			data: `{"topic":"a.b","cursor":"c","context":{"hub_id":"h","account_id":"a"}}`,
			want: relay.Notification{Topic: "a.b", Hub: "h", Account: "a", Cursor: "c"},
		},
		{
			data: `{"topic":"a.b","TOPIC":"x","context":{"hub_id":"h","HUB_ID":"x","Account_Id":"x"},` +
				`"Context":{"hub_id":"x"},"Cursor":"x"}`,
			want: relay.Notification{Topic: "a.b", Hub: "h"},
		},
		{
			data: `{"topic":"hubrelay.resync","cursor":null,"context":null}`,
			want: relay.Notification{Topic: "hubrelay.resync"},
		},
		{data: `{"Topic":"a.b"}`, bad: true},
		{data: `{"topic":1}`, bad: true},
		{data: `{"topic":"a.b","context":[]}`, bad: true},
		{data: `{"topic":"a.b","context":{"hub_id":{}}}`, bad: true},
		{data: `null`, bad: true},
		{data: `{`, bad: true},
	} {
		n, err := decodeNotification([]byte(tt.data))
		if tt.bad != (err != nil) {
			t.Errorf("%s: %v", tt.data, err)
			continue
		}
		n.Data = nil
		if !tt.bad && !reflect.DeepEqual(n, tt.want) {
			t.Errorf("%s: %+v", tt.data, n)
		}
	}
}

// A cursor that does not fit into a request would prevent each new connection.
func TestDecodeNotification_LimitsCursor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cursor  string
		isValid bool
	}{
		{strings.Repeat("k", maxCursor), true},
		{strings.Repeat("k", maxCursor+1), false},
		{strings.Repeat("é", maxCursor/6), true}, // %C3%A9
		{strings.Repeat("é", maxCursor/6+1), false},
		{strings.Repeat("/", maxCursor/3+1), false},
	} {
		text := `{"topic":"job.created","context":{"hub_id":"h"},"cursor":"` + test.cursor + `"}`
		if n, err := decodeNotification([]byte(text)); (err == nil) != test.isValid || test.isValid && n.Cursor != test.cursor {
			t.Errorf("%d bytes of %.2q: got error %v", len(test.cursor), test.cursor, err)
		}
	}
}
