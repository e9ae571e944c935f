package publicapi

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

const (
	// firstRead is the initial buffer size for a body of unknown length, in bytes.
	firstRead = 4 << 10
	// maxDrain is the maximum number of bytes of a rejected body that are read beyond MaxBody. A client that sends its
	// complete body before it reads can then still read the response.
	maxDrain = 4 << 20
	// maxDrainTime is the time limit of draining, because the announced body may never arrive.
	maxDrainTime = 5 * time.Second
)

// requestBuffer is a reusable buffer for request bodies.
type requestBuffer struct{ buf []byte }

func (a *API) publish(w http.ResponseWriter, r *http.Request) *relay.Error {
	key, id, refused := a.authorize(r, auth.CapabilityPublish, "the hub to publish in")
	if refused != nil {
		return refused
	}
	repeatKey, refused := idempotencyKey(r)
	if refused != nil {
		return refused
	}
	b, done, refused := a.readBody(r)
	if refused != nil {
		return refused
	}
	defer done()
	p := ingest.Publication{
		KeyName: key.Name, Hub: id, ContentType: r.Header.Get("Content-Type"), IdempotencyKey: repeatKey, Body: b.buf,
		Address: a.publisherAddress(r), Topics: key.Topics,
		Trace: relay.ParseTrace(r.Header.Get("Traceparent"), strings.Join(r.Header.Values("Tracestate"), ",")),
	}
	if key.AccountID == auth.Wildcard {
		p.AnyAccount = true
	} else {
		p.Account = key.AccountID
	}
	ids, err := a.opt.Publisher.Publish(r.Context(), p)
	var exceeded *quota.ExceededError
	switch {
	case errors.As(err, &exceeded):
		refused := newQuotaError(w, exceeded, "publishes more than its quota")
		a.recordExceeded(r, key.Name, audit.ActionPublish, exceeded, refused)
		return refused
	case err != nil:
		return a.publicError(r, err)
	}
	b.buf = appendIDs(b.buf[:0], ids)
	httpserver.WriteJSON(w, http.StatusAccepted, b.buf)
	return nil
}

// publisherAddress returns the address whose quota a request uses. Trusted proxies have none.
func (a *API) publisherAddress(r *http.Request) netip.Addr {
	client := a.opt.TrustedProxies.Client(r)
	if a.opt.TrustedProxies.Contains(client) {
		return netip.Addr{}
	}
	return client
}

// setRetryAfter sets the header Retry-After to whole seconds, and returns them.
func setRetryAfter(w http.ResponseWriter, wait time.Duration) int64 {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	return seconds
}

// appendIDs appends the response. IDs are hexadecimal and need no escaping.
func appendIDs(b []byte, ids []string) []byte {
	b = append(b, `{"data":{"ids":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, id...)
		b = append(b, '"')
	}
	return append(b, "]}}\n"...)
}

func idempotencyKey(r *http.Request) (string, *relay.Error) {
	values := r.Header["Idempotency-Key"]
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if len(values) > 1 || key == "" || len(key) > ingest.MaxIdempotencyKey {
		return "", relay.NewError(relay.CodeInvalidArgument,
			"the header Idempotency-Key must be set once, with 1 to "+strconv.Itoa(ingest.MaxIdempotencyKey)+
				" characters")
	}
	return key, nil
}

// readBody reads the complete body of a request. The caller owns the buffer until it calls done.
func (a *API) readBody(r *http.Request) (b *requestBuffer, done func(), refused *relay.Error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, nil, relay.NewError(relay.CodeInvalidContentType,
			"the body must not be compressed: Content-Encoding is not supported")
	}
	b, _ = a.bodies.Get().(*requestBuffer)
	done = func() { a.bodies.Put(b) }
	if refused := b.read(r, a.opt.MaxBody); refused != nil {
		done()
		return nil, nil, refused
	}
	return b, done, nil
}

// read reads the complete body of r into b.buf. It rejects a body of more than limit bytes.
func (b *requestBuffer) read(r *http.Request, limit int64) *relay.Error {
	b.buf = b.buf[:0]
	if r.ContentLength > limit {
		return newTooLargeError(limit)
	}
	want := int64(firstRead)
	if r.ContentLength >= 0 {
		want = r.ContentLength + 1 // one more byte to detect the end
	}
	for {
		if int64(cap(b.buf)) < want {
			grown := make([]byte, len(b.buf), want)
			copy(grown, b.buf)
			b.buf = grown
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
			want = min(2*int64(cap(b.buf)), limit+1)
		}
	}
}

func newTooLargeError(limit int64) *relay.Error {
	return relay.NewError(relay.CodeTooLarge,
		"the body is larger than "+strconv.FormatInt(limit, 10)+" bytes").WithExtra("max_bytes", limit)
}

func newReadError(err error) *relay.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return relay.NewError(relay.CodeInvalidSyntax, "the body did not arrive in time")
	}
	return relay.NewError(relay.CodeInvalidSyntax, "the body ended early or is not encoded as its header says")
}

// drainBody reads a limited part of the body of a rejected request before the response is written. Otherwise net/http
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
