package webhook

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// classifyResponse returns the outcome of a response other than 2xx.
func (s *Sink) classifyResponse(h *requestHead, resp *http.Response) error {
	kept, _ := httpclient.ReadResponse(resp.Body, s.currentSecrets(h))
	err := fmt.Errorf("post to %s: %w", h.endpoint.Host(), &relay.ResponseError{Status: resp.StatusCode, Body: kept})
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return relay.Permanent(err)
	case http.StatusGone:
		return relay.Gone(err)
	}
	if wait, ok := httpclient.RetryAfter(resp.Header, s.now()); ok {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// networkError describes an error with the host of the URL only, and without headers.
func (s *Sink) networkError(ctx context.Context, h *requestHead, err error) error {
	return h.endpoint.RedactError(ctx, err, s.currentSecrets(h))
}

// currentSecrets returns the secrets of a request and of later requests.
func (s *Sink) currentSecrets(h *requestHead) redact.Secrets { return h.secrets.Join(s.recent.All()) }

// secretTexts returns the values of the configured headers and the credentials for the proxy.
func secretTexts(h http.Header, through *url.URL) []string {
	var texts []string
	for _, values := range h {
		texts = append(texts, values...)
		for _, v := range values {
			texts = append(texts, strings.Fields(v)...) // also the token without "Bearer"
		}
	}
	if through != nil && through.User != nil {
		password, _ := through.User.Password()
		texts = append(texts, password)
	}
	return texts
}
