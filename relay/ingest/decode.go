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
	d.frames.New = func() any { return &frame{decoder: d} }
	return d
}

// NewID returns an id as every decoded notification gets one: 24 hexadecimal digits, unique, growing with time.
func (d *Decoder) NewID() string { return d.ids.next() }

// Hop is a step from one relay to the next.
type Hop struct {
	// From names the relay that sends the notification on, and Self the one that reads it; see backbone.Instance. From is
	// empty for a sender that is no relay.
	From, Self string
}

const (
	// viaMember is the member of a notification that lists the relays it has come through, the first first. It is there
	// from the first hop on.
	viaMember = "hubrelay_via"
	// maxHops bounds that list.
	maxHops = 16
	// hopRoom is what a relay may add to a notification: ids, a cursor, the list of relays.
	hopRoom = 4 << 10
)

// DecodeRelayed is Decode for what another relay sends, who adds to a notification of [MaxNotification] bytes. The
// notification lists hop.From among those that it has come through. It tells whether hop.Self is one of them: then the
// notification has been here before and must not be stored again.
func (d *Decoder) DecodeRelayed(data []byte, def Defaults, hop Hop) (n relay.Notification, returned bool, err *relay.Error) {
	f := d.frame(data, def)
	defer d.release(f)
	f.hop, f.relayed = hop, true
	f.space()
	n, err = f.notification(noIndex)
	if returned = f.returned; returned {
		return relay.Notification{}, true, nil
	}
	if err == nil {
		err = f.end()
	}
	if err != nil {
		return relay.Notification{}, false, err
	}
	return n, false, nil
}

// Decode reads one notification and gives it an ID. It keeps nothing of data.
func (d *Decoder) Decode(data []byte, def Defaults) (relay.Notification, *relay.Error) {
	f := d.frame(data, def)
	defer d.release(f)
	f.space()
	n, err := f.notification(noIndex)
	if err == nil {
		err = f.end()
	}
	if err != nil {
		return relay.Notification{}, err
	}
	return n, nil
}

func (d *Decoder) frame(data []byte, def Defaults) *frame {
	f, _ := d.frames.Get().(*frame) // New gives nothing else
	f.data, f.pos, f.lastSpace, f.def = data, 0, -1, def
	return f
}

// release keeps a frame for the next caller unless a large notification has blown it up.
func (d *Decoder) release(f *frame) {
	f.forget()
	f.data, f.def, f.hop, f.relayed = nil, Defaults{}, Hop{}, false
	clear(f.names[:cap(f.names)])
	if cap(f.out) <= 64<<10 && cap(f.scratch) <= 64<<10 && cap(f.names) <= 1<<10 {
		d.frames.Put(f)
	}
}

// word is a string that the envelope knows.
type word struct {
	span  span
	value []byte
	given bool
}

// frame is the working space for one notification after the other.
type frame struct {
	scanner
	decoder *Decoder
	def     Defaults
	hop     Hop
	relayed bool // another relay sends it
	// problem is the first thing wrong that is no matter of syntax: the rest is still read, since text that is no JSON
	// is worse.
	problem *relay.Error

	topic                    string
	topicGiven, contextGiven bool
	traced                   bool
	object                   [3]word // id, state, error
	hub, account             word
	lists                    [4]span // of an end of 0 where missing

	via      span // the elements of viaMember
	hops     int  // how many these are
	returned bool // Self is one of them

	restTop, restObject, restContext []span

	out []byte
}

func (f *frame) forget() {
	f.problem = nil
	f.topic, f.topicGiven, f.contextGiven, f.traced = "", false, false, false
	f.object, f.hub, f.account, f.lists = [3]word{}, word{}, word{}, [4]span{}
	f.via, f.hops, f.returned = span{}, 0, false
	f.restTop, f.restObject, f.restContext = f.restTop[:0], f.restObject[:0], f.restContext[:0]
	f.names, f.scratch, f.out, f.depth, f.fault = f.names[:0], f.scratch[:0], f.out[:0], 0, fault{}
}

// noIndex stands for a notification that is not part of a batch.
const noIndex = -1

// notification reads the value at pos.
func (f *frame) notification(index int) (relay.Notification, *relay.Error) {
	f.forget()
	start := f.pos
	if c := f.peek(); c != '{' {
		if !f.value() {
			return relay.Notification{}, f.failed(index)
		}
		return relay.Notification{}, placed(wrongType("a notification", "an object", c), index)
	}
	if !f.members(f.topMember) {
		return relay.Notification{}, f.failed(index)
	}
	most := MaxNotification
	if f.relayed {
		most += hopRoom
	}
	if size := f.pos - start; size > most {
		err := relay.NewError(relay.CodeTooLarge, fmt.Sprintf("a notification may have %d bytes, this one has %d", most, size))
		return relay.Notification{}, placed(err, index)
	}
	if err := f.check(); err != nil {
		return relay.Notification{}, placed(err, index)
	}
	return f.build(), nil
}

// end refuses anything behind the value.
func (f *frame) end() *relay.Error {
	f.space()
	if f.pos == len(f.data) {
		return nil
	}
	f.syntax("expected the end, found " + f.found() + "; send several notifications as a JSON array or as application/x-ndjson")
	return f.failed(noIndex)
}

// check finishes hub and account and says what is wrong first.
func (f *frame) check() *relay.Error {
	switch {
	case f.problem != nil:
		return f.problem
	case !f.topicGiven:
		return relay.NewError(relay.CodeMissingArgument, "the notification has no topic").At("/topic")
	case !f.contextGiven && f.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the notification has no context").At("/context")
	case !f.hub.given && f.def.Hub == "":
		return relay.NewError(relay.CodeMissingArgument, "the context has no hub_id").At("/context/hub_id")
	case f.hub.given && len(f.hub.value) == 0:
		return relay.NewError(relay.CodeInvalidArgument, "context/hub_id is empty").At("/context/hub_id")
	case f.hub.given && f.def.Hub != "" && string(f.hub.value) != f.def.Hub:
		whose := "the request is for"
		if f.relayed {
			whose = "the source reads"
		}
		return relay.NewError(relay.CodeInvalidArgument, fmt.Sprintf("context/hub_id is %q, but %s the hub %q",
			relay.Clip(string(f.hub.value), 64), whose, relay.Clip(f.def.Hub, 64))).At("/context/hub_id")
	case len(f.account.value) > 0 && !f.anyAccount() && string(f.account.value) != f.def.Account:
		return relay.NewError(relay.CodeInvalidArgument,
			"context/account_id is not the account of the key; leave it out, or use a key for all accounts").At("/context/account_id")
	}
	return nil
}

func (f *frame) anyAccount() bool { return f.def.AnyAccount || f.def.Account == "*" }

// build writes the normal form. Nothing can go wrong any more.
func (f *frame) build() relay.Notification {
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
func (f *frame) appendTrace(b []byte) []byte {
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
func (f *frame) appendWord(b []byte, w *word, def string) []byte {
	if len(w.value) == 0 {
		return appendQuoted(b, def)
	}
	return append(b, f.data[w.span.start:w.span.end]...)
}

func (f *frame) appendList(b []byte, list span) []byte {
	if list.end == 0 {
		return append(b, "[]"...)
	}
	return f.appendSpan(b, list)
}

func (f *frame) appendRest(b []byte, rest []span) []byte {
	for _, member := range rest {
		b = append(b, ',')
		b = f.appendSpan(b, member)
	}
	return b
}

func (f *frame) appendSpan(b []byte, s span) []byte {
	part := f.data[s.start:s.end]
	if s.spaced {
		return appendCompact(b, part)
	}
	return append(b, part...)
}
