package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// validate checks the meaning of each value. The conversion has already checked the form.
func (l *loader) validate(c *Config) {
	l.checkServer(&c.Server)
	l.checkListen("health.listen", c.Health.Listen)
	if c.Health.Listen == c.Server.Listen && !isAnyPort(c.Health.Listen) {
		l.Error("health.listen", "is the same address as server.listen", "give each listener its own port")
	}
	l.checkAdmin(c)
	l.checkRedis(&c.Redis)
	l.checkWebsocket(&c.Websocket)
	catalog := l.buildCatalog(c.Notifications.ExtraTopics)
	checkRange(l, "server.max_connections", c.Server.MaxConnections, 0, 1<<24)
	checkRange(l, "server.max_connections_per_ip", c.Server.MaxConnectionsPerIP, 0, 1<<24)
	checkRange(l, "auth.token_ttl", c.Auth.TokenTTL, time.Second, time.Hour)
	checkRange(l, "auth.stream_ttl", c.Auth.StreamTTL, time.Minute, 720*time.Hour)
	l.checkKeys(&c.Auth, catalog)
	l.checkJWT(&c.Auth.JWT)
	l.checkForward(&c.Auth.Forward)
	l.checkMTLS(c)
	checkRange(l, "audit.max_len", c.Audit.MaxLen, 0, 100_000_000)
	if c.Audit.HashChain && (c.Audit.File == "" || c.Audit.File == "stdout") {
		l.Error("audit.hash_chain", "needs a file", "set audit.file to a file of this node")
	}
	checkRange(l, "history.max_age", c.History.MaxAge, time.Minute, 90*24*time.Hour)
	checkRange(l, "history.max_bytes", c.History.MaxBytes, 1<<20, 64<<30)
	l.checkQuota("quotas.key", c.Quotas.Key)
	l.checkQuota("quotas.account", c.Quotas.Account)
	l.checkQuota("quotas.ip", c.Quotas.IP)
	checkRange(l, "quotas.requests.per_second", c.Quotas.Requests.PerSecond, 0, 1<<30)
	checkRange(l, "quotas.requests.burst", c.Quotas.Requests.Burst, 100*time.Millisecond, time.Hour)
	names := make([]string, 0, len(c.Sinks))
	for name := range c.Sinks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c.Sinks[name] = l.checkSink("sinks."+name, c.Sinks[name], catalog)
	}
	l.warnSkippedSamples()
	l.checkSources(c.Sources, catalog)
	l.checkMigration(&c.Migration)
}

// checkRange reports a number below minValue or above maxValue.
func checkRange[T interface {
	~int | ~int64
}](l *loader, path string, got, minValue, maxValue T,
) {
	if got < minValue || got > maxValue {
		l.Error(path, formatScalar(reflect.ValueOf(got))+" is out of range",
			fmt.Sprintf(
				"choose a value from %s to %s", formatScalar(reflect.ValueOf(minValue)),
				formatScalar(reflect.ValueOf(maxValue)),
			))
	}
}

func (l *loader) checkServer(s *Server) {
	l.checkListen("server.listen", s.Listen)
	checkRange(l, "server.max_body", s.MaxBody, 1<<10, 64<<20)
	checkRange(l, "server.body_memory", s.BodyMemory, 1<<20, 64<<30)
	checkRange(l, "server.body_min_rate", s.BodyMinRate, 256, 1<<30)
	checkRange(l, "server.shutdown_grace", s.ShutdownGrace, time.Millisecond, time.Hour)
	if s.PublicURL != "" {
		if problem := checkPublicURL(s.PublicURL); problem != "" {
			l.Error("server.public_url", problem, "write https://host, https://host:port or https://host/path")
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
			l.Error(path, fmt.Sprintf("%q is not an origin", relay.Truncate(o, maxQuoted)),
				"write https://host, https://host:port or *")
		case u.Scheme == "http" && !isLoopback(net.JoinHostPort(u.Hostname(), "80")):
			l.Warn(path, "pages over plain http can be modified in transit", "use https")
		}
	}
	for i, proxy := range s.TrustedProxies {
		if _, err := clientaddr.ParseNetworks([]string{proxy}); err != nil {
			l.Error(fmt.Sprintf("server.trusted_proxies[%d]", i),
				fmt.Sprintf("%q is not a network", relay.Truncate(proxy, maxQuoted)),
				"write an address such as 10.0.0.1, or a network such as 10.0.0.0/8")
		}
	}
	if !httpguts.ValidHeaderFieldName(s.TrustedProxiesHeader) {
		l.Error("server.trusted_proxies_header", fmt.Sprintf("%q is not the name of a header",
			relay.Truncate(s.TrustedProxiesHeader, maxQuoted)), "write X-Forwarded-For, or the header that your proxy sets")
	}
	l.checkTLS("server.tls", &s.TLS)
}

func (l *loader) checkQuota(path string, q Quota) {
	checkRange(l, path+".notifications", q.Notifications, 0, 1<<30)
	checkRange(l, path+".bytes", q.Bytes, 0, 1<<40)
	checkRange(l, path+".burst", q.Burst, 100*time.Millisecond, time.Hour)
}

func checkPublicURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "is not an absolute http or https URL"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(s, "?#"):
		return "must not contain a user, a query or a fragment"
	}
	return ""
}

func (l *loader) checkListen(path, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.Contains(address, "/") {
		l.Error(path, fmt.Sprintf("%q is not an address", relay.Truncate(address, maxQuoted)),
			"write host:port, such as 127.0.0.1:8080 or :8080")
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		l.Error(path, fmt.Sprintf("%q is not a port", relay.Truncate(port, maxQuoted)),
			"choose a number from 1 to 65535, or 0 for any that is free")
	} else if _, err := netip.ParseAddr(host); err != nil && host != "" && !hostName().MatchString(host) {
		l.Error(path, fmt.Sprintf("%q is not a host (port %d)", relay.Truncate(host, maxQuoted), n),
			"write a name or an IP address; IPv6 goes in brackets")
	}
}

var (
	hostName    = onceRegexp(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	redisPrefix = onceRegexp(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$`)
)

// isAnyPort reports whether the system chooses the port. Two such addresses do not collide.
func isAnyPort(address string) bool { return strings.HasSuffix(address, ":0") }

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // reported by checkListen
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}

func (l *loader) checkTLS(path string, t *TLS) {
	switch {
	case l.HasErrors(path), t.CertFile == "" && t.KeyFile == "":
		return
	case t.CertFile == "":
		l.Error(path+".cert_file", "is required with key_file", "set both for TLS, or none for plain HTTP")
		return
	case t.KeyFile == "":
		l.Error(path+".key_file", "is required with cert_file", "set both for TLS, or none for plain HTTP")
		return
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		l.Error(path, "certificate and key do not match: "+strings.TrimPrefix(err.Error(), "tls: "), "")
		return
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil && time.Now().After(leaf.NotAfter) {
		l.Warn(path+".cert_file", "the certificate expired on "+leaf.NotAfter.Format(time.DateOnly), "renew it")
	}
}

func (l *loader) checkRedis(r *Redis) {
	switch {
	case r.URLFile == "" || l.HasErrors("redis"):
	case r.URL != "":
		l.Error("redis.url_file", "conflicts with redis.url", "set only one of them")
	default:
		var err error
		if r.URL, err = readSecret(r.URLFile); err != nil {
			l.Error("redis.url_file", err.Error(), "")
			return
		}
	}
	if r.URL == "" {
		if r.DataDir == "" {
			l.Error("redis.data_dir", "is empty", "name a directory for the embedded redis-server, or set redis.url")
		}
	} else if problem := checkRedisURL(r.URL); problem != "" {
		l.Error("redis.url", problem,
			"write redis://host:6379, rediss://, unix:///path, redis+sentinel://, redis+cluster:// or memory:")
	}
	if !redisPrefix().MatchString(r.Prefix) {
		l.Error("redis.prefix", fmt.Sprintf("%q is not a valid key prefix", relay.Truncate(r.Prefix, maxQuoted)),
			"use 1 to 63 of A-Z, a-z, 0-9, _, ., : and -")
	}
	checkRange(l, "redis.partitions", r.Partitions, 1, 1024)
	checkRange(l, "redis.min_replicas", r.MinReplicas, 0, 16)
	if r.MinReplicas > 0 && (r.URL == "" || r.URL == "memory:") {
		l.Error("redis.min_replicas", "cannot be satisfied, because the embedded Redis has no replicas",
			"set redis.url, or redis.min_replicas to 0")
	}
	checkRange(l, "redis.retention.history", r.Retention.History, time.Second, 10*365*24*time.Hour)
	if r.MaxMemory != 0 {
		checkRange(l, "redis.max_memory", r.MaxMemory, 16<<20, 1<<50)
	}
	checkRange(l, "redis.full_at", r.FullAt, 50, 100)
	checkRange(l, "redis.retention.max_bytes", r.Retention.MaxBytes, 0, 1<<50)
	checkRange(l, "redis.retention.max_len", r.Retention.MaxLen, 1, 1<<40)
}

// splitURL is a URL in parts. net/url supports only one host, but Redis URLs may have several.
type splitURL struct{ scheme, user, hosts, path, query string }

func parseURLParts(s string) (splitURL, bool) {
	scheme, rest, ok := strings.Cut(s, "://")
	rest, query, _ := strings.Cut(rest, "?")
	a := splitURL{scheme: scheme, hosts: rest, query: query}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		a.hosts, a.path = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(a.hosts, '@'); i >= 0 {
		a.user, a.hosts = a.hosts[:i], a.hosts[i+1:]
	}
	return a, ok
}

// hasStrayAt reports whether an "@" follows the hosts. Then the password probably contains an unescaped "/" or
// "?", and its end is in the path or query.
func (s splitURL) hasStrayAt() bool {
	return s.scheme != "unix" && strings.Contains(s.path+s.query, "@")
}

// checkRedisURL returns the problem of a Redis URL, or "". The text never contains the URL, because that may
// contain a password. Package redisconn checks what depends on the scheme.
func checkRedisURL(s string) string {
	if s == "memory:" {
		return ""
	}
	schemes := []string{"redis", "rediss", "unix", "redis+sentinel", "redis+cluster"}
	a, ok := parseURLParts(s)
	switch {
	case !ok:
		return "is not a URL"
	case !slices.Contains(schemes, a.scheme):
		if near := suggest.ClosestName(a.scheme, schemes); near != "" {
			return fmt.Sprintf("has the unknown scheme %q (did you mean %q?)", relay.Truncate(a.scheme, maxQuoted),
				near)
		}
		return "has no Redis scheme"
	case a.hasStrayAt() && (strings.Contains(a.path, "@") || !strings.Contains(a.query, "=")):
		return "has an @ after its host: percent-encode the special characters of its password (/ is %2F, ? is " +
			"%3F, @ is %40)"
	case a.scheme == "unix" && (a.hosts != "" || len(a.path) < 2):
		return "names no socket"
	case strings.Contains(a.hosts, ",") && !strings.HasPrefix(a.scheme, "redis+"):
		return "names several hosts, which only redis+sentinel:// and redis+cluster:// can"
	case a.scheme == "redis+sentinel" && len(a.path) < 2:
		return "names no master after its hosts"
	case strings.HasPrefix(a.scheme, "redis+") && a.hosts == "":
		return "names no host"
	}
	return ""
}

// buildCatalog returns the topics that patterns may match. Invalid extra topics are reported and omitted.
func (l *loader) buildCatalog(extra []string) *relay.Catalog {
	var good []string
	for i, t := range extra {
		if _, err := relay.NewCatalog([]string{t}); err != nil {
			l.Error(fmt.Sprintf("notifications.extra_topics[%d]", i), err.Error(), "")
			continue
		}
		good = append(good, t)
	}
	c, err := relay.NewCatalog(good)
	if err != nil {
		l.Error("notifications.extra_topics", err.Error(), "")
	}
	return c
}

// checkSink checks one sink. It returns the sink with the filter lists in the form of relay.Filter.
func (l *loader) checkSink(path string, s Sink, catalog *relay.Catalog) Sink {
	read := !l.HasErrors(path) // After an error in the form, a key would seem to be missing.
	l.checkFilters(path, &s, catalog)
	checkRange(l, path+".timeout", s.Timeout, time.Millisecond, time.Hour)
	checkRange(l, path+".concurrency", s.Concurrency, 1, 1024)
	checkRange(l, path+".backlog", s.Backlog, 1, 1<<40)
	checkRange(l, path+".account_share", s.AccountShare, 1, 100)
	checkRange(l, path+".backlog_bytes", s.BacklogBytes, 0, 1<<40)
	checkRange(l, path+".retry.max_age", s.Retry.MaxAge, time.Second, 10*365*24*time.Hour)
	if s.DisableAfter != 0 {
		checkRange(l, path+".disable_after", s.DisableAfter, time.Minute, 10*365*24*time.Hour)
	}
	checkRange(l, path+".retry.max_attempts", s.Retry.MaxAttempts, 0, 100)
	if s.Retry.MaxAttempts > 1 && len(s.Retry.Schedule) == 0 {
		l.Error(path+".retry.max_attempts", "allows more attempts, but the schedule is empty",
			"add a delay to retry.schedule, or remove the key")
	}
	for i, d := range s.Retry.Schedule {
		checkRange(l, fmt.Sprintf("%s.retry.schedule[%d]", path, i), d, time.Millisecond, 365*24*time.Hour)
	}
	l.checkPacing(path, &s)
	if !read {
		return s
	}
	name := strings.TrimPrefix(path, "sinks.")
	if l.checkSettings(path, s.Settings, relay.CheckEnv{Name: name, Dir: l.dir}) {
		l.checkBatch(path, &s)
		l.checkSamples(path, s, catalog)
	}
	return s
}

// checkSettings checks the keys of a sink kind or of the driver. It reports whether they are valid.
func (l *loader) checkSettings(path string, c relay.Config, env relay.CheckEnv) (valid bool) {
	report := c.Check(context.Background(), env)
	l.addErrors(path, report.Errors)
	if len(report.Errors) == 0 {
		l.addWarnings(path, report.Warnings)
	}
	return len(report.Errors) == 0
}

func (l *loader) addErrors(path string, list []relay.FieldError) {
	for _, f := range list {
		field := fieldPath(path, f.Field)
		l.ErrorAt(l.Origins.Of(field), field, f.Problem, "")
	}
}

func (l *loader) addWarnings(path string, list []relay.FieldError) {
	for _, f := range list {
		l.Warn(fieldPath(path, f.Field), f.Problem, "")
	}
}

// fieldPath returns the path of a field, or path itself if field is empty.
func fieldPath(path, field string) string {
	if field == "" {
		return path
	}
	return path + "." + bracketPath(field)
}

// bracketPath converts a.0.b into a[0].b, the notation of paths in this package.
func bracketPath(field string) string {
	return indexSegment().ReplaceAllString(field, "[$1]")
}

var indexSegment = onceRegexp(`\.(\d+)`)
