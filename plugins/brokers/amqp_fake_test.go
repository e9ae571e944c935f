package brokers

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// fakeRabbitMQ is a broker with only the methods that the sink needs. respond decides on each published message.
type fakeRabbitMQ struct {
	listener net.Listener
	// respond is called for one message at a time. It may call ack or reject now or later.
	respond func(p fakePublish)
	// onOpen is called before a channel is opened, and reports whether the connection stays open. It may be nil.
	onOpen func(opened int) bool

	connections atomic.Int32

	mu     sync.Mutex
	opened int // channels of all connections
}

// fakePublish is a published message.
type fakePublish struct {
	key     string
	channel int // counts the opened channels from 1, because AMQP uses the numbers of closed channels again
	tag     uint64
	session *fakeSession
	number  uint16
}

// fakeSession is one connection.
type fakeSession struct {
	broker *fakeRabbitMQ
	conn   net.Conn
	mu     sync.Mutex // of writes
}

// fakeChannel is the state of an open channel.
type fakeChannel struct {
	opened    int
	published uint64
	key       string // of the message that is not complete
	missing   uint64 // the bytes of the body that have not arrived
}

func startFakeRabbitMQ(t *testing.T, respond func(fakePublish), onOpen func(opened int) bool) *fakeRabbitMQ {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeRabbitMQ{listener: l, respond: respond, onOpen: onOpen}
	var sessions sync.WaitGroup
	sessions.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.connections.Add(1)
			sessions.Go(func() {
				defer func() { _ = conn.Close() }()
				(&fakeSession{broker: f, conn: conn}).serve()
			})
		}
	})
	t.Cleanup(func() { // after the sinks have closed their connections
		_ = l.Close()
		sessions.Wait()
	})
	return f
}

func (f *fakeRabbitMQ) config() Config {
	return Config{Broker: AMQP, Addresses: []string{f.listener.Addr().String()}, RoutingKey: "{hub}"}
}

func (f *fakeRabbitMQ) openedChannels() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

// write writes a method. args are its encoded arguments.
func (s *fakeSession) write(channel, class, method uint16, args ...byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frame := binary.BigEndian.AppendUint16([]byte{1}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(args)))
	frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, class), method)
	_, _ = s.conn.Write(append(append(frame, args...), 0xCE))
}

func (p fakePublish) ack() {
	p.session.write(p.number, 60, 80, append(binary.BigEndian.AppendUint64(nil, p.tag), 0)...)
}

// reject closes the channel as RabbitMQ does if a topic permission forbids the routing key.
func (p fakePublish) reject() {
	p.closeChannel(amqp.AccessRefused, fmt.Sprintf(
		"ACCESS_REFUSED - access to topic '%s' in exchange 'amq.topic' in vhost '/' refused for user 'u'", p.key))
}

func (p fakePublish) closeChannel(code uint16, reason string) {
	args := append(binary.BigEndian.AppendUint16(nil, code), byte(len(reason)))
	p.session.write(p.number, 20, 40, append(append(args, reason...), 0, 60, 0, 40)...)
}

// serve serves the connection until its end.
func (s *fakeSession) serve() {
	r, header := bufio.NewReader(s.conn), make([]byte, 8)
	if _, err := io.ReadFull(r, header); err != nil {
		return
	}
	s.write(0, 10, 10, []byte("\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")...) // start
	channels := map[uint16]*fakeChannel{}
	for {
		if _, err := io.ReadFull(r, header[:7]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[3:])+1) // with the end of the frame
		if _, err := io.ReadFull(r, body); err != nil || !s.handle(header[0], binary.BigEndian.Uint16(header[1:]), body, channels) {
			return
		}
	}
}

// handle handles a frame and reports whether the connection stays open.
func (s *fakeSession) handle(kind byte, number uint16, body []byte, channels map[uint16]*fakeChannel) bool {
	ch := channels[number]
	switch {
	case kind == 2 && ch != nil:
		ch.missing = binary.BigEndian.Uint64(body[4:])
	case kind == 3 && ch != nil:
		if ch.missing -= uint64(len(body) - 1); ch.missing == 0 {
			ch.published++
			s.broker.respond(fakePublish{ch.key, ch.opened, ch.published, s, number})
		}
	}
	if kind != 1 {
		return true
	}
	switch class, method := binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:]); [2]uint16{class, method} {
	case [2]uint16{10, 11}: // start-ok
		s.write(0, 10, 30, 0, 0, 0, 2, 0, 0, 0, 0) // tune: frames of 128 KiB, no heartbeat
	case [2]uint16{10, 40}:
		s.write(0, 10, 41, 0) // open-ok
	case [2]uint16{10, 50}:
		s.write(0, 10, 51) // close-ok
	case [2]uint16{20, 10}:
		return s.openChannel(number, channels)
	case [2]uint16{85, 10}:
		s.write(number, 85, 11) // select-ok of confirms
	case [2]uint16{60, 40}:
		exchange := int(body[6])
		key := body[7+exchange:]
		if ch != nil {
			ch.key = string(key[1 : 1+key[0]])
		}
	case [2]uint16{20, 41}: // close-ok
		delete(channels, number)
	}
	return true
}

func (s *fakeSession) openChannel(number uint16, channels map[uint16]*fakeChannel) bool {
	s.broker.mu.Lock()
	s.broker.opened++
	opened := s.broker.opened
	s.broker.mu.Unlock()
	if s.broker.onOpen != nil && !s.broker.onOpen(opened) {
		return false
	}
	channels[number] = &fakeChannel{opened: opened}
	s.write(number, 20, 11, 0, 0, 0, 0) // open-ok
	return true
}
