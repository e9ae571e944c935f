package webhook

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	formatNotification = "notification"
	formatStandard     = "standard"
)

// body is what is sent for d: the same bytes in every attempt, since receivers compare and sign by them.
func body(format string, d relay.Delivery) ([]byte, error) {
	switch {
	case d.Digest != nil:
		return digestBody(format, d)
	case len(d.Notifications) != 1:
		return nil, fmt.Errorf("a webhook sends one notification at a time or a digest, and delivery %s holds %d and is no digest",
			d.ID, len(d.Notifications))
	}
	n := d.Notifications[0]
	if format != formatStandard {
		return n.Data, nil
	}
	out, err := standardHead(len(n.Data), n.Topic, occurred(n))
	if err != nil {
		return nil, err
	}
	return append(append(out, n.Data...), '}'), nil
}

// standardHead begins a body as Standard Webhooks recommends, up to its data of the given length.
func standardHead(length int, kind string, at time.Time) ([]byte, error) {
	text, err := json.Marshal(kind)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, length+len(text)+64)
	out = append(append(out, `{"type":`...), text...)
	out = append(out, `,"timestamp":"`...)
	out = at.AppendFormat(out, time.RFC3339Nano)
	return append(out, `","data":`...), nil
}

// occurred is when the relay took n in; where nothing tells, the beginning of the Unix time, since the body must be the
// same in every attempt.
func occurred(n relay.Notification) time.Time {
	if at := n.Stored(); !at.IsZero() {
		return at
	}
	return time.Unix(0, 0).UTC()
}
