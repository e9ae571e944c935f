package inbox

import "github.com/hubrelay/hubrelay/relay/internal/redisconn"

// rawEntry is an entry as RESP2 arrays, which need half the memory of the map that go-redis would build.
type rawEntry struct {
	id     string
	fields []any
}

func (e rawEntry) fieldValue(name string) (string, bool) {
	for i := 0; i+1 < len(e.fields); i += 2 {
		if e.fields[i] == name {
			v, ok := e.fields[i+1].(string)
			return v, ok
		}
	}
	return "", false
}

// parseSingleStream returns the entries of the reply to an XREAD of one stream.
func parseSingleStream(reply []any) ([]rawEntry, error) {
	if len(reply) != 1 {
		return nil, redisconn.ErrUnexpectedReply
	}
	stream, ok := reply[0].([]any)
	if !ok || len(stream) != 2 {
		return nil, redisconn.ErrUnexpectedReply
	}
	list, ok := stream[1].([]any)
	if !ok {
		return nil, redisconn.ErrUnexpectedReply
	}
	entries := make([]rawEntry, 0, len(list))
	for _, item := range list {
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			return nil, redisconn.ErrUnexpectedReply
		}
		id, ok := pair[0].(string)
		if !ok {
			return nil, redisconn.ErrUnexpectedReply
		}
		if fields, ok := pair[1].([]any); ok {
			entries = append(entries, rawEntry{id, fields})
		}
	}
	return entries, nil
}
