package frame

import (
	"bytes"
	"compress/flate"
	"sync"
	"time"
)

// Compression configures permessage-deflate (RFC 7692) for websockets. Event streams and clients that do not offer it
// receive plain messages. A notification is compressed once per encoding, when the first client needs it. Frames are
// compressed independently, and clients of different accounts share one only if both may see all of it.
type Compression struct {
	// Enabled lets clients negotiate compression.
	Enabled bool
	// MinSize is the minimum size of a compressed message in bytes (256).
	MinSize int
	// CPU is the maximum processor time per second (100 ms). Messages beyond it are sent plain. Memory follows: 1.2 MiB
	// per started processor, plus another 1.2 MiB.
	CPU time.Duration
}

// DeflateObserver counts compressions. Its methods are called concurrently and must not block.
type DeflateObserver interface {
	// CompressionTime reports the time that compressing one notification took.
	CompressionTime(d time.Duration)
	// CompressionSkipped counts notifications sent plain because the processor time was used up.
	CompressionSkipped()
}

const (
	defaultMinSize = 256
	defaultCPU     = 100 * time.Millisecond

	// deflateLevel is the fastest: the others take twice the time to shorten our messages by two percent.
	deflateLevel = flate.BestSpeed
	rsv1         = 0x40 // marks a compressed message
	// deflateTail ends flushed data. A message is sent without it (RFC 7692, section 7.2.1).
	deflateTail = "\x00\x00\xff\xff"
)

// Deflater compresses messages within a time budget. At most half of the budget goes to messages that are not live
// (replays). Its methods may be called concurrently and never wait.
type Deflater struct {
	minSize     int
	cpu         time.Duration
	now         func() time.Time
	observer    DeflateObserver
	compressors chan *compressor

	mu         sync.Mutex
	remaining  time.Duration // of the budget, at refilledAt
	refilledAt time.Time
}

// NewDeflater returns nil if compression is disabled.
func NewDeflater(o Compression, observer DeflateObserver) *Deflater {
	if !o.Enabled {
		return nil
	}
	if o.MinSize <= 0 {
		o.MinSize = defaultMinSize
	}
	if o.CPU <= 0 {
		o.CPU = defaultCPU
	}
	count := 1 + int((o.CPU+time.Second-1)/time.Second)
	d := &Deflater{
		minSize: o.MinSize, cpu: o.CPU, remaining: o.CPU, now: time.Now, observer: observer,
		compressors: make(chan *compressor, count),
	}
	for range count {
		d.compressors <- &compressor{}
	}
	return d
}

// compressFrame returns a message, given in parts, as a compressed frame, and by how many bytes that is shorter than
// a text frame. It returns nil if the message is short, does not get shorter, or the budget is used up.
func (d *Deflater) compressFrame(live bool, parts [][]byte) (frame []byte, saved int) {
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
	start := d.now()
	if !d.hasBudget(start, live) {
		d.observer.CompressionSkipped()
		return nil, 0
	}
	payload := c.compress(parts)
	d.charge(start)
	plain := headerSize(size) + size
	if saved = plain - headerSize(len(payload)) - len(payload); saved <= 0 {
		return nil, 0
	}
	return append(newHeader(finText|rsv1, len(payload)), payload...), saved
}

// hasBudget refills the budget and reports whether enough is left to start.
func (d *Deflater) hasBudget(now time.Time, live bool) bool {
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

// charge subtracts the elapsed time. That is at least the processor time, and more if the goroutine was preempted.
func (d *Deflater) charge(start time.Time) {
	elapsed := d.now().Sub(start)
	d.mu.Lock()
	d.remaining -= elapsed
	d.mu.Unlock()
	d.observer.CompressionTime(elapsed)
}

// compressor compresses one message at a time. The zero value allocates on first use.
type compressor struct {
	writer *flate.Writer
	out    bytes.Buffer
}

// maxKeptOut is the maximum size of the buffer that a compressor reuses, in bytes.
const maxKeptOut = 64 << 10

// compress returns the compressed payload, which is valid until the next call.
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
		_, _ = c.writer.Write(part) // a buffer returns no error
	}
	_ = c.writer.Flush()
	return bytes.TrimSuffix(c.out.Bytes(), []byte(deflateTail))
}
