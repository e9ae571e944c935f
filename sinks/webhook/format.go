package webhook

import (
	"encoding/json"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	formatNotification = "notification"
	formatStandard     = "standard"
	formatTemplate     = "template"
)

// Values of the setting metadata.
const (
	metadataBatches = "batches"
	metadataAlways  = "true"
)

// encodeBody returns the body for d in a format without a template. metadata is the setting. The body is the same in every attempt, because receivers compare and verify it.
func encodeBody(format, metadata string, d relay.Delivery) ([]byte, error) {
	if metadata == metadataAlways || metadata == metadataBatches && d.Batch {
		d = d.WithMetadata()
	}
	if format != formatStandard {
		return d.Payload()
	}
	if d.Batch {
		return d.Join([]byte{'['}, ',', []byte{']'}, func(out []byte, n relay.Notification) ([]byte, error) {
			return appendStandard(out, n.Topic, n.OccurredAt(), n.Data)
		})
	}
	if d.Digest != nil {
		data, last, err := d.DigestJSON()
		if err != nil {
			return nil, err
		}
		return standardBody(relay.TopicDigest, last, data)
	}
	data, err := d.Payload()
	if err != nil {
		return nil, err
	}
	n := d.Notifications[0]
	return standardBody(n.Topic, n.OccurredAt(), data)
}

// standardBody returns a body in the form that Standard Webhooks recommends.
func standardBody(kind string, at time.Time, data []byte) ([]byte, error) {
	return appendStandard(make([]byte, 0, len(data)+len(kind)+80), kind, at, data)
}

func appendStandard(out []byte, kind string, at time.Time, data []byte) ([]byte, error) {
	text, err := json.Marshal(kind)
	if err != nil {
		return nil, err
	}
	out = append(append(out, `{"type":`...), text...)
	out = append(out, `,"timestamp":"`...)
	out = at.AppendFormat(out, time.RFC3339Nano)
	out = append(out, `","data":`...)
	return append(append(out, data...), '}'), nil
}
