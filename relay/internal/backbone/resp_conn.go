package backbone

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"time"
)

// respConn is a connection of our own for blocking reads. go-redis would make a map and a dozen strings of each entry; here
// an entry is one piece of memory, which is half of what a subscriber costs.
type respConn struct {
	conn     net.Conn
	reader   *bufio.Reader
	writeBuf []byte // the command
	scratch  []byte // the entry being read
	clientID int64  // of CLIENT ID; 0 where the server does not know it

	readTimeout time.Duration // how long the server may be silent, beyond the time that a read may block
}

const maxBulk = 512 << 20 // bytes in one string, Redis' own limit

// serverError is an error reply. go-redis recognises its prefix as it does in its own.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks it as a reply, as opposed to a broken connection.
func (serverError) RedisError() {}

// call sends a command that answers with a status or a number.
func (w *respConn) call(args ...string) (int64, error) {
	w.beginCommand(len(args))
	for _, a := range args {
		w.appendArg(a)
	}
	if err := w.send(0); err != nil {
		return 0, err
	}
	kind, n, err := w.readHeader()
	if err == nil && kind == '$' {
		err = errors.New("redis answered with a string where a number was due")
	}
	return n, err
}

// sendReadGroup sends XREADGROUP, whose answer streams reads. A negative block does not wait.
func (w *respConn) sendReadGroup(group, consumer string, count int, block time.Duration, plan []streamRead) error {
	n := 7 + 2*len(plan)
	if block >= 0 {
		n += 2
	}
	w.beginCommand(n)
	w.appendArg("XREADGROUP")
	w.appendArg("GROUP")
	w.appendArg(group)
	w.appendArg(consumer)
	w.appendArg("COUNT")
	w.appendArg(strconv.Itoa(count))
	if block >= 0 {
		w.appendArg("BLOCK")
		w.appendArg(strconv.FormatInt(block.Milliseconds(), 10))
	}
	w.appendArg("STREAMS")
	for _, p := range plan {
		w.appendArg(p.src.stream)
	}
	for _, p := range plan {
		w.appendArg(p.from)
	}
	return w.send(max(block, 0))
}

// awaitReply waits until an answer begins.
func (w *respConn) awaitReply() error {
	_, err := w.reader.Peek(1)
	return err
}

func (w *respConn) beginCommand(n int) {
	w.writeBuf = append(w.writeBuf[:0], '*')
	w.writeBuf = strconv.AppendInt(w.writeBuf, int64(n), 10)
	w.writeBuf = append(w.writeBuf, '\r', '\n')
}

func (w *respConn) appendArg(s string) {
	w.writeBuf = append(w.writeBuf, '$')
	w.writeBuf = strconv.AppendInt(w.writeBuf, int64(len(s)), 10)
	w.writeBuf = append(w.writeBuf, '\r', '\n')
	w.writeBuf = append(w.writeBuf, s...)
	w.writeBuf = append(w.writeBuf, '\r', '\n')
}

// send sends the command, whose answer may block.
func (w *respConn) send(block time.Duration) error {
	if err := w.conn.SetDeadline(time.Now().Add(w.readTimeout + block)); err != nil {
		return err
	}
	_, err := w.conn.Write(w.writeBuf)
	return err
}

func (w *respConn) readStreams(plan []streamRead, each func(i int, entries []rawEntry)) error {
	n, err := w.readArrayLen()
	if err != nil {
		return err
	}
	for i := 0; n > 0; n-- {
		if _, err := w.arrayOf(2); err != nil {
			return err
		}
		w.scratch, err = w.readBulk(w.scratch[:0])
		if err != nil {
			return err
		}
		for i < len(plan) && plan[i].src.stream != string(w.scratch) {
			i++
		}
		if i == len(plan) {
			return fmt.Errorf("redis answered for the stream %.60q, which was not asked for", w.scratch)
		}
		entries, err := w.readEntries()
		if err != nil {
			return err
		}
		each(i, entries)
	}
	return nil
}

func (w *respConn) readEntries() ([]rawEntry, error) {
	list, _, err := w.entriesWithin(math.MaxInt)
	return list, err
}

