package file

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// encodeLines encodes d as one line, or as one line per notification of a batch. It joins notifications that a producer
// published over several lines.
func encodeLines(d relay.Delivery, withMetadata bool) ([]byte, error) {
	if withMetadata {
		d = d.WithMetadata()
	}
	if d.Batch {
		return d.Join(nil, '\n', []byte{'\n'},
			func(out []byte, n relay.Notification) ([]byte, error) { return oneLine(out, n.ID, n.Data) })
	}
	data, err := d.Payload()
	if err != nil {
		return nil, err
	}
	out, err := oneLine(make([]byte, 0, len(data)+1), d.ID, data)
	return append(out, '\n'), err
}

// oneLine appends data to out, without line breaks.
func oneLine(out []byte, id string, data []byte) ([]byte, error) {
	if !bytes.ContainsAny(data, "\r\n") {
		return append(out, data...), nil
	}
	var joined bytes.Buffer
	if err := json.Compact(&joined, data); err != nil {
		return nil, fmt.Errorf("delivery %s is not JSON: %w", id, err)
	}
	return append(out, joined.Bytes()...), nil
}
