package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/relay"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := "https://example.com/hook"
	for _, c := range []struct {
		config  Config
		field   string
		problem string
	}{
		{Config{URL: good}, "", ""},
		{Config{URL: good, Secrets: []string{secretA, secretB}, SecretFiles: []string{"testdata/secret"}}, "", ""},
		{Config{URL: "http://10.0.0.1:8080/", AllowCIDRs: []string{"10.0.0.0/8"}}, "", ""},
		{Config{}, "url", "is missing"},
		{Config{URL: "example.com/hook"}, "url", "https://"},
		{Config{URL: "ftp://example.com"}, "url", "https://"},
		{Config{URL: "https://"}, "url", "host"},
		{Config{URL: "https://u:s3cret@exa mple.com/s3cret"}, "url", "is not a URL"},
		{Config{URL: good + "#s3cret"}, "url", "fragment"},
		{Config{URL: good + "#"}, "url", "fragment"},
		{Config{URL: "https://example.com:99999/"}, "url", "port"},
		{Config{URL: "http://127.0.0.1/"}, "url", "add it to allow_cidrs"},
		{Config{URL: "http://localhost:3000/"}, "url", "add it to allow_cidrs"},
		{Config{URL: "http://[::ffff:169.254.169.254]/latest"}, "url", "add it to allow_cidrs"},
		{Config{URL: good, AllowCIDRs: []string{"10.0.0.0/8", "10.0.0"}}, "allow_cidrs.1", "10.0.0"},
		{Config{URL: good, Secrets: []string{secretA, "s3cret"}}, "secrets.1", "whsec_"},
		{Config{URL: good, Secrets: []string{"whsec_s3cret!"}}, "secrets.0", "base64"},
		{Config{URL: good, Secrets: []string{"whsec_c2hvcnQ="}}, "secrets.0", "5 bytes"},
		{Config{URL: good, SecretFiles: []string{"testdata/missing"}}, "secret_files.0", "cannot be read"},
		{Config{URL: good, SecretFiles: []string{"testdata/secret", "testdata/bad"}}, "secret_files.1", "line 2"},
		{Config{URL: good, SecretFiles: []string{empty}}, "secret_files.0", "without a secret"},
		{Config{URL: good, URLFile: "testdata/secret"}, "url_file", "conflicts with url"},
		{Config{URLFile: "testdata/missing"}, "url_file", "cannot be read"},
		{Config{URLFile: "testdata/secret"}, "url_file", "names a file"},
		{Config{URLFile: empty}, "url_file", "empty"},
		{Config{URL: good, Format: "xml"}, "format", "standard"},
		{Config{URL: good, Format: "standard", Headers: map[string]string{"X-Key": "a b", "user-agent": "me"}}, "", ""},
		{
			Config{URL: good, Headers: map[string]string{"WebHook-Id": "s3cret"}},
			"headers.WebHook-Id",
			"Standard Webhooks",
		},
		{Config{URL: good, Headers: map[string]string{"connection": "close"}}, "headers.connection", "connection"},
		{
			Config{URL: good, Headers: map[string]string{"Transfer-Encoding": "chunked"}},
			"headers.Transfer-Encoding",
			"connection",
		},
		{
			Config{URL: good, Headers: map[string]string{"proxy-authorization": "s3cret"}},
			"headers.proxy-authorization",
			"proxy",
		},
		{Config{URL: good, Headers: map[string]string{"Host": "s3cret"}}, "headers.Host", "from the URL"},
		{Config{URL: good, Headers: map[string]string{"X-A": "s3cret\r\nX-B: 1"}}, "headers.X-A", "line break"},
		{Config{URL: good, Headers: map[string]string{"X-A\r\n": "1"}}, "headers", "not a valid header name"},
		{Config{URL: good, Headers: map[string]string{"X-A: s3cret": "1"}}, "headers", `begins with "X-A" and is not a valid header name`},
		{Config{URL: good, Headers: map[string]string{"X-A": "1", "x-a": "2"}}, "headers.x-a", "twice"},
		{Config{URL: good, Bearer: "s3cret s3cret"}, "bearer", "white space"},
		{Config{URL: good, Bearer: "a", BearerFile: "testdata/secret"}, "bearer_file", "conflicts with bearer"},
		{
			Config{URL: good, Bearer: "a", Headers: map[string]string{"authorization": "s3cret"}},
			"bearer",
			"headers.authorization",
		},
		{Config{URL: "https://u:s3cret@example.com/", Bearer: "a"}, "url", "bearer"},
		{Config{URL: good, BearerFile: empty}, "bearer_file", "names a file whose content is empty"},
		{Config{URL: good, TLS: TLS{CertFile: "testdata/secret"}}, "tls.key_file", "cert_file requires it"},
		{Config{URL: good, TLS: TLS{KeyFile: "testdata/secret"}}, "tls.cert_file", "key_file requires it"},
		{Config{URL: good, TLS: TLS{CAFile: "testdata/secret"}}, "tls.ca_file", "not PEM"},
		{Config{URL: good, TLS: TLS{ServerName: "a:1"}}, "tls.server_name", "not a host name"},
		{Config{URL: "http://example.com", TLS: TLS{ServerName: "a"}}, "url", "https://"},
		{Config{URL: good, Proxy: "http://u:s3cret@10.0.0.1:3128"}, "", ""},
		{Config{URL: good, Proxy: "ftp://u:s3cret@proxy"}, "proxy", "socks5://"},
		{Config{URL: good, Proxy: "socks5h://u:s3cret@proxy"}, "proxy", "socks5://"},
		{Config{URL: good, Proxy: "http://proxy/s3cret"}, "proxy", "must end after"},
		{Config{URL: good, Proxy: "http://:s3cret@"}, "proxy", "has no host"},
		{Config{URL: good, Proxy: "http://proxy:0"}, "proxy", "port"},
		{Config{URL: "http://127.0.0.1/", Proxy: "http://10.0.0.1:3128"}, "url", "add it to allow_cidrs"},
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

func TestValidateReportsAllAtOnce(t *testing.T) {
	t.Parallel()
	c := Config{
		AllowCIDRs: []string{"10.0.0", "10.0.0.0/8", "x"}, Format: "xml",
		Headers: map[string]string{"Host": "a", "X-A": "1", "x-a": "2"}, Bearer: "a b", BearerFile: "testdata/secret",
		TLS: TLS{CertFile: "testdata/missing", ServerName: "a:1"}, Proxy: "ftp://proxy",
		Secrets: []string{secretA, "s3cret"}, SecretFiles: []string{"testdata/missing"},
	}
	var fields []string
	for line := range strings.Lines(c.validate().Error()) {
		field, _, _ := strings.Cut(line, " ")
		fields = append(fields, field)
	}
	want := []string{
		"allow_cidrs.0", "allow_cidrs.2", "url", "format", "headers.Host", "headers.x-a", "bearer_file",
		"tls.key_file", "tls.server_name", "tls.cert_file", "proxy", "secrets.1", "secret_files.0",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("got  %v\nwant %v", fields, want)
	}
}

func TestUnsignedRequestsAreMentioned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   int
	}{
		{Config{URL: "https://example.com/"}, 1},
		{Config{URL: "https://example.com/", Secrets: []string{secretA}}, 0},
		{Config{URL: "https://example.com/", SecretFiles: []string{"testdata/secret"}}, 0},
	} {
		got := c.config.listWarnings()
		if len(got) != c.want || len(got) == 1 && got[0].Field != "secrets" {
			t.Errorf("%+v warns %v", c.config, got)
		}
	}
}

func FuzzParseSecret(f *testing.F) {
	for _, s := range []string{secretA, secretB, "whsec_", "", " whsec_c2hvcnQ= "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseSecret(s)
		if err == nil && (len(key) < minSecret || len(key) > maxSecret) {
			t.Errorf("parseSecret(%q) gave %d bytes", s, len(key))
		}
	})
}

var testTime = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"120", "Mon, 02 Jan 2006 15:04:05 GMT", "-1", "9223372036854775807", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, _ := httpclient.RetryAfter(http.Header{"Retry-After": {s}}, testTime)
		if d < 0 || d > httpclient.MaxRetryAfter {
			t.Errorf("retryAfter(%q) = %s", s, d)
		}
	})
}

func ExampleConfig_Check() {
	c := &Config{URL: "http://169.254.169.254/latest/meta-data"}
	fmt.Println(c.Check(context.Background(), relay.CheckEnv{}).Errors[0])
	// Output: url is not allowed: 169.254.169.254 is a link-local or metadata address, which is rejected by default; to allow it, add it to allow_cidrs
}
