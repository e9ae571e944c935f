package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/embeddedredis"
)

// defaultListen is where the relay listens unless told otherwise.
const defaultListen = "127.0.0.1:8080"

// initOptions is what the flags of init say.
type initOptions struct {
	file, listen, redis string
	sinks               []string
	force, yes, asJSON  bool
}

func newInit(std streams) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a first configuration: a few questions, or flags",
		Long: `Writes a configuration with comments, checked as serve would, and a new API key in it, of which it holds only the
SHA-256. In a terminal it asks what the flags leave open; elsewhere, and with --yes, the defaults stand.

--sink names a destination: its type, then its settings as configs/hubrelay.yaml explains them, with commas between. One
inside of another is written with a dot, as batch.max=5; what is given twice is a list. A webhook without secrets gets one. Secrets are better written as ${NAME}, which
is filled from the daemon's environment, or named by a file (url_file=…): other users of this machine can see flags.`,
		Example: `  hubrelay init
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,topics=billing.*,topics=!*.updated'
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,batch.wait=1s,batch.max=50,retry.schedule=5s,retry.schedule=5m'
  hubrelay init --yes --redis redis://redis:6379 --listen :8080 --sink 'slack,url=${SLACK_URL},topics=*.error'`,
		Args: withUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runInit(cmd, std, &o) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "config", "c", "hubrelay.yaml", "the file to write")
	flags.StringVar(&o.listen, "listen", defaultListen, "address for clients and producers, host:port")
	flags.StringVar(&o.redis, "redis", "", "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://; empty for a redis-server of its own")
	flags.StringArrayVar(&o.sinks, "sink", nil, "a destination: TYPE,KEY=VALUE,…; may be repeated")
	flags.BoolVar(&o.force, "force", false, "write over a file that is there")
	flags.BoolVarP(&o.yes, "yes", "y", false, "ask nothing")
	flags.BoolVar(&o.asJSON, "json", false, "ask nothing, and print a JSON line")
	return cmd
}

func runInit(cmd *cobra.Command, std streams, o *initOptions) error {
	s := &initConfig{listen: o.listen, redis: o.redis, key: apikey.New(), file: o.file}
	if _, err := os.Lstat(o.file); err == nil && !o.force {
		return &existsError{o.file}
	}
	for _, text := range o.sinks {
		sink, err := parseSink(text)
		if err != nil {
			return newUsageError(cmd, fmt.Errorf("--sink %q: %w", withoutValues(text), err))
		}
		s.add(sink)
	}
	if in, ok := std.in.(*os.File); ok && isTerminal(in) && !o.yes && !o.asJSON {
		a := &setupPrompter{in: bufio.NewReader(in), terminal: in, streams: std, setup: s, given: cmd.Flags().Changed}
		if err := a.ask(cmd.Context()); err != nil {
			return err
		}
	}
	checked, err := s.checkConfig(std.env)
	if err != nil {
		return err
	}
	if len(checked.problems) > 0 {
		return printProblems(std, checked.problems)
	}
	if err := s.write(o.force); err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(std.out).Encode(map[string]string{"file": o.file, "key": s.key})
	}
	for _, w := range checked.warnings {
		_, _ = fmt.Fprintf(std.err, "warning: %s\n", w)
	}
	return s.printWelcome(std)
}

// existsError says that a configuration is there already.
type existsError struct{ file string }

func (e *existsError) Error() string {
	return e.file + " is there already: name another file with -c, or write over it with --force"
}

// withoutValues shows what a --sink names and none of its values, any of which may be a secret.
func withoutValues(text string) string {
	parts := strings.Split(text, ",")
	for i, p := range parts {
		if key, _, found := strings.Cut(p, "="); found {
			parts[i] = key + "=…"
		}
	}
	return strings.Join(parts, ",")
}

// parseSink reads TYPE,KEY=VALUE,… as a line of CSV, so that a value in quotes may hold commas. Its errors show no value.
func parseSink(text string) (*initSink, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.LazyQuotes = true
	fields, err := r.Read()
	if _, more := r.Read(); err == nil && !errors.Is(more, io.EOF) {
		return nil, errors.New("is more than one line")
	}
	if errors.Is(err, io.EOF) || err == nil && strings.Contains(fields[0], "=") {
		return nil, errors.New("begin with the type, such as webhook,url=https://example.com/hook")
	} else if err != nil {
		return nil, errors.New(`is not TYPE,KEY=VALUE,…; a value with commas is written as "KEY=VALUE"`)
	}
	sink, err := newSetupSink(strings.TrimSpace(fields[0]))
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

// printWelcome says what was written and what to do next.
func (s *initConfig) printWelcome(std streams) error {
	p := paletteFor(std.out, std.env)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s is written, and good: 1 key, %s.\n", p.bold(s.file), pluralize(len(s.sinks), "sink"))
	line("Its API key is shown only now; the file holds the SHA-256:\n\n  export HUBRELAY_KEY=%s\n", s.key)
	for _, sink := range s.sinks {
		if secret := sink.generatedSecret; secret != "" {
			line("The receiver of %q verifies what it gets with this secret, which is in the file, too:\n\n  %s\n", sink.name, secret)
		}
	}
	url := ""
	if s.listen != defaultListen {
		url = "HUBRELAY_URL=" + localURL("http", s.listen) + " "
	}
	line("Next:\n\n  %s serve -c %s", programName(), s.file)
	line("  %sHUBRELAY_HUB=my-hub %s listen          %s", url, programName(), p.dim("# in a second terminal, with the same HUBRELAY_KEY"))
	if len(s.sinks) > 0 {
		line("  %s sinks test %s -c %s", programName(), s.sinks[0].name, s.file)
	}
	if s.redis == "" {
		if _, err := embeddedredis.FindBinary(); err != nil {
			line("\n%s: %v", p.yellow("Not yet"), err)
		}
	}
	if dir := filepath.Dir(s.file); dir != "." {
		line("\nPaths in the file begin at its folder, %s.", dir)
	}
	_, err := io.WriteString(std.out, b.String())
	return err
}
