package httpclient

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// Setting is a value as an operator gives it, such as a secret: in place by a key, or in a file that the key's twin
// KEY_file names and that is read again when it changes.
type Setting[T any] struct {
	// Key is the name of the setting, such as "token".
	Key string
	// Text and File are the values of the key and its twin. At most one of them may be given.
	Text, File string
	// Parse reads either; line breaks at the end of a file are its to take off. Its errors follow the key's name, or
	// "whose content", and repeat nothing of what they are about.
	Parse func([]byte) (T, error)
}

// IsSet tells whether there is a value.
func (s Setting[T]) IsSet() bool { return s.Text != "" || s.File != "" }

// Check reads the value and reports what is wrong with it as a [relay.FieldError]. Nothing is wrong with one that is not
// given.
func (s Setting[T]) Check() error {
	if !s.IsSet() {
		return nil
	}
	_, err := s.read()
	return err
}

func (s Setting[T]) read() (T, error) {
	var none T
	twin := s.Key + "_file"
	switch {
	case s.Text != "" && s.File != "":
		return none, &relay.FieldError{Field: twin, Problem: "is given beside " + s.Key + ": give one of the two"}
	case s.File == "":
		value, err := s.Parse([]byte(s.Text))
		if err != nil {
			return none, &relay.FieldError{Field: s.Key, Problem: err.Error()}
		}
		return value, nil
	}
	text, err := ReadFile(s.File)
	if err != nil {
		return none, &relay.FieldError{Field: twin, Problem: err.Error()}
	}
	value, err := s.parseFile(text)
	if err != nil {
		return none, &relay.FieldError{Field: twin, Problem: "names a file whose content " + err.Error()}
	}
	return value, nil
}

// parseFile reads what a file holds.
func (s Setting[T]) parseFile(text []byte) (T, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		var none T
		return none, errors.New("is empty")
	}
	return s.Parse(text)
}

// Open returns a function that gives the value as it is now, and may be called concurrently: a file is looked at again at
// most once a second, and one that became bad keeps its last good value, of which log is told. Of a setting that is not
// given it gives the zero value. Its errors are those of Check. now is time.Now but for tests.
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
	file, err := WatchFile(s.File, s.parseFile, log, now)
	if err != nil {
		return nil, fmt.Errorf("%s_file %w", s.Key, err)
	}
	return file.Current, nil
}
