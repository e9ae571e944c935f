package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/config"
)

const (
	// adminWait bounds one request to a running daemon; a test attempt or a replay out of the log may take long.
	adminWait = 10 * time.Minute
	// maxAnswer bounds what is read of an answer: a page of dead letters is far smaller.
	maxAnswer = 64 << 20
)

// adminFlags say which running daemon a command talks to, and how it prints.
type adminFlags struct {
	url, file string
	asJSON    bool
}

func (f *adminFlags) register(cmd *cobra.Command, std streams) {
	flags := cmd.Flags()
	flags.StringVar(&f.url, "admin", "", "address of the daemon's admin listener (default: what -c says, else HUBRELAY_ADMIN, else http://127.0.0.1:9090)")
	flags.StringVarP(&f.file, "config", "c", "", "configuration file whose admin.listen is taken where --admin is not given")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON lines")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if f.file == "" { // which was given for this command, and the environment for many
			fill(&f.url, std.lookup("HUBRELAY_ADMIN"))
		}
		if f.url == "" {
			return nil
		}
		if host, port, err := net.SplitHostPort(f.url); err == nil && !strings.Contains(host, "/") && isNumber(port) {
			f.url = reachable(f.url) // as admin.listen is written
		}
		if u, err := url.Parse(f.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return newUsageError(cmd, fmt.Errorf("%q is not an address such as http://127.0.0.1:9090: set HUBRELAY_ADMIN or give --admin", f.url))
		}
		return nil
	}
}

func (f *adminFlags) client(std streams) (*adminClient, error) {
	base := f.url
	if base == "" && f.file != "" {
		admin, err := config.LoadAdmin(f.file, std.env)
		if err != nil {
			return nil, reported(std, err)
		}
		base = reachable(admin.Listen)
	}
	fill(&base, "http://127.0.0.1:9090")
	return &adminClient{base: strings.TrimRight(base, "/"), http: &http.Client{
		Timeout: adminWait,
		// The admin listener redirects nobody: whatever does is something else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func isNumber(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// reachable is how this machine reaches what listens on listen.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "http://" + listen
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && addr.IsUnspecified() && addr.Is4():
		host = "127.0.0.1"
	case err == nil && addr.IsUnspecified():
		host = "::1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// adminClient calls the admin API of a running daemon.
type adminClient struct {
	base string
	http *http.Client
}

// apiError is what the daemon says is wrong.
type apiError struct {
	Code   relay.Code `json:"code"`
	Title  string     `json:"title"`
	Detail string     `json:"detail"`
	Extra  struct {
		// Replayed is how many were taken before a replay had to end.
		Replayed int `json:"replayed"`
	} `json:"extra"`
}

func (e *apiError) Error() string {
	text := e.Detail
	fill(&text, e.Title)
	switch e.Code {
	case "404.sink":
		text = "the daemon knows no such sink: 'hubrelay sinks list' shows those there are"
	case "404.deadletter":
		text += ": 'hubrelay deadletters list' shows those there are"
	}
	return printable(fmt.Sprintf("%s (%s)", text, e.Code))
}

// sinkPath is the path of a sink and what lies below it.
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
	return c.call(ctx, http.MethodGet, path, "", nil, answer)
}

func (c *adminClient) post(ctx context.Context, path string, body, answer any) error {
	text := []byte("{}")
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	return c.call(ctx, http.MethodPost, path, "application/json", text, answer)
}

// call sends one request, whose body is of some content type, and decodes the whole answer into answer.
func (c *adminClient) call(ctx context.Context, method, path, kind string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 && json.Unmarshal(text, answer) == nil {
		return nil
	}
	var failed struct{ Error *apiError }
	if json.Unmarshal(text, &failed) == nil && failed.Error != nil && failed.Error.Code != "" && failed.Error.Code != relay.CodeNoURI {
		return failed.Error // the public listener, too, says 404.uri of what is the admin listener's
	}
	return fmt.Errorf("%s answered %d and is not the admin listener of a hubrelay that knows this command: check --admin, -c FILE or HUBRELAY_ADMIN",
		c.base, res.StatusCode)
}

func (c *adminClient) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("no daemon answers at %s (%w): start it, or say where its admin listener is with --admin URL or -c FILE", c.base, err)
}

// errInterrupted ends a command whose user wanted it to end. The daemon may have done what it was asked for.
var errInterrupted = errors.New("interrupted before the daemon answered")
