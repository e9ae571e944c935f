package publicapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

const (
	// maxIdempotencyKey bounds the header Idempotency-Key, in bytes.
	maxIdempotencyKey = 255
	// firstRead is how much of a body of unknown length is read at first.
	firstRead = 4 << 10
	// maxDrain is how much of a refused body is read beyond MaxBody, so that a client that sends before it listens
	// still gets to see the answer.
	maxDrain = 4 << 20
	// maxDrainTime is how long that may take: a body that was announced may never come.
	maxDrainTime = 5 * time.Second
)

// requestBuffer is a buffer that goes from request to request.
type requestBuffer struct{ buf []byte }

func (a *API) publish(w http.ResponseWriter, r *http.Request) *relay.Error {
	key, id, refused := a.authorizeWrite(r, auth.CapabilityPublish, "the hub to publish in")
	if refused != nil {
		return refused
	}
	repeat, refused := idempotencyKey(r)
	if refused != nil {
		return refused
	}
	b, done, refused := a.readBody(r)
	if refused != nil {
		return refused
	}
	defer done()
	p := ingest.Publication{
		KeyName: key.Name, Hub: id, ContentType: r.Header.Get("Content-Type"), IdempotencyKey: repeat, Body: b.buf,
		Trace: relay.ParseTrace(r.Header.Get("Traceparent"), strings.Join(r.Header.Values("Tracestate"), ",")),
	}
	if key.AccountID == auth.Wildcard {
		p.AnyAccount = true
	} else {
		p.Account = key.AccountID
	}
	ids, err := a.opt.Publisher.Publish(r.Context(), p)
	if err != nil {
		return a.publicError(r, err)
	}
	b.buf = appendIDs(b.buf[:0], ids)
	httpserver.WriteJSON(w, http.StatusAccepted, b.buf)
	return nil
}

// appendIDs writes the answer; ids are hexadecimal digits, so that nothing needs escaping.
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
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey {
		return "", relay.NewError(relay.CodeInvalidArgument,
			"the header Idempotency-Key must be there once, with 1 to "+strconv.Itoa(maxIdempotencyKey)+" bytes")
	}
	return key, nil
}

// readBody reads the whole body of a request into a buffer that is the caller's until it calls done.
func (a *API) readBody(r *http.Request) (b *requestBuffer, done func(), refused *relay.Error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, nil, relay.NewError(relay.CodeInvalidContentType, "the body must not be compressed: Content-Encoding is not supported")
	}
	b, _ = a.bodies.Get().(*requestBuffer)
	done = func() { a.bodies.Put(b) }
	if refused := b.read(r, a.opt.MaxBody); refused != nil {
		done()
		return nil, nil, refused
	}
	return b, done, nil
}

// read takes in the whole body of r, at most limit bytes, into b.buf.
func (b *requestBuffer) read(r *http.Request, limit int64) *relay.Error {
	b.buf = b.buf[:0]
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	want := int64(firstRead)
	if r.ContentLength >= 0 {
		want = r.ContentLength + 1 // one more to see the end
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
			return tooLarge(limit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return unreadable(err)
		case len(b.buf) == cap(b.buf):
			want = min(2*int64(cap(b.buf)), limit+1)
		}
	}
}

func tooLarge(limit int64) *relay.Error {
	return relay.NewError(relay.CodeTooLarge,
		"the body is larger than "+strconv.FormatInt(limit, 10)+" bytes").WithExtra("max_bytes", limit)
}

func unreadable(err error) *relay.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return relay.NewError(relay.CodeInvalidSyntax, "the body did not arrive in time")
	}
	return relay.NewError(relay.CodeInvalidSyntax, "the body ended early or is not encoded as its header says")
}

// drainBody reads what a refused request still sends, within bounds, before the answer is written: without that net/http
// closes the connection, and a client that is still sending sees a reset in place of the answer.
func (a *API) drainBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.Header.Get("Expect") != "" ||
		r.ContentLength > a.opt.MaxBody+maxDrain {
		return
	}
	// Where it cannot be set, the listener's own time-out holds.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.drainTime))
	_, _ = io.CopyN(io.Discard, r.Body, a.opt.MaxBody+maxDrain)
}
