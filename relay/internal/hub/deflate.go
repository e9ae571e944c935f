package hub

import (
	"bytes"
	"compress/flate"
	"sync"
	"time"
)

// Compression configures permessage-deflate (RFC 7692) for websockets, and limits its cost. It does not affect clients
// that do not request it, and event streams. A notification is compressed once per format, on demand. Clients of
// different accounts share a frame only if both may see all of it, and frames share no compression state.
type Compression struct {
	// Enabled lets clients negotiate it.
	Enabled bool
	// MinSize is the minimum length of a compressed message in bytes (256).
	MinSize int
	// CPU is the maximum time for compression per second (100 ms). Messages beyond it are sent uncompressed. The memory
	// is 2.4 MiB per started second.
	CPU time.Duration
}

const (
	defaultMinSize = 256
	defaultCPU     = 100 * time.Millisecond

	// deflateLevel is the quickest: the others take twice the time for two percent of our messages' length.
	deflateLevel = flate.BestSpeed
	rsv1         = 0x40 // of a message that is compressed
	// deflateTail ends what was flushed; a message goes without it (RFC 7692, 7.2.1).
	deflateTail = "\x00\x00\xff\xff"
)

// compressionBudget compresses messages within its limits. Its methods may be called concurrently and never wait.
type compressionBudget struct {
	minSize     int
	cpu         time.Duration
	now         func() time.Time
	observer    Observer
	compressors chan *compressor

	mu         sync.Mutex
	remaining  time.Duration // of the time that it may take
	refilledAt time.Time     // when that was so
}

// newDeflater returns nil if compression is disabled.
func newDeflater(o Compression, observer Observer) *compressionBudget {
	if !o.Enabled {
		return nil
	}
	if o.MinSize <= 0 {
		o.MinSize = defaultMinSize
	}
	if o.CPU <= 0 {
		o.CPU = defaultCPU
	}
	most := 1 + int((o.CPU+time.Second-1)/time.Second)
	d := &compressionBudget{
		minSize: o.MinSize, cpu: o.CPU, remaining: o.CPU, now: time.Now, observer: observer,
		compressors: make(chan *compressor, most),
	}
	for range most {
		d.compressors <- &compressor{}
	}
	return d
}

// compressFrame returns a message, given in parts, as a compressed frame, and the number of saved bytes. It returns nil
// if the message is sent uncompressed: if it is too short, does not shrink, or the time is used up. Half of the time is
// reserved for live messages.
func (d *compressionBudget) compressFrame(live bool, parts [][]byte) (frame []byte, saved int) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if size < d.minSize {
		return nil, 0
	}
	var c *compressor
	select {
	case c = <-d.compressors:
		defer func() { d.compressors <- c }()
	default:
		d.observer.CompressionSkipped()
		return nil, 0
	}
	began := d.now()
	if !d.mayBegin(began, live) {
		d.observer.CompressionSkipped()
		return nil, 0
	}
	payload := c.compress(parts)
	d.charge(began)
	plain := headerSize(size) + size
	if saved = plain - headerSize(len(payload)) - len(payload); saved <= 0 {
		return nil, 0
	}
	return append(newHeader(finText|rsv1, len(payload)), payload...), saved
}

// mayBegin reports whether time is left.
func (d *compressionBudget) mayBegin(now time.Time, live bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.refilledAt.IsZero() {
		gained := time.Duration(float64(d.cpu) * now.Sub(d.refilledAt).Seconds())
		d.remaining = min(d.remaining+gained, d.cpu)
	}
	d.refilledAt = now
	if live {
		return d.remaining > 0
	}
	return d.remaining > d.cpu/2
}

// charge counts the time since began. It is CPU time, or more if the thread was interrupted.
func (d *compressionBudget) charge(began time.Time) {
	took := d.now().Sub(began)
	d.mu.Lock()
	d.remaining -= took
	d.mu.Unlock()
	d.observer.CompressionTime(took)
}

// compressor compresses one message after the other. The zero value holds no memory before it is used.
type compressor struct {
	writer *flate.Writer
	out    bytes.Buffer
}

// maxKeptOut bounds the space that a compressor keeps for the next message.
const maxKeptOut = 64 << 10

// compress returns what the message is as a payload, valid until the next call.
func (c *compressor) compress(parts [][]byte) []byte {
	if c.out.Cap() > maxKeptOut {
		c.out = bytes.Buffer{}
	}
	c.out.Reset()
	if c.writer == nil {
		c.writer, _ = flate.NewWriter(&c.out, deflateLevel) // the level is valid
	} else {
		c.writer.Reset(&c.out)
	}
	for _, part := range parts {
		_, _ = c.writer.Write(part) // a buffer takes everything
	}
	_ = c.writer.Flush()
	return bytes.TrimSuffix(c.out.Bytes(), []byte(deflateTail))
}
