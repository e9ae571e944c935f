package adminserver

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// hostCheck rejects requests with host names that any attacker could point at the listener (DNS rebinding).
type hostCheck struct {
	host     string // host of the configured address
	loopback bool
}

func newHostCheck(listen string) hostCheck {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		host = listen
	}
	ip := net.ParseIP(host)
	return hostCheck{host: strings.ToLower(host), loopback: host == "localhost" || ip != nil && ip.IsLoopback()}
}

// check accepts IP addresses, names without a dot, which cannot be registered, and the host in the setting.
func (c hostCheck) check(r *http.Request, setting string) *relay.Error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == c.host || !strings.Contains(host, ".") || net.ParseIP(host) != nil {
		return nil
	}
	return relay.NewError(relay.CodePermissions, "this listener does not accept the host name "+strconv.Quote(
		relay.Truncate(r.Host, 200),
	)+
		"; use its address or localhost, or set this name in "+setting)
}

// isNavigation reports whether a browser follows a link or an address, also one on a page of another origin.
func isNavigation(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// checkOrigin rejects requests that a browser sends for another site. This includes reads, because profiles and
// dead letters contain data.
func checkOrigin(r *http.Request) *relay.Error {
	foreign := relay.NewError(relay.CodePermissions, "web pages of another origin may not use the admin listener")
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return foreign
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return foreign
	}
	return nil
}
