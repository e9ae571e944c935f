package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// validate checks what each value means, after its form was checked on the way in.
func (l *loader) validate(c *Config) {
	l.server(&c.Server)
	l.listen("health.listen", c.Health.Listen)
	if c.Health.Listen == c.Server.Listen && !isAnyPort(c.Health.Listen) {
		l.Bad("health.listen", "is the same address as server.listen", "give each listener its own port")
	}
	l.admin(c)
	l.redis(&c.Redis)
	l.websocket(&c.Websocket)
	catalog := l.catalog(c.Notifications.ExtraTopics)
	between(l, "auth.token_ttl", c.Auth.TokenTTL, time.Second, time.Hour)
	l.keys(c.Auth.Keys)
	names := make([]string, 0, len(c.Sinks))
	for name := range c.Sinks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c.Sinks[name] = l.sink("sinks."+name, c.Sinks[name], catalog)
	}
	l.warnOfRehearsals()
	l.sources(c.Sources, catalog)
	l.migration(&c.Migration)
}

// between reports a number outside its bounds, both of which are allowed.
func between[T interface {
	~int | ~int64
}](l *loader, path string, got, least, most T,
) {
	if got < least || got > most {
		l.Bad(path, text(reflect.ValueOf(got))+" is out of range",
			fmt.Sprintf("choose something from %s to %s", text(reflect.ValueOf(least)), text(reflect.ValueOf(most))))
	}
}

func (l *loader) server(s *Server) {
	l.listen("server.listen", s.Listen)
	between(l, "server.max_body", s.MaxBody, 1<<10, 64<<20)
	between(l, "server.shutdown_grace", s.ShutdownGrace, time.Millisecond, time.Hour)
	if s.PublicURL != "" {
		if problem := checkPublicURL(s.PublicURL); problem != "" {
			l.Bad("server.public_url", problem, "write https://host, https://host:port or https://host/path")
		}
		s.PublicURL = strings.TrimRight(s.PublicURL, "/")
	}
	for i, o := range s.AllowedOrigins {
		path := fmt.Sprintf("server.allowed_origins[%d]", i)
		u, err := url.Parse(o)
		switch {
		case o == "*":
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || o != u.Scheme+"://"+u.Host,
			strings.Contains(u.Host, "*"):
			l.Bad(path, fmt.Sprintf("%q is not an origin", relay.Clip(o, clipAt)), "write https://host, https://host:port or *")
		case u.Scheme == "http" && !isLoopback(net.JoinHostPort(u.Hostname(), "80")):
			l.Warn(path, "pages over plain http can be changed on their way", "use https")
		}
	}
	l.tls("server.tls", &s.TLS)
}

func checkPublicURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "is not an absolute http or https URL"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(s, "?#"):
		return "must not hold a user, a query or a fragment"
	}
	return ""
}

func (l *loader) listen(path, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		l.Bad(path, fmt.Sprintf("%q is not an address", relay.Clip(address, clipAt)), "write host:port, such as 127.0.0.1:8080 or :8080")
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		l.Bad(path, fmt.Sprintf("%q is not a port", relay.Clip(port, clipAt)), "choose a number from 1 to 65535, or 0 for any that is free")
	} else if _, err := netip.ParseAddr(host); err != nil && host != "" && !hostName().MatchString(host) {
		l.Bad(path, fmt.Sprintf("%q is not a host (port %d)", relay.Clip(host, clipAt), n), "write a name or an IP address; IPv6 goes in brackets")
	}
}

func hostName() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
}

// isAnyPort reports whether the system chooses the port, so that equal addresses do not collide.
func isAnyPort(address string) bool { return strings.HasSuffix(address, ":0") }

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // reported elsewhere
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}

