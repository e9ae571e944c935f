package ingest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

const small = `{"topic":"container.created","context":{"hub_id":"h"}}`

// One script of Redis stores a request, so its number of notifications has a limit.
func TestDecodeBody_MaxBatch(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for _, tt := range []struct {
		contentType, prefix, separator, suffix string
	}{{"application/json", "[", ",", "]"}, {"application/x-ndjson", "", "\n", "\n"}} {
		body := func(n int) []byte {
			return []byte(tt.prefix + strings.TrimSuffix(strings.Repeat(small+tt.separator, n), tt.separator) + tt.suffix)
		}
		if ns, err := d.DecodeBody(tt.contentType, body(MaxBatch), Defaults{AnyAccount: true}); err != nil || len(ns) != MaxBatch {
			t.Errorf("%s: got %d events, %v", tt.contentType, len(ns), err)
		}
		_, err := d.DecodeBody(tt.contentType, body(MaxBatch+1), Defaults{AnyAccount: true})
		if err == nil || err.Code != relay.CodeTooLarge || err.Extra["max_notifications"] != MaxBatch {
			t.Errorf("%s: got %v for one more", tt.contentType, err)
		}
	}
}

// Scanning stops at the maximum size, wherever the limit cuts the text.
func TestDecode_StopsAtMaxNotification(t *testing.T) {
	t.Parallel()
	d := newDecoder(t)
	for _, filler := range []string{"x", `\ud83d\ude00`, "é", `\n`} {
		for offset := range 16 {
			head := `{"topic":"container.created","context":{"hub_id":"h"},"more":"` + strings.Repeat("y", offset)
			text := head + strings.Repeat(filler, 2*MaxNotification/len(filler)) + `"}`
			if _, err := d.Decode([]byte(text), Defaults{AnyAccount: true}); err == nil || err.Code != relay.CodeTooLarge {
				t.Errorf("%q after %d: got %v, want too large", filler, offset, err)
			}
		}
	}
	for _, value := range []string{"true", "false", "null", "-12345678901234567890e10", "[[[", `{"a":`} {
		for offset := range 32 {
			head := `{"topic":"container.created","list":["` + strings.Repeat("y", MaxNotification-offset-60) + `"`
			text := head + strings.Repeat(","+value, 20)
			if _, err := d.Decode([]byte(text), Defaults{AnyAccount: true}); err == nil {
				t.Errorf("%s after %d was accepted", value, offset)
			}
		}
	}
	exact := `{"topic":"container.created","context":{"hub_id":"h"},"more":"` + strings.Repeat("x", MaxNotification)
	exact = exact[:MaxNotification-2] + `"}`
	if _, err := d.Decode([]byte(exact), Defaults{AnyAccount: true}); err != nil {
		t.Errorf("the maximum size: got %v", err)
	}
	two := []byte("[" + exact + "," + exact + "]")
	if ns, err := d.DecodeBody("application/json", two, Defaults{AnyAccount: true}); err != nil || len(ns) != 2 {
		t.Errorf("two of the maximum size: got %d, %v", len(ns), err)
	}
}

// The memory for an object with many names is bounded.
func TestDecode_ManyNames(t *testing.T) {
	d := newDecoder(t)
	var text bytes.Buffer
	text.WriteString(`{"topic":"container.created"`)
	for i := 0; text.Len() < MaxNotification; i++ {
		fmt.Fprintf(&text, `,"%s":1`, string(rune('a'+i%26))+fmt.Sprint(i))
	}
	for range 40_000 {
		text.WriteString(`,"z":1`)
	}
	text.WriteByte('}')
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.Decode(text.Bytes(), Defaults{AnyAccount: true}); err == nil || err.Code != relay.CodeTooLarge {
				b.Fatal(err)
			}
		}
	})
	if got, most := result.AllocedBytesPerOp(), int64(64*MaxNotification); got > most {
		t.Errorf("decoding allocated %d bytes, want at most %d", got, most)
	}
}
