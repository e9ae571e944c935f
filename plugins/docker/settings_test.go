package docker

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

func TestDriver_ConfigureChecksSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := writeCertificates(dir); err != nil {
		t.Fatal(err)
	}
	tls := strings.NewReplacer("ca.pem", filepath.Join(dir, "ca.pem"), "cert.pem", filepath.Join(dir, "cert.pem"),
		"key.pem", filepath.Join(dir, "key.pem"), "none.pem", filepath.Join(dir, "none.pem"))
	if err := os.WriteFile(filepath.Join(dir, "none"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ settings, wantErr string }{
		{`{}`, ""},
		{`{"host":""}`, ""},
		{`{"host":"unix:///run/docker.sock"}`, ""},
		{`{"host":"ssh://ops@host-b:2222"}`, ""},
		{`{"host":"tcp://127.0.0.1:2375"}`, ""},
		{`{"host":"tcp://host-b:2376","tls":{"ca_file":"ca.pem","cert_file":"cert.pem","key_file":"key.pem"}}`, ""},

		{``, "its settings must be"},
		{`[]`, "its settings must be"},
		{`{} {}`, "more text after the JSON value"},
		{`{"hots":""}`, "hots is an unknown key; did you mean host?"},
		{`{"host":5}`, "its settings must be"},
		{`{"host":"/run/docker.sock"}`, "must start with unix://"},
		{`{"host":"unix://run/docker.sock"}`, "three slashes"},
		{`{"host":"http://host-b"}`, "must start with unix://"},
		{`{"host":"tcp://host-b:2375"}`, "needs tls"},
		{`{"host":"tcp://host-b","tls":{}}`, "tcp://HOST:PORT"},
		{`{"host":"tcp://host-b:2376","tls":{"ca_file":"ca.pem"}}`, "tls.cert_file is missing"},
		{
			`{"host":"tcp://host-b:2376","tls":{"ca_file":"none.pem","cert_file":"cert.pem","key_file":"key.pem"}}`,
			"tls.ca_file",
		},
		{
			`{"host":"tcp://host-b:2376","tls":{"ca_file":"ca.pem","cert_file":"key.pem","key_file":"cert.pem"}}`,
			"tls.cert_file and tls.key_file",
		},
		{`{"host":"unix:///run/docker.sock","tls":{}}`, "tls requires a host"},
		{`{"host":"ssh://ops:secret@host-b"}`, "not contain a password"},
		{`{"host":"ssh://-oProxyCommand=x"}`, "dash"},
		{`{"host":"tcp://host b"}`, "host"},
	} {
		server := relay.Server{ID: "b7", Settings: []byte(tls.Replace(c.settings))}
		config := DefaultConfig()
		err := New(&config).Configure(t.Context(), []relay.Server{server})
		switch {
		case c.wantErr == "" && err != nil:
			t.Errorf("%s: got error %v", c.settings, err)
		case c.wantErr == "":
		case err == nil || !strings.Contains(err.Error(), "server b7: ") ||
			!strings.Contains(err.Error(), c.wantErr) || strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: got error %v, want it to contain %q", c.settings, err, c.wantErr)
		}
	}
}

func TestDriver_ConfigureRejectsEqualHosts(t *testing.T) {
	t.Parallel()
	config := DefaultConfig()
	d := New(&config)
	err := d.Configure(t.Context(), []relay.Server{server("a", ""), server("b", "unix:///var/run/docker.sock")})
	if err == nil || !strings.Contains(err.Error(), "already used by server a") {
		t.Errorf("got error %v", err)
	}
	bad := server("a", "")
	bad.Instances = []string{"good", "no good"}
	if err := d.Configure(t.Context(), []relay.Server{bad}); err == nil ||
		!strings.Contains(err.Error(), `server a: instance "no good"`) {
		t.Errorf("got error %v", err)
	}
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []Config{
		{}, {HealthTimeout: 1}, {HealthTimeout: 1, Settle: 2}, {HealthTimeout: 1 << 62, Settle: 1},
	} {
		if c.Validate() == nil {
			t.Errorf("Validate accepted %+v", c)
		}
	}
	var d Duration
	if err := d.UnmarshalJSON([]byte(`"90s"`)); err != nil || d != Duration(90e9) {
		t.Error(d, err)
	}
	for _, bad := range []string{`5`, `"5"`, `"x"`} {
		if d.UnmarshalJSON([]byte(bad)) == nil {
			t.Errorf("UnmarshalJSON accepted %s", bad)
		}
	}
}

func server(id, host string) relay.Server {
	return relay.Server{ID: id, Cluster: "production", Settings: fmt.Appendf(nil, `{"host":%q}`, host)}
}

// The client must not accept gzip, because Docker's compression makes copies twenty times slower.
func TestSettings_OpenRequestsUncompressedFiles(t *testing.T) {
	t.Parallel()
	encodings := make(chan string, 1)
	docker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/archive") {
			w.Header().Set("X-Docker-Container-Path-Stat", "e30=")
			encodings <- r.Header.Get("Accept-Encoding")
		}
	}))
	t.Cleanup(docker.Close)
	h, err := openHost(server("a", "tcp://"+docker.Listener.Addr().String()), "web", 1)
	if err != nil {
		t.Fatal(err)
	}
	from, err := h.client.CopyFromContainer(t.Context(), "web", client.CopyFromContainerOptions{SourcePath: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(from.Content.Close(), h.client.Close()); err != nil {
		t.Fatal(err)
	}
	if got := <-encodings; got != "identity" {
		t.Errorf("got Accept-Encoding %q, want identity", got)
	}
}
