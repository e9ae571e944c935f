package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/adminsocket"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

const (
	// adminTimeout limits one request to a running daemon. A test attempt or a replay from the log can take minutes.
	adminTimeout = 10 * time.Minute
	// maxResponse limits the size of a response. A page of dead letters is far smaller.
	maxResponse = 64 << 20
)

// adminHelp explains how commands find the running daemon.
const adminHelp = `Commands find the daemon by --admin, by its configuration file (-c), by HUBRELAY_ADMIN, or by its
socket admin.sock in ./hubrelay-data, in this order. Over TCP they send the token in HUBRELAY_ADMIN_TOKEN.`

// adminFlags select the running daemon and the output format.
type adminFlags struct {
	address, file string
	asJSON        bool
}

func (f *adminFlags) register(cmd *cobra.Command, std term.Streams) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "admin", "", "URL or socket path of the daemon's admin listener (default: from -c, "+
		"HUBRELAY_ADMIN, or ./hubrelay-data/admin.sock)")
	flags.StringVarP(&f.file, "config", "c", "", "configuration file of the daemon, to find its admin listener")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON lines")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if f.file == "" { // -c has priority over the environment
			firstNonEmpty(&f.address, std.Getenv("HUBRELAY_ADMIN"))
		}
		if f.address == "" || isSocketPath(f.address) {
			return nil
		}
		if host, port, err := net.SplitHostPort(f.address); err == nil && !strings.Contains(host, "/") &&
			isNumber(port) {
			f.address = setup.LocalURL("http", f.address) // host:port, as in admin.listen
		}
		if u, err := url.Parse(f.address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return NewUsageError(cmd, fmt.Errorf("%q is neither the path of a socket nor a URL such as "+
				"https://127.0.0.1:9091: set HUBRELAY_ADMIN or use --admin", f.address))
		}
		return nil
	}
}

// isSocketPath reports whether an address is the path of a unix socket: it has no scheme, and contains a slash or
// ends with .sock.
func isSocketPath(address string) bool {
	return !strings.Contains(address, "://") && (strings.Contains(address, "/") || strings.HasSuffix(address, ".sock"))
}

func (f *adminFlags) newClient(std term.Streams) (*adminClient, error) {
	token := std.Getenv("HUBRELAY_ADMIN_TOKEN")
	if f.address != "" {
		return newAdminClient(std, f.address, token), nil
	}
	endpoint, err := daemon.LoadAdminEndpoint(f.file, std.Env)
	if err != nil {
		return nil, printProblems(std, err)
	}
	address, err := findDaemon(endpoint, f.file != "")
	if err != nil {
		return nil, err
	}
	c := newAdminClient(std, address, token)
	c.file, c.relay = f.file, endpoint.Relay
	return c, nil
}

// findDaemon returns the URL or the socket path of a daemon with endpoint e. If configured is false, e contains only
// defaults.
func findDaemon(e daemon.AdminEndpoint, configured bool) (string, error) {
	switch {
	case e.Listen != "" && e.TLS:
		return setup.LocalURL("https", e.Listen), nil
	case e.Listen != "":
		return setup.LocalURL("http", e.Listen), nil
	}
	path, err := adminsocket.Find(adminsocket.Target{
		DataDir: e.DataDir, HealthListen: e.HealthListen,
		Configured: configured,
	})
	if err != nil {
		return "", fmt.Errorf("no daemon found: start it, or set its admin listener with --admin, -c FILE or "+
			"HUBRELAY_ADMIN; tried %s",
			strings.ReplaceAll(err.Error(), "\n", ", "))
	}
	return path, nil
}

// newAdminClient returns a client for a URL or for the path of a socket. It sends the token only to a URL.
func newAdminClient(std term.Streams, address, token string) *adminClient {
	c := &adminClient{name: strings.TrimRight(address, "/"), token: token, warnings: std.Err, http: &http.Client{
		Timeout: adminTimeout,
		// The admin listener never redirects, so a redirect comes from another program.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	c.base = c.name
	if isSocketPath(address) {
		c.base, c.token = "http://localhost", ""
		c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", address)
		}}
	}
	return c
}

