package backbone

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

const begin = "0-0"

// CompareCursors orders two positions in a log as cmp.Compare does. A position is a stream id, "1732153000123-4" or
// "1732153000123"; whatever is none counts as the log's beginning.
func CompareCursors(a, b string) int {
	am, as, _ := parseCursor(a)
	bm, bs, _ := parseCursor(b)
	return cmp.Or(cmp.Compare(am, bm), cmp.Compare(as, bs))
}

// ValidCursor tells whether s may stand for a position in a log.
func ValidCursor(s string) bool {
	_, _, ok := parseCursor(s)
	return ok
}

func parseCursor(s string) (ms, seq uint64, ok bool) {
	left, right, found := strings.Cut(s, "-")
	ms, err1 := strconv.ParseUint(left, 10, 64)
	if !found {
		return ms, 0, err1 == nil
	}
	seq, err2 := strconv.ParseUint(right, 10, 64)
	if err1 != nil || err2 != nil {
		return 0, 0, false
	}
	return ms, seq, true
}

// streamEntry is one entry as it comes off the wire: RESP2 arrays, which cost half of go-redis' map for each entry.
type streamEntry struct {
	id     string
	fields []any
}

func (e streamEntry) field(name string) (string, bool) {
	for i := 0; i+1 < len(e.fields); i += 2 {
		if e.fields[i] == name {
			v, ok := e.fields[i+1].(string)
			return v, ok
		}
	}
	return "", false
}

// notification reads a log entry. Our own fields come first and in order, but whoever writes to Redis may do otherwise.
func (e streamEntry) notification() relay.Notification {
	n := relay.Notification{Cursor: e.id}
	for i := 0; i+1 < len(e.fields); i += 2 {
		v, _ := e.fields[i+1].(string)
		switch e.fields[i] {
		case "id":
			n.ID = v
		case "topic":
			n.Topic = v
		case "hub":
			n.Hub = v
		case "account":
			n.Account = v
		case "data":
			n.Data = []byte(v)
		}
	}
	return n
}

func notificationsOf(entries []streamEntry) []relay.Notification {
	ns := make([]relay.Notification, len(entries))
	for i, e := range entries {
		ns[i] = e.notification()
	}
	return ns
}

// entriesOf reads the reply of XRANGE, which is also what XREAD answers for each stream. Entries that were deleted
// while being claimed have no fields and are left out.
func entriesOf(reply any) ([]streamEntry, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	out := make([]streamEntry, 0, len(list))
	for _, item := range list {
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			return nil, errReply
		}
		id, ok1 := pair[0].(string)
		fields, ok2 := pair[1].([]any)
		if !ok1 {
			return nil, errReply
		}
		if ok2 {
			out = append(out, streamEntry{id, fields})
		}
	}
	return out, nil
}
