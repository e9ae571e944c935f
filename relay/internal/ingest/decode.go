// Package ingest validates and normalizes notifications from producers, sent by HTTP or through the inbox in
// Redis, and appends them to the log.
//
// All other packages trust its output: a [relay.Notification] has a known topic, a hub, and Data in one fixed
// form. Therefore nothing leaves the package without a complete check, and the decoder accepts less than
// encoding/json does, never more. HTTP handlers and Redis commands do not belong here.
//
// # Normal form
//
// Data is one line of JSON: topic, object (id, state, error, then unknown members), context (hub_id, account_id,
// the four arrays, then unknown members), "flags":null, then unknown members of the top level. Unknown members
// keep their order and their exact bytes, including numbers and escapes. Only white space between tokens is
// removed. The top-level members flags and cursor are reserved: incoming values are dropped. traceparent and
// tracestate of the request headers are appended if a notification has neither.
package ingest

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

const (
	// MaxNotification is the maximum size of a notification as it was sent, in bytes.
	MaxNotification = 256 << 10
	// MaxBatch is the maximum number of notifications in a request. One script of Redis stores them, and blocks Redis.
	MaxBatch = 10_000
	// MaxIdentifier is the maximum length of an identifier in a notification, in bytes.
	MaxIdentifier = 256
)

// Defaults are defaults and restrictions from the context of a notification, such as the request.
type Defaults struct {
	// Hub is the default of context.hub_id, and the only allowed value. If it is empty, the notification must contain
	// a hub and may contain any.
	Hub string
	// Account is the default of context.account_id, and the only allowed value. "*" is the same as AnyAccount.
	Account string
	// AnyAccount allows every account_id and sets no default.
	AnyAccount bool
	// Trace is the default for traceparent and tracestate of a notification that has neither.
	Trace relay.Trace
}

// Decoder validates notifications and converts them into the normal form. It may be used concurrently. Its errors
// contain the position: line and column (400) or a JSON pointer.
type Decoder struct {
	catalog *relay.Catalog
	ids     *idSource
	states  sync.Pool
}

// NewDecoder returns a decoder that accepts the topics of catalog.
func NewDecoder(catalog *relay.Catalog) *Decoder {
	d := &Decoder{catalog: catalog, ids: newIDSource()}
	d.states.New = func() any { return &decodeState{decoder: d} }
	return d
}

// NewID returns a new notification ID: 24 hexadecimal digits, unique, increasing with time.
func (d *Decoder) NewID() string { return d.ids.next(1) }

// RelayHop is a transfer from one relay to another.
type RelayHop struct {
	// From is the ID of the relay that sends the notification, or empty if the sender is not a relay. Self is the
	// ID of the relay that reads it; see redisconn.Conn.RelayID.
	From, Self string
}

const (
	// relayPathMember is the member that lists the relays that a notification has passed, the first one first. It
	// exists after the first hop.
	relayPathMember = "hubrelay_via"
	// maxHops is the maximum length of this list.
	maxHops = 16
	// relayOverhead is the size that a relay may add to a notification: IDs, a cursor, the list of relays.
	relayOverhead = 4 << 10
)

// DecodeRelayed is like Decode for a notification from another relay, which may exceed [MaxNotification] slightly.
// It appends hop.From to the relays that the notification has passed. If hop.Self is one of them, returned is
// true: the notification was here before and must not be stored again.
func (d *Decoder) DecodeRelayed(data []byte, def Defaults, hop RelayHop) (
	n relay.Notification, returned bool, err *relay.Error,
) {
	f := d.acquireState(data, def)
	defer d.releaseState(f)
	f.hop, f.relayed = hop, true
	f.skipSpaces()
	n, err = f.readNotification(noBatchIndex)
	if returned = f.returned; returned {
		return relay.Notification{}, true, nil
	}
	if err == nil {
		err = f.expectEnd()
	}
	if err != nil {
		return relay.Notification{}, false, err
	}
	return n, false, nil
}

// Decode decodes one notification and assigns an ID. The result does not reference data.
func (d *Decoder) Decode(data []byte, def Defaults) (relay.Notification, *relay.Error) {
	f := d.acquireState(data, def)
	defer d.releaseState(f)
	f.skipSpaces()
	n, err := f.readNotification(noBatchIndex)
	if err == nil {
		err = f.expectEnd()
	}
	if err != nil {
		return relay.Notification{}, err
	}
	return n, nil
}

func (d *Decoder) acquireState(data []byte, def Defaults) *decodeState {
	f, _ := d.states.Get().(*decodeState) // New returns no other type
	f.data, f.pos, f.lastSpace, f.def = data, 0, -1, def
	f.maxCount, f.firstID, f.idCount = len(data)/minItemSize+1, "", 0
	return f
}

