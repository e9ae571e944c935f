// Package adminclient calls the admin API of a running daemon. Commands use it.
package adminclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/envelope"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// timeout limits one request. A test attempt or a replay from the log can take minutes.
	timeout = 10 * time.Minute
	// maxResponse limits the size of a response in bytes. A page of dead letters is far smaller.
	maxResponse = 64 << 20
	// maxEntries limits the entries of a page. The largest page has 1,000.
	maxEntries = 10_000
)

// Client calls the admin API of one daemon. It may be used concurrently.
type Client struct {
	address string // URL or path of the socket, for messages
	base    string // URL of requests
	opt     Options
	http    *http.Client
}

// Options are the options of [New].
type Options struct {
	// Token is a token of admin.tokens. It is not sent to a unix socket.
	Token string
	// Relay is the identity of the relay that requests are meant for. Another relay rejects them. Empty means any relay.
	Relay string
	// ShowWarning receives the warning of each response that has one. Nil discards them.
	ShowWarning func(text string)
}

// New returns a client for a URL, or for the path of a unix socket.
func New(address string, o Options) *Client {
	c := &Client{address: strings.TrimRight(address, "/"), opt: o, http: &http.Client{
		Timeout: timeout,
		// The admin listener never redirects, so a redirect comes from another program.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	c.base = c.address
	if IsSocketPath(address) {
		c.base, c.opt.Token = "http://localhost", ""
		c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", address)
		}}
	}
	return c
}

// IsSocketPath reports whether an address is the path of a unix socket: it has no scheme, and contains a slash or
// ends with .sock.
func IsSocketPath(address string) bool {
	return !strings.Contains(address, "://") && (strings.Contains(address, "/") || strings.HasSuffix(address, ".sock"))
}

// ConnectionError means that no daemon responded at the address.
type ConnectionError struct {
	Address string
	Err     error
}

func (e *ConnectionError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Address, e.Err) }
func (e *ConnectionError) Unwrap() error { return e.Err }

// ResponseError means that a response is not one of the admin API, or not one of this version.
type ResponseError struct {
	Address string
	Status  int
	// Err is the reason why the body of a successful response could not be decoded, or nil.
	Err error
}

func (e *ResponseError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("decode response: %v; does the relay have another version?", e.Err)
	}
	return fmt.Sprintf("%s returned status %d, so it is not an admin listener that supports this command: check "+
		"--admin, -c FILE or HUBRELAY_ADMIN", e.Address, e.Status)
}

func (e *ResponseError) Unwrap() error { return e.Err }

// Call calls an operation. params are the values of the parameters in its path. The error is an [*envelope.Error],
// a [*ConnectionError], a [*ResponseError], or ctx.Err().
func Call[Request, Response any](
	ctx context.Context, c *Client, op adminapi.Operation[Request, Response], request Request, params ...string,
) (response Response, err error) {
	r, err := newRequest(ctx, c, op, request, params)
	if err != nil {
		return response, err
	}
	body, err := c.send(r)
	if err != nil {
		return response, err
	}
	if _, ok := any(response).(adminapi.WholeBody); ok {
		if err = checkPageLength(body); err == nil {
			err = json.Unmarshal(body, &response)
		}
	} else {
		var envelope adminapi.Envelope[Response]
		err = json.Unmarshal(body, &envelope)
		response = envelope.Data
	}
	if err != nil {
		err = &ResponseError{c.address, http.StatusOK, err}
	}
	return response, err
}

// checkPageLength rejects a page of more than maxEntries entries, which would need hundreds of times its size when decoded. Lists
// within an entry are not limited.
func checkPageLength(body []byte) error {
	var page struct{ Data entryCounter } // the decoder finds the same members as for the page itself
	return json.Unmarshal(body, &page)
}

type entryCounter struct{}

// UnmarshalJSON returns an error if a list has too many entries.
func (*entryCounter) UnmarshalJSON(list []byte) error {
	d := json.NewDecoder(bytes.NewReader(list))
	if start, _ := d.Token(); start != json.Delim('[') {
		return nil // decoding the page reports another type
	}
	var skipped json.RawMessage
	for n := 1; d.More(); n++ {
		if n > maxEntries {
			return fmt.Errorf("the page has more than %d entries", maxEntries)
		}
		if err := d.Decode(&skipped); err != nil {
			return err
		}
	}
	return nil
}

