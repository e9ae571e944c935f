package email

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/mail"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// How a connection is protected.
const (
	tlsStart    = "starttls"
	tlsImplicit = "tls"
	tlsNone     = "none"
)

// Config is the configuration of one mail sink.
type Config struct {
	// Host and Port are the server's. A port of zero is the usual one: 587 for starttls, 465 for tls, 25 for none.
	Host string `koanf:"host" doc:"The mail server's name."`
	Port int    `koanf:"port" doc:"Its port; 0 for the usual one: 587 with starttls, 465 with tls, 25 with none."`
	// TLS is the protection of the connection. It is unencrypted only with none.
	TLS string `koanf:"tls" enum:"starttls,tls,none" doc:"starttls (required), tls, or none (unencrypted)."`
	// CAFile holds the authorities that are trusted instead of the system's.
	CAFile string `koanf:"ca_file" doc:"Authorities (PEM) that are trusted instead of the system's."`
	// Username is empty if the server requires no login. There is no password then.
	Username     string `koanf:"username" doc:"User for the login; empty for none."`
	Password     string `koanf:"password" secret:"true" doc:"Password for the username."`
	PasswordFile string `koanf:"password_file" doc:"A file that holds the password, read again when it changes."`
	Auth         string `koanf:"auth" enum:"plain,login" doc:"plain, or login for servers that require it."`
	// Sender, To and Cc are addresses, with or without a name.
	Sender string   `koanf:"sender" doc:"The sender, such as hubrelay <hubrelay@example.com>."`
	To     []string `koanf:"to" doc:"Recipients. If the server rejects one, no one receives the mail."`
	Cc     []string `koanf:"cc" doc:"Further receivers."`
	// The templates are rendered by internal/tmpl. Each is inline or in a file. An empty result uses the default text.
	SubjectTemplate     string `koanf:"subject_template" doc:"Subject as a Go template, one line (docs/templates.md)."`
	SubjectTemplateFile string `koanf:"subject_template_file" doc:"File with the subject_template."`
	TextTemplate        string `koanf:"text_template" doc:"Text as a Go template."`
	TextTemplateFile    string `koanf:"text_template_file" doc:"File with the text_template."`
	HTMLTemplate        string `koanf:"html_template" doc:"HTML as a Go template, with escaping."`
	HTMLTemplateFile    string `koanf:"html_template_file" doc:"File with the html_template."`
	// AllowCIDRs name the addresses that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Non-public addresses that may be dialed."`
}

// Check implements [relay.Config].
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	err := c.validate()
	if err == nil && env.Samples != nil {
		err = c.validateSamples(ctx, env.Name, env.Samples())
	}
	return relay.NewReport(err)
}

// validate reports every bad value as a [relay.FieldError], joined. It reads the files, and asks no DNS.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	g, err := netguard.New(c.AllowCIDRs)
	errs = append(errs, err)
	switch {
	case c.Host == "":
		bad("host", "is missing: name the mail server, such as smtp.example.com")
	case strings.ContainsAny(c.Host, " \t\r\n/@") || strings.Contains(c.Host, ":") && strings.Count(c.Host, ":") < 2:
		bad("host", "is not the name of a host: write the name alone, the port in port")
	case g != nil:
		if err := g.CheckHost(c.Host); err != nil {
			bad("host", "cannot be dialed: "+err.Error())
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("port", fmt.Sprintf("is %d: choose from 1 to 65535, or 0 for the usual one", c.Port))
	}
	if c.TLS != tlsStart && c.TLS != tlsImplicit && c.TLS != tlsNone {
		bad("tls", "is not known: choose starttls, tls or none")
	}
	if _, err := c.rootCAs(); err != nil {
		bad("ca_file", err.Error())
	}
	errs = append(errs, c.checkLogin())
	errs = append(errs, c.checkAddresses(), c.templateSources().Check())
	return errors.Join(errs...)
}

func (c *Config) checkLogin() error {
	given := c.passwordSetting().IsSet()
	field := func(name, problem string) error { return &relay.FieldError{Field: name, Problem: problem} }
	switch {
	case c.Auth != "plain" && c.Auth != "login":
		return field("auth", "is not known: choose plain or login")
	case c.Username == "" && given:
		return field("username", "is missing; the password requires it")
	case c.Username != "" && !given:
		return field("password", "is missing; username requires it, here or in password_file")
	case given && c.TLS == tlsNone:
		return field(
			"tls", "is none, so the password would be sent unencrypted: use starttls or tls, or remove username and "+
				"password out",
		)
	case strings.ContainsAny(c.Username, "\x00\r\n"):
		return field("username", "holds a line break or a NUL byte")
	}
	return c.passwordSetting().Check()
}

// passwordSetting is empty if the server requires no login.
func (c *Config) passwordSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "password", Text: c.Password, File: c.PasswordFile, Parse: parsePassword}
}

// parsePassword takes a last line break off. Its errors do not repeat it.
func parsePassword(text []byte) (string, error) {
	password := strings.TrimRight(string(text), "\r\n")
	switch {
	case password == "":
		return "", errors.New("holds no password")
	case strings.ContainsAny(password, "\x00\r\n"):
		return "", errors.New("holds a line break or a NUL byte within the password")
	}
	return password, nil
}

func (c *Config) checkAddresses() error {
	var errs []error
	check := func(field, text string) {
		if _, err := parseAddress(text); err != nil {
			errs = append(errs, &relay.FieldError{Field: field, Problem: err.Error()})
		}
	}
	check("sender", c.Sender)
	if len(c.To) == 0 {
		errs = append(errs, &relay.FieldError{Field: "to", Problem: "is empty: name at least one receiver"})
	}
	for i, a := range c.To {
		check("to."+strconv.Itoa(i), a)
	}
	for i, a := range c.Cc {
		check("cc."+strconv.Itoa(i), a)
	}
	return errors.Join(errs...)
}

// parseAddress wants an address that every server understands; the name before it may be anything.
func parseAddress(text string) (*mail.Address, error) {
	if text == "" {
		return nil, errors.New("is missing: write an address, such as hubrelay@example.com")
	}
	a, err := mail.ParseAddress(text)
	if err != nil {
		return nil, fmt.Errorf("is not an address (%q): write ops@example.com or Operators <ops@example.com>",
			relay.Truncate(text, 60))
	}
	for _, r := range a.Address {
		if r <= ' ' || r > '~' || r == '<' || r == '>' {
			return nil, fmt.Errorf("has an address of other than ASCII letters (%q), which not every server takes",
				relay.Truncate(text, 60))
		}
	}
	return a, nil
}

// rootCAs returns nil for the system's authorities.
func (c *Config) rootCAs() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	text, err := httpclient.ReadFile(c.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("names a file that holds no certificate in PEM")
	}
	return pool, nil
}

func (c *Config) serverPort() int {
	switch {
	case c.Port != 0:
		return c.Port
	case c.TLS == tlsImplicit:
		return 465
	case c.TLS == tlsNone:
		return 25
	}
	return 587
}
