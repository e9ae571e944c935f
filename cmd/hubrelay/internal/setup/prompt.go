package setup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// sinkPrompts contains the description of a sink type and the questions about it.
type sinkPrompts struct {
	summary string
	ask     []prompt
}

// prompt is a question about one setting.
type prompt struct {
	key, text, defaultValue string
	dependsOn               string // key of another question; ask only if it has an answer
	secret                  bool   // hide the typed text
	required                bool   // without an answer the sink is removed
}

// promptsOf returns the prompts of a sink type. The summary is empty for a type that needs more than a few answers.
func promptsOf(kind string) sinkPrompts {
	return map[string]sinkPrompts{
		"webhook": {"Signed HTTP POST requests to your service, retried for days", []prompt{
			{key: "url", text: "Its URL, https://…", required: true},
		}},
		"slack": {"Messages to a Slack channel through an incoming webhook", []prompt{
			{key: "url", text: "The webhook URL, https://hooks.slack.com/services/…", required: true},
		}},
		"email": {"Mail through your SMTP server", []prompt{
			{key: "host", text: "The SMTP server", required: true},
			{key: "username", text: "User name, empty if not required"},
			{key: "password", text: "Password", secret: true, dependsOn: "username"},
			{key: "sender", text: "From", required: true},
			{key: "to", text: "To", required: true},
		}},
		"pagerduty": {"Alerts for the person on call, resolved automatically", []prompt{
			{
				key: "routing_key", text: "The integration key of the service (Events API v2)", secret: true,
				required: true,
			},
		}},
		"file": {"One line of JSON per event in a file with rotation", []prompt{
			{key: "path", text: "The file", defaultValue: "./events.jsonl", required: true},
		}},
		"exec": {"A command per event, with its JSON on standard input", []prompt{
			{key: "command", text: "The command and its arguments, separated by spaces", required: true},
		}},
	}[kind]
}

// prompter asks in a terminal for the settings that no flag set. It checks each answer as serve would, and repeats the
// question if the answer is invalid.
type prompter struct {
	in       *bufio.Reader
	terminal *os.File
	streams  term.Streams
	setup    *Config
	given    func(flag string) bool
}

// errNoAnswer is returned at the end of the input.
var errNoAnswer = errors.New("the input ended and nothing was written: use --yes or flags if there is no terminal")

// Ask asks in a terminal for the settings that no flag set.
func (c *Config) Ask(ctx context.Context, std term.Streams, terminal *os.File, given func(flag string) bool) error {
	a := &prompter{in: bufio.NewReader(terminal), terminal: terminal, streams: std, setup: c, given: given}
	return a.askAll(ctx)
}

func (pr *prompter) askAll(ctx context.Context) error {
	pr.writef("This writes %s. Enter accepts the value in brackets, Ctrl-C exits without writing.\n\n", pr.setup.File)
	if !pr.given("listen") {
		p := prompt{text: "Address for clients and producers", defaultValue: pr.setup.Listen}
		if err := pr.askUntilValid(ctx, p, "server.listen",
			func(answer string) { pr.setup.Listen = answer }); err != nil {
			return err
		}
	}
	if !pr.given("redis") {
		p := prompt{text: "Redis, such as redis://host:6379; empty for an embedded one"}
		if err := pr.askUntilValid(ctx, p, "redis.url", func(answer string) { pr.setup.Redis = answer }); err != nil {
			return err
		}
	}
	if pr.given("sink") {
		return nil
	}
	for {
		sink, err := pr.askKind(ctx)
		if err != nil || sink == nil {
			return err
		}
		if err := pr.askSink(ctx, sink); err != nil {
			return err
		}
	}
}

// askKind asks for the type of another sink. It returns nil if there is no answer.
func (pr *prompter) askKind(ctx context.Context) (*sinkDraft, error) {
	pr.writef("\nWhere should events be delivered, in addition to the stream for clients?\n")
	var types []string
	for _, k := range pr.setup.Kinds.Sinks {
		if p := promptsOf(k.Type); p.summary != "" {
			types = append(types, k.Type)
			pr.writef("  %d  %-10s %s\n", len(types), k.Type, p.summary)
		}
	}
	for {
		answer, err := pr.askLine(ctx, prompt{text: "Number or name, empty to finish"})
		if err != nil || answer == "" {
			return nil, err
		}
		if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(types) {
			answer = types[n-1]
		}
		sink, err := pr.setup.newSink(answer)
		if err == nil && promptsOf(answer).summary != "" {
			return sink, nil
		}
		if err == nil {
			err = fmt.Errorf("a sink of type %s needs more settings than can be asked here: see configs/hubrelay.yaml",
				answer)
		}
		pr.writef("  %v\n", err)
	}
}

// errSkipped is returned if a required question has no answer.
var errSkipped = errors.New("required answer is missing")

