package ingest

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// typical is a notification as the specification's sample has it, 450 bytes or so.
const typical = `{"topic":"container.instance.state.changed","object":{"id":"5f9c2b1e8a3d4c0017e5a921",` +
	`"state":"running","error":""},` +
	`"context":{"hub_id":"5f9c2b1e8a3d4c0017e5a900","account_id":"5f9c2b1e8a3d4c0017e5a901",` +
	`"environments":["5f9c2b1e8a3d4c0017e5a902"],` +
	`"dns_zones":[],"clusters":["production"],"containers":["5f9c2b1e8a3d4c0017e5a903"],` +
	`"instance":{"id":"5f9c2b1e8a3d4c0017e5a904","seq":9007199254740993}},"flags":null}`

const typicalHub = "5f9c2b1e8a3d4c0017e5a900"

func newDecoder(t testing.TB) *Decoder {
	t.Helper()
	c, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	return NewDecoder(c)
}

func BenchmarkDecode(b *testing.B) {
	d := newDecoder(b)
	for name, text := range map[string]string{
		"compact": typical, "spaced": spaced(b, typical), "least": `{"topic":"job.created","context":{}}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			data := []byte(text)
			for b.Loop() {
				if _, err := d.Decode(data, Defaults{Hub: typicalHub, AnyAccount: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// The floor: encoding/json only looking whether it is JSON.
	b.Run("json.Valid", func(b *testing.B) {
		b.SetBytes(int64(len(typical)))
		data := []byte(typical)
		for b.Loop() {
			json.Valid(data)
		}
	})
}

// spaced is text as Python's json.dumps writes it, or wider.
func spaced(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(text), "", " "); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func BenchmarkDecodeBody(b *testing.B) {
	d := newDecoder(b)
	body := bytes.Repeat([]byte(typical+"\n"), 100)
	b.ReportAllocs()
	for b.Loop() {
		ns, err := d.DecodeBody("application/x-ndjson", body, Defaults{Hub: typicalHub, AnyAccount: true})
		if err != nil || len(ns) != 100 {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/notification")
}

// BenchmarkHostile must take a time that grows with the size alone.
func BenchmarkHostile(b *testing.B) {
	d := newDecoder(b)
	for _, n := range []int{1000, 10000} {
		b.Run("members-"+strconv.Itoa(n), func(b *testing.B) {
			var text bytes.Buffer
			text.WriteString(`{"topic":"job.created","context":{"hub_id":"h"`)
			for i := range n {
				text.WriteString(`,"m` + strconv.Itoa(i) + `":0`)
			}
			text.WriteString(`}}`)
			for b.Loop() {
				if _, err := d.Decode(text.Bytes(), Defaults{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNewID(b *testing.B) {
	d := newDecoder(b)
	b.ReportAllocs()
	for b.Loop() {
		d.NewID()
	}
}
