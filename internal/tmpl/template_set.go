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

// Sources are the templates of one sink that render parts of the same message.
type Sources []Source

// Check calls [Source.Check] for all sources and joins the errors.
func (all Sources) Check() error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Check())
	}
	return errors.Join(errs...)
}

// ValidateSamples calls [Source.ValidateSamples] for all sources and joins the errors.
func (all Sources) ValidateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.ValidateSamples(ctx, sink, samples))
	}
	return errors.Join(errs...)
}

// Open opens all sources that are set. See [Source.Open].
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

// Set renders the templates of a sink. It is safe for concurrent use.
type Set struct {
	sink  string
	log   *slog.Logger
	parts []part

	mu         sync.Mutex
	lastWarned map[string]*Template // by key: the last template whose failure was logged
}

type part struct {
	Source
	current func() *Template
}

// Render renders d with all templates and returns the results by key, without surrounding white space. It omits empty
// results and optional templates that fail, and logs one warning for each failing template. Its errors contain the key
// and are marked like the errors of [Template.Render].
func (s *Set) Render(ctx context.Context, d relay.Delivery) (map[string]string, error) {
	texts := make(map[string]string, len(s.parts))
	for _, p := range s.parts {
		if p.skipsDelivery(d) {
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
			texts[p.Key] = text
		}
	}
	return texts, nil
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

// warnOnce logs the failure of a template once, because it may fail with every message.
func (s *Set) warnOnce(key string, t *Template, err error) {
	s.mu.Lock()
	isRepeat := s.lastWarned[key] == t
	s.lastWarned[key] = t
	s.mu.Unlock()
	if !isRepeat {
		s.log.Warn("optional template failed", "template", key, "error", err)
	}
}