// askSink asks for the settings of a sink.
func (pr *prompter) askSink(ctx context.Context, sink *sinkDraft) error {
	pr.setup.add(sink)
	path := "sinks." + sink.name + "."
	questions := append(promptsOf(sink.kind.Type).ask,
		prompt{key: "topics", text: "Topics, such as *.error or container.*,!*.updated", defaultValue: "*"})
	for _, q := range questions {
		if q.dependsOn != "" && !sink.hasAny(q.dependsOn) {
			continue
		}
		err := pr.askUntilValid(ctx, q, path+q.key, func(answer string) { sink.setAnswer(q.key, answer) })
		if errors.Is(err, errSkipped) {
			pr.setup.removeLast()
			pr.writef("  this destination was skipped, because the answer is empty\n")
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// setAnswer sets a key to an answer. Some answers are lists.
func (s *sinkDraft) setAnswer(key, answer string) {
	s.removeKey(key)
	switch {
	case answer == "":
	case key == "command":
		for _, word := range strings.Fields(answer) {
			s.set(key, word)
		}
	case key == "topics", key == "to":
		for item := range strings.SplitSeq(answer, ",") {
			s.set(key, strings.TrimSpace(item))
		}
	default:
		s.set(key, answer)
	}
}

// askUntilValid repeats a question until the configuration has no problem at path.
func (pr *prompter) askUntilValid(ctx context.Context, p prompt, path string, set func(answer string)) error {
	for {
		answer, err := pr.askLine(ctx, p)
		switch {
		case err != nil:
			return err
		case answer == "" && p.required:
			return errSkipped
		case p.key == "command" && strings.ContainsAny(answer, `"'\\`):
			pr.writef("  no shell is used, so quotes would be part of a word: omit them, or add the arguments to the " +
				"file later\n")
			continue
		}
		set(answer)
		if p.key == "url" {
			if err := pr.offerToAllow(ctx, answer); err != nil {
				return err
			}
		}
		v, err := pr.setup.checkConfig(pr.streams.Env)
		if err != nil {
			return err
		}
		at := func(problem yamldoc.Problem) bool {
			return problem.Path == path || strings.HasPrefix(problem.Path, path+"[")
		}
		if wrong := slices.DeleteFunc(v.problems, func(p yamldoc.Problem) bool { return !at(p) }); len(wrong) > 0 {
			for _, problem := range wrong {
				problem.Path = ""
				pr.writef("  %s\n", problem)
			}
			continue
		}
		for _, problem := range v.warnings {
			if at(problem) {
				problem.Path = ""
				pr.writef("  accepted with a warning: %s\n", problem)
			}
		}
		return nil
	}
}

// offerToAllow asks for permission to use an address that is not public, because sinks reject it otherwise.
func (pr *prompter) offerToAllow(ctx context.Context, address string) error {
	sink := pr.setup.sinks[len(pr.setup.sinks)-1]
	sink.removeKey("allow_cidrs")
	u, err := url.Parse(address)
	if err != nil {
		return nil // the check reports it
	}
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	nothing, bad := netguard.New(nil)
	if err != nil || bad != nil || nothing.Check(addr) == nil {
		return nil
	}
	answer, err := pr.askLine(ctx, prompt{text: "  " + host + " is not a public address, so the sink would reject it. " +
		"Allow it? y or n", defaultValue: "n"})
	if err == nil && strings.HasPrefix(strings.ToLower(answer), "y") {
		sink.set("allow_cidrs", netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return err
}

// askLine asks one question. It hides the text of a secret.
func (pr *prompter) askLine(ctx context.Context, p prompt) (string, error) {
	text := p.text
	if p.defaultValue != "" {
		text += " [" + p.defaultValue + "]"
	}
	if p.secret {
		// Hide the input before the question, because a fast answer would be visible. Do not do this in the goroutine,
		// which can outlive this function and leave the terminal without echo.
		restore, err := term.HideInput(int(pr.terminal.Fd()))
		if err != nil {
			return "", fmt.Errorf("hide the typed text: %w", err)
		}
		defer restore()
	}
	pr.writef("%s: ", text)
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := pr.in.ReadString('\n')
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		pr.writef("\n")
		return "", errors.New("nothing was written")
	case r := <-done:
		if p.secret {
			pr.writef("\n") // the typed line break is hidden too
		}
		answer := strings.TrimSpace(r.text)
		if errors.Is(r.err, io.EOF) && answer == "" {
			pr.writef("\n")
			return "", errNoAnswer
		} else if r.err != nil && !errors.Is(r.err, io.EOF) {
			return "", fmt.Errorf("read the answer: %w", r.err)
		}
		if answer == "" {
			answer = p.defaultValue
		}
		return answer, nil
	}
}

func (pr *prompter) writef(format string, args ...any) {
	_, _ = fmt.Fprintf(pr.streams.Err, format, args...)
}
