// Package console serves the web console: static files that call the admin API from the browser. It has no state and
// no data of the relay. The sources are in the directory web, and `make console` builds web/dist from them.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed web/dist
var dist embed.FS

// Policy is the Content-Security-Policy of all files. Scripts, styles and requests stay on the origin of the console, and
// nothing inline runs. Images may be data URLs, because the style sheet contains icons.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// root is the directory of the files. It contains no other directory.
const root = "web/dist"

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// Handler serves the files of the console. It may be used concurrently.
type Handler struct {
	files map[string]*file // by path in a URL
}

// file is a file of the console. It is compressed at the first request, so a console that is never opened costs no memory.
type file struct {
	contentType string
	content     []byte
	prepare     func() prepared
}

type prepared struct {
	etag       string
	compressed []byte
}

// New returns the handler.
func New() *Handler {
	h := &Handler{files: make(map[string]*file)}
	entries, _ := dist.ReadDir(root) // an embedded directory does not fail
	for _, entry := range entries {
		content, _ := dist.ReadFile(root + "/" + entry.Name())
		h.files["/"+entry.Name()] = &file{
			contentType: contentTypes[path.Ext(entry.Name())], content: content,
			prepare: sync.OnceValue(func() prepared { return prepareFile(content) }),
		}
	}
	h.files["/"] = h.files["/index.html"]
	delete(h.files, "/index.html")
	return h
}

func prepareFile(content []byte) prepared {
	hash := sha256.Sum256(content)
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	_, _ = w.Write(content)                               // a Buffer does not fail
	_ = w.Close()
	// The tag is weak (RFC 9110, 8.8.1), because the compressed file has the same.
	return prepared{`W/"` + base64.RawURLEncoding.EncodeToString(hash[:12]) + `"`, b.Bytes()}
}

// Has reports whether a file has this path.
func (h *Handler) Has(path string) bool { return h.files[path] != nil }

// ServeHTTP sends the file with the path of a GET or HEAD request, and otherwise responds with 404 or 405.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := h.files[r.URL.Path]
	switch {
	case f == nil:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are allowed here", http.StatusMethodNotAllowed)
		return
	}
	p := f.prepare()
	header := w.Header()
	setSecurityHeaders(header)
	header.Set("Content-Type", f.contentType)
	header.Set("Cache-Control", "no-cache") // the files of a new version have the same names
	header.Set("Vary", "Accept-Encoding")
	header.Set("Etag", p.etag)
	if strings.Contains(r.Header.Get("If-None-Match"), p.etag) { // a list
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content := f.content
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		header.Set("Content-Encoding", "gzip")
		content = p.compressed
	}
	header.Set("Content-Length", strconv.Itoa(len(content)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(content) // fails only if the client has disconnected
	}
}

// acceptsGzip reports whether a list of encodings (RFC 9110, 12.5.3) contains gzip with a weight above 0.
func acceptsGzip(list string) bool {
	for encoding := range strings.SplitSeq(list, ",") {
		name, weight, _ := strings.Cut(encoding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return err != nil || q > 0
		}
	}
	return false
}

// setSecurityHeaders sets the headers that keep pages of other origins away from the console, and that keep a browser from
// running anything but its script.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
