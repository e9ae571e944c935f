package ingest

import (
	"bytes"
	"mime"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// bodyFormat is the format of a request body. Its value is part of the digest of a request.
type bodyFormat string

const (
	kindJSON   bodyFormat = "json"
	kindNDJSON bodyFormat = "ndjson"
)

// parseBodyFormat parses a Content-Type.
func parseBodyFormat(contentType string) (bodyFormat, *relay.Error) {
	switch contentType {
	case "application/json":
		return kindJSON, nil
	case "application/x-ndjson":
		return kindNDJSON, nil
	}
	const accepted = "send application/json or application/x-ndjson, in UTF-8"
	media, params, err := mime.ParseMediaType(contentType)
	if charset := params["charset"]; err == nil && (charset == "" || strings.EqualFold(charset, "utf-8")) {
		switch media {
		case "application/json":
			return kindJSON, nil
		case "application/x-ndjson":
			return kindNDJSON, nil
		}
	}
	if contentType == "" {
		return "", relay.NewError(relay.CodeInvalidContentType, "the request has no Content-Type; "+accepted)
	}
	return "", relay.NewError(relay.CodeInvalidContentType,
		"the Content-Type "+relay.Truncate(contentType, 80)+" is not accepted; "+accepted)
}

// DecodeBody decodes the notifications of a request: a JSON object or an array of objects (application/json), or
// one object per line (application/x-ndjson; blank lines are skipped). It returns at least one notification, in
// order, or the error of the first invalid one with its index in Source and extra.index. The result does not
// reference body. The caller limits the size of body.
func (d *Decoder) DecodeBody(contentType string, body []byte, def Defaults) ([]relay.Notification, *relay.Error) {
	kind, err := parseBodyFormat(contentType)
	if err != nil {
		return nil, err
	}
	f := d.acquireState(body, def)
	defer d.releaseState(f)
	if kind == kindNDJSON {
		return f.readLines()
	}
	f.skipSpaces()
	switch {
	case f.peek() == '[':
		return f.readArray()
	case f.pos == len(f.data):
		return nil, relay.NewError(relay.CodeInvalidSyntax, "the body is empty")
	}
	n, err := f.readNotification(noBatchIndex)
	if err == nil {
		err = f.expectEnd()
	}
	if err != nil {
		return nil, err
	}
	return []relay.Notification{n}, nil
}

// typicalSize is the estimated size of a notification in bytes, to allocate the slice of a batch once.
const typicalSize = 256

func (d *decodeState) readArray() ([]relay.Notification, *relay.Error) {
	d.pos++
	d.skipSpaces()
	if d.peek() == ']' {
		d.pos++
		if err := d.expectEnd(); err != nil {
			return nil, err
		}
		return nil, relay.NewError(relay.CodeInvalidArgument, "the array is empty; send at least one event")
	}
	ns := make([]relay.Notification, 0, len(d.data)/typicalSize+1)
	for {
		n, err := d.readNotification(len(ns))
		if err != nil {
			return nil, err
		}
		ns = append(ns, n)
		d.skipSpaces()
		switch d.peek() {
		case ',':
			d.pos++
			d.skipSpaces()
		case ']':
			d.pos++
			if err := d.expectEnd(); err != nil {
				return nil, err
			}
			return ns, nil
		default:
			d.syntaxError("expected ',' or ']' after an event, found " + d.describeNext())
			return nil, d.scanError(noBatchIndex)
		}
	}
}

// readLines sets data to the end of each line in turn, so positions refer to the complete body.
func (d *decodeState) readLines() ([]relay.Notification, *relay.Error) {
	body := d.data
	ns := make([]relay.Notification, 0, len(body)/typicalSize+1)
	for start := 0; start < len(body); {
		end := len(body)
		if i := bytes.IndexByte(body[start:], '\n'); i >= 0 {
			end = start + i
		}
		d.data, d.pos = body[:end], start
		start = end + 1
		d.skipSpaces()
		if d.pos == end {
			continue
		}
		n, err := d.readNotification(len(ns))
		if err != nil {
			return nil, err
		}
		if d.skipSpaces(); d.pos < end {
			d.syntaxError("expected the end of the line after the event, found " + d.describeNext())
			return nil, d.scanError(len(ns))
		}
		ns = append(ns, n)
	}
	if len(ns) == 0 {
		return nil, relay.NewError(relay.CodeInvalidArgument, "the body has no event; send one on each line")
	}
	return ns, nil
}
