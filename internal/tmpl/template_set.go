package tmpl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// Sources are the templates of one sink that make parts of the same message.
type Sources []Source

// Check is that of all of them.
func (all Sources) Check() error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Check())
	}
	return errors.Join(errs...)
}

// ValidateSamples is that of all of them.
func (all Sources) ValidateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.ValidateSamples(ctx, sink, samples))
	}
	return errors.Join(errs...)
}

// Open opens those that are given, as [Source.Open] does.
func (all Sources) Open(sink relay.SinkSettings) (*Set, error) {
	set := &Set{sink: sink.Name, log: sink.Log, lastWarned: map[string]*Template{}}
	for _, s := range all {
		if !s.IsSet() {
			continue
		}
		current, err := s.Open(sink)
		if err != nil {
			return nil, err
		}
		set.parts = append(set.parts, part{s, current})
	}
	return set, nil
}

// Set renders the templates of a sink. It may be used concurrently.
type Set struct {
	sink  string
	log   *slog.Logger
	parts []part

	mu         sync.Mutex
	lastWarned map[string]*Template // by key that which was last said to fail
}

type part struct {
	Source
	current func() *Template
}

// Render returns what the templates make of d, by their keys and without white space around. One that makes nothing is not
// there, nor is an optional one that fails, which the log is told of once for each template. Its errors name the key, and are
// marked as those of [Template.Render].
func (s *Set) Render(ctx context.Context, d relay.Delivery) (map[string]string, error) {
	made := make(map[string]string, len(s.parts))
	for _, p := range s.parts {
		if p.ignores(d) {
			continue
		}
		t := p.current()
		text, err := p.render(ctx, t, s.sink, d)
		if outcome, _ := relay.Classify(err); err != nil && p.Optional && outcome == relay.OutcomePermanent {
			s.warnOnce(p.Key, t, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if text != "" {
			made[p.Key] = text
		}
	}
	return made, nil
}

func (p part) render(ctx context.Context, t *Template, sink string, d relay.Delivery) (string, error) {
	data, err := NewData(d, sink, p.Clean)
	if err != nil {
		return "", relay.Permanent(err)
	}
	text, err := t.Render(ctx, data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.Key, err)
	}
	if p.CheckOutput != nil {
		if err := p.CheckOutput(text); errors.As(err, new(*TemplateError)) {
			return "", relay.Permanent(fmt.Errorf("%s: %w", p.Key, err))
		} else if err != nil {
			return "", relay.Permanent(fmt.Errorf("%s %w", p.Key, err))
		}
	}
	return strings.TrimSpace(string(text)), nil
}

// warnOnce tells the log of a template that failed, once: it may fail with every message.
func (s *Set) warnOnce(key string, t *Template, err error) {
	s.mu.Lock()
	known := s.lastWarned[key] == t
	s.lastWarned[key] = t
	s.mu.Unlock()
	if !known {
		s.log.Warn("a template fails, and what it would make is left out; this is said once until the template changes", "template", key, "error", err)
	}
}
