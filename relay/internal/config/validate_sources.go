package config

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// maxCAFile bounds a file of authorities.
const maxCAFile = 1 << 20

func (l *loader) checkSources(sources map[string]Source, catalog *relay.Catalog) {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		l.checkSource("sources."+name, sources[name], catalog)
	}
}

func (l *loader) checkSource(path string, s Source, catalog *relay.Catalog) {
	broken := l.HasErrors(path) // then what seems to be missing may be the thing that was misspelled
	if s.Type == "" && !broken {
		l.Error(path+".type", "is missing", "write type: hub")
	}
	if s.URL == "" && !broken {
		l.Error(path+".url", "is missing", "give the address of the upstream, such as https://platform.example")
	} else if s.URL != "" {
		l.checkUpstream(path+".url", s.URL)
	}
	switch {
	case broken:
	case s.Key == "" && s.KeyFile == "":
		l.Error(path, "has no key", "give one of key and key_file, with an API key of the upstream")
	case s.Key != "" && s.KeyFile != "":
		l.Error(path, "has both key and key_file", "give exactly one")
	default:
		if key, err := s.ReadKey(); err != nil {
			l.Error(path+".key_file", strings.TrimPrefix(err.Error(), "key_file: "), "it holds the upstream's API key and nothing else")
		} else if err := checkHeaderSafe(key); err != nil {
			l.Error(path+".key", err.Error(), "")
		}
	}
	if s.HubID != "" {
		if s.HubID == "*" {
			l.Error(path+".hub_id", "is *, which is no hub", "leave it out for all that the key's account may see")
		} else if problem := checkIdentifier(s.HubID); problem != "" {
			l.Error(path+".hub_id", problem, "")
		}
	}
	for i, t := range s.Topics {
		if catalog == nil {
			break
		}
		if err := catalog.CheckPatterns([]string{t}); err != nil {
			l.Error(fmt.Sprintf("%s.topics[%d]", path, i), err.Error(), "")
		} else if strings.HasPrefix(strings.TrimPrefix(t, "!"), relay.OperationalPrefix) {
			l.Error(fmt.Sprintf("%s.topics[%d]", path, i), "no upstream sends its own notifications", "leave it out")
		}
	}
	if s.CAFile != "" && !broken {
		if text, err := yamldoc.ReadBounded(s.CAFile, maxCAFile); err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
			l.Error(path+".ca_file", s.CAFile+" holds no certificate", "name a PEM file of authorities")
		}
	}
}

func (l *loader) checkUpstream(path, address string) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		l.Error(path, "is not an absolute http or https URL", "write https://host, https://host:port or https://host/path")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(address, "?#"):
		l.Error(path, "must not hold a user, a query or a fragment", "the key goes into key_file")
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") || strings.Contains(u.Path, "/v1/"):
		l.Error(path, "leads into the API", "end it before /v1, which is added")
	case u.Scheme == "http" && !isLoopback(hostPort(u)):
		l.Warn(path, "the key and all notifications travel without protection", "use https")
	}
}

func hostPort(u *url.URL) string {
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":80"
}
