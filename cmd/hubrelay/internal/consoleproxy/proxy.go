// Package consoleproxy gives a browser on this machine the web console of a daemon. It signs in with a one-time code, and
// forwards requests with the credential of the command, so the browser never has it.
package consoleproxy

import (
	"crypto/rand"
	"crypto/subtle"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// codeTime is the time within which the code must be used.
const codeTime = 10 * time.Minute

// Proxy is an HTTP handler for one browser. It may be used concurrently.
type Proxy struct {
	host     string // with the port
	upstream http.Handler
	origins  *http.CrossOriginProtection
	cookie   http.Cookie

	mu        sync.Mutex
	code      string // empty after it was used
	createdAt time.Time
}

// New returns a proxy for a listener on loopback. upstream gets the requests of the browser that has signed in.
//
// Browsers send cookies to all ports of a host, which can belong to other users of the machine. So the host is a random
// name below localhost, which browsers resolve to loopback (RFC 6761, 6.3).
func New(listener net.Addr, upstream http.Handler) *Proxy {
	_, port, _ := net.SplitHostPort(listener.String()) // an address of a TCP listener has a port
	return &Proxy{
		host: "hubrelay-" + strings.ToLower(rand.Text()[:10]) + ".localhost:" + port, upstream: upstream,
		origins: http.NewCrossOriginProtection(), code: rand.Text(), createdAt: time.Now(),
		cookie: http.Cookie{
			Name: "hubrelay_console", Value: rand.Text() + rand.Text(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		},
	}
}

// URL returns the address that signs in. It can be opened once, within ten minutes.
func (p *Proxy) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return "http://" + p.host + "/?code=" + p.code
}

// ServeHTTP signs in with the code, and forwards requests with the cookie. It rejects requests that a page of another
// origin causes, and host names that a page could point at this machine (DNS rebinding).
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Host != p.host:
		http.Error(w, "this address is not the one that 'hubrelay console' printed", http.StatusForbidden)
	case p.origins.Check(r) != nil || isForeignRead(r):
		http.Error(w, "pages of another origin may not use the console", http.StatusForbidden)
	case r.URL.Path == "/" && r.URL.Query().Has("code") && r.Method == http.MethodGet:
		p.signIn(w, r)
	case !p.isSignedIn(r):
		http.Error(w, "this browser is not signed in: run 'hubrelay console' again", http.StatusUnauthorized)
	case isForwarded(r):
		p.upstream.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// isForeignRead reports whether a page of another origin causes r, other than by a link to the console.
func isForeignRead(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return r.URL.Path != "/" || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// isForwarded reports whether the daemon may get r. The console needs no profiles, and the proxy itself signs in and out.
func isForwarded(r *http.Request) bool {
	if r.URL.Path == "/debug" || strings.HasPrefix(r.URL.Path, "/debug/") {
		return false
	}
	return r.URL.Path != adminapi.SessionPath || r.Method == http.MethodGet
}

// signIn exchanges the code for the cookie. It responds with a page instead of a redirect: after a redirect of another
// origin, a browser does not send the cookie.
func (p *Proxy) signIn(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	valid := p.code != "" && isEqual(r.URL.Query().Get("code"), p.code) && time.Since(p.createdAt) < codeTime
	if valid {
		p.code = ""
	}
	p.mu.Unlock()
	switch {
	case valid:
		http.SetCookie(w, &p.cookie)
	case !p.isSignedIn(r): // a reload of the page is no second use
		http.Error(w, "this link was used before, or is older than ten minutes: run 'hubrelay console' again",
			http.StatusUnauthorized)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'")
	_, _ = io.WriteString(w, `<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>hubrelay</title>`+
		`<a href="/">Open the console</a>`)
}

func (p *Proxy) isSignedIn(r *http.Request) bool {
	cookie, err := r.Cookie(p.cookie.Name)
	return err == nil && isEqual(cookie.Value, p.cookie.Value)
}

func isEqual(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
