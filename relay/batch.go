package relay

import (
	"bytes"
	"fmt"
)

// jsonArray returns the batch as a JSON array.
func (d Delivery) jsonArray() ([]byte, error) {
	return d.Join([]byte{'['}, ',', []byte{']'}, func(out []byte, n Notification) ([]byte, error) {
		return append(out, n.Data...), nil
	})
}

// Join concatenates the notifications of a batch: begin, the notifications with separator between them, and end.
// appendTo appends one notification to the output.
//
// Join fails if d is not a batch, or if the data of a notification is not a JSON object, because such data would
// corrupt the whole payload.
func (d Delivery) Join(
	begin []byte, separator byte, end []byte, appendTo func(out []byte, n Notification) ([]byte, error),
) ([]byte, error) {
	if !d.Batch || d.Digest != nil || len(d.Notifications) == 0 {
		return nil, fmt.Errorf("delivery %s is not a batch, or has no event", d.ID)
	}
	length := len(begin) + len(end)
	for i := range d.Notifications {
		length += len(d.Notifications[i].Data) + 1
	}
	out := append(make([]byte, 0, length), begin...)
	for i, n := range d.Notifications {
		if i > 0 {
			out = append(out, separator)
		}
		if !n.isJSONObject() {
			return nil, fmt.Errorf("batch %s: data of event %s is not a JSON object", d.ID, n.ID)
		}
		var err error
		if out, err = appendTo(out, n); err != nil {
			return nil, err
		}
	}
	return append(out, end...), nil
}

// isJSONObject reports whether the data starts and ends like a JSON object. This check is enough to detect data
// that was corrupted in storage, because ingest validates every byte. A second full parse of a batch would cost
// several times as much as sending it.
func (n *Notification) isJSONObject() bool {
	data := bytes.TrimSpace(n.Data)
	return len(data) >= 2 && data[0] == '{' && data[len(data)-1] == '}'
}

// ToDigest converts a batch into a digest that lists all its notifications, for a [Sink] that does not support
// batches.
func (d Delivery) ToDigest() Delivery {
	first, last := timeRange(d.Notifications)
	d.Batch, d.Digest = false, &Digest{Count: len(d.Notifications), First: first, Last: last, Topics: map[string]int{}}
	for _, n := range d.Notifications {
		d.Digest.Topics[n.Topic]++
	}
	return d
}