// pageSize is the number of entries per request of [ForEachPage].
const pageSize = 500

// ForEachPage calls visit with each page of a list. page sets the page in a request.
func ForEachPage[Request, Entry any](
	ctx context.Context, c *Client, op adminapi.Operation[Request, adminapi.Page[Entry]],
	page func(adminapi.PageRequest) Request, visit func([]Entry) error, params ...string,
) error {
	for after := ""; ; {
		list, err := Call(ctx, c, op, page(adminapi.PageRequest{After: after, Limit: pageSize}), params...)
		if err != nil {
			return err
		}
		if err := visit(list.Data); err != nil {
			return err
		}
		if list.Next == "" || list.Next == after {
			return nil
		}
		after = list.Next
	}
}

// NewProxy returns a handler that sends requests to the daemon with the credential of the client. It removes the
// headers that identify the sender, which the caller has checked.
func (c *Client) NewProxy() (http.Handler, error) {
	target, err := url.Parse(c.base)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Transport: c.http.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			for name := range p.Out.Header {
				if strings.HasPrefix(name, "Sec-") {
					p.Out.Header.Del(name)
				}
			}
			for _, name := range []string{"Authorization", "Cookie", "Origin", "Referer"} {
				p.Out.Header.Del(name)
			}
			c.setHeaders(p.Out.Header)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Set-Cookie") // of a session at the relay, for another host
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(map[string]any{"data": nil, "error": envelope.Error{ // fails only without a client
				Status: http.StatusServiceUnavailable, Code: relay.CodeNotReady, Title: "The relay is not reachable",
				Detail: c.connectionError(r.Context(), err).Error(),
			}})
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // ErrorHandler reports errors
	}, nil
}

// setHeaders sets the relay that a request is meant for, and the credential.
func (c *Client) setHeaders(h http.Header) {
	if c.opt.Relay != "" {
		h.Set(adminapi.RelayHeader, c.opt.Relay)
	}
	if c.opt.Token != "" {
		h.Set("Authorization", "Bearer "+c.opt.Token)
	}
}

func newRequest[Request, Response any](
	ctx context.Context, c *Client, op adminapi.Operation[Request, Response], request Request, params []string,
) (*http.Request, error) {
	path, err := op.URL(params...)
	if err != nil {
		return nil, err
	}
	query, contentType, body := "", "", []byte(nil)
	file, isFile := any(request).(adminapi.InventoryFile)
	switch {
	case op.Method == http.MethodGet:
		query = adminapi.EncodeQuery(request).Encode()
	case isFile:
		contentType, body = "application/yaml", file
	default:
		contentType = "application/json"
		if body, err = json.Marshal(request); err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, op.Method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	r.URL.RawQuery = query
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	r.Header.Set("Accept", "application/json")
	c.setHeaders(r.Header)
	return r, nil
}

// send sends a request and returns the body of a successful response.
func (c *Client) send(r *http.Request) ([]byte, error) {
	response, err := c.http.Do(r)
	if err != nil {
		return nil, c.connectionError(r.Context(), err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return nil, c.connectionError(r.Context(), err)
	}
	if text, err := url.PathUnescape(response.Header.Get(adminapi.WarningHeader)); err == nil && text != "" &&
		c.opt.ShowWarning != nil {
		c.opt.ShowWarning(text)
	}
	if response.StatusCode >= 200 && response.StatusCode < 300 && json.Valid(body) {
		return body, nil
	}
	var failed struct{ Error *envelope.Error }
	// The public listener responds with 404.uri to paths of the admin API.
	if json.Unmarshal(body, &failed) == nil && failed.Error != nil && failed.Error.Code != "" &&
		failed.Error.Code != relay.CodeNoURI {
		return nil, failed.Error
	}
	return nil, &ResponseError{Address: c.address, Status: response.StatusCode}
}

func (c *Client) connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return &ConnectionError{c.address, err}
}
