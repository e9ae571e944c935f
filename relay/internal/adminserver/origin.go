package adminserver

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// hostCheck rejects requests for names that anybody could point at a listener (DNS rebinding).
type hostCheck struct {
	host     string // of the configured address
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

// check accepts addresses, names without a dot, which nobody can register, and the host of the setting.
func (c hostCheck) check(r *http.Request, setting string) *relay.Error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == c.host || !strings.Contains(host, ".") || net.ParseIP(host) != nil {
		return nil
	}
	return relay.NewError(relay.CodePermissions, "this listener does not answer to the name "+strconv.Quote(relay.Truncate(r.Host, 200))+
		"; use its address or localhost, or write this name into "+setting)
}

// checkOrigin rejects requests that a browser sends for another site, reads included: profiles and dead letters hold data.
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
