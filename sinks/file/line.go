package file

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// line is d as one line with its end. What a producer published over several lines is joined.
func line(d relay.Delivery) ([]byte, error) {
	data, err := d.Payload()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(data) + 1)
	if bytes.ContainsAny(data, "\r\n") {
		if err := json.Compact(&out, data); err != nil {
			return nil, fmt.Errorf("delivery %s is not JSON: %w", d.ID, err)
		}
	} else {
		out.Write(data)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