// entriesWithin stops behind so many bytes, though not before the second entry. Where it cut the answer short, the rest of
// that is still on its way, and nothing else can be read from the connection.
func (w *respConn) entriesWithin(most int) (list []rawEntry, cut bool, err error) {
	n, err := w.readArrayLen()
	if err != nil || n <= 0 {
		return nil, false, err
	}
	list = make([]rawEntry, 0, min(n, readCount))
	for size := 0; n > 0; n-- {
		if size > most && len(list) > 1 {
			return list, true, nil
		}
		e, err := w.readEntry()
		if err != nil {
			return nil, false, err
		}
		size += len(e.body)
		list = append(list, e)
	}
	return list, false, nil
}

func (w *respConn) readEntry() (e rawEntry, err error) {
	if _, err = w.arrayOf(2); err != nil {
		return e, err
	}
	if w.scratch, err = w.readBulk(w.scratch[:0]); err != nil {
		return e, err
	}
	e.id = string(w.scratch)
	fields, err := w.readArrayLen()
	if err != nil || fields < 0 {
		return e, err
	}
	w.scratch = w.scratch[:0]
	for range fields {
		if w.scratch, err = w.readField(w.scratch); err != nil {
			return e, err
		}
	}
	e.body = bytes.Clone(w.scratch)
	return e, nil
}

// readHeader reads the first line of a reply: its kind and its number.
func (w *respConn) readHeader() (kind byte, n int64, err error) {
	line, err := w.reader.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 3 {
		return 0, 0, fmt.Errorf("redis answered %q", line)
	}
	kind, line = line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return kind, 0, serverError(line)
	case '+':
		return kind, 0, nil
	}
	n, ok := parseInt(line)
	if !ok || n > maxBulk {
		return 0, 0, fmt.Errorf("redis answered %.40q", line)
	}
	return kind, n, nil
}

func parseInt(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// readArrayLen reads the length of an array, -1 for none at all.
func (w *respConn) readArrayLen() (int64, error) {
	kind, n, err := w.readHeader()
	if err == nil && kind != '*' {
		err = fmt.Errorf("redis answered with %q where a list was due", kind)
	}
	return n, err
}

func (w *respConn) arrayOf(want int64) (int64, error) {
	n, err := w.readArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("redis answered with a list of %d where one of %d was due", n, want)
	}
	return n, err
}

// readBulk appends a string to b.
func (w *respConn) readBulk(b []byte) ([]byte, error) {
	n, err := w.bulkLen()
	if err != nil {
		return b, err
	}
	return w.readBody(b, n)
}

// readField appends a string to b behind its length.
func (w *respConn) readField(b []byte) ([]byte, error) {
	n, err := w.bulkLen()
	if err != nil {
		return b, err
	}
	return w.readBody(binary.AppendUvarint(b, uint64(n)), n)
}

func (w *respConn) bulkLen() (int64, error) {
	kind, n, err := w.readHeader()
	if err == nil && (kind != '$' || n < 0) {
		err = fmt.Errorf("redis answered with %q where a string was due", kind)
	}
	return n, err
}

func (w *respConn) readBody(b []byte, n int64) ([]byte, error) {
	if whole := int(n) + 2; whole <= w.reader.Buffered() { // as nearly always
		piece, err := w.reader.Peek(whole)
		if err != nil {
			return b, err
		}
		if piece[n] != '\r' || piece[n+1] != '\n' {
			return b, io.ErrUnexpectedEOF
		}
		b = append(b, piece[:n]...)
		_, err = w.reader.Discard(whole)
		return b, err
	}
	// Grown by what really comes, so that a false length costs no memory.
	for n > 0 {
		piece, err := w.reader.Peek(int(min(n, int64(w.reader.Size()))))
		if err != nil {
			return b, err
		}
		b = append(b, piece...)
		n -= int64(len(piece))
		if _, err := w.reader.Discard(len(piece)); err != nil {
			return b, err
		}
	}
	end, err := w.reader.Peek(2)
	if err != nil {
		return b, err
	}
	if end[0] != '\r' || end[1] != '\n' {
		return b, io.ErrUnexpectedEOF
	}
	_, err = w.reader.Discard(2)
	return b, err
}
