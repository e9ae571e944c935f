package config

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay"
)

func (l *loader) checkSources(sources map[string]Source, catalog *relay.Catalog) {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		l.checkSource("sources."+name, sources[name], catalog)
	}
}

func (l *loader) checkSource(path string, s Source, catalog *relay.Catalog) {
	broken := l.HasErrors(path) // After an error in the form, a key would seem to be missing.
	if s.Type == "" && !broken {
		l.Error(path+".type", "is missing", "write type: hub")
	}
	if s.URL == "" && !broken {
		l.Error(path+".url", "is missing", "set the URL of the upstream, such as https://platform.example")
	} else if s.URL != "" {
		l.checkUpstream(path+".url", s.URL)
	}
	switch {
	case broken:
	case s.Key == "" && s.KeyFile == "":
		l.Error(path, "has no key", "set key or key_file, with an API key of the upstream")
	case s.Key != "" && s.KeyFile != "":
		l.Error(path, "has both key and key_file", "set exactly one")
	default:
		if key, err := s.ReadKey(); err != nil {
			l.Error(path+".key_file", strings.TrimPrefix(err.Error(), "key_file: "),
				"the file must contain only the upstream's API key")
		} else if err := checkHeaderSafe(key); err != nil {
			l.Error(path+".key", err.Error(), "")
		}
	}
	if s.HubID != "" {
		if s.HubID == "*" {
			l.Error(path+".hub_id", "is *, which is not a hub",
				"remove it to receive everything that the key's account may see")
		} else if problem := checkIdentifier(s.HubID); problem != "" {
			l.Error(path+".hub_id", problem, "")
		}
	}
	checkTopics(path, s.Topics, catalog, l.Error)
	for i, t := range s.Topics {
		below := fmt.Sprintf("%s.topics[%d]", path, i)
		if strings.HasPrefix(strings.TrimPrefix(t, "!"), relay.OperationalPrefix) && !l.HasErrors(below) {
			l.Error(below, "an upstream never sends its own events", "remove the pattern")
		}
	}
	if s.CAFile != "" && !broken {
		if text, err := filewatch.ReadFile(s.CAFile); err == nil &&
			!x509.NewCertPool().AppendCertsFromPEM(text) {
			l.Error(path+".ca_file", s.CAFile+" contains no certificate", "name a PEM file of authorities")
		}
	}
}

func (l *loader) checkUpstream(path, address string) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		l.Error(path, "is not an absolute http or https URL",
			"write https://host, https://host:port or https://host/path")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(address, "?#"):
		l.Error(path, "must not contain a user, a query or a fragment", "the key goes into key_file")
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") || strings.Contains(u.Path, "/v1/"):
		l.Error(path, "contains a path of the API", "end it before /v1, which the relay appends")
	case u.Scheme == "http" && !isLoopback(hostPort(u)):
		l.Warn(path, "the key and all events are sent unencrypted", "use https")
	}
}

func hostPort(u *url.URL) string {
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":80"
}

func (l *loader) checkMigration(m *Migration) {
	checkRange(l, "migration.server_concurrency", m.ServerConcurrency, 1, 1024)
	checkRange(l, "migration.expire_after", m.ExpireAfter, time.Second, 365*24*time.Hour)
	checkRange(l, "migration.stall_timeout", m.StallTimeout, 10*time.Second, 365*24*time.Hour)
	switch {
	case !m.Driver.IsSet:
		if m.InventoryFile != "" {
			l.Warn("migration.inventory_file", "has no effect without a driver", "set the command of migration.driver")
		}
		return
	case m.InventoryFile == "":
		l.Warn("migration.driver", "has no migration.inventory_file, so there are no servers",
			"name one, such as a copy of configs/inventory.yaml")
	}
	if !l.HasErrors("migration.driver") { // After an error in the form, a key would seem to be missing.
		l.checkSettings("migration.driver", m.Driver.Settings, relay.CheckEnv{Name: "driver", Dir: l.dir})
	}
}