func isNumber(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// adminClient calls the admin API of a running daemon.
type adminClient struct {
	name  string // URL or path of the socket, for messages
	base  string // URL of requests
	token string // empty on a socket
	// relay is the identity of the relay in the configuration file. Another relay rejects requests with it.
	relay, file string
	http        *http.Client
	warnings    io.Writer // receives warnings of the daemon
	lastWarning string
}

// apiError is an error of the admin API.
type apiError struct {
	Code   relay.Code `json:"code"`
	Title  string     `json:"title"`
	Detail string     `json:"detail"`
	Extra  struct {
		// Replayed is the number of dead letters that were replayed before the error.
		Replayed int `json:"replayed"`
	} `json:"extra"`
}

func (e *apiError) Error() string {
	text := e.Detail
	firstNonEmpty(&text, e.Title)
	switch e.Code {
	case "404.sink":
		text = "the daemon has no such sink: 'hubrelay sinks list' shows all sinks"
	case "404.deadletter":
		text += ": 'hubrelay deadletters list' shows all dead letters"
	}
	return term.Sanitize(fmt.Sprintf("%s (%s)", text, e.Code))
}

// sinkPath returns the path of a sink, or of a resource below it.
func sinkPath(sink string, below ...string) string {
	path := "/api/sinks/" + url.PathEscape(sink)
	for _, part := range below {
		path += "/" + url.PathEscape(part)
	}
	return path
}

func (c *adminClient) get(ctx context.Context, path string, query url.Values, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.doRequest(ctx, http.MethodGet, path, "", nil, answer)
}

func (c *adminClient) post(ctx context.Context, path string, body, answer any) error {
	text := []byte("{}")
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
	}
	return c.doRequest(ctx, http.MethodPost, path, "application/json", text, answer)
}

// doRequest sends a request with the given content type and decodes the response into answer.
func (c *adminClient) doRequest(ctx context.Context, method, path, kind string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("create request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.relay != "" {
		req.Header.Set(adminapi.RelayHeader, c.relay)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.connectionError(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return c.connectionError(ctx, err)
	}
	c.showWarning(res.Header.Get(adminapi.WarningHeader))
	if res.StatusCode >= 200 && res.StatusCode < 300 && json.Unmarshal(text, answer) == nil {
		return nil
	}
	var failed struct{ Error *apiError }
	if json.Unmarshal(text, &failed) == nil && failed.Error != nil && failed.Error.Code != "" &&
		failed.Error.Code != relay.CodeNoURI {
		if failed.Error.Code == adminapi.CodeWrongRelay {
			return fmt.Errorf("%s belongs to another relay than %s, and nothing was done: check -c FILE, give the command "+
				"the same HUBRELAY_REDIS__… variables as the relay, or name the relay with --admin", c.name, c.file)
		}
		if failed.Error.Code == relay.CodeAuthInvalid {
			return c.tokenError()
		}
		return failed.Error // the public listener responds with 404.uri to paths of the admin API
	}
	return fmt.Errorf("%s returned status %d, so it is not an admin listener that supports this command: check "+
		"--admin, -c FILE or HUBRELAY_ADMIN", c.name, res.StatusCode)
}

// showWarning prints a warning of the daemon if it differs from the last one.
func (c *adminClient) showWarning(escaped string) {
	text, err := url.PathUnescape(escaped)
	if err == nil && text != "" && text != c.lastWarning {
		_, _ = fmt.Fprintln(c.warnings, "Warning:", term.Sanitize(text))
		c.lastWarning = text
	}
}

// tokenError explains a 401.
func (c *adminClient) tokenError() error {
	text := "the token in HUBRELAY_ADMIN_TOKEN is not one of admin.tokens: correct it"
	if c.token == "" {
		text = "the daemon requires a token of admin.tokens: set HUBRELAY_ADMIN_TOKEN"
	}
	return fmt.Errorf("%s (%s)", text, relay.CodeAuthInvalid)
}

func (c *adminClient) connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("no daemon responds at %s (%w): start it, or set its admin listener with --admin or -c FILE",
		c.name, err)
}

// errInterrupted is returned if the user interrupts a request. The daemon may have processed it.
var errInterrupted = errors.New("interrupted before the daemon responded")
