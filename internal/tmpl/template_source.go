package tmpl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay"
)

// Source is a template in the configuration. The operator sets it with KEY, or sets KEY_file to a file.
type Source struct {
	// Key is the name of the setting, such as "template".
	Key string
	// Text and File are the values of KEY and KEY_file.
	Text, File string
	Options
	// Single excludes digests, and batches of several notifications.
	Single bool
	// Optional makes [Set.Render] omit the template if it fails.
	Optional bool
	// CheckOutput checks the rendered text. It may be nil.
	CheckOutput func([]byte) error
}

// IsSet reports whether the operator set a template.
func (s Source) IsSet() bool { return s.Text != "" || s.File != "" }

// Check reads and parses the template. It returns problems as a [relay.FieldError], and nil if no template is set.
func (s Source) Check() error {
	_, err := s.read()
	return err
}

// read reads and parses the template. It returns nil if no template is set.
func (s Source) read() (*Template, error) {
	text := []byte(s.Text)
	switch {
	case !s.IsSet():
		return nil, nil
	case s.Text != "" && s.File != "":
		problem := "conflicts with " + s.Key + ": set only one of them"
		return nil, &relay.FieldError{Field: s.Key + "_file", Problem: problem}
	case s.File != "":
		var err error
		if text, err = filewatch.ReadFile(s.File); err != nil {
			return nil, &relay.FieldError{Field: s.Key + "_file", Problem: err.Error()}
		}
	}
	return s.parse(text)
}

func (s Source) parse(text []byte) (*Template, error) {
	if len(text) == 0 { // an editor may be writing the file
		return nil, &relay.FieldError{Field: s.Key + "_file", Problem: s.File + " is empty"}
	}
	t, err := Parse(string(text), s.Options)
	if err != nil {
		return nil, s.newFieldError(err, "")
	}
	return t, nil
}

// newFieldError adds the setting, the file and a suffix to an error of the template.
func (s Source) newFieldError(err error, suffix string) error {
	field, prefix := s.Key, ""
	if s.File != "" {
		field, prefix = s.Key+"_file", s.File+", "
	}
	if m := (*TemplateError)(nil); errors.As(err, &m) && m.Line == 0 && s.File != "" {
		prefix = s.File + ": "
	}
	return &relay.FieldError{Field: field, Problem: prefix + err.Error() + suffix}
}

// Open returns a function that returns the current template of a sink, or nil if none is set. The function is safe for
// concurrent use. If a changed file fails Check or the samples, it logs the error and returns the last valid template.
// The first delivery after a change waits up to 500 ms per file for the samples. Other deliveries do not wait.
func (s Source) Open(sink relay.SinkSettings) (func() *Template, error) {
	if s.File == "" || !s.IsSet() {
		t, err := s.read()
		if err != nil {
			return nil, err
		}
		return func() *Template { return t }, nil
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	parse := func(text []byte) (*Template, error) {
		t, err := s.parse(text)
		if err == nil && sink.Samples != nil { // also on open: the file may have changed after the configuration check
			ctx, cancel := context.WithTimeout(context.Background(), maxSampleTime)
			defer cancel()
			err = s.renderSamples(ctx, t, sink.Name, sink.Samples())
		}
		return t, err
	}
	file, err := filewatch.Open(s.File, parse, sink.Log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open template: %w", err)
	}
	return file.Current, nil
}

// maxSampleTime limits the rendering of samples with a changed file, because a delivery waits for it.
const maxSampleTime = 500 * time.Millisecond

// ValidateSamples renders samples until ctx ends. It returns the errors as joined [relay.FieldError] values. Each error
// appears once, with the topic of its first sample.
func (s Source) ValidateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	t, err := s.read()
	if err != nil || t == nil {
		return err
	}
	return s.renderSamples(ctx, t, sink, samples)
}

func (s Source) skipsDelivery(d relay.Delivery) bool {
	return s.Single && (d.Digest != nil || len(d.Notifications) != 1)
}

func (s Source) renderSamples(ctx context.Context, t *Template, sink string, samples []relay.Delivery) error {
	seen := map[string]bool{}
	var errs []error
	for _, d := range samples {
		if s.skipsDelivery(d) {
			continue
		}
		err := s.renderSample(ctx, t, sink, d)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			break // running out of time is not an error
		}
		if err == nil || seen[err.Error()] {
			continue
		}
		seen[err.Error()] = true
		errs = append(errs, s.newFieldError(err, " (with a sample of "+sampleName(d)+")"))
		var m *TemplateError
		if len(errs) == 3 || errors.As(err, &m) && m.OverLimit {
			break
		}
	}
	return errors.Join(errs...)
}

func (s Source) renderSample(ctx context.Context, t *Template, sink string, d relay.Delivery) error {
	data, err := NewData(d, sink, s.Clean)
	if err != nil {
		return err
	}
	text, err := t.Render(ctx, data)
	if err == nil && s.CheckOutput != nil {
		err = s.CheckOutput(text)
	}
	return err
}

func sampleName(d relay.Delivery) string {
	switch {
	case d.Digest != nil:
		return "a digest"
	case d.Batch:
		return "a batch"
	}
	return d.Notifications[0].Topic
}
