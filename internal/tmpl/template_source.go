package tmpl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/relay"
)

// Source is a template as an operator gives it: in place by a key, or in a file that the key's twin KEY_file names.
type Source struct {
	// Key is the name of the setting, such as "template".
	Key string
	// Text and File are the values of the key and its twin.
	Text, File string
	Options
	// Single says that it renders neither digests nor batches of several.
	Single bool
	// Optional says that a message goes without what fails, as a [Set] does it.
	Optional bool
	// CheckOutput, where not nil, says what is wrong with what was rendered.
	CheckOutput func([]byte) error
}

// IsSet tells whether there is a template.
func (s Source) IsSet() bool { return s.Text != "" || s.File != "" }

// Check reports what is wrong with the setting as a [relay.FieldError]. Nothing is wrong with one that is not given.
func (s Source) Check() error {
	_, err := s.read()
	return err
}

// read parses the template as it is now; it is nil where none is given.
func (s Source) read() (*Template, error) {
	text := []byte(s.Text)
	switch {
	case !s.IsSet():
		return nil, nil
	case s.Text != "" && s.File != "":
		return nil, &relay.FieldError{Field: s.Key + "_file", Problem: "is given beside " + s.Key + ": give one of the two"}
	case s.File != "":
		var err error
		if text, err = httpclient.ReadFile(s.File); err != nil {
			return nil, &relay.FieldError{Field: s.Key + "_file", Problem: err.Error()}
		}
	}
	return s.parse(text)
}

func (s Source) parse(text []byte) (*Template, error) {
	if len(text) == 0 { // as a file is that is just being written
		return nil, &relay.FieldError{Field: s.Key + "_file", Problem: s.File + " is empty"}
	}
	t, err := Parse(string(text), s.Options)
	if err != nil {
		return nil, s.fieldError(err, "")
	}
	return t, nil
}

// fieldError says where and with what a template fails.
func (s Source) fieldError(err error, with string) error {
	field, at := s.Key, ""
	if s.File != "" {
		field, at = s.Key+"_file", s.File+", "
	}
	if m := (*TemplateError)(nil); errors.As(err, &m) && m.Line == 0 && s.File != "" {
		at = s.File + ": "
	}
	return &relay.FieldError{Field: field, Problem: at + err.Error() + with}
}

// Open returns a function that gives the template of a sink as it is now, and may be called concurrently. One that is not given
// gives nil. A file that became bad, as Check or Rehearse find, keeps its last good template, and the sink's log is told. Samples
// are tried for half a second at most: for so long whoever sees a change first waits for each file, and nobody else.
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
		if err == nil && sink.Samples != nil { // again when it is opened: the file may have changed since the configuration was read
			ctx, cancel := context.WithTimeout(context.Background(), maxSamplePause)
			defer cancel()
			err = s.renderSamples(ctx, t, sink.Name, sink.Samples())
		}
		return t, err
	}
	file, err := httpclient.WatchFile(s.File, parse, sink.Log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open the template: %w", err)
	}
	return file.Current, nil
}

// maxSamplePause bounds the rehearsal of a file that has changed, which one delivery waits for.
const maxSamplePause = 500 * time.Millisecond

// ValidateSamples renders samples until ctx ends, and reports what goes wrong as [relay.FieldError]s, joined: each mistake once, with
// the topic that first met it.
func (s Source) ValidateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	t, err := s.read()
	if err != nil || t == nil {
		return err
	}
	return s.renderSamples(ctx, t, sink, samples)
}

func (s Source) ignores(d relay.Delivery) bool {
	return s.Single && (d.Digest != nil || len(d.Notifications) != 1)
}

func (s Source) renderSamples(ctx context.Context, t *Template, sink string, samples []relay.Delivery) error {
	seen := map[string]bool{}
	var errs []error
	for _, d := range samples {
		if s.ignores(d) {
			continue
		}
		err := s.renderSample(ctx, t, sink, d)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			break // what there was time for is all that can be said
		}
		if err == nil || seen[err.Error()] {
			continue
		}
		seen[err.Error()] = true
		errs = append(errs, s.fieldError(err, " (with a sample of "+nameOf(d)+")"))
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

func nameOf(d relay.Delivery) string {
	switch {
	case d.Digest != nil:
		return "a digest"
	case d.Batch:
		return "a batch"
	}
	return d.Notifications[0].Topic
}
