package eventlog

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// FormatID returns the ID of a notification: 24 hexadecimal digits of 62 bits of time and 34 random bits.
func FormatID(tick, random uint64) string {
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], tick<<2|random>>62)
	binary.BigEndian.PutUint32(raw[8:], uint32(random))
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

// DeriveID returns the ID of the i-th notification of a request. first is the ID of the first one; if it is not an ID of [FormatID],
// DeriveID returns "". The time is i nanoseconds later, and the random bits differ. So an idempotency key needs only the first ID.
func DeriveID(first string, i int) string {
	var raw [12]byte
	if len(first) != 2*len(raw) {
		return ""
	}
	if _, err := hex.Decode(raw[:], []byte(first)); err != nil {
		return ""
	}
	head, tail := binary.BigEndian.Uint64(raw[:]), binary.BigEndian.Uint32(raw[8:])
	return FormatID(head>>2+uint64(i), rand.NewPCG(head, uint64(tail)<<32|uint64(i)).Uint64())
}

// encodeIDs returns the IDs of a request for its idempotency key. If the last one can be derived from the first one, so can all others,
// and the text contains only the first one and their number.
func encodeIDs(list []relay.Notification) string {
	first, last := list[0].ID, len(list)-1
	if last == 0 || DeriveID(first, last) == list[last].ID {
		return first + " " + strconv.Itoa(len(list))
	}
	return strings.Join(listIDs(list), "\n")
}

func listIDs(list []relay.Notification) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return ids
}

// decodeIDs returns the IDs from a text of encodeIDs.
func decodeIDs(text string) []string {
	first, count, isShort := strings.Cut(text, " ")
	if !isShort {
		return strings.Split(text, "\n")
	}
	n, _ := strconv.Atoi(count)
	ids := make([]string, max(n, 1))
	ids[0] = first
	for i := range ids[1:] {
		ids[i+1] = DeriveID(first, i+1)
	}
	return ids
}
