package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// How a delivery is parked: a line of JSON that is the record without its notifications, then each notification as a piece of
// text, its length in decimal and a colon before it. Such a piece is six of the same kind: id, topic, hub, account, cursor and
// data. So nothing of what receivers get is escaped, and reading a hundred of them costs little more than reading one.
//
// What the relay wrote formerly, and what is taken back from the dead letters, is JSON throughout, and in one line; a piece
// that begins with a brace is a notification as JSON, from a digest that was open meanwhile.

var errMalformedRecord = errors.New("it is cut off or garbled")

// fieldOverhead is more than the lengths of a notification's pieces take.
const fieldOverhead = 7 * 8

func (r *retryRecord) encode() (string, error) {
	about := *r
	about.Notifications = nil
	head, err := json.Marshal(&about)
	if err != nil {
		return "", fmt.Errorf("encode a parked delivery: %w", err)
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

func decodeRecord(text string) (*retryRecord, error) {
	head, rest, behind := strings.Cut(text, "\n")
	var r retryRecord
	err := json.Unmarshal([]byte(head), &r)
	if err != nil && behind { // JSON that was laid out over several lines
		r = retryRecord{}
		err, rest = json.Unmarshal([]byte(text), &r), ""
	}
	if err == nil {
		r.Notifications = slices.Grow(r.Notifications, countFields(rest))
	}
	for err == nil && rest != "" {
		r.Notifications = append(r.Notifications, storedNotification{})
		rest, err = r.Notifications[len(r.Notifications)-1].decodeFrom(rest)
	}
	if err != nil {
		return nil, fmt.Errorf("decode a parked delivery: %w", err)
	}
	if len(r.Notifications) == 0 || r.AttemptCount < 0 {
		return nil, errors.New("decode a parked delivery: it holds no notification")
	}
	return &r, nil
}

// fieldPointers are what append writes of a notification, in this order.
func (n *storedNotification) fieldPointers() [6]*string {
	return [...]*string{&n.ID, &n.Topic, &n.Hub, &n.Account, &n.Cursor, &n.Data}
}

func (n *storedNotification) encodedLen() int {
	sum := 0
	for _, s := range n.fieldPointers() {
		sum += len(*s)
	}
	return sum
}

// appendTo writes n as one piece.
func (n *storedNotification) appendTo(out []byte) []byte {
	length := n.encodedLen()
	for _, s := range n.fieldPointers() {
		length += digitCount(len(*s)) + 1
	}
	return n.appendFields(append(strconv.AppendInt(out, int64(length), 10), ':'))
}

// appendFields writes what stands inside of n's piece.
func (n *storedNotification) appendFields(out []byte) []byte {
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

// decodeFrom reads the piece that text begins with into n.
func (n *storedNotification) decodeFrom(text string) (rest string, err error) {
	inner, rest, err := cutField(text)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(inner, "{") {
		return rest, json.Unmarshal([]byte(inner), n)
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

// cutField takes the first piece off text.
func cutField(text string) (piece, rest string, err error) {
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
