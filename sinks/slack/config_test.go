package slack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := "https://hooks.slack.com/services/T0/B0/s3cret"
	for _, c := range []struct {
		config  Config
		field   string
		problem string
	}{
		{Config{URL: good}, "", ""},
		{Config{URLFile: file(good + "\n")}, "", ""},
		{Config{URLFile: file("\n  " + good + "\r\n\n")}, "", ""},
		{Config{URL: "https://chat.example.com/hooks/s3cret"}, "", ""},
		{Config{URL: "http://10.0.0.1:8080/hooks/s3cret", AllowCIDRs: []string{"10.0.0.0/8"}}, "", ""},
		{Config{}, "url", "is missing"},
		{Config{URL: good, URLFile: file(good)}, "url_file", "only one of them"},
		{Config{URL: "s3cret"}, "url", "https://"},
		{Config{URL: "https://s3cret:s3cret@chat.example.com/x"}, "url", "user or password"},
		{Config{URL: "https://exa mple.com/s3cret"}, "url", "is not a URL"},
		{Config{URL: good + "#s3cret"}, "url", "fragment"},
		{Config{URL: "https:///s3cret"}, "url", "host"},
		{Config{URL: "https://example.com:70000/s3cret"}, "url", "port"},
		{Config{URL: "http://hooks.slack.com/services/T0/B0/s3cret"}, "url", "https://hooks.slack.com/services/"},
		{Config{URL: "https://hooks.slack.com/workflows/s3cret"}, "url", "https://hooks.slack.com/services/"},
		{Config{URL: "http://169.254.169.254/s3cret"}, "url", "add it to allow_cidrs"},
		{Config{URL: good, AllowCIDRs: []string{"10.0.0.0/8", "10.0.0"}}, "allow_cidrs.1", "10.0.0"},
		{Config{URLFile: "testdata/missing"}, "url_file", "cannot be read"},
		{Config{URLFile: file(" \n")}, "url_file", "is empty"},
		{Config{URLFile: file(good + "\n" + good)}, "url_file", "more than one"},
		{Config{URLFile: file("s3cret")}, "url_file", "https://"},
		{Config{URLFile: file(strings.Repeat("s3cret", 1<<18))}, "url_file", "larger than 1 MiB"},
	} {
		err := c.config.validate()
		var f *relay.FieldError
		switch {
		case c.field == "":
			if err != nil {
				t.Errorf("%+v: %v", c.config, err)
			}
		case !errors.As(err, &f) || f.Field != c.field || !strings.Contains(f.Problem, c.problem):
			t.Errorf("%+v: %v, want %s … %s", c.config, err, c.field, c.problem)
		case strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%v shows a secret", err)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{
		"https://hooks.slack.com/services/T0/B0/x", "", "http://[::1", "https://a@b/c?d#e",
		"\x00",
	} {
		f.Add([]byte(s))
	}
	g, err := netguard.New(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if target, err := parseTarget(string(text), g); err == nil &&
			(target.Host() == "" || target.URL().User != nil) {
			t.Errorf("parseTarget(%q) passed", text)
		}
	})
}

func ExampleConfig_Check() {
	c := &Config{URL: "https://hooks.slack.com/triggers/T0/1/abc"}
	fmt.Println(c.Check(context.Background(), relay.CheckEnv{}).Errors[0])
	// Output: url is not an incoming webhook of Slack: its URL starts with https://hooks.slack.com/services/
}
