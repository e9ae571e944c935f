package ingest

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// newID returns a notification ID of 24 hexadecimal digits: four bytes of seconds and eight random ones. A counter would
// tell each publisher how much others publish.
func newID(now time.Time) string {
	var raw [12]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	binary.BigEndian.PutUint64(raw[4:], rand.Uint64())
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}
