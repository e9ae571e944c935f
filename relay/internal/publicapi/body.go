package publicapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

const (
	// firstRead is the initial buffer size for a body, in bytes. A buffer grows by growthFactor when it is full.
	firstRead    = 4 << 10
	growthFactor = 4
	// maxPooledBody is the maximum size of a buffer that is used again.
	maxPooledBody = 16 << 10
	// bodyWait is the time that a request waits for the memory of its body.
	bodyWait = 5 * time.Second
	// defaultBodyWindow is the period over which the rate of a body is measured. Each period must reach the minimum rate.
	defaultBodyWindow = 10 * time.Second
	// minUnfinishedCharge is the minimum share of the budget for a body that has not ended with the first read. It limits
	// the number of such requests.
	minUnfinishedCharge = 64 << 10
	// maxDrain is the maximum number of bytes of a rejected body that are read beyond MaxBody. A client that sends its
	// complete body before it reads can then still read the response.
	maxDrain = 4 << 20
	// maxDrainTime is the time limit of draining, because the announced body may never arrive.
	maxDrainTime = 5 * time.Second
)

// bodyBudget is the memory for the bodies of all requests or for their decoded notifications, or the number of bodies that are
// read at once. Its owners are the accounts, and the keys without one. An owner may hold as much as is free: one gets half,
// two get a third each, so there is always room for another. A request that is alone gets what it needs. It may be used
// concurrently.
type bodyBudget struct {
	max int64

	mu       sync.Mutex
	used     int64
	byOwner  map[string]int64
	waiting  int
	released chan struct{} // closed after a release that others wait for
}

func newBodyBudget(limit int64) *bodyBudget {
	return &bodyBudget{max: limit, byOwner: make(map[string]int64), released: make(chan struct{})}
}

// acquirePart takes more for a request that holds a part already. It waits until enough is available or ctx ends.
func (b *bodyBudget) acquirePart(ctx context.Context, owner string, held, more int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.takePart(owner, held, more) {
		released := b.released
		b.waiting++
		b.mu.Unlock()
		_, err := await.Value(ctx, released)
		b.mu.Lock()
		b.waiting--
		if err != nil {
			return err
		}
	}
	return nil
}

// tryAcquireOne takes one if it is available.
func (b *bodyBudget) tryAcquireOne(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takePart(owner, 0, 1)
}

// takePart takes more if it is available. The caller holds mu.
func (b *bodyBudget) takePart(owner string, held, more int64) bool {
	ofOwner, free := b.byOwner[owner]+more, b.max-b.used-more
	if (free >= 0 || b.used == held) && (ofOwner <= free || ofOwner == held+more) {
		b.used += more
		b.byOwner[owner] = ofOwner
		return true
	}
	return false
}

func (b *bodyBudget) releasePart(owner string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.byOwner[owner] -= n; b.byOwner[owner] == 0 {
		delete(b.byOwner, owner)
	}
	if b.waiting > 0 {
		close(b.released)
		b.released = make(chan struct{})
	}
}

// requestBody is the body of a request.
type requestBody struct {
	buf   []byte
	owner string // in the budgets
	// received and decoded are the parts of the budgets that the body and its notifications have taken.
	received, decoded reservation
}

// reservation is the part of a budget that a request has taken.
type reservation struct {
	budget *bodyBudget
	bytes  int64
}

func (r *reservation) releaseBytes(owner string) {
	if r.bytes > 0 {
		r.budget.releasePart(owner, r.bytes)
		r.bytes = 0
	}
}

// readBody reads the complete body of a request with a key. It rejects a body of more than limit bytes. The caller owns the buffer
// until it calls done.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, key *auth.Key, limit int64) (
	b *requestBody, done func(), err *relay.Error,
) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, nil, relay.NewError(relay.CodeInvalidContentType,
			"the body must not be compressed: Content-Encoding is not supported")
	}
	b, _ = a.bodies.Get().(*requestBody)
	b.owner = key.Owner()
	done = func() {
		b.received.releaseBytes(b.owner)
		b.decoded.releaseBytes(b.owner)
		if cap(b.buf) <= maxPooledBody {
			a.bodies.Put(b)
		}
	}
	if !a.countBudget.tryAcquireOne(b.owner) {
		done()
		return nil, nil, a.newBusyError(w)
	}
	err = a.readBodyInto(w, r, b, limit)
	a.countBudget.releasePart(b.owner, 1)
	if err != nil {
		done()
		return nil, nil, err
	}
	return b, done, nil
}