// releaseState returns a state to the pool, unless a large notification has grown its buffers.
func (d *Decoder) releaseState(f *decodeState) {
	f.reset()
	f.data, f.def, f.hop, f.relayed = nil, Defaults{}, RelayHop{}, false
	clear(f.memberNames[:cap(f.memberNames)])
	if cap(f.out) <= 64<<10 && cap(f.scratch) <= 64<<10 && cap(f.memberNames) <= 1<<10 {
		d.states.Put(f)
	}
}

// stringField is a known string of the envelope.
type stringField struct {
	span  byteSpan
	value []byte
	given bool
}

// decodeState is the working memory for one notification at a time.
type decodeState struct {
	jsonScanner
	decoder *Decoder
	def     Defaults
	hop     RelayHop
	relayed bool // sent by another relay
	// problem is the first error that is not a syntax error. The rest is still scanned, because a syntax error takes
	// precedence.
	problem *relay.Error

	topic                    string
	topicGiven, contextGiven bool
	traced                   bool
	object                   [3]stringField // id, state, error
	hub, account             stringField
	lists                    [4]byteSpan // end is 0 if missing

	maxCount int    // of notifications in the body
	firstID  string // of the first one
	idCount  int

	via      byteSpan // the elements of relayPathMember
	hops     int      // number of elements
	returned bool     // Self is one of them

	restTop, restObject, restContext []byteSpan

	out []byte
}

func (d *decodeState) reset() {
	d.problem = nil
	d.topic, d.topicGiven, d.contextGiven, d.traced = "", false, false, false
	d.object, d.hub, d.account, d.lists = [3]stringField{}, stringField{}, stringField{}, [4]byteSpan{}
	d.via, d.hops, d.returned = byteSpan{}, 0, false
	d.restTop, d.restObject, d.restContext = d.restTop[:0], d.restObject[:0], d.restContext[:0]
	d.memberNames, d.scratch, d.out, d.depth, d.err = d.memberNames[:0], d.scratch[:0], d.out[:0], 0, scanError{}
}

// maxTokenCut is the maximum distance from the end of the data to the position of an error that a cut token causes. The
// longest is a pair of surrogates.
const maxTokenCut = 2 * unicodeEscapeLen

// noBatchIndex marks a notification that is not part of a batch.
const noBatchIndex = -1

// readNotification reads the value at pos.
func (d *decodeState) readNotification(index int) (relay.Notification, *relay.Error) {
	d.reset()
	if index == MaxBatch {
		return relay.Notification{}, relay.NewError(relay.CodeTooLarge, fmt.Sprintf(
			"a request has at most %d events; send the others in another request", MaxBatch)).
			WithExtra("max_notifications", MaxBatch)
	}
	start, limit := d.pos, MaxNotification
	if d.relayed {
		limit += relayOverhead
	}
	// Scanning stops at the limit, because the names of a hostile object need much more memory than their text.
	all := d.data
	d.data = all[:min(len(all), start+limit+1)]
	scanned, c := false, d.peek()
	if c == '{' {
		scanned = d.scanObject(d.topMember)
	} else {
		scanned = d.scanValue()
	}
	isCut := len(d.data) < len(all) && d.err.pos > start+limit-maxTokenCut
	d.data = all
	switch {
	case scanned && d.pos-start > limit, !scanned && isCut:
		err := relay.NewError(relay.CodeTooLarge, fmt.Sprintf("an event has at most %d bytes, this one has more", limit))
		return relay.Notification{}, withIndex(err, index)
	case !scanned:
		if c != '{' && d.err.pos == start { // no JSON value at all
			d.err.detail = "not JSON: " + d.err.detail
		}
		return relay.Notification{}, d.scanError(index)
	case c != '{':
		return relay.Notification{}, withIndex(wrongType("an event", "an object", c), index)
	}
	if err := d.validate(); err != nil {
		return relay.Notification{}, withIndex(err, index)
	}
	return d.normalize(), nil
}

// expectEnd rejects data after the value.
func (d *decodeState) expectEnd() *relay.Error {
	d.skipSpaces()
	if d.pos == len(d.data) {
		return nil
	}
	d.syntaxError(
		"expected the end, found " + d.describeNext() +
			"; send several events as a JSON array or as application/x-ndjson",
	)
	return d.scanError(noBatchIndex)
}

