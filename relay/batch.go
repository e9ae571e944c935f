package relay

import (
	"bytes"
	"fmt"
)

// jsonArray is a batch as a JSON array.
func (d Delivery) jsonArray() ([]byte, error) {
	return d.Join([]byte{'['}, ',', []byte{']'}, func(out []byte, n Notification) ([]byte, error) { return append(out, n.Data...), nil })
}

// Join writes each notification of a batch by add, with a separator between two and with what begins and ends all of it. It
// fails for a delivery that is no batch, and where the data of a notification is no JSON object, which would spoil the whole.
func (d Delivery) Join(begin []byte, separator byte, end []byte, add func(out []byte, n Notification) ([]byte, error)) ([]byte, error) {
	if !d.Batch || d.Digest != nil || len(d.Notifications) == 0 {
		return nil, fmt.Errorf("delivery %s is no batch, or holds no notification", d.ID)
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
			return nil, fmt.Errorf("batch %s holds notification %s, whose data is no JSON object", d.ID, n.ID)
		}
		var err error
		if out, err = add(out, n); err != nil {
			return nil, err
		}
	}
	return append(out, end...), nil
}

// isJSONObject tells whether the data begins and ends as a JSON object: one that does not would spoil all that it is listed with. The
// relay has read it byte by byte when it was published, so that this is for what was spoiled since; to read a hundred once
// more costs several times what sending them does.
func (n *Notification) isJSONObject() bool {
	data := bytes.TrimSpace(n.Data)
	return len(data) >= 2 && data[0] == '{' && data[len(data)-1] == '}'
}

// ToDigest is a batch as a digest that lists all of it, for a [Sink] that takes no batches.
func (d Delivery) ToDigest() Delivery {
	first, last := timeRange(d.Notifications)
	d.Batch, d.Digest = false, &Digest{Count: len(d.Notifications), First: first, Last: last, Topics: map[string]int{}}
	for _, n := range d.Notifications {
		d.Digest.Topics[n.Topic]++
	}
	return d
}