func (l *loader) tls(path string, t *TLS) {
	switch {
	case l.Failed(path), t.CertFile == "" && t.KeyFile == "":
		return
	case t.CertFile == "":
		l.Bad(path+".cert_file", "is missing beside key_file", "give both for TLS, or none for plain HTTP")
		return
	case t.KeyFile == "":
		l.Bad(path+".key_file", "is missing beside cert_file", "give both for TLS, or none for plain HTTP")
		return
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		l.Bad(path, "certificate and key are no pair: "+strings.TrimPrefix(err.Error(), "tls: "), "")
		return
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil && time.Now().After(leaf.NotAfter) {
		l.Warn(path+".cert_file", "the certificate expired on "+leaf.NotAfter.Format(time.DateOnly), "renew it")
	}
}

func (l *loader) redis(r *Redis) {
	switch {
	case r.URLFile == "" || l.Failed("redis"):
	case r.URL != "":
		l.Bad("redis.url_file", "is given beside redis.url", "give one of them")
	default:
		r.URL, _ = readSecret(r.URLFile) // filePath has read it before
	}
	if r.URL == "" {
		if r.DataDir == "" {
			l.Bad("redis.data_dir", "is empty", "our own redis-server needs a folder; or set redis.url")
		}
	} else if problem := checkRedisURL(r.URL); problem != "" {
		l.Bad("redis.url", problem, "write redis://host:6379, rediss://, unix:///path, redis+sentinel://, redis+cluster:// or memory:")
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$`).MatchString(r.Prefix) {
		l.Bad("redis.prefix", fmt.Sprintf("%q cannot begin the name of a key", relay.Clip(r.Prefix, clipAt)), "use 1 to 63 of A-Z, a-z, 0-9, _, ., : and -")
	}
	between(l, "redis.partitions", r.Partitions, 1, 1024)
	between(l, "redis.min_replicas", r.MinReplicas, 0, 16)
	if r.MinReplicas > 0 && (r.URL == "" || r.URL == "memory:") {
		l.Bad("redis.min_replicas", "can never be reached, since a Redis of the relay's own has no replicas", "set redis.url, or redis.min_replicas to 0")
	}
	between(l, "redis.retention.history", r.Retention.History, time.Second, 10*365*24*time.Hour)
	between(l, "redis.retention.max_len", r.Retention.MaxLen, 1, 1<<40)
}

// address is a URL in parts. net/url knows one host only, and Redis has URLs with several.
type address struct{ scheme, user, hosts, path, query string }

func splitAddress(s string) (address, bool) {
	scheme, rest, ok := strings.Cut(s, "://")
	rest, query, _ := strings.Cut(rest, "?")
	a := address{scheme: scheme, hosts: rest, query: query}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		a.hosts, a.path = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(a.hosts, '@'); i >= 0 {
		a.user, a.hosts = a.hosts[:i], a.hosts[i+1:]
	}
	return a, ok
}

// misread says whether an @ stands behind the hosts: then a password may hold / or ? as they are, and its end passes for
// something else.
func (a address) misread() bool { return a.scheme != "unix" && strings.Contains(a.path+a.query, "@") }

// checkRedisURL never repeats the URL, which may hold a password. What only some schemes know, backbone checks.
func checkRedisURL(s string) string {
	if s == "memory:" {
		return ""
	}
	schemes := []string{"redis", "rediss", "unix", "redis+sentinel", "redis+cluster"}
	a, ok := splitAddress(s)
	switch {
	case !ok:
		return "is not a URL"
	case !slices.Contains(schemes, a.scheme):
		if near := relay.Nearest(a.scheme, schemes); near != "" {
			return fmt.Sprintf("has the unknown scheme %q (did you mean %q?)", relay.Clip(a.scheme, clipAt), near)
		}
		return "has no scheme that leads to a Redis"
	case a.misread() && (strings.Contains(a.path, "@") || !strings.Contains(a.query, "=")):
		return "has an @ behind its host: percent-encode the special characters of its password (/ is %2F, ? is %3F, @ is %40)"
	case a.scheme == "unix" && (a.hosts != "" || len(a.path) < 2):
		return "names no socket"
	case strings.Contains(a.hosts, ",") && !strings.HasPrefix(a.scheme, "redis+"):
		return "names several hosts, which only redis+sentinel:// and redis+cluster:// can"
	case a.scheme == "redis+sentinel" && len(a.path) < 2:
		return "names no master behind its hosts"
	case strings.HasPrefix(a.scheme, "redis+") && a.hosts == "":
		return "names no host"
	}
	return ""
}

// catalog returns the topics that patterns may match. Bad extra names are reported and left out.
func (l *loader) catalog(extra []string) *relay.Catalog {
	var good []string
	for i, t := range extra {
		if _, err := relay.NewCatalog([]string{t}); err != nil {
			l.Bad(fmt.Sprintf("notifications.extra_topics[%d]", i), err.Error(), "")
			continue
		}
		good = append(good, t)
	}
	c, err := relay.NewCatalog(good)
	if err != nil {
		l.Bad("notifications.extra_topics", err.Error(), "")
	}
	return c
}

// sink checks one sink and returns it with its filters as relay.Filter wants them.
func (l *loader) sink(path string, s Sink, catalog *relay.Catalog) Sink {
	read := !l.Failed(path) // a setting that could not be read would seem to be missing
	l.filters(path, &s, catalog)
	between(l, path+".timeout", s.Timeout, time.Millisecond, time.Hour)
	between(l, path+".concurrency", s.Concurrency, 1, 1024)
	between(l, path+".backlog", s.Backlog, 1, 1<<40)
	between(l, path+".retry.max_age", s.Retry.MaxAge, time.Second, 10*365*24*time.Hour)
	if s.DisableAfter != 0 {
		between(l, path+".disable_after", s.DisableAfter, time.Minute, 10*365*24*time.Hour)
	}
	between(l, path+".retry.max_attempts", s.Retry.MaxAttempts, 0, 100)
	if s.Retry.MaxAttempts > 1 && len(s.Retry.Schedule) == 0 {
		l.Bad(path+".retry.max_attempts", "asks for further attempts, and the schedule is empty", "give retry.schedule a wait, or leave it out")
	}
	for i, d := range s.Retry.Schedule {
		between(l, fmt.Sprintf("%s.retry.schedule[%d]", path, i), d, time.Millisecond, 365*24*time.Hour)
	}
	l.pace(path, &s)
	if !read {
		return s
	}
	if l.settings(path, s.Settings) {
		l.batches(path, &s)
		l.rehearse(path, s, catalog)
	}
	return s
}

// settings checks what belongs to the kind of a sink, or to the driver, alone, and tells whether it is valid.
func (l *loader) settings(path string, c interface{ Validate() error }) (valid bool) {
	if err := c.Validate(); err != nil {
		l.invalid(path, err)
		return false
	}
	if w, ok := c.(relay.SinkWarner); ok {
		for _, f := range w.Warnings() {
			l.Warn(path+"."+bracketed(f.Field), f.Problem, "")
		}
	}
	return true
}

// invalid reports what Validate of a kind's own settings returned.
func (l *loader) invalid(path string, err error) {
	var several interface{ Unwrap() []error }
	var field *relay.FieldError
	switch {
	case errors.As(err, &several):
		for _, one := range several.Unwrap() {
			l.invalid(path, one)
		}
	case errors.As(err, &field):
		path += "." + bracketed(field.Field)
		l.BadAt(l.Origins.Of(path), path, field.Problem, "")
	default:
		l.BadAt(l.Origins.Of(path), path, err.Error(), "")
	}
}

// bracketed writes a.0.b as a[0].b, the way all paths here are written.
func bracketed(field string) string {
	return regexp.MustCompile(`\.(\d+)`).ReplaceAllString(field, "[$1]")
}
