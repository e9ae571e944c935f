package webhook

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Compression uses gzip. Signatures cover the uncompressed body, because many frameworks decompress a request before
// the receiver can verify it, and other receivers can decompress first.
type Compression struct {
	Enabled bool `koanf:"enabled" doc:"Compress bodies with gzip. Signatures cover the uncompressed body."`
	// MinSize is the minimum size of a compressed body. Compressing a shorter one costs more than it saves.
	MinSize relay.Size `koanf:"min_size" doc:"Minimum size of a compressed body, 0 to 1MiB."`
}

const (
	defaultMinSize = 1 << 10
	maxMinSize     = 1 << 20
	// plainDuration is the time without compression after a receiver has rejected it.
	plainDuration = time.Hour
)

func (c *Compression) validate() (field, problem string) {
	if c.MinSize < 0 || c.MinSize > maxMinSize {
		return "min_size", "is out of range: choose 0 to 1MiB"
	}
	return "", ""
}

// compressor compresses bodies until the receiver rejects a compressed one.
type compressor struct {
	Compression
	now        func() time.Time
	idle       sync.Pool    // of *gzip.Writer
	plainUntil atomic.Int64 // Unix time in nanoseconds before which nothing is compressed
}

func newCompressor(c Compression, now func() time.Time) *compressor {
	return &compressor{Compression: c, now: now}
}

// compressBody returns the compressed body. It returns false if the body is sent unchanged.
func (c *compressor) compressBody(body []byte) ([]byte, bool, error) {
	if !c.Enabled || int64(len(body)) < int64(c.MinSize) || c.now().UnixNano() < c.plainUntil.Load() {
		return body, false, nil
	}
	w, ok := c.idle.Get().(*gzip.Writer)
	if !ok {
		w = gzip.NewWriter(nil)
	}
	defer c.idle.Put(w)
	out := bytes.NewBuffer(make([]byte, 0, len(body)/4+64))
	w.Reset(out)
	if _, err := w.Write(body); err != nil {
		return nil, false, fmt.Errorf("compress a body: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, false, fmt.Errorf("compress a body: %w", err)
	}
	return out.Bytes(), true, nil
}

// pauseCompression records that the receiver responded with 415 to a compressed body. It reports whether this is new.
func (c *compressor) pauseCompression() bool {
	now := c.now()
	return c.plainUntil.Swap(now.Add(plainDuration).UnixNano()) < now.UnixNano()
}
