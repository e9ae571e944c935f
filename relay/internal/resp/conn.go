// Package resp reads stream entries over its own connections, with one allocation for each entry. go-redis would make a
// map and a dozen strings of an entry, which doubles the cost of a subscriber.
//
// It speaks only the commands of blocking reads. All other commands go through package redisconn.
package resp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Conn is a connection for blocking reads. It must not be used concurrently, except for [Conn.Close].
type Conn struct {
	conn     net.Conn
	reader   *bufio.Reader
	writeBuf []byte // the command
	scratch  []byte // the entry being read
	clientID int64
	maxEntry int // bytes of a body, or 0 without a limit

	readTimeout time.Duration // how long the server may be silent, in addition to the time that a read may block
}

const (
	maxBulk = 512 << 20 // bytes in a string, the limit of Redis
	maxList = 128       // entries for which memory is allocated before they arrive
)

// ServerError is an error reply.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// RedisError marks it as an error reply for go-redis.
func (ServerError) RedisError() {}

// ClientID returns the result of CLIENT ID, or 0 if the server does not support it.
func (c *Conn) ClientID() int64 { return c.clientID }

// Call sends a command whose reply is a status or a number.
func (c *Conn) Call(args ...string) (int64, error) {
	if err := c.sendCommand(args); err != nil {
		return 0, err
	}
	kind, n, err := c.readHeader()
	if err == nil && kind == '$' {
		err = errors.New("redis sent a string instead of a number")
	}
	return n, err
}

// CallString sends a command whose reply is a string.
func (c *Conn) CallString(args ...string) (string, error) {
	if err := c.sendCommand(args); err != nil {
		return "", err
	}
	var err error
	c.scratch, err = c.readBulk(c.scratch[:0])
	return string(c.scratch), err
}

func (c *Conn) sendCommand(args []string) error {
	c.beginCommand(len(args))
	for _, a := range args {
		c.appendArg(a)
	}
	return c.send(0)
}

// GroupRead is an XREADGROUP of several streams.
type GroupRead struct {
	Group, Consumer string
	Count           int           // maximum number of entries of each stream
	Block           time.Duration // negative: return at once
}

// SendGroupRead sends XREADGROUP for n streams. stream returns the name and the position of each. [Conn.ReadStreams]
// reads the reply.
func (c *Conn) SendGroupRead(r GroupRead, n int, stream func(i int) (name, after string)) error {
	size := 7 + 2*n
	if r.Block >= 0 {
		size += 2
	}
	c.beginCommand(size)
	c.appendArg("XREADGROUP")
	c.appendArg("GROUP")
	c.appendArg(r.Group)
	c.appendArg(r.Consumer)
	c.appendArg("COUNT")
	c.appendArg(strconv.Itoa(r.Count))
	if r.Block >= 0 {
		c.appendArg("BLOCK")
		c.appendArg(strconv.FormatInt(r.Block.Milliseconds(), 10))
	}
	c.appendArg("STREAMS")
	for i := range n {
		name, _ := stream(i)
		c.appendArg(name)
	}
	for i := range n {
		_, after := stream(i)
		c.appendArg(after)
	}
	return c.send(max(r.Block, 0))
}

// ReadStream sends XREAD for one stream and reads the reply; see [Conn.ReadEntries] for maxBytes and truncated.
func (c *Conn) ReadStream(
	key, after string, count int, block time.Duration, maxBytes int,
) (entries []Entry, truncated bool, err error) {
	c.beginCommand(8)
	c.appendArg("XREAD")
	c.appendArg("COUNT")
	c.appendArg(strconv.Itoa(count))
	c.appendArg("BLOCK")
	c.appendArg(strconv.FormatInt(block.Milliseconds(), 10))
	c.appendArg("STREAMS")
	c.appendArg(key)
	c.appendArg(after)
	if err := c.send(block); err != nil {
		return nil, false, err
	}
	return c.parseStreamReply(key, maxBytes)
}

func (c *Conn) parseStreamReply(key string, maxBytes int) (entries []Entry, truncated bool, err error) {
	n, err := c.readArrayLen()
	if err != nil || n <= 0 {
		return nil, false, err
	}
	if err := c.expectArray(2); err != nil {
		return nil, false, err
	}
	if c.scratch, err = c.readBulk(c.scratch[:0]); err != nil {
		return nil, false, err
	}
	if n != 1 || string(c.scratch) != key {
		return nil, false, fmt.Errorf("redis sent %d streams, the first is %.60q, want only %.60q", n, c.scratch, key)
	}
	return c.ReadEntries(maxBytes)
}