// validate completes hub and account and returns the first error.
func (d *decodeState) validate() *relay.Error {
	switch {
	case d.problem != nil:
		return d.problem
	case !d.topicGiven:
		return relay.NewError(relay.CodeMissingArgument, "the event has no topic").WithPointer("/topic")
	case !d.contextGiven && d.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the event has no context").WithPointer("/context")
	case !d.hub.given && d.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the context has no hub_id").WithPointer("/context/hub_id")
	case d.hub.given && len(d.hub.value) == 0:
		return relay.NewError(relay.CodeInvalidArgument, "context/hub_id is empty").WithPointer("/context/hub_id")
	case d.hub.given && d.def.Hub != "" && string(d.hub.value) != d.def.Hub:
		subject := "the request is for"
		if d.relayed {
			subject = "the source reads"
		}
		return relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("context/hub_id is %q, but %s the hub %q",
			relay.Truncate(
				string(d.hub.value), 64,
			), subject, relay.Truncate(d.def.Hub, 64))).WithPointer("/context/hub_id")
	case len(d.account.value) > 0 && !d.anyAccount() && string(d.account.value) != d.def.Account:
		return relay.NewError(relay.CodeInvalidArgument,
			"context/account_id is not the account of the key; omit it, or use a key for all accounts").WithPointer(
			"/context/account_id",
		)
	}
	return nil
}

// minItemSize is less than the size of any notification in a body.
const minItemSize = 16

// nextID returns the ID of the next notification of the body.
func (d *decodeState) nextID() string {
	if d.idCount++; d.idCount == 1 {
		d.firstID = d.decoder.ids.next(d.maxCount)
		return d.firstID
	}
	return eventlog.DeriveID(d.firstID, d.idCount-1)
}

func (d *decodeState) anyAccount() bool { return d.def.AnyAccount || d.def.Account == "*" }

// normalize writes the normal form. It cannot fail.
func (d *decodeState) normalize() relay.Notification {
	n := relay.Notification{ID: d.nextID(), Topic: d.topic, Hub: d.def.Hub}
	if d.hub.given && d.def.Hub == "" {
		n.Hub = string(d.hub.value)
	}
	switch {
	case d.anyAccount():
		n.Account = string(d.account.value)
	default:
		n.Account = d.def.Account
	}
	b := append(d.out, `{"topic":"`...)
	b = append(b, d.topic...) // topics need no escapes
	b = append(b, `","object":{"id":`...)
	b = d.appendWord(b, &d.object[0], n.ID)
	b = append(b, `,"state":`...)
	b = d.appendWord(b, &d.object[1], "")
	b = append(b, `,"error":`...)
	b = d.appendWord(b, &d.object[2], "")
	b = d.appendRest(b, d.restObject)
	b = append(b, `},"context":{"hub_id":`...)
	b = d.appendWord(b, &d.hub, n.Hub)
	b = append(b, `,"account_id":`...)
	b = d.appendWord(b, &d.account, n.Account)
	b = append(b, `,"environments":`...)
	b = d.appendList(b, d.lists[0])
	b = append(b, `,"dns_zones":`...)
	b = d.appendList(b, d.lists[1])
	b = append(b, `,"clusters":`...)
	b = d.appendList(b, d.lists[2])
	b = append(b, `,"containers":`...)
	b = d.appendList(b, d.lists[3])
	b = d.appendRest(b, d.restContext)
	b = append(b, `},"flags":null`...)
	b = d.appendRest(b, d.restTop)
	b = d.appendVia(b)
	b = d.appendTrace(b)
	b = append(b, '}')
	d.out = b
	n.Data = bytes.Clone(b)
	return n
}

// appendTrace appends the trace of the request if the notification has none.
func (d *decodeState) appendTrace(b []byte) []byte {
	trace := d.def.Trace
	if trace.Parent == "" || d.traced {
		return b
	}
	b = appendQuoted(append(b, `,"traceparent":`...), trace.Parent)
	if trace.State != "" {
		b = appendQuoted(append(b, `,"tracestate":`...), trace.State)
	}
	return b
}

// appendWord appends the original string, or def if it is missing or empty.
func (d *decodeState) appendWord(b []byte, w *stringField, def string) []byte {
	if len(w.value) == 0 {
		return appendQuoted(b, def)
	}
	return append(b, d.data[w.span.start:w.span.end]...)
}

func (d *decodeState) appendList(b []byte, list byteSpan) []byte {
	if list.end == 0 {
		return append(b, "[]"...)
	}
	return d.appendSpan(b, list)
}

func (d *decodeState) appendRest(b []byte, rest []byteSpan) []byte {
	for _, member := range rest {
		b = append(b, ',')
		b = d.appendSpan(b, member)
	}
	return b
}

func (d *decodeState) appendSpan(b []byte, s byteSpan) []byte {
	part := d.data[s.start:s.end]
	if s.hasSpaces {
		return appendCompact(b, part)
	}
	return append(b, part...)
}
