package config

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/document"
)

// maxAuthorities bounds a file of authorities.
const maxAuthorities = 1 << 20

func (l *loader) sources(sources map[string]Source, catalog *relay.Catalog) {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		l.source("sources."+name, sources[name], catalog)
	}
}

func (l *loader) source(path string, s Source, catalog *relay.Catalog) {
	broken := l.Failed(path) // then what seems to be missing may be the thing that was misspelled
	if s.Type == "" && !broken {
		l.Bad(path+".type", "is missing", "write type: hub")
	}
	if s.URL == "" && !broken {
		l.Bad(path+".url", "is missing", "give the address of the upstream, such as https://platform.example")
	} else if s.URL != "" {
		l.upstream(path+".url", s.URL)
	}
	switch {
	case broken:
	case s.Key == "" && s.KeyFile == "":
		l.Bad(path, "has no key", "give one of key and key_file, with an API key of the upstream")
	case s.Key != "" && s.KeyFile != "":
		l.Bad(path, "has both key and key_file", "give exactly one")
	default:
		if key, err := s.ReadKey(); err != nil {
			l.Bad(path+".key_file", strings.TrimPrefix(err.Error(), "key_file: "), "it holds the upstream's API key and nothing else")
		} else if err := checkSent(key); err != nil {
			l.Bad(path+".key", err.Error(), "")
		}
	}
	if s.HubID != "" {
		if s.HubID == "*" {
			l.Bad(path+".hub_id", "is *, which is no hub", "leave it out for all that the key's account may see")
		} else if problem := checkIdentifier(s.HubID); problem != "" {
			l.Bad(path+".hub_id", problem, "")
		}
	}
	for i, t := range s.Topics {
		if catalog == nil {
			break
		}
		if err := catalog.CheckPatterns([]string{t}); err != nil {
			l.Bad(fmt.Sprintf("%s.topics[%d]", path, i), err.Error(), "")
		} else if strings.HasPrefix(strings.TrimPrefix(t, "!"), relay.OperationalPrefix) {
			l.Bad(fmt.Sprintf("%s.topics[%d]", path, i), "no upstream sends its own notifications", "leave it out")
		}
	}
	if s.CAFile != "" && !broken {
		if text, err := document.ReadBounded(s.CAFile, maxAuthorities); err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
			l.Bad(path+".ca_file", s.CAFile+" holds no certificate", "name a PEM file of authorities")
		}
	}
}

func (l *loader) upstream(path, address string) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		l.Bad(path, "is not an absolute http or https URL", "write https://host, https://host:port or https://host/path")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(address, "?#"):
		l.Bad(path, "must not hold a user, a query or a fragment", "the key goes into key_file")
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") || strings.Contains(u.Path, "/v1/"):
		l.Bad(path, "leads into the API", "end it before /v1, which is added")
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
