package history

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// maxErrorBytes is the maximum length of an error text.
const maxErrorBytes = 256

// truncateError shortens an error text to maxErrorBytes, including the mark of the truncation.
func truncateError(text string) string { return relay.Truncate(text, maxErrorBytes-len("…")) }

// EventID is the binary form of an event's ID. Its first four bytes are the time of the event in seconds.
type EventID [12]byte

// ParseEventID parses an ID of 24 hexadecimal digits. Only events with such an ID have a history. The relay gives no
// other IDs.
func ParseEventID(text string) (id EventID, ok bool) {
	if len(text) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(text))
	return id, err == nil
}

// String returns the ID as it is in events.
func (id EventID) String() string { return hex.EncodeToString(id[:]) }

func (id EventID) unixMilli() int64 { return int64(binary.BigEndian.Uint32(id[:])) * 1000 }

// Time returns the time of the event with a resolution of one second.
func (id EventID) Time() time.Time { return time.UnixMilli(id.unixMilli()).UTC() }

// shardNumber returns the number of the stream with the records of the event.
func (id EventID) shardNumber() int {
	h := hashFNV(id[:])
	return int((h ^ h>>16) % shardCount)
}

// hashFNV is FNV-1a, like hash/fnv without an allocation.
func hashFNV[T string | []byte](text T) uint32 {
	h := uint32(2166136261)
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return h
}

// State is the state of a delivery after an attempt.
type State uint8

// The states. Their numbers are stored.
const (
	StateWaiting   State = iota // it is attempted again, but the time depends on other events, such as an operator
	StateRetrying               // the next attempt has a time
	StateDelivered              // it is complete
	StateDead                   // it is a dead letter
)

// EventRef identifies an event and its place in the log.
type EventRef struct {
	ID        EventID
	Cursor    streamid.Position // without the hash
	Partition int
	Topic     string
	// AccountHash identifies the account. Another account can have the same hash.
	AccountHash uint32
}

// Attempt is an attempt to deliver an event.
type Attempt struct {
	Event EventRef
	Sink  string
	// Node is the name of the node that made the attempt.
	Node string
	// Delivery is the ID of the delivery if it differs from the ID of the event, as for a batch or digest.
	Delivery EventID
	// Number starts with 1.
	Number int
	Time   time.Time // with a resolution of milliseconds
	// Duration has a resolution of a tenth of a millisecond.
	Duration time.Duration
	Outcome  relay.Outcome
	State    State
	// Status is the status code of the destination, or 0.
	Status int
	// Error has at most 256 bytes.
	Error string
	// NextAttempt is the time of the next attempt of [StateRetrying].
	NextAttempt time.Time
	// WasScheduled reports that the delivery came from the retry queue. It is not stored.
	WasScheduled bool
}

// Clients is the number of stream clients of a node to which an event was sent.
type Clients struct {
	Event EventRef
	Node  string
	Count int
}

// Drop is an event that a limit or an operator excluded from a sink.
type Drop struct {
	Event  EventRef
	Sink   string
	Time   time.Time
	Reason string
	// Attempts is the number of attempts before the drop.
	Attempts int
}

// Record contains one of its fields, or nothing if its kind is unknown.
type Record struct {
	Attempt *Attempt
	Clients *Clients
	Drop    *Drop
}

// The kinds of records. A reader ignores kinds that it does not know.
const (
	kindAttempt = 1 + iota
	kindClients
	kindDrop
)

// The bits of the byte after the duration of an attempt: two for the outcome, three for the state.
const (
	outcomeBits = 0x03
	stateShift  = 2
	stateBits   = 0x07
	hasDelivery = 0x20
	hasError    = 0x40
)

// A record is its length as a uvarint, and then: kind; event ID; the fields of its event; the fields of its kind. Times are
// relative to the time in the event ID. A later version may append fields to a kind.

// nameNumbers converts names to numbers.
type nameNumbers interface {
	// numberOf returns the number of a name, or 0 if it has none yet.
	numberOf(name string) uint64
}

