package console_test

import (
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/console"
)

func get(t *testing.T, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	console.New().ServeHTTP(w, r)
	return w
}

func TestHandler_ServesFiles(t *testing.T) {
	total := 0
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/console.js": "text/javascript; charset=utf-8", "/console.css": "text/css; charset=utf-8",
	} {
		plain, packed := get(t, path), get(t, path, "Accept-Encoding", "br, gzip")
		total += packed.Body.Len()
		r, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		unpacked, err := io.ReadAll(r)
		if err != nil || string(unpacked) != plain.Body.String() || plain.Code != 200 || len(unpacked) == 0 {
			t.Errorf("%s: the compressed file differs from the file, or status %d is not 200; %v", path, plain.Code, err)
		}
		for name, want := range map[string]string{
			"Content-Type": contentType, "Content-Security-Policy": console.Policy, "X-Frame-Options": "DENY",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
		} {
			if got := plain.Header().Get(name); got != want {
				t.Errorf("%s: got %s %q, want %q", path, name, got, want)
			}
		}
		if again := get(t, path, "If-None-Match", `"x", `+plain.Header().Get("Etag")); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("%s again: got %d with %d bytes, want 304", path, again.Code, again.Body.Len())
		}
	}
	for encodings, want := range map[string]string{
		"gzip": "gzip", "br, GZIP;q=0.5": "gzip", "gzip;q=0": "", "gzip; q=0.0": "", "br": "", "": "",
	} {
		if got := get(t, "/", "Accept-Encoding", encodings).Header().Get("Content-Encoding"); got != want {
			t.Errorf("Accept-Encoding %q: got %q, want %q", encodings, got, want)
		}
	}
	if limit := 120 << 10; total > limit {
		t.Errorf("the console has %d bytes in gzip, want at most %d", total, limit)
	}
	if w := get(t, "/index.html"); w.Code != 404 {
		t.Errorf("a second name of the page: got %d, want 404", w.Code)
	}
}

// The policy forbids inline scripts and styles, so a page that needs one would not work.
func TestPage_HasNothingInline(t *testing.T) {
	page := get(t, "/").Body.String()
	for _, text := range []string{"<style", "style=", "onload=", "onclick=", "javascript:", "http://", "https://"} {
		if strings.Contains(page, text) {
			t.Errorf("the page contains %q", text)
		}
	}
	for script := range strings.SplitSeq(page, "<script") {
		if _, body, isScript := strings.Cut(script, ">"); isScript && strings.Contains(script, "</script>") && !strings.HasPrefix(body, "</script>") {
			t.Errorf("the page contains an inline script: %q", body)
		}
	}
}
