package webhook

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
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

// occurred is when the relay took n in, from its id, which is the same in every attempt and replay; where the id tells
// no time, from its place in the log.
func occurred(n relay.Notification) time.Time {
	if raw, err := hex.DecodeString(n.ID); err == nil && len(raw) == 12 {
		seconds := int64(raw[0])<<24 | int64(raw[1])<<16 | int64(raw[2])<<8 | int64(raw[3])
		return time.Unix(seconds, 0).UTC()
	}
	text, _, _ := strings.Cut(n.Cursor, "-")
	const lastYear = 253402300799999 // RFC 3339 ends with the year 9999
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms > 0 && ms <= lastYear {
		return time.UnixMilli(ms).UTC()
	}
	return time.Unix(0, 0).UTC()
}