func appendName(b []byte, names nameNumbers, name string) []byte {
	n := names.numberOf(name)
	b = binary.AppendUvarint(b, n)
	if n == 0 {
		b = appendText(b, name)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendTime(b []byte, id EventID, ms int64) []byte {
	return binary.AppendVarint(b, ms-id.unixMilli())
}

func (e *EventRef) appendTo(b []byte, names nameNumbers, kind byte) []byte {
	b = append(append(b, kind), e.ID[:]...)
	b = appendTime(b, e.ID, int64(e.Cursor.MS))
	b = binary.AppendUvarint(b, e.Cursor.Seq)
	b = binary.AppendUvarint(b, uint64(e.Partition))
	b = appendName(b, names, e.Topic)
	return binary.BigEndian.AppendUint32(b, e.AccountHash)
}

// appendFields appends the fields of an attempt, which follow the fields of its event.
func (a *Attempt) appendFields(b []byte, e *EventRef, names nameNumbers) []byte {
	b = appendName(b, names, a.Sink)
	b = appendTime(b, e.ID, a.Time.UnixMilli())
	b = binary.AppendUvarint(b, uint64(max(a.Number, 0)))
	b = binary.AppendUvarint(b, uint64(max(a.Duration, 0)/(100*time.Microsecond)))
	bits := byte(a.Outcome)&outcomeBits | byte(a.State)<<stateShift
	if a.Delivery != (EventID{}) && a.Delivery != e.ID {
		bits |= hasDelivery
	}
	if a.Error != "" {
		bits |= hasError
	}
	b = append(b, bits)
	b = binary.AppendUvarint(b, uint64(max(a.Status, 0)))
	if a.State == StateRetrying {
		b = binary.AppendUvarint(b, uint64(max(a.NextAttempt.Sub(a.Time).Milliseconds(), 0)))
	}
	if bits&hasDelivery != 0 {
		b = append(b, a.Delivery[:]...)
	}
	if bits&hasError != 0 {
		b = appendText(b, truncateError(a.Error))
	}
	return b
}

func (d *Drop) appendTo(b []byte, names nameNumbers) []byte {
	b = d.Event.appendTo(b, names, kindDrop)
	b = appendName(b, names, d.Sink)
	b = appendTime(b, d.Event.ID, d.Time.UnixMilli())
	b = appendName(b, names, d.Reason)
	return binary.AppendUvarint(b, uint64(d.Attempts))
}

// blockVersion is the first byte of a block. The name of the node follows, then the records.
const blockVersion = 1

var errMalformed = errors.New("malformed block of the history")

func appendBlockHead(b []byte, node string) []byte { return appendText(append(b, blockVersion), node) }

// block is a decoded block, whose records are decoded one by one.
type block struct {
	node string
	rest []byte
}

func parseBlock(data []byte) (block, error) {
	if len(data) == 0 || data[0] != blockVersion {
		return block{}, errMalformed
	}
	r := reader{data: data[1:]}
	node := r.readText()
	if r.failed {
		return block{}, errMalformed
	}
	return block{node, r.data}, nil
}

// rawRecord is the content of a record.
type rawRecord []byte

// next returns the next record. At the end it returns nil.
func (b *block) next() (rawRecord, error) {
	if len(b.rest) == 0 {
		return nil, nil
	}
	n, size := binary.Uvarint(b.rest)
	if size <= 0 || n > uint64(len(b.rest)-size) || n < 1+uint64(len(EventID{})) {
		b.rest = nil
		return nil, errMalformed
	}
	end := size + int(n)
	raw := b.rest[size:end:end]
	b.rest = b.rest[end:]
	return raw, nil
}

func (r rawRecord) kind() byte { return r[0] }

func (r rawRecord) isOf(id EventID) bool { return EventID(r[1:13]) == id }

// nameTexts converts numbers to names.
type nameTexts interface {
	textOf(number uint64) (name string, ok bool)
}

// decode returns the record. An unknown kind has no content.
func (r rawRecord) decode(node string, names nameTexts) (Record, error) {
	in := reader{data: r[13:], names: names}
	e := EventRef{ID: EventID(r[1:13])}
	e.Cursor.MS = uint64(in.readTime(e.ID))
	e.Cursor.Seq = in.readUvarint()
	e.Partition = int(in.readUvarint() & 0xffff)
	e.Topic = in.readName()
	if hash := in.readBytes(4); hash != nil {
		e.AccountHash = binary.BigEndian.Uint32(hash)
	}
	var record Record
	switch r.kind() {
	case kindAttempt:
		record.Attempt = in.readAttempt(e, node)
	case kindClients:
		record.Clients = &Clients{Event: e, Node: node, Count: int(min(in.readUvarint(), 1<<40))}
	case kindDrop:
		d := &Drop{Event: e, Sink: in.readName(), Time: time.UnixMilli(in.readTime(e.ID)).UTC(), Reason: in.readName()}
		if len(in.data) > 0 { // records of former versions end here
			d.Attempts = int(min(in.readUvarint(), 1<<30))
		}
		record.Drop = d
	}
	if in.failed {
		return Record{}, errMalformed
	}
	return record, nil
}

// accountHash returns the hash of the account in a record.
func (r rawRecord) accountHash() (hash uint32, ok bool) {
	in := reader{data: r[13:]}
	in.readVarint()
	in.readUvarint()
	in.readUvarint()
	if in.readUvarint() == 0 {
		in.readText()
	}
	b := in.readBytes(4)
	if in.failed {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// reader decodes the fields of a record. After a failure, all fields are zero.
type reader struct {
	data   []byte
	names  nameTexts
	failed bool
}

func (r *reader) readUvarint() uint64 {
	n, size := binary.Uvarint(r.data)
	if size <= 0 {
		r.data, r.failed = nil, true
		return 0
	}
	r.data = r.data[size:]
	return n
}

// readVarint decodes the zigzag encoding of [binary.AppendVarint].
func (r *reader) readVarint() int64 {
	n := r.readUvarint()
	return int64(n>>1) ^ -int64(n&1)
}

func (r *reader) readBytes(n int) []byte {
	if n < 0 || n > len(r.data) {
		r.data, r.failed = nil, true
		return nil
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}

func (r *reader) readText() string { return string(r.readBytes(int(min(r.readUvarint(), 1<<30)))) }

// readTime returns a time in unix milliseconds. It fails for a time that JSON cannot contain.
func (r *reader) readTime(id EventID) int64 {
	ms := id.unixMilli() + r.readVarint()
	if ms < 0 || time.UnixMilli(ms).Year() > 9999 {
		r.failed = true
		return 0
	}
	return ms
}

func (r *reader) readName() string {
	number := r.readUvarint()
	if number == 0 {
		return r.readText()
	}
	name, ok := r.names.textOf(number)
	if !ok {
		r.failed = true
	}
	return name
}

func (r *reader) readAttempt(e EventRef, node string) *Attempt {
	a := &Attempt{Event: e, Node: node, Sink: r.readName(), Time: time.UnixMilli(r.readTime(e.ID)).UTC()}
	a.Number = int(min(r.readUvarint(), 1<<30))
	a.Duration = time.Duration(min(r.readUvarint(), 1<<40)) * (100 * time.Microsecond)
	bits := byte(0)
	if b := r.readBytes(1); b != nil {
		bits = b[0]
	}
	a.Outcome, a.State = relay.Outcome(bits&outcomeBits), State(bits>>stateShift&stateBits)
	a.Status = int(min(r.readUvarint(), 1<<30))
	if a.State == StateRetrying {
		a.NextAttempt = a.Time.Add(time.Duration(min(r.readUvarint(), 1<<36)) * time.Millisecond)
	}
	if bits&hasDelivery != 0 {
		copy(a.Delivery[:], r.readBytes(len(a.Delivery)))
	}
	if bits&hasError != 0 {
		a.Error = r.readText()
	}
	return a
}
