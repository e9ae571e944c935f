package ingest

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// MaxNotification bounds one notification as it was sent, in bytes.
	MaxNotification = 256 << 10
	// MaxIdentifier bounds every identifier in a notification, in bytes.
	MaxIdentifier = 256
)

// Defaults is what the surroundings of a notification say about it.
type Defaults struct {
	// Hub is filled in where context.hub_id is missing, and must equal it where it is not. Empty means that the
	// notification must name its hub itself and may name any.
	Hub string
	// Account is filled in where context.account_id is missing or empty, and must equal it where it is not. "*" is the
	// same as AnyAccount.
	Account string
	// AnyAccount allows every account_id and fills none in.
	AnyAccount bool
	// Trace becomes the members traceparent and tracestate of a notification that has neither.
	Trace relay.Trace
}

// Decoder validates notifications and brings them into the normal form. It may be used concurrently. Its errors name
// the place by line and column (400) or by a JSON pointer.
type Decoder struct {
	catalog *relay.Catalog
	ids     *idSource
	frames  sync.Pool
}

// NewDecoder returns a decoder that accepts the topics of catalog.
func NewDecoder(catalog *relay.Catalog) *Decoder {
	d := &Decoder{catalog: catalog, ids: newIDSource()}
	d.frames.New = func() any { return &decodeState{decoder: d} }
	return d
}

// NewID returns an id as every decoded notification gets one: 24 hexadecimal digits, unique, growing with time.
func (d *Decoder) NewID() string { return d.ids.next() }

// RelayHop is a step from one relay to the next.
type RelayHop struct {
	// From names the relay that sends the notification on, and Self the one that reads it; see redisconn.Conn.Instance. From is
	// empty for a sender that is no relay.
	From, Self string
}

const (
	// relayPathMember is the member of a notification that lists the relays it has come through, the first first. It is there
	// from the first hop on.
	relayPathMember = "hubrelay_via"
	// maxHops bounds that list.
	maxHops = 16
	// relayOverhead is what a relay may add to a notification: ids, a cursor, the list of relays.
	relayOverhead = 4 << 10
)

// DecodeRelayed is Decode for what another relay sends, who adds to a notification of [MaxNotification] bytes. The
// notification lists hop.From among those that it has come through. It tells whether hop.Self is one of them: then the
// notification has been here before and must not be stored again.
func (d *Decoder) DecodeRelayed(data []byte, def Defaults, hop RelayHop) (n relay.Notification, returned bool, err *relay.Error) {
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

// Decode reads one notification and gives it an ID. It keeps nothing of data.
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
	f, _ := d.frames.Get().(*decodeState) // New gives nothing else
	f.data, f.pos, f.lastSpace, f.def = data, 0, -1, def
	return f
}

// releaseState keeps a frame for the next caller unless a large notification has blown it up.
func (d *Decoder) releaseState(f *decodeState) {
	f.reset()
	f.data, f.def, f.hop, f.relayed = nil, Defaults{}, RelayHop{}, false
	clear(f.memberNames[:cap(f.memberNames)])
	if cap(f.out) <= 64<<10 && cap(f.scratch) <= 64<<10 && cap(f.memberNames) <= 1<<10 {
		d.frames.Put(f)
	}
}

// stringField is a string that the envelope knows.
type stringField struct {
	span  byteSpan
	value []byte
	given bool
}

// decodeState is the working space for one notification after the other.
type decodeState struct {
	jsonScanner
	decoder *Decoder
	def     Defaults
	hop     RelayHop
	relayed bool // another relay sends it
	// problem is the first thing wrong that is no matter of syntax: the rest is still read, since text that is no JSON
	// is worse.
	problem *relay.Error

	topic                    string
	topicGiven, contextGiven bool
	traced                   bool
	object                   [3]stringField // id, state, error
	hub, account             stringField
	lists                    [4]byteSpan // of an end of 0 where missing

	via      byteSpan // the elements of viaMember
	hops     int      // how many these are
	returned bool     // Self is one of them

	restTop, restObject, restContext []byteSpan

	out []byte
}

func (f *decodeState) reset() {
	f.problem = nil
	f.topic, f.topicGiven, f.contextGiven, f.traced = "", false, false, false
	f.object, f.hub, f.account, f.lists = [3]stringField{}, stringField{}, stringField{}, [4]byteSpan{}
	f.via, f.hops, f.returned = byteSpan{}, 0, false
	f.restTop, f.restObject, f.restContext = f.restTop[:0], f.restObject[:0], f.restContext[:0]
	f.memberNames, f.scratch, f.out, f.depth, f.err = f.memberNames[:0], f.scratch[:0], f.out[:0], 0, scanError{}
}

// noBatchIndex stands for a notification that is not part of a batch.
const noBatchIndex = -1

// readNotification reads the value at pos.
func (f *decodeState) readNotification(index int) (relay.Notification, *relay.Error) {
	f.reset()
	start := f.pos
	if c := f.peek(); c != '{' {
		if !f.scanValue() {
			return relay.Notification{}, f.scanError(index)
		}
		return relay.Notification{}, withIndex(wrongType("a notification", "an object", c), index)
	}
	if !f.scanObject(f.topMember) {
		return relay.Notification{}, f.scanError(index)
	}
	most := MaxNotification
	if f.relayed {
		most += relayOverhead
	}
	if size := f.pos - start; size > most {
		err := relay.NewError(relay.CodeTooLarge, fmt.Sprintf("a notification may have %d bytes, this one has %d", most, size))
		return relay.Notification{}, withIndex(err, index)
	}
	if err := f.validate(); err != nil {
		return relay.Notification{}, withIndex(err, index)
	}
	return f.normalize(), nil
}