// readBodyInto reads the complete body of r into b.buf. It rejects a body of more than limit bytes, and one that arrives
// too slowly.
func (a *API) readBodyInto(w http.ResponseWriter, r *http.Request, b *requestBody, limit int64) *relay.Error {
	b.buf = b.buf[:0]
	if r.ContentLength > limit {
		return newTooLargeError(limit)
	}
	if err := a.growBody(w, r, b, max(cap(b.buf), firstRead)); err != nil {
		return err
	}
	window := bodyWindow{length: a.bodyWindow, bytes: int(a.opt.MinBodyRate * int64(a.bodyWindow) / int64(time.Second))}
	for reads := 0; ; reads++ {
		if reads == 1 { // most bodies have arrived with the first read
			defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Time{}) }()
			if err := a.reserveBytes(w, r, b.owner, &b.received, minUnfinishedCharge-b.received.bytes); err != nil {
				return err
			}
		}
		if reads > 0 {
			// If the deadline cannot be set, the timeout of the server applies.
			_ = http.NewResponseController(w).SetReadDeadline(window.next(time.Now(), len(b.buf)))
		}
		n, err := r.Body.Read(b.buf[len(b.buf):cap(b.buf)])
		b.buf = b.buf[:len(b.buf)+n]
		switch {
		case int64(len(b.buf)) > limit:
			return newTooLargeError(limit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return newReadError(err)
		case len(b.buf) == cap(b.buf):
			want := growthFactor * int64(cap(b.buf))
			if r.ContentLength >= 0 {
				want = min(want, r.ContentLength+1) // one more byte to detect the end
			}
			if err := a.growBody(w, r, b, int(min(want, limit+1))); err != nil {
				return err
			}
		}
	}
}

// bodyWindow is the current period of the rate of a body.
type bodyWindow struct {
	length       time.Duration
	bytes, begin int // the next window starts when begin+bytes have arrived
	end          time.Time
}

// next returns the time by which the window must be complete, after n bytes of the body have arrived.
func (w *bodyWindow) next(now time.Time, n int) time.Time {
	if w.end.IsZero() || n-w.begin >= w.bytes {
		w.begin, w.end = n, now.Add(w.length)
	}
	return w.end
}

// reserveBytes takes more memory of a budget for a request. It returns 503.not-ready with Retry-After if the budget is
// used up.
func (a *API) reserveBytes(
	w http.ResponseWriter, r *http.Request, owner string, taken *reservation, more int64,
) *relay.Error {
	if more <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.bodyWait)
	defer cancel()
	if err := taken.budget.acquirePart(ctx, owner, taken.bytes, more); err != nil {
		return a.newBusyError(w)
	}
	taken.bytes += more
	return nil
}

func (a *API) newBusyError(w http.ResponseWriter) *relay.Error {
	setRetryAfter(w, a.bodyWait)
	return relay.NewError(relay.CodeNotReady,
		"too many request bodies are in progress, and nothing was stored; repeat the request later")
}

// reserveDecoded takes the memory for the notifications of a body. Small ones need none. The budget is not that of the
// bodies, because requests that hold a body would wait for each other.
func (a *API) reserveDecoded(w http.ResponseWriter, r *http.Request, b *requestBody, trace relay.Trace) *relay.Error {
	size := decodedBytes(b.buf, trace)
	if size <= firstRead {
		return nil
	}
	return a.reserveBytes(w, r, b.owner, &b.decoded, size)
}

// notificationBytes is the memory for a decoded notification and its command for Redis, apart from its text.
const notificationBytes = 512

// decodedBytes returns the maximum memory for the notifications of a body and their commands for Redis. There are at most as
// many as opening braces. The normal form of each contains the trace of the request.
func decodedBytes(body []byte, trace relay.Trace) int64 {
	count := min(bytes.Count(body, []byte("{")), ingest.MaxBatch)
	return int64(2*len(body) + count*(notificationBytes+2*(len(trace.Parent)+len(trace.State))))
}

// growBody gives the buffer a capacity. Its error is that of reserveBytes.
func (a *API) growBody(w http.ResponseWriter, r *http.Request, b *requestBody, size int) *relay.Error {
	if err := a.reserveBytes(w, r, b.owner, &b.received, int64(size)-b.received.bytes); err != nil {
		return err
	}
	if cap(b.buf) < size {
		grown := make([]byte, len(b.buf), size)
		copy(grown, b.buf)
		b.buf = grown
	}
	return nil
}

func newTooLargeError(limit int64) *relay.Error {
	return relay.NewError(relay.CodeTooLarge,
		"the body is larger than "+strconv.FormatInt(limit, 10)+" bytes").WithExtra("max_bytes", limit)
}

func newReadError(err error) *relay.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return relay.NewError(relay.CodeInvalidSyntax, "the body did not arrive in time, see server.body_min_rate")
	}
	return relay.NewError(relay.CodeInvalidSyntax, "the body ended early or is not encoded as its header says")
}

// drainBody reads a limited part of a body that no handler reads, before the response is written. Otherwise net/http
// closes the connection, and a client that is still sending receives a reset instead of the response.
func (a *API) drainBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.Header.Get("Expect") != "" ||
		r.ContentLength > a.opt.MaxBody+maxDrain {
		return
	}
	// If the deadline cannot be set, the timeout of the server applies.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.drainTime))
	_, _ = io.CopyN(io.Discard, r.Body, a.opt.MaxBody+maxDrain)
}
