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

	"github.com/hubrelay/hubrelay/relay"
)

const (
	notifications  = "/v1/hubs/current/notifications"
	requestTimeout = 30 * time.Second
	// maxAnswer bounds an answer: the ids of a body of 1 MiB stay far below it.
	maxAnswer = 8 << 20
	// maxErrorText bounds what is shown of a far side's text.
	maxErrorText = 500
)

// Client speaks for one key to one server. The zero value lacks URL and Key; the fields must not change while it is in
// use. All methods may be called concurrently.
type Client struct {
	// URL is the server's address, http or https, with a path where the API stands below one: "https://relay.example".
	URL string
	// Key is the API key.
	Key string
	// Hub is the hub to publish to and to listen to; empty for the account pipeline.
	Hub string
	// HTTP makes the requests, and its *http.Transport (proxy, dialling, TLS) the websockets; nil is
	// [http.DefaultClient]. Requests are bounded to 30 s by the Client itself.
	HTTP *http.Client
	// UserAgent names the program to the server; empty is "hubrelay".
	UserAgent string
	// Log is told of connections that come and go; nil discards.
	Log *slog.Logger
}

// Error is an error that the server answered with.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code, Title, Detail, Source and Extra come from the error envelope. Code is empty where there was none: then
	// something else than a relay answered.
	Code   relay.Code
	Title  string
	Detail string
	Source string
	Extra  map[string]any
	// RetryAfter is how long the server asked to wait, or 0.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the server answered %d %s without an error of a relay; check the address", e.Status, http.StatusText(e.Status))
	}
	text := string(e.Code)
	if e.Source != "" {
		text += " at " + e.Source
	}
	if say := cmp.Or(e.Detail, e.Title); say != "" {
		text += ": " + say
	}
	return text
}

// Token returns a new token, which opens one stream of c.Hub. The error is an [*Error] where the server answered one.
func (c *Client) Token(ctx context.Context) (string, error) {
	token, _, err := c.fetchToken(ctx)
	return token, err
}

// fetchToken returns the answer's header besides.
func (c *Client) fetchToken(ctx context.Context) (string, http.Header, error) {
	var answer struct{ Token string }
	header, err := c.doRequest(ctx, http.MethodGet, notifications, nil, nil, &answer)
	if err != nil {
		return "", nil, fmt.Errorf("get a token: %w", err)
	}
	if answer.Token == "" {
		return "", nil, errors.New("get a token: the answer holds none; check that the address is a relay's")
	}
	return answer.Token, header, nil
}

// Publish sends one notification, a JSON array of them ("application/json"), or one on each line
// ("application/x-ndjson"), and returns their ids in order. All are stored or none. An idempotencyKey makes it safe to
// call again with the same body after an error that leaves in doubt what happened; empty sends none. The error is an
// [*Error] where the server answered one.
func (c *Client) Publish(ctx context.Context, contentType, idempotencyKey string, body []byte) ([]string, error) {
	header := http.Header{"Content-Type": {contentType}}
	if idempotencyKey != "" {
		header.Set("Idempotency-Key", idempotencyKey)
	}
	var answer struct{ IDs []string }
	if err := c.doJSON(ctx, http.MethodPost, notifications, header, body, &answer); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	return answer.IDs, nil
}

// doJSON makes one request and decodes the member data of its answer.
func (c *Client) doJSON(ctx context.Context, method, path string, header http.Header, body []byte, data any) error {
	_, err := c.doRequest(ctx, method, path, header, body, data)
	return err
}

// doRequest is call, and returns the answer's header.
func (c *Client) doRequest(ctx context.Context, method, path string, header http.Header, body []byte, data any) (http.Header, error) {
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
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode/100 != 2 {
		return nil, answerError(response, text)
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(text, &struct{ Data any }{data}); err != nil {
		return nil, fmt.Errorf("the answer is not a relay's, check the address: %w", err)
	}
	return response.Header, nil
}

// endpointURL is the address of a path, which is escaped as far as need be.
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

// httpClient is the client for requests. It follows no redirect: a publication would arrive as a GET, whose answer looks like
// success.
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

// answerError reads the error envelope.
func answerError(response *http.Response, text []byte) *Error {
	var envelope struct {
		Error struct {
			Code                  relay.Code
			Title, Detail, Source string
			Extra                 map[string]any
		}
	}
	answer := &Error{Status: response.StatusCode}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		answer.RetryAfter = time.Duration(min(seconds, 24*60*60)) * time.Second
	}
	if json.Unmarshal(text, &envelope) != nil {
		return answer
	}
	e := envelope.Error
	answer.Code, answer.Source, answer.Extra = relay.Code(truncate(string(e.Code))), truncate(e.Source), e.Extra
	answer.Title, answer.Detail = truncate(e.Title), truncate(e.Detail)
	return answer
}

func truncate(s string) string { return relay.Truncate(s, maxErrorText) }
