package webhook

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	formatNotification = "notification"
	formatStandard     = "standard"
)

// body is what is sent for d: the same bytes in every attempt, since receivers compare and sign by them.
func body(format string, d relay.Delivery) ([]byte, error) {
	if len(d.Notifications) != 1 {
		return nil, errors.New("a webhook sends one notification at a time, and this delivery holds " + strconv.Itoa(len(d.Notifications)))
	}
	n := d.Notifications[0]
	if format != formatStandard {
		return n.Data, nil
	}
	topic, err := json.Marshal(n.Topic)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(n.Data)+len(topic)+64)
	out = append(append(out, `{"type":`...), topic...)
	out = append(out, `,"timestamp":"`...)
	out = occurred(n).AppendFormat(out, time.RFC3339Nano)
	out = append(append(out, `","data":`...), n.Data...)
	return append(out, '}'), nil
}

// occurred is when the relay took n in; where nothing tells, the beginning of the Unix time, since the body must be the
// same in every attempt.
func occurred(n relay.Notification) time.Time {
	if at := n.Stored(); !at.IsZero() {
		return at
	}
	return time.Unix(0, 0).UTC()
}
