// Package http2budget limits what the other end of a connection may send besides requests, responses and their content: frames
// of HTTP/2 and records of TLS that only cost CPU time.
package http2budget

import (
	"sync/atomic"
	"time"
)

// The budget of a connection for HTTP/2 frames that carry no request and little or no content. Each frame costs frameCost credits.
// Bytes that are sent to the other end earn one credit per bytesPerCredit, because it may update its window. It may do so much
// later, so up to maxStored credits are stored in addition to MaxCredits.
const (
	// MaxCredits is the budget of a new connection.
	MaxCredits          = 40_000
	creditsPerSecond    = 2_000
	frameCost           = 4
	requestFrameCredits = 8
	bytesPerCredit      = 16
	maxStored           = 10 * MaxCredits
	// minDataLen is the minimum length of the content of a DATA frame that costs nothing.
	minDataLen = 32
)

// Budget limits frames that cost only CPU time: PING, SETTINGS, WINDOW_UPDATE, CONTINUATION, DATA with little content and
// others. Spend belongs to the reader of the connection; Earn may be called concurrently. The zero value is a full budget.
type Budget struct {
	earned   atomic.Int64 // since the last Spend
	used     int64        // negative for stored credits
	lastTime time.Time
}

// Earn adds the credits for n bytes that were sent to the other end.
func (b *Budget) Earn(n int) { b.earned.Add(int64(n / bytesPerCredit)) }

// Spend reports whether the other end may send so many frames. Each of the requests that arrived with them earns some credits.
func (b *Budget) Spend(frames, requests int, now time.Time) bool {
	const unit = time.Second / creditsPerSecond
	earned := b.earned.Swap(0) + int64(requests)*requestFrameCredits
	if units := now.Sub(b.lastTime) / unit; units >= MaxCredits {
		b.used, b.lastTime = min(b.used, 0), now
	} else if units > 0 {
		b.used = min(b.used, max(b.used-int64(units), 0)) // time earns no stored credits
		b.lastTime = b.lastTime.Add(units * unit)
	}
	b.used = max(b.used-earned, -maxStored) + int64(frames)*frameCost
	return b.used <= MaxCredits
}

const (
	// prefaceHTTP2 begins each HTTP/2 connection (RFC 9113 section 3.4).
	prefaceHTTP2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// frameHeaderLen is the length of the header of an HTTP/2 frame in bytes. It consists of the length of the payload (3),
	// the type (1), flags (1) and the stream (4) (RFC 9113 section 4.1).
	frameHeaderLen = 9
	frameData      = 0 // the type DATA
	frameHeaders   = 1 // the type HEADERS
	flagPadded     = 8 // of a DATA frame
)

// Counter counts the frames in the bytes that a client of HTTP/2 sends, or a server with SkipPreface. It counts none for HTTP/1.
type Counter struct {
	isHTTP1    bool
	preface    int // bytes of prefaceHTTP2 so far
	header     [frameHeaderLen]byte
	headerLen  int
	payloadLen int    // bytes left of the payload
	lastStream uint32 // the stream of the last request; trailers have no larger one
}

// SkipPreface is called before the first bytes of a server, which sends no preface.
func (c *Counter) SkipPreface() { c.preface = len(prefaceHTTP2) }

// Count returns the number of requests whose header begins in the next bytes, and of other frames with little or no content.
func (c *Counter) Count(b []byte) (requests, others int) {
	for len(b) > 0 && !c.isHTTP1 && c.preface < len(prefaceHTTP2) {
		c.isHTTP1 = b[0] != prefaceHTTP2[c.preface]
		c.preface++
		b = b[1:]
	}
	for len(b) > 0 && !c.isHTTP1 {
		if c.payloadLen > 0 {
			skipped := min(c.payloadLen, len(b))
			c.payloadLen -= skipped
			b = b[skipped:]
			continue
		}
		n := copy(c.header[c.headerLen:], b)
		c.headerLen += n
		b = b[n:]
		if c.headerLen < frameHeaderLen {
			return requests, others
		}
		c.headerLen = 0
		h := c.header
		c.payloadLen = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
		stream := uint32(h[5]&0x7f)<<24 | uint32(h[6])<<16 | uint32(h[7])<<8 | uint32(h[8])
		switch {
		case h[3] == frameHeaders && stream > c.lastStream:
			c.lastStream = stream
			requests++
		case h[3] != frameData || c.payloadLen < minDataLen || h[4]&flagPadded != 0: // padding may be all that a frame has
			others++
		}
	}
	return requests, others
}

const (
	// recordOverhead is an upper bound of the bytes that TLS adds to a record: header, type, nonce, tag and padding to a block.
	recordOverhead = 64
	// maxTLSOverhead limits all other bytes: messages of the handshake protocol (RFC 8446 section 4.6), records without content,
	// and bytes that crypto/tls reads ahead.
	maxTLSOverhead = 128 << 10
)

// TLSOverhead limits the bytes of a connection that carry no content. TLS 1.3 allows any number of KeyUpdates (RFC 8446 section
// 4.6.3). Each costs CPU time, and a reply that blocks the reader if the other end does not read it.
type TLSOverhead struct{ allowed int64 }

// Add counts n bytes of content, of received bytes in total. It reports whether the other end may send more. It is called once
// per read, which returns content of at most one record.
func (o *TLSOverhead) Add(n int, received int64) bool {
	o.allowed += int64(n) + recordOverhead
	return received-o.allowed <= maxTLSOverhead
}
