package publicapi

import (
	_ "embed" // for the documents below
	"net/http"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

//go:embed openapi.yaml
var openAPI string

//go:embed asyncapi.yaml
var asyncAPI string

func serveDocument(text string) func(http.ResponseWriter, *http.Request) *relay.Error {
	return func(w http.ResponseWriter, r *http.Request) *relay.Error {
		httpserver.EndSoon(w, r)
		h := w.Header()
		h.Set("Content-Type", "application/yaml; charset=utf-8")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte(text)) // fails only if the client has disconnected
		return nil
	}
}
