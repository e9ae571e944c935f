package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/hubrelay/hubrelay/relay/document"
)

// prompts is what init says of a kind of sink, and asks about it in a terminal.
type prompts struct {
	about string
	ask   []prompt
}

// prompt asks for one setting.
type prompt struct {
	key, text, def string
	secret         bool // not shown while it is typed
	needed         bool
}

// promptsOf is empty for a kind that takes more than a few answers.
func promptsOf(kind string) prompts {
	return map[string]prompts{
		"webhook": {"A signed HTTP POST to a service of yours, retried for days", []prompt{
			{key: "url", text: "Its address, https://…", needed: true},
		}},
		"slack": {"Messages to a Slack channel, by an incoming webhook", []prompt{
			{key: "url", text: "The webhook's address, https://hooks.slack.com/services/…", needed: true},
		}},
		"email": {"Mail, by your SMTP server", []prompt{
			{key: "host", text: "The SMTP server", needed: true},
			{key: "username", text: "User name, empty where it asks for none"},
			{key: "password", text: "Password", secret: true},
			{key: "sender", text: "From", needed: true},
			{key: "to", text: "To", needed: true},
		}},
		"pagerduty": {"Alerts for whoever is on call, which end by themselves", []prompt{
			{key: "routing_key", text: "The integration key of the service (Events API v2)", secret: true, needed: true},
		}},
		"file": {"A line of JSON for each event in a file, which is rotated", []prompt{
			{key: "path", text: "The file", def: "./events.jsonl", needed: true},
		}},
		"exec": {"A command for each event, with its JSON on standard input", []prompt{
			{key: "command", text: "The command and its arguments, with blanks between", needed: true},
		}},
	}[kind]
}

// asker asks in a terminal for what the flags leave open. Each answer is checked as serve would, and asked for again.
type asker struct {
	in       *bufio.Reader
	terminal *os.File
	std      streams
	setup    *setup
	given    func(flag string) bool
}

// errNoAnswer ends init where the input ends.
var errNoAnswer = errors.New("the input has ended: nothing was written; give --yes, or flags, where nobody answers")

func (a *asker) ask(ctx context.Context) error {
	a.say("This writes %s. Enter takes what stands in brackets, Ctrl-C ends without writing.\n\n", a.setup.file)
	if !a.given("listen") {
		p := prompt{text: "Address for clients and producers", def: a.setup.listen}
		if err := a.until(ctx, p, "server.listen", func(answer string) { a.setup.listen = answer }); err != nil {
			return err
		}
	}
	if !a.given("redis") {
		p := prompt{text: "Redis, such as redis://host:6379; empty for one of its own"}
		if err := a.until(ctx, p, "redis.url", func(answer string) { a.setup.redis = answer }); err != nil {
			return err
		}
	}
	if a.given("sink") {
		return nil
	}
	for {
		sink, err := a.kind(ctx)
		if err != nil || sink == nil {
			return err
		}
		if err := a.sink(ctx, sink); err != nil {
			return err
		}
	}
}

// kind asks for one more destination; it is nil where there is to be none.
func (a *asker) kind(ctx context.Context) (*setupSink, error) {
	a.say("\nWhere should events go, besides the stream that clients open?\n")
	var types []string
	for _, k := range sinkKinds() {
		if p := promptsOf(k.Type); p.about != "" {
			types = append(types, k.Type)
			a.say("  %d  %-10s %s\n", len(types), k.Type, p.about)
		}
	}
	for {
		answer, err := a.line(ctx, prompt{text: "Number or name, empty for nowhere else"})
		if err != nil || answer == "" {
			return nil, err
		}
		if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(types) {
			answer = types[n-1]
		}
		sink, err := newSetupSink(answer)
		if err == nil && promptsOf(answer).about != "" {
			return sink, nil
		}
		if err == nil {
			err = fmt.Errorf("a sink of type %s takes more than a few answers: configs/hubrelay.yaml has an example", answer)
		}
		a.say("  %v\n", err)
	}
}

// sink asks for the settings of one destination.
func (a *asker) sink(ctx context.Context, sink *setupSink) error {
	a.setup.add(sink)
	path := "sinks." + sink.name + "."
	questions := append(promptsOf(sink.kind.Type).ask, prompt{key: "topics", text: "Topics, such as *.error or container.*,!*.updated", def: "*"})
	for _, q := range questions {
		err := a.until(ctx, q, path+q.key, func(answer string) {
			sink.unset(q.key)
			switch {
			case answer == "":
			case q.key == "command":
				for _, word := range strings.Fields(answer) {
					sink.set(q.key, word)
				}
			case q.key == "topics", q.key == "to":
				for item := range strings.SplitSeq(answer, ",") {
					sink.set(q.key, strings.TrimSpace(item))
				}
			default:
				sink.set(q.key, answer)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// until asks until the configuration with the answer has nothing wrong at path.
func (a *asker) until(ctx context.Context, p prompt, path string, take func(answer string)) error {
	for {
		answer, err := a.line(ctx, p)
		if err != nil {
			return err
		}
		if answer == "" && p.needed {
			a.say("  this is needed\n")
			continue
		}
		take(answer)
		_, err = a.setup.check(a.std.env)
		var problems document.Problems
		if err != nil && !errors.As(err, &problems) {
			return err
		}
		good := true
		for _, problem := range problems {
			if problem.Path == path || strings.HasPrefix(problem.Path, path+"[") {
				problem.Path, good = "", false
				a.say("  %s\n", problem)
			}
		}
		if good {
			return nil
		}
	}
}

// line asks one question. A secret is not shown while it is typed.
func (a *asker) line(ctx context.Context, p prompt) (string, error) {
	text := p.text
	if p.def != "" {
		text += " [" + p.def + "]"
	}
	a.say("%s: ", text)
	read := func() (string, error) { return a.in.ReadString('\n') }
	if p.secret {
		// Whoever interrupts wants to see again what is typed.
		if state, err := term.GetState(int(a.terminal.Fd())); err == nil {
			defer func() { _ = term.Restore(int(a.terminal.Fd()), state) }()
		}
		read = func() (string, error) {
			b, err := term.ReadPassword(int(a.terminal.Fd()))
			a.say("\n")
			return string(b), err
		}
	}
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		a.say("\n")
		return "", errors.New("nothing was written")
	case r := <-done:
		answer := strings.TrimSpace(r.text)
		if errors.Is(r.err, io.EOF) && answer == "" {
			a.say("\n")
			return "", errNoAnswer
		} else if r.err != nil && !errors.Is(r.err, io.EOF) {
			return "", fmt.Errorf("read the answer: %w", r.err)
		}
		if answer == "" {
			answer = p.def
		}
		return answer, nil
	}
}

func (a *asker) say(format string, args ...any) { _, _ = fmt.Fprintf(a.std.err, format, args...) }
