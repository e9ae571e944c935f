package docker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/docker/cli/cli/connhelper"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/internal/strictjson"
	"github.com/hubrelay/hubrelay/relay"
)

// settings are the settings of a server in the inventory.
type settings struct {
	// Host is unix:///path, tcp://host:port or ssh://user@host. If it is empty, Docker's default is used.
	Host string `json:"host"`
	TLS  *struct {
		CAFile   string `json:"ca_file"`
		CertFile string `json:"cert_file"`
		KeyFile  string `json:"key_file"`
	} `json:"tls"`
}

const settingsForm = "its settings must be {host: unix:///…, tcp://… or ssh://…, " +
	"tls: {ca_file, cert_file, key_file}}"

// readSettings reads and checks the settings of a server. Its errors name the server.
func readSettings(s relay.Server) (settings, error) {
	var c settings
	if err := strictjson.Decode(s.Settings, &c); err != nil {
		return c, fmt.Errorf("server %s: %s: %w", s.ID, settingsForm, err)
	}
	if c.Host == "" {
		c.Host = client.DefaultDockerHost
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("server %s: %w", s.ID, err)
	}
	return c, nil
}

func (s settings) validate() error {
	u, err := url.Parse(s.Host)
	if err != nil {
		return fmt.Errorf("host %q: %w", s.Host, errors.Unwrap(err)) // a *url.Error repeats the address
	}
	if _, set := u.User.Password(); set {
		return errors.New("host must not contain a password; use SSH keys or tls")
	}
	if s.TLS != nil && u.Scheme != "tcp" {
		return fmt.Errorf("tls requires a host that starts with tcp://, not %s", s.Host)
	}
	switch u.Scheme {
	case "unix":
		if !filepath.IsAbs(u.Path) || u.Host != "" {
			return fmt.Errorf("host %q must name the socket with three slashes, such as unix:///run/docker.sock",
				s.Host)
		}
	case "tcp":
		return s.checkTCP(u)
	case "ssh":
		if _, err := connhelper.GetConnectionHelper(s.Host); err != nil {
			return fmt.Errorf("host %q: %w", s.Host, err)
		}
		if strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(u.User.Username(), "-") {
			return fmt.Errorf("host %q: user and host names must not start with a dash", s.Host)
		}
	default:
		return fmt.Errorf("host %q must start with unix://, tcp:// or ssh://", s.Host)
	}
	return nil
}

func (s settings) checkTCP(u *url.URL) error {
	if u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil {
		return fmt.Errorf("host %q must be tcp://HOST:PORT", s.Host)
	}
	if s.TLS == nil {
		if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("host %q needs tls, because access to an unprotected Docker port is root access to the "+
				"host", s.Host)
		}
		return nil
	}
	for _, f := range []struct{ key, path string }{
		{"ca_file", s.TLS.CAFile}, {"cert_file", s.TLS.CertFile}, {"key_file", s.TLS.KeyFile},
	} {
		if f.path == "" {
			return fmt.Errorf("tls.%s is missing", f.key)
		}
		if _, err := os.Stat(f.path); err != nil {
			return fmt.Errorf("tls.%s: %w", f.key, err)
		}
	}
	if _, err := tls.LoadX509KeyPair(s.TLS.CertFile, s.TLS.KeyFile); err != nil {
		return fmt.Errorf("tls.cert_file and tls.key_file: %w", err)
	}
	return nil
}

// open returns a client. The client connects with its first request.
func (s settings) open() (*client.Client, error) {
	// Docker compresses copied files if the client accepts gzip, as Go's HTTP client does by default. That is twenty
	// times slower.
	opts := []client.Opt{client.WithHTTPHeaders(map[string]string{"Accept-Encoding": "identity"})}
	switch {
	case strings.HasPrefix(s.Host, "ssh://"):
		helper, err := connhelper.GetConnectionHelper(s.Host)
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.WithHost(helper.Host), client.WithDialContext(helper.Dialer))
	case s.TLS != nil:
		opts = append(opts, client.WithHost(s.Host),
			client.WithTLSClientConfig(s.TLS.CAFile, s.TLS.CertFile, s.TLS.KeyFile))
	default:
		opts = append(opts, client.WithHost(s.Host))
	}
	return client.New(opts...)
}

var (
	instanceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}$`)
	workName     = regexp.MustCompile(`\.(leaving|left|arriving|carrier)-[0-9]+(\.|$)`)
)

// checkInstance rejects an ID that cannot be the name of a container, or that looks like a name of the driver.
func checkInstance(id string) error {
	switch {
	case !instanceName.MatchString(id):
		return fmt.Errorf(
			"instance %.80q cannot be the name of a container; use two or more letters, digits, '_', '.' and '-'", id,
		)
	case workName.MatchString(id):
		return fmt.Errorf("instance %.80q has a name that is reserved for containers in transit", id)
	}
	return nil
}
