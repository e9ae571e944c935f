// Package consoleproxy gives a browser on this machine the web console of a daemon. It signs in with a one-time code, and
// forwards requests with the credential of the command, so the browser never has it.
package consoleproxy

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
	"sync"
)

// Proxy is an HTTP handler for one browser. It may be used concurrently.
type Proxy struct {
	addr     string // host and port of the listener
	upstream http.Handler
	origins  *http.CrossOriginProtection
	cookie   http.Cookie

	mu   sync.Mutex
	code string // empty after it was used
}

// New returns a proxy for a listener on loopback. upstream gets the requests of the browser that has signed in.
func New(listener net.Addr, upstream http.Handler) *Proxy {
	_, port, _ := net.SplitHostPort(listener.String()) // an address of a TCP listener has a port
	return &Proxy{
		addr: listener.String(), upstream: upstream, origins: http.NewCrossOriginProtection(), code: rand.Text(),
		// Browsers send a cookie to all ports of a host, so its name contains the port.
		cookie: http.Cookie{
			Name: "hubrelay_console_" + port, Value: rand.Text() + rand.Text(), Path: "/", HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
		},
	}
}

// URL returns the address that signs in. It can be opened once.
func (p *Proxy) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return "http://" + p.addr + "/?code=" + p.code
}

// ServeHTTP signs in with the code, and forwards requests with the cookie. It rejects requests that a page of another
// origin causes, and host names that a page could point at this machine (DNS rebinding).
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Host != p.addr:
		http.Error(w, "this address is not the one that 'hubrelay console' printed", http.StatusForbidden)
	case p.origins.Check(r) != nil:
		http.Error(w, "pages of another origin may not use the console", http.StatusForbidden)
	case r.URL.Path == "/" && r.URL.Query().Has("code"):
		p.signIn(w, r)
	case !p.isSignedIn(r):
		http.Error(w, "this browser is not signed in: run 'hubrelay console' again", http.StatusUnauthorized)
	case r.URL.Path != "/debug" && !strings.HasPrefix(r.URL.Path, "/debug/"):
		p.upstream.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// signIn exchanges the code for the cookie.
func (p *Proxy) signIn(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	valid := p.code != "" && isEqual(r.URL.Query().Get("code"), p.code)
	if valid {
		p.code = ""
	}
	p.mu.Unlock()
	switch {
	case valid:
		http.SetCookie(w, &p.cookie)
	case !p.isSignedIn(r): // a reload of the page is no second use
		http.Error(w, "this link was used before: run 'hubrelay console' again", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (p *Proxy) isSignedIn(r *http.Request) bool {
	cookie, err := r.Cookie(p.cookie.Name)
	return err == nil && isEqual(cookie.Value, p.cookie.Value)
}

func isEqual(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
