package templates

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// Rehearse is that of all of them.
func (all Sources) Rehearse(ctx context.Context, sink string, samples []relay.Delivery) error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Rehearse(ctx, sink, samples))
	}
	return errors.Join(errs...)
}

// Open opens those that are given, as [Source.Open] does.
func (all Sources) Open(sink relay.SinkSettings) (*Set, error) {
	set := &Set{sink: sink.Name}
	for _, s := range all {
		if !s.Given() {
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
	parts []part
}

type part struct {
	Source
	current func() *Template
}

// Render returns what the templates make of d, by their keys and without white space around. One that makes nothing is not
// there. Its errors name the key, and are marked as those of [Template.Render].
func (s *Set) Render(ctx context.Context, d relay.Delivery) (map[string]string, error) {
	made := make(map[string]string, len(s.parts))
	for _, p := range s.parts {
		if p.Single && d.Digest != nil {
			continue
		}
		data, err := NewData(d, s.sink, p.Clean)
		if err != nil {
			return nil, relay.Permanent(err)
		}
		text, err := p.current().Render(ctx, data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Key, err)
		}
		if p.Judge != nil {
			if err := p.Judge(text); errors.As(err, new(*Mistake)) {
				return nil, relay.Permanent(fmt.Errorf("%s: %w", p.Key, err))
			} else if err != nil {
				return nil, relay.Permanent(fmt.Errorf("%s %w", p.Key, err))
			}
		}
		if shown := strings.TrimSpace(string(text)); shown != "" {
			made[p.Key] = shown
		}
	}
	return made, nil
}
