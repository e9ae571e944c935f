package eventlog

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"strings"
)

// DeriveID returns the ID of the i-th notification of a request from that of its first one, or "" if that is not 24 hexadecimal digits.
// The time in it is i nanoseconds later, and its 34 random bits differ. So an idempotency key needs only the first ID.
func DeriveID(first string, i int) string {
	raw, err := hex.DecodeString(first)
	if err != nil || len(raw) != 12 {
		return ""
	}
	head, tail := binary.BigEndian.Uint64(raw), binary.BigEndian.Uint32(raw[8:])
	tick, random := head>>2+uint64(i), rand.NewPCG(head, uint64(tail)<<32|uint64(i)).Uint64()
	binary.BigEndian.PutUint64(raw, tick<<2|random>>62)
	binary.BigEndian.PutUint32(raw[8:], uint32(random))
	return hex.EncodeToString(raw)
}

// encodeIDs returns the IDs of a request for its idempotency key: the first one and their number if the others can be derived.
func encodeIDs(ids []string) string {
	for i, id := range ids[1:] {
		if DeriveID(ids[0], i+1) != id {
			return strings.Join(ids, "\n")
		}
	}
	return ids[0] + " " + strconv.Itoa(len(ids))
}

// decodeIDs returns the IDs that encodeIDs has encoded.
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
