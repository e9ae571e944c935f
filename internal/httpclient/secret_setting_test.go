package httpclient

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestSetting(t *testing.T) {
	t.Parallel()
	parse := func(text []byte) (string, error) {
		value := strings.TrimSpace(string(text))
		if strings.Contains(value, "bad") {
			return "", errors.New("is not good")
		}
		return value, nil
	}
	name := filepath.Join(t.TempDir(), "value")
	age := time.Hour
	write := func(text string) {
		t.Helper()
		age -= time.Minute // gives each version another modification time
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	clock := func() time.Time { return now }
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, c := range []struct {
		text, file, content string
		want, problem       string
	}{
		{"", "", "", "", ""},
		{" a ", "", "", "a", ""},
		{"", name, "a\n", "a", ""},
		{"a", name, "a", "", "token_file conflicts with token: set only one of them"},
		{"s3cretbad", "", "", "", "token is not good"},
		{"", name, "s3cretbad", "", "token_file names a file whose content is not good"},
		{"", name, " \n", "", "token_file names a file whose content is empty"},
		{"", name + "none", "", "", "token_file cannot be read: no such file or directory"},
		{"", filepath.Dir(name), "", "", "token_file cannot be read: is a directory"},
	} {
		write(c.content)
		s := Setting[string]{Key: "token", Text: c.text, File: c.file, Parse: parse}
		err := s.Check()
		_, opened := s.Open(logger, clock)
		var field *relay.FieldError
		if c.problem != "" {
			if !errors.As(err, &field) || err.Error() != c.problem || opened == nil || opened.Error() != c.problem {
				t.Errorf("%+v: got errors %v and %v", c, err, opened)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: got error %v", c, err)
			continue
		}
		if current, _ := s.Open(logger, clock); current() != c.want || s.IsSet() != (c.want != "") {
			t.Errorf("%+v: got %q", c, current())
		}
	}
	write("one")
	current, err := Setting[string]{Key: "token", File: name, Parse: parse}.Open(logger, clock)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ content, want string }{
		{"two", "two"}, {"s3cretbad", "two"}, {"\n", "two"}, {"three", "three"},
	} {
		write(c.content)
		now = now.Add(time.Second)
		if got := current(); got != c.want {
			t.Errorf("file content %q: got %q, want %q", c.content, got, c.want)
		}
	}
	for _, want := range []string{`error="is not good"`, `error="is empty"`} {
		if !strings.Contains(log.String(), want) || strings.Contains(log.String(), "s3cret") {
			t.Errorf("log: got %s, want %s and no secrets", log.String(), want)
		}
	}
}
