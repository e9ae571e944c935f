// Package client is a Go client for the public HTTP API of hubrelay and of servers with the same API. It gets tokens,
// publishes notifications, migrates instances, and listens to the stream with automatic reconnection. The hubrelay
// commands use it, and other programs may use it too.
//
// It imports package relay and nothing else of this module: no Redis, no configuration, no internals of the daemon.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/envelope"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	notifications  = "/v1/hubs/current/notifications"
	requestTimeout = 30 * time.Second
	// maxResponseBody is the maximum size of a response in bytes. The IDs for a body of 1 MiB need much less.
	maxResponseBody = 8 << 20
	// maxErrorBody is the maximum size of an error response in bytes. Of a longer one, only the status is known.
	maxErrorBody = 64 << 10
	// maxErrorText is the maximum length of a text of the server in an error.
	maxErrorText = 500
)

// Client sends requests to one server with one API key. URL and Key are required. The fields must not change while the
// Client is in use. All methods are safe for concurrent use.
type Client struct {
	// URL is the http or https address of the server, including the path of the API if it is not at the root:
	// "https://relay.example".
	URL string
	// Key is the API key.
	Key string
	// Hub is the hub to publish to and to listen to. It is empty for the account stream.
	Hub string
	// HTTP sends the requests. Its *http.Transport (proxy, dial functions, TLS) also opens the websockets. If it is
	// nil, [http.DefaultClient] is used. Client limits every request to 30 s.
	HTTP *http.Client
	// UserAgent is the User-Agent header. If it is empty, "hubrelay" is used.
	UserAgent string
	// Log receives messages about opened and closed connections. If it is nil, they are discarded.
	Log *slog.Logger
}

// Error is an error response of the server.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code, Title, Detail, Source and Extra are the members of the error envelope. If the response has no envelope,
	// Code is empty. Such a response usually does not come from a relay.
	Code   relay.Code
	Title  string
	Detail string
	Source string
	Extra  map[string]any
	// RetryAfter is the time to wait that the server requested, or 0.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the server responded with %d %s without an error of a relay; check the address",
			e.Status, http.StatusText(e.Status))
	}
	return (&relay.Error{Code: e.Code, Detail: cmp.Or(e.Detail, e.Title), Source: e.Source}).Error()
}

// Token returns a new token, which opens one stream of c.Hub. The error is an [*Error] if the server sent an error
// response.
func (c *Client) Token(ctx context.Context) (string, error) {
	token, _, err := c.fetchToken(ctx)
	return token, err
}

// fetchToken returns a new token and the header of the response.
func (c *Client) fetchToken(ctx context.Context) (string, http.Header, error) {
	var data struct{ Token string }
	header, err := c.doRequest(ctx, http.MethodGet, notifications, nil, nil, &data)
	if err != nil {
		return "", nil, fmt.Errorf("get a token: %w", err)
	}
	if data.Token == "" {
		return "", nil, errors.New("get a token: the response has no token; check that the address is a relay's")
	}
	return data.Token, header, nil
}

// Publish sends one notification or a JSON array of notifications ("application/json"), or one notification per line
// ("application/x-ndjson"). It returns the IDs in the same order. The server stores all notifications or none. With an
// idempotencyKey, a call with the same body is safe to repeat if the result of the first is unknown. An empty key is
// not sent. The error is an [*Error] if the server sent an error response.
func (c *Client) Publish(ctx context.Context, contentType, idempotencyKey string, body []byte) ([]string, error) {
	header := http.Header{"Content-Type": {contentType}}
	if idempotencyKey != "" {
		header.Set("Idempotency-Key", idempotencyKey)
	}
	var data struct{ IDs []string }
	if err := c.doJSON(ctx, http.MethodPost, notifications, header, body, &data); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	return data.IDs, nil
}

// doJSON sends one request and decodes the member "data" of the response.
func (c *Client) doJSON(ctx context.Context, method, path string, header http.Header, body []byte, data any) error {
	_, err := c.doRequest(ctx, method, path, header, body, data)
	return err
}

// doRequest sends one request, decodes the member "data" of the response, and returns the header of the response.
func (c *Client) doRequest(
	ctx context.Context, method, path string, header http.Header, body []byte, data any,
) (http.Header, error) {
	address, err := c.endpointURL(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.requestHeader() {
		request.Header[name] = values
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Accept", "application/json")
	response, err := c.httpClient().Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusSwitchingProtocols { // the body is the connection, which ctx does not limit
		return nil, c.parseError(response, nil)
	}
	limit := int64(maxResponseBody)
	if response.StatusCode/100 != 2 {
		limit = maxErrorBody
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	if response.StatusCode/100 != 2 {
		return nil, c.parseError(response, text)
	}
	if len(text) > maxResponseBody {
		return nil, fmt.Errorf("the response is larger than %d bytes", maxResponseBody)
	}
	if err := json.Unmarshal(text, &struct{ Data any }{data}); err != nil {
		return nil, fmt.Errorf("the response is not a relay's, check the address: %w", err)
	}
	return response.Header, nil
}

// endpointURL returns the URL of an API path, which must be escaped.
func (c *Client) endpointURL(path string) (*url.URL, error) {
	address, err := url.Parse(c.URL)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		return nil, errors.New("the server's address must look like https://relay.example")
	}
	address.RawQuery, address.Fragment = "", ""
	return address.JoinPath(path), nil
}

func (c *Client) requestHeader() http.Header {
	header := http.Header{
		"Authorization": {"Bearer " + c.Key},
		"User-Agent":    {cmp.Or(c.UserAgent, "hubrelay")},
	}
	if c.Hub != "" {
		header.Set("X-Hub-Id", c.Hub)
	}
	return header
}

// httpClient returns the client for requests. It follows no redirects: net/http would repeat a POST as a GET, and its
// response would look like success.
func (c *Client) httpClient() *http.Client {
	direct := *cmp.Or(c.HTTP, http.DefaultClient)
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &direct
}

func (c *Client) logger() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// parseError converts an error response, with or without an error envelope. Its texts, except Extra, contain neither the key nor
// otherSecrets.
func (c *Client) parseError(response *http.Response, text []byte, otherSecrets ...string) *Error {
	var body struct{ Error envelope.Error }
	result := &Error{Status: response.StatusCode}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		result.RetryAfter = time.Duration(min(seconds, 24*60*60)) * time.Second
	}
	if json.Unmarshal(text, &body) != nil {
		return result
	}
	secrets := redact.New(append(otherSecrets, c.Key)...)
	clean := func(s string) string { return relay.Truncate(secrets.Text(s), maxErrorText) }
	e := body.Error
	result.Code, result.Source, result.Extra = relay.Code(clean(string(e.Code))), clean(e.Source), e.Extra
	result.Title, result.Detail = clean(e.Title), clean(e.Detail)
	return result
}
