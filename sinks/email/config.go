package email

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/mail"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// The values of Config.TLS.
const (
	tlsStart    = "starttls"
	tlsImplicit = "tls"
	tlsNone     = "none"
)

// Config is the configuration of one mail sink.
type Config struct {
	// Host and Port are the address of the server. The default port is 587 for starttls, 465 for tls, and 25 for none.
	Host string `koanf:"host" doc:"Host name of the mail server."`
	Port int    `koanf:"port" doc:"Port; 0 for the default: 587 with starttls, 465 with tls, 25 with none."`
	// TLS selects the encryption of the connection.
	TLS string `koanf:"tls" enum:"starttls,tls,none" doc:"starttls (required), tls, or none (unencrypted)."`
	// CAFile contains the certificate authorities to trust instead of those of the system.
	CAFile string `koanf:"ca_file" doc:"CA certificates (PEM) to trust instead of those of the system."`
	// Username and the password are empty if the server requires no login.
	Username     string `koanf:"username" doc:"User name; empty for no login."`
	Password     string `koanf:"password" secret:"true" doc:"Password of the user."`
	PasswordFile string `koanf:"password_file" doc:"File with the password, read again when it changes."`
	Auth         string `koanf:"auth" enum:"plain,login" doc:"plain, or login for servers that require it."`
	// Sender, To and Cc are addresses, with or without a name.
	Sender string   `koanf:"sender" doc:"Sender, such as hubrelay <hubrelay@example.com>."`
	To     []string `koanf:"to" doc:"Recipients. If the server rejects one, no one receives the mail."`
	Cc     []string `koanf:"cc" doc:"More recipients."`
	// The templates are rendered by internal/tmpl. Each is inline or in a file. An empty result uses the default text.
	SubjectTemplate     string `koanf:"subject_template" doc:"Subject as a Go template, one line (docs/templates.md)."`
	SubjectTemplateFile string `koanf:"subject_template_file" doc:"File with the subject_template."`
	TextTemplate        string `koanf:"text_template" doc:"Text as a Go template."`
	TextTemplateFile    string `koanf:"text_template_file" doc:"File with the text_template."`
	HTMLTemplate        string `koanf:"html_template" doc:"HTML as a Go template, with escaping."`
	HTMLTemplateFile    string `koanf:"html_template_file" doc:"File with the html_template."`
	// AllowCIDRs are networks that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Networks that may be dialed although they are not public."`
}

// Check implements [relay.Config].
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	err := c.validate()
	if err == nil && env.Samples != nil {
		err = c.validateSamples(ctx, env.Name, env.Samples())
	}
	return relay.NewReport(err)
}

// validate joins a [relay.FieldError] for each invalid value. It reads files, but does not query DNS.
func (c *Config) validate() error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	g, err := netguard.New(c.AllowCIDRs)
	errs = append(errs, err)
	switch {
	case c.Host == "":
		bad("host", "is missing: name the mail server, such as smtp.example.com")
	case strings.ContainsAny(c.Host, " \t\r\n/@") || strings.Contains(c.Host, ":") && strings.Count(c.Host, ":") < 2:
		bad("host", "is not a host name: set the name here and the port in port")
	case g != nil:
		if err := g.CheckHost(c.Host); err != nil {
			bad("host", "is not allowed: "+err.Error())
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("port", fmt.Sprintf("is %d: choose 1 to 65535, or 0 for the default", c.Port))
	}
	if c.TLS != tlsStart && c.TLS != tlsImplicit && c.TLS != tlsNone {
		bad("tls", "is unknown: choose starttls, tls or none")
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
		return field("auth", "is unknown: choose plain or login")
	case c.Username == "" && given:
		return field("username", "is missing: a password requires it")
	case c.Username != "" && !given:
		return field("password", "is missing: username requires it, here or in password_file")
	case given && c.TLS == tlsNone:
		return field(
			"tls", "is none, so the password would be sent unencrypted: use starttls or tls, or remove username and "+
				"password",
		)
	case strings.ContainsAny(c.Username, "\x00\r\n"):
		return field("username", "contains a line break or a NUL byte")
	}
	return c.passwordSetting().Check()
}

// passwordSetting is empty if the server requires no login.
func (c *Config) passwordSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "password", Text: c.Password, File: c.PasswordFile, Parse: parsePassword}
}

// parsePassword removes a final line break. Its errors do not contain the password.
func parsePassword(text []byte) (string, error) {
	password := strings.TrimRight(string(text), "\r\n")
	switch {
	case password == "":
		return "", errors.New("contains no password")
	case strings.ContainsAny(password, "\x00\r\n"):
		return "", errors.New("contains a line break or a NUL byte in the password")
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
		errs = append(errs, &relay.FieldError{Field: "to", Problem: "is empty: name at least one recipient"})
	}
	for i, a := range c.To {
		check("to."+strconv.Itoa(i), a)
	}
	for i, a := range c.Cc {
		check("cc."+strconv.Itoa(i), a)
	}
	return errors.Join(errs...)
}

// parseAddress accepts only addresses that every server understands. The name before the address may be anything.
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
			return nil, fmt.Errorf("has an address with non-ASCII characters (%q), which not every server accepts",
				relay.Truncate(text, 60))
		}
	}
	return a, nil
}

// rootCAs returns nil for the certificate authorities of the system.
func (c *Config) rootCAs() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	text, err := filewatch.ReadFile(c.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("names a file without a PEM certificate")
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
