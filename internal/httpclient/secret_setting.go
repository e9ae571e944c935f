package httpclient

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay"
)

// Setting is a value in the configuration, such as a secret. The operator sets it with KEY, or sets KEY_file to a file
// that is reloaded when it changes.
type Setting[T any] struct {
	// Key is the name of the setting, such as "token".
	Key string
	// Text and File are the values of KEY and KEY_file. At most one of them may be set.
	Text, File string
	// Parse parses the text or the content of the file. It must remove line breaks at the end of a file. Its errors are
	// appended to the name of the key or to "whose content", and must not repeat the value.
	Parse func([]byte) (T, error)
}

// IsSet reports whether the operator set a value.
func (s Setting[T]) IsSet() bool { return s.Text != "" || s.File != "" }

// Check reads and parses the value. It returns problems as a [relay.FieldError], and nil if no value is set.
func (s Setting[T]) Check() error {
	if !s.IsSet() {
		return nil
	}
	_, err := s.read()
	return err
}

func (s Setting[T]) read() (T, error) {
	var none T
	fileKey := s.Key + "_file"
	switch {
	case s.Text != "" && s.File != "":
		return none, &relay.FieldError{Field: fileKey, Problem: "conflicts with " + s.Key + ": set only one of them"}
	case s.File == "":
		value, err := s.Parse([]byte(s.Text))
		if err != nil {
			return none, &relay.FieldError{Field: s.Key, Problem: err.Error()}
		}
		return value, nil
	}
	text, err := filewatch.ReadFile(s.File)
	if err != nil {
		return none, &relay.FieldError{Field: fileKey, Problem: err.Error()}
	}
	value, err := s.parseFile(text)
	if err != nil {
		return none, &relay.FieldError{Field: fileKey, Problem: "names a file whose content " + err.Error()}
	}
	return value, nil
}

// parseFile parses the content of a file, which must not be empty.
func (s Setting[T]) parseFile(text []byte) (T, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		var none T
		return none, errors.New("is empty")
	}
	return s.Parse(text)
}

// Open returns a function that returns the current value, or the zero value if none is set. The function is safe for
// concurrent use. It checks a file at most once per second. If the file has become invalid, it logs the error and
// returns the last valid value. Open returns the same errors as Check. now is time.Now except in tests.
func (s Setting[T]) Open(log *slog.Logger, now func() time.Time) (func() T, error) {
	var value T
	if s.IsSet() {
		var err error
		if value, err = s.read(); err != nil {
			return nil, err
		}
	}
	if s.File == "" {
		return func() T { return value }, nil
	}
	file, err := filewatch.Open(s.File, s.parseFile, log, now)
	if err != nil {
		return nil, fmt.Errorf("%s_file %w", s.Key, err)
	}
	return file.Current, nil
}