// AwaitReply waits until a reply begins.
func (c *Conn) AwaitReply() error {
	_, err := c.reader.Peek(1)
	return err
}

func (c *Conn) beginCommand(n int) {
	c.writeBuf = append(c.writeBuf[:0], '*')
	c.writeBuf = strconv.AppendInt(c.writeBuf, int64(n), 10)
	c.writeBuf = append(c.writeBuf, '\r', '\n')
}

func (c *Conn) appendArg(s string) {
	c.writeBuf = append(c.writeBuf, '$')
	c.writeBuf = strconv.AppendInt(c.writeBuf, int64(len(s)), 10)
	c.writeBuf = append(c.writeBuf, '\r', '\n')
	c.writeBuf = append(c.writeBuf, s...)
	c.writeBuf = append(c.writeBuf, '\r', '\n')
}

// send sends the command. The server may block for so long before it replies.
func (c *Conn) send(block time.Duration) error {
	if err := c.conn.SetDeadline(time.Now().Add(c.readTimeout + block)); err != nil {
		return err
	}
	_, err := c.conn.Write(c.writeBuf)
	return err
}

// ReadStreams reads the reply to [Conn.SendGroupRead] and calls each for every stream with entries, in the order of the
// command. After maxBytes of a stream, but not before its second entry, it discards the further entries and sets truncated.
func (c *Conn) ReadStreams(
	n int, name func(i int) string, maxBytes func(i int) int, each func(i int, entries []Entry, truncated bool),
) error {
	length, err := c.readArrayLen()
	if err != nil {
		return err
	}
	for i := 0; length > 0; length-- {
		if err := c.expectArray(2); err != nil {
			return err
		}
		c.scratch, err = c.readBulk(c.scratch[:0])
		if err != nil {
			return err
		}
		for i < n && name(i) != string(c.scratch) {
			i++
		}
		if i == n {
			return fmt.Errorf("redis sent the stream %.60q, which was not requested", c.scratch)
		}
		entries, rest, err := c.readEntries(maxBytes(i))
		if err != nil {
			return err
		}
		if err := c.discardEntries(rest); err != nil {
			return err
		}
		each(i, entries, rest > 0)
	}
	return nil
}

// ReadEntries reads a list of entries. After maxBytes, but not before the second entry, it stops with truncated set.
// The rest of the reply then makes the connection unusable.
func (c *Conn) ReadEntries(maxBytes int) (entries []Entry, truncated bool, err error) {
	entries, rest, err := c.readEntries(maxBytes)
	return entries, rest > 0, err
}

// readEntries is ReadEntries with the number of entries that it did not read.
func (c *Conn) readEntries(maxBytes int) (entries []Entry, rest int64, err error) {
	n, err := c.readArrayLen()
	if err != nil || n <= 0 {
		return nil, 0, err
	}
	entries = make([]Entry, 0, min(n, maxList))
	for size := 0; n > 0; n-- {
		if size > maxBytes && len(entries) > 1 {
			return entries, n, nil
		}
		e, err := c.readEntry()
		if err != nil {
			return nil, 0, err
		}
		size += len(e.Body)
		entries = append(entries, e)
	}
	return entries, 0, nil
}

// discardEntries reads n entries and keeps nothing.
func (c *Conn) discardEntries(n int64) error {
	limit := c.maxEntry
	c.maxEntry = 1
	defer func() { c.maxEntry = limit }()
	for range n {
		if _, err := c.readEntry(); err != nil {
			return err
		}
	}
	return nil
}

// LimitEntries limits the bodies of entries to so many bytes, plus the lengths of their fields. The rest is read and
// discarded, so memory is bounded however large an entry is.
func (c *Conn) LimitEntries(maxBytes int) { c.maxEntry = maxBytes }

func (c *Conn) readEntry() (e Entry, err error) {
	if err = c.expectArray(2); err != nil {
		return e, err
	}
	if c.scratch, err = c.readBulk(c.scratch[:0]); err != nil {
		return e, err
	}
	e.ID = string(c.scratch)
	fields, err := c.readArrayLen()
	if err != nil || fields < 0 {
		return e, err
	}
	c.scratch = c.scratch[:0]
	for range fields {
		var omitted int64
		if c.scratch, omitted, err = c.readField(c.scratch); err != nil {
			return e, err
		}
		e.Omitted += omitted
	}
	e.Body = bytes.Clone(c.scratch)
	return e, nil
}
