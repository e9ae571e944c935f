package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A record is a line of JSON without the notifications, followed by one netstring (length in decimal, colon, text) per
// notification. The text of a notification is six netstrings: ID, topic, hub, account, cursor and data. Nothing that
// a destination gets is escaped, so decoding a hundred notifications costs little more than decoding one.
//
// A replayed dead letter is JSON on one line, which includes its notifications.

var errMalformedRecord = errors.New("truncated or malformed record")

// fieldOverhead is more than the lengths of a notification's netstrings take.
const fieldOverhead = 7 * 8

// Encode returns the record as Redis stores it.
func (r *Record) Encode() (string, error) {
	about := *r
	about.Notifications = nil
	head, err := json.Marshal(&about)
	if err != nil {
		return "", fmt.Errorf("encode delivery: %w", err)
	}
	length := len(head) + 1
	for i := range r.Notifications {
		length += r.Notifications[i].encodedLen() + fieldOverhead
	}
	out := append(append(make([]byte, 0, length), head...), '\n')
	for i := range r.Notifications {
		out = r.Notifications[i].appendTo(out)
	}
	return string(out), nil
}

// DecodeRecord decodes the output of [Record.Encode]. It returns an error for a record without a notification.
func DecodeRecord(text string) (*Record, error) {
	head, rest, _ := strings.Cut(text, "\n")
	var r Record
	err := json.Unmarshal([]byte(head), &r)
	if err == nil {
		r.Notifications = slices.Grow(r.Notifications, countFields(rest))
	}
	for err == nil && rest != "" {
		r.Notifications = append(r.Notifications, Notification{})
		rest, err = r.Notifications[len(r.Notifications)-1].decodeFrom(rest)
	}
	if err != nil {
		return nil, fmt.Errorf("decode delivery: %w", err)
	}
	if len(r.Notifications) == 0 || r.AttemptCount < 0 {
		return nil, errors.New("decode delivery: no event")
	}
	return &r, nil
}

// fieldPointers returns the encoded fields in their order.
func (n *Notification) fieldPointers() [6]*string {
	return [...]*string{&n.ID, &n.Topic, &n.Hub, &n.Account, &n.Cursor, &n.Data}
}

func (n *Notification) encodedLen() int {
	sum := 0
	for _, s := range n.fieldPointers() {
		sum += len(*s)
	}
	return sum
}

// appendTo appends n as one netstring.
func (n *Notification) appendTo(out []byte) []byte {
	length := n.encodedLen()
	for _, s := range n.fieldPointers() {
		length += digitCount(len(*s)) + 1
	}
	return n.appendFields(append(strconv.AppendInt(out, int64(length), 10), ':'))
}

// appendFields appends the text of n's netstring.
func (n *Notification) appendFields(out []byte) []byte {
	for _, s := range n.fieldPointers() {
		out = append(strconv.AppendInt(out, int64(len(*s)), 10), ':')
		out = append(out, *s...)
	}
	return out
}

func digitCount(n int) int {
	digits := 1
	for ; n >= 10; n /= 10 {
		digits++
	}
	return digits
}

// decodeFrom decodes the first netstring of text and returns the rest.
func (n *Notification) decodeFrom(text string) (rest string, err error) {
	inner, rest, err := cutField(text)
	if err != nil {
		return "", err
	}
	for _, s := range n.fieldPointers() {
		if *s, inner, err = cutField(inner); err != nil {
			return "", err
		}
	}
	if inner != "" {
		return "", errMalformedRecord
	}
	return rest, nil
}

func countFields(text string) (n int) {
	for err := error(nil); text != ""; n++ {
		if _, text, err = cutField(text); err != nil {
			return n
		}
	}
	return n
}

// cutField splits text after its first netstring.
func cutField(text string) (field, rest string, err error) {
	length := 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == ':' && i > 0 && length <= len(text)-i-1:
			return text[i+1 : i+1+length], text[i+1+length:], nil
		case c < '0' || c > '9' || length > len(text):
			return "", "", errMalformedRecord
		default:
			length = 10*length + int(c-'0')
		}
	}
	return "", "", errMalformedRecord
}
