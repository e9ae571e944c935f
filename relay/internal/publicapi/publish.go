package publicapi

import (
	"errors"
	"net/http"
	"net/netip"
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

func (a *API) publish(w http.ResponseWriter, r *http.Request) (err *relay.Error) {
	key, err := a.authenticate(r)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			a.recordRefusedPublish(r, key, err)
		}
	}()
	id, err := a.authorizeKey(r, key, auth.CapabilityPublish, "the hub to publish in")
	if err != nil {
		return err
	}
	repeatKey, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	b, done, err := a.readBody(w, r, key, a.opt.MaxBody)
	if err != nil {
		return err
	}
	defer done()
	trace := relay.ParseTrace(r.Header.Get("Traceparent"), strings.Join(r.Header.Values("Tracestate"), ","))
	if err := a.reserveDecoded(w, r, b, trace); err != nil {
		return err
	}
	p := ingest.Publication{
		KeyName: key.Name, Owner: b.owner, Hub: id, ContentType: r.Header.Get("Content-Type"), IdempotencyKey: repeatKey, Body: b.buf,
		Address: a.publisherAddress(r), Topics: key.Topics, Trace: trace,
	}
	if key.AccountID == auth.Wildcard {
		p.AnyAccount = true
	} else {
		p.Account = key.AccountID
	}
	ids, publishErr := a.opt.Publisher.Publish(r.Context(), p)
	var exceeded *quota.ExceededError
	switch {
	case errors.As(publishErr, &exceeded):
		err = newQuotaError(w, exceeded, "publishes more than its quota")
		a.recordExceeded(r, key, audit.ActionPublish, exceeded, err)
		return err
	case publishErr != nil:
		return a.publicError(r, publishErr)
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
