// Package setup writes the files that a user starts with: a configuration, for `hubrelay init`, and the skeleton of a
// plugin, for `hubrelay plugins new`.
//
// The templates of plugins are in templates/LANGUAGE. A file with the suffix .tmpl is rendered, any other file is
// copied. The Python code that protoc generates is the same as in examples/plugin-python. Flags do not belong here,
// they are in package cli.
package setup

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/embeddedredis"
)

// DefaultListen is the default of server.listen.
const DefaultListen = "127.0.0.1:8080"

// existsError is returned if the file exists and must not be overwritten.
type existsError struct{ file string }

func (e *existsError) Error() string {
	return e.file + " already exists: choose another file with -c, or overwrite it with --force"
}

// HideValues returns a --sink flag without its values, because any of them can be a secret.
func HideValues(text string) string {
	parts := strings.Split(text, ",")
	for i, p := range parts {
		if key, _, found := strings.Cut(p, "="); found {
			parts[i] = key + "=…"
		}
	}
	return strings.Join(parts, ",")
}

// AddSinkFlag adds a sink from a flag TYPE,KEY=VALUE,…. Errors contain no values.
func (c *Config) AddSinkFlag(text string) error {
	sink, err := c.parseSink(text)
	if err != nil {
		return err
	}
	c.add(sink)
	return nil
}

// parseSink parses TYPE,KEY=VALUE,… as a line of CSV, so quoted values can contain commas.
func (c *Config) parseSink(text string) (*sinkDraft, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.LazyQuotes = true
	fields, err := r.Read()
	if _, more := r.Read(); err == nil && !errors.Is(more, io.EOF) {
		return nil, errors.New("must be one line")
	}
	if errors.Is(err, io.EOF) || err == nil && strings.Contains(fields[0], "=") {
		return nil, errors.New("start with the type, such as webhook,url=https://example.com/hook")
	} else if err != nil {
		return nil, errors.New(`is not TYPE,KEY=VALUE,…; a value with commas is written as "KEY=VALUE"`)
	}
	sink, err := c.newSink(strings.TrimSpace(fields[0]))
	if err != nil {
		return nil, err
	}
	for _, f := range fields[1:] {
		key, value, found := strings.Cut(f, "=")
		if key = strings.TrimSpace(key); !found || key == "" {
			return nil, errors.New(`settings are written as KEY=VALUE; a value with commas as "KEY=VALUE"`)
		}
		if key == "name" {
			sink.name = value
			continue
		}
		if err := sink.checkKey(key); err != nil {
			return nil, err
		}
		sink.set(key, value)
	}
	return sink, nil
}

// PrintNextSteps prints the secrets of the new configuration and the commands to run next.
func (c *Config) PrintNextSteps(std term.Streams) error {
	p := term.NewPalette(std.Out, std.Env)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s is written and valid: 1 key, %s.\n", p.Bold(c.File), term.Pluralize(len(c.sinks), "sink"))
	line("Its API key is not shown again; the file contains only the SHA-256:\n\n  export HUBRELAY_KEY=%s\n", c.Key)
	for _, sink := range c.sinks {
		if secret := sink.generatedSecret; secret != "" {
			line("The receiver of %q verifies signatures with this secret. It is in the file too:\n\n  %s\n",
				sink.name, secret)
		}
	}
	url := ""
	if c.Listen != DefaultListen {
		url = "HUBRELAY_URL=" + LocalURL("http", c.Listen) + " "
	}
	line("Next:\n\n  %s serve -c %s", term.ProgramName(), c.File)
	line("  %sHUBRELAY_HUB=my-hub %s listen          %s", url, term.ProgramName(),
		p.Dim("# in a second terminal, with the same HUBRELAY_KEY"))
	if len(c.sinks) > 0 {
		line("  %s sinks test %s -c %s", term.ProgramName(), c.sinks[0].name, c.File)
	}
	if c.Redis == "" {
		if _, err := embeddedredis.FindBinary(); err != nil {
			line("\n%s: %v", p.Yellow("Not yet"), err)
		}
	}
	if dir := filepath.Dir(c.File); dir != "." {
		line("\nPaths in the file are relative to its directory, %s.", dir)
	}
	_, err := io.WriteString(std.Out, b.String())
	return err
}

// LocalURL returns the URL of a listener for clients on this machine.
func LocalURL(scheme, listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return scheme + "://" + listen
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && addr.IsUnspecified() && addr.Is4():
		host = "127.0.0.1"
	case err == nil && addr.IsUnspecified():
		host = "::1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// NewWebhookSecret returns a secret from 256 random bits in the format of Standard Webhooks 1.0.
func NewWebhookSecret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never returns an error
	return "whsec_" + base64.StdEncoding.EncodeToString(random)
}
