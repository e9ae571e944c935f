package main

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

	"github.com/hubrelay/hubrelay/relay/document"
	"github.com/hubrelay/hubrelay/relay/guard"
)

// prompts is what init says of a kind of sink, and asks about it in a terminal.
type prompts struct {
	about string
	ask   []prompt
}

// prompt asks for one setting.
type prompt struct {
	key, text, def string
	with           string // the question is only asked where this one was answered
	secret         bool   // not shown while it is typed
	needed         bool   // no answer leaves the whole destination out
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
			{key: "password", text: "Password", secret: true, with: "username"},
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

// errLeftOut says that a needed question had no answer.
var errLeftOut = errors.New("left out")

// sink asks for the settings of one destination.
func (a *asker) sink(ctx context.Context, sink *setupSink) error {
	a.setup.add(sink)
	path := "sinks." + sink.name + "."
	questions := append(promptsOf(sink.kind.Type).ask, prompt{key: "topics", text: "Topics, such as *.error or container.*,!*.updated", def: "*"})
	for _, q := range questions {
		if q.with != "" && !sink.has(q.with) {
			continue
		}
		err := a.until(ctx, q, path+q.key, func(answer string) { sink.take(q.key, answer) })
		if errors.Is(err, errLeftOut) {
			a.setup.remove()
			a.say("  without that there is no such destination: it is left out\n")
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// take makes an answer the value of a key.
func (s *setupSink) take(key, answer string) {
	s.forget(key)
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

// until asks until the configuration with the answer has nothing wrong at path.
func (a *asker) until(ctx context.Context, p prompt, path string, take func(answer string)) error {
	for {
		answer, err := a.line(ctx, p)
		switch {
		case err != nil:
			return err
		case answer == "" && p.needed:
			return errLeftOut
		case p.key == "command" && strings.ContainsAny(answer, `"'\\`):
			a.say("  no shell reads it, so that quotes would be part of a word: leave them out, or write the list into the file afterwards\n")
			continue
		}
		take(answer)
		if p.key == "url" {
			if err := a.offerToAllow(ctx, answer); err != nil {
				return err
			}
		}
		v, err := a.setup.check(a.std.env)
		if err != nil {
			return err
		}
		at := func(problem document.Problem) bool {
			return problem.Path == path || strings.HasPrefix(problem.Path, path+"[")
		}
		if wrong := slices.DeleteFunc(v.problems, func(p document.Problem) bool { return !at(p) }); len(wrong) > 0 {
			for _, problem := range wrong {
				problem.Path = ""
				a.say("  %s\n", problem)
			}
			continue
		}
		for _, problem := range v.warnings {
			if at(problem) {
				problem.Path = ""
				a.say("  it is taken, but: %s\n", problem)
			}
		}
		return nil
	}
}

// offerToAllow asks whether an address that is not public is meant, since it is refused otherwise.
func (a *asker) offerToAllow(ctx context.Context, address string) error {
	sink := a.setup.sinks[len(a.setup.sinks)-1]
	sink.forget("allow_cidrs")
	u, err := url.Parse(address)
	if err != nil {
		return nil // the check says so
	}
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	nothing, bad := guard.New(nil)
	if err != nil || bad != nil || nothing.Check(addr) == nil {
		return nil
	}
	answer, err := a.line(ctx, prompt{text: "  " + host + " is not a public address, which is refused unless it is meant. Is it? y or n", def: "n"})
	if err == nil && strings.HasPrefix(strings.ToLower(answer), "y") {
		sink.set("allow_cidrs", netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return err
}

// line asks one question. A secret is not shown while it is typed.
func (a *asker) line(ctx context.Context, p prompt) (string, error) {
	text := p.text
	if p.def != "" {
		text += " [" + p.def + "]"
	}
	if p.secret {
		// Before the question, which some answer at once; and not where it is read, which may begin behind an interruption and
		// leave a terminal that shows nothing.
		restore, err := hideInput(int(a.terminal.Fd()))
		if err != nil {
			return "", fmt.Errorf("hide what is typed: %w", err)
		}
		defer restore()
	}
	a.say("%s: ", text)
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := a.in.ReadString('\n')
		done <- result{text, err}
	}()
	select {
	case <-ctx.Done():
		a.say("\n")
		return "", errors.New("nothing was written")
	case r := <-done:
		if p.secret {
			a.say("\n") // the one that was typed is not shown either
		}
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
