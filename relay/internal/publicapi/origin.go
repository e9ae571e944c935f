package publicapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// origins contains the web origins that may use the API.
type origins struct {
	any        bool
	allowed    map[string]bool
	publicHost string // the host of public_url without a default port
}

func newOrigins(allowed []string, public *url.URL) (origins, error) {
	o := origins{allowed: make(map[string]bool, len(allowed))}
	if public != nil {
		o.publicHost = normalizeHost(public.Scheme, public.Host)
	}
	for _, s := range allowed {
		if s == "*" {
			o.any = true
			continue
		}
		u, ok := parseOrigin(s)
		if !ok {
			return origins{}, fmt.Errorf("allowed_origins must be https://host[:port] or *, not %q", s)
		}
		o.allowed[u.Scheme+"://"+normalizeHost(u.Scheme, u.Host)] = true
	}
	return o, nil
}

// isListed reports whether the configuration allows the origin.
func (o *origins) isListed(origin string) bool {
	if o.any {
		return true
	}
	u, ok := parseOrigin(origin)
	return ok && o.allowed[u.Scheme+"://"+normalizeHost(u.Scheme, u.Host)]
}

// checkUpgrade rejects an upgrade requested by a page of another host, unless the configuration allows its origin.
// Programs other than browsers send no origin and are not affected.
func (o *origins) checkUpgrade(r *http.Request) *relay.Error {
	values := r.Header["Origin"]
	if len(values) == 0 {
		return nil
	}
	origin := values[0]
	if len(values) == 1 {
		if o.isListed(origin) {
			return nil
		}
		if u, ok := parseOrigin(origin); ok {
			host := normalizeHost(u.Scheme, u.Host)
			if host == normalizeHost(u.Scheme, r.Host) || host == o.publicHost {
				return nil
			}
		}
	}
	quoted := strconv.Quote(relay.Truncate(origin, 200))
	return relay.NewError(relay.CodePermissions,
		"pages of the origin "+quoted+" may not connect; server.allowed_origins can name it")
}

// allowCORS sets the CORS headers if the configuration allows the origin, and reports whether it did.
func (o *origins) allowCORS(w http.ResponseWriter, r *http.Request) bool {
	if !o.any && len(o.allowed) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" || !o.isListed(origin) {
		return false
	}
	if o.any {
		origin = "*" // sufficient, because the API uses no cookies
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Link, Retry-After, Allow")
	return true
}

// setPreflightHeaders sets the headers of the response to a CORS preflight request.
func setPreflightHeaders(w http.ResponseWriter, r *http.Request, methods string) {
	if r.Header.Get("Access-Control-Request-Method") == "" {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Hub-Id, X-Service-Token")
	h.Set("Access-Control-Max-Age", "600")
}

func parseOrigin(s string) (*url.URL, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" ||
		u.User != nil || strings.Contains(u.Host, "*") {
		return nil, false
	}
	return u, true
}

// normalizeHost returns the host in lower case without the default port of the scheme.
func normalizeHost(scheme, host string) string {
	host = strings.ToLower(host)
	switch scheme {
	case "https":
		return strings.TrimSuffix(host, ":443")
	case "http":
		return strings.TrimSuffix(host, ":80")
	default:
		return host
	}
}