// expectEnd refuses anything behind the value.
func (f *decodeState) expectEnd() *relay.Error {
	f.skipSpaces()
	if f.pos == len(f.data) {
		return nil
	}
	f.syntaxError("expected the end, found " + f.describeNext() + "; send several notifications as a JSON array or as application/x-ndjson")
	return f.scanError(noBatchIndex)
}

// validate finishes hub and account and says what is wrong first.
func (f *decodeState) validate() *relay.Error {
	switch {
	case f.problem != nil:
		return f.problem
	case !f.topicGiven:
		return relay.NewError(relay.CodeMissingArgument, "the notification has no topic").WithPointer("/topic")
	case !f.contextGiven && f.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the notification has no context").WithPointer("/context")
	case !f.hub.given && f.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the context has no hub_id").WithPointer("/context/hub_id")
	case f.hub.given && len(f.hub.value) == 0:
		return relay.NewError(relay.CodeInvalidArgument, "context/hub_id is empty").WithPointer("/context/hub_id")
	case f.hub.given && f.def.Hub != "" && string(f.hub.value) != f.def.Hub:
		whose := "the request is for"
		if f.relayed {
			whose = "the source reads"
		}
		return relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("context/hub_id is %q, but %s the hub %q",
			relay.Truncate(string(f.hub.value), 64), whose, relay.Truncate(f.def.Hub, 64))).WithPointer("/context/hub_id")
	case len(f.account.value) > 0 && !f.anyAccount() && string(f.account.value) != f.def.Account:
		return relay.NewError(relay.CodeInvalidArgument,
			"context/account_id is not the account of the key; leave it out, or use a key for all accounts").WithPointer("/context/account_id")
	}
	return nil
}

func (f *decodeState) anyAccount() bool { return f.def.AnyAccount || f.def.Account == "*" }

// normalize writes the normal form. Nothing can go wrong any more.
func (f *decodeState) normalize() relay.Notification {
	n := relay.Notification{ID: f.decoder.ids.next(), Topic: f.topic, Hub: f.def.Hub}
	if f.hub.given && f.def.Hub == "" {
		n.Hub = string(f.hub.value)
	}
	switch {
	case f.anyAccount():
		n.Account = string(f.account.value)
	default:
		n.Account = f.def.Account
	}
	b := append(f.out, `{"topic":"`...)
	b = append(b, f.topic...) // a topic has no character to escape
	b = append(b, `","object":{"id":`...)
	b = f.appendWord(b, &f.object[0], n.ID)
	b = append(b, `,"state":`...)
	b = f.appendWord(b, &f.object[1], "")
	b = append(b, `,"error":`...)
	b = f.appendWord(b, &f.object[2], "")
	b = f.appendRest(b, f.restObject)
	b = append(b, `},"context":{"hub_id":`...)
	b = f.appendWord(b, &f.hub, n.Hub)
	b = append(b, `,"account_id":`...)
	b = f.appendWord(b, &f.account, n.Account)
	b = append(b, `,"environments":`...)
	b = f.appendList(b, f.lists[0])
	b = append(b, `,"dns_zones":`...)
	b = f.appendList(b, f.lists[1])
	b = append(b, `,"clusters":`...)
	b = f.appendList(b, f.lists[2])
	b = append(b, `,"containers":`...)
	b = f.appendList(b, f.lists[3])
	b = f.appendRest(b, f.restContext)
	b = append(b, `},"flags":null`...)
	b = f.appendRest(b, f.restTop)
	b = f.appendVia(b)
	b = f.appendTrace(b)
	b = append(b, '}')
	f.out = b
	n.Data = bytes.Clone(b)
	return n
}

// appendTrace appends the request's trace where the notification has none.
func (f *decodeState) appendTrace(b []byte) []byte {
	trace := f.def.Trace
	if trace.Parent == "" || f.traced {
		return b
	}
	b = appendQuoted(append(b, `,"traceparent":`...), trace.Parent)
	if trace.State != "" {
		b = appendQuoted(append(b, `,"tracestate":`...), trace.State)
	}
	return b
}

// appendWord appends the string as it came, or def where it is missing or empty.
func (f *decodeState) appendWord(b []byte, w *stringField, def string) []byte {
	if len(w.value) == 0 {
		return appendQuoted(b, def)
	}
	return append(b, f.data[w.span.start:w.span.end]...)
}

func (f *decodeState) appendList(b []byte, list byteSpan) []byte {
	if list.end == 0 {
		return append(b, "[]"...)
	}
	return f.appendSpan(b, list)
}

func (f *decodeState) appendRest(b []byte, rest []byteSpan) []byte {
	for _, member := range rest {
		b = append(b, ',')
		b = f.appendSpan(b, member)
	}
	return b
}

func (f *decodeState) appendSpan(b []byte, s byteSpan) []byte {
	part := f.data[s.start:s.end]
	if s.hasSpaces {
		return appendCompact(b, part)
	}
	return append(b, part...)
}
