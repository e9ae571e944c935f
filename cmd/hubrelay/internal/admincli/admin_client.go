package admincli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/adminclient"
	"github.com/hubrelay/hubrelay/internal/adminsocket"
	"github.com/hubrelay/hubrelay/internal/envelope"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

// adminHelp explains how commands find the running relay.
const adminHelp = `Commands find the relay by --admin, by its configuration file (-c), by HUBRELAY_ADMIN, or by its
socket admin.sock in ./hubrelay-data, in this order. Over TCP they send the token in HUBRELAY_ADMIN_TOKEN.`

// adminFlags select the running relay and the output format.
type adminFlags struct {
	command.Output
	address, file string
}

func (f *adminFlags) register(cmd *cobra.Command, std term.Streams) {
	f.registerConnection(cmd, std)
	f.Register(cmd.Flags())
}

// registerConnection registers only the flags that select the relay.
func (f *adminFlags) registerConnection(cmd *cobra.Command, std term.Streams) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "admin", "", "URL or socket path of the relay's admin listener (default: from -c, "+
		"HUBRELAY_ADMIN, or ./hubrelay-data/admin.sock)")
	flags.StringVarP(&f.file, "config", "c", "", "configuration file of the relay, to find its admin listener")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := rejectEmptyFlags(cmd); err != nil {
			return err
		}
		if f.file == "" { // -c has priority over the environment
			command.SetFirstNonEmpty(&f.address, std.Getenv("HUBRELAY_ADMIN"))
		}
		if f.address == "" || adminclient.IsSocketPath(f.address) {
			return nil
		}
		if host, port, err := net.SplitHostPort(f.address); err == nil && !strings.Contains(host, "/") &&
			isNumber(port) {
			f.address = setup.LocalURL("http", f.address) // host:port, as in admin.listen
		}
		if u, err := url.Parse(f.address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return command.NewUsageError(cmd, fmt.Errorf("%q is neither the path of a socket nor a URL such as "+
				"https://127.0.0.1:9091: set HUBRELAY_ADMIN or use --admin", f.address))
		}
		return nil
	}
}

// rejectEmptyFlags returns an error for a flag with an empty value, such as --hub "$HUB" with an unset variable, which would
// select everything.
func rejectEmptyFlags(cmd *cobra.Command) error {
	var empty string
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch value := flag.Value.String(); flag.Value.Type() {
		case "string":
			if value == "" {
				empty = flag.Name
			}
		case "stringSlice", "stringArray":
			if value == "[]" {
				empty = flag.Name
			}
		}
	})
	if empty == "" {
		return nil
	}
	return command.NewUsageError(cmd, fmt.Errorf("--%s is empty: set a value, or omit it", empty))
}

// connect returns a client of the running relay.
func (f *adminFlags) connect(std term.Streams) (*adminConn, error) {
	token := std.Getenv("HUBRELAY_ADMIN_TOKEN")
	if f.address != "" {
		return newAdminConn(std, f.address, adminclient.Options{Token: token}), nil
	}
	endpoint, err := daemon.LoadAdminEndpoint(f.file, std.Env)
	if err != nil {
		return nil, command.PrintProblems(std, err)
	}
	address, err := findRelay(endpoint, f.file)
	if err != nil {
		return nil, err
	}
	c := newAdminConn(std, address, adminclient.Options{Token: token, Relay: endpoint.Relay})
	c.file = f.file
	return c, nil
}

// findRelay returns the URL or the socket path of a relay with endpoint e. Without a configuration file, e contains only
// defaults.
func findRelay(e daemon.AdminEndpoint, file string) (string, error) {
	switch {
	case e.Listen != "" && e.TLS:
		return setup.LocalURL("https", e.Listen), nil
	case e.Listen != "":
		return setup.LocalURL("http", e.Listen), nil
	}
	path, err := adminsocket.Find(adminsocket.Target{
		DataDir: e.DataDir, HealthListen: e.HealthListen,
		Configured: file != "",
	})
	if err == nil {
		return path, nil
	}
	hint := "or name it with -c FILE, --admin or HUBRELAY_ADMIN"
	if file != "" {
		hint = "or name its socket, admin.sock in redis.data_dir, with --admin"
	}
	return "", fmt.Errorf("no relay found: start it and wait until it is ready, %s; tried %s", hint,
		strings.ReplaceAll(err.Error(), "\n", ", "))
}

// adminConn is a client of a running relay.
type adminConn struct {
	*adminclient.Client
	address, file string
	hasToken      bool
}

// newAdminConn returns a client for a URL or for the path of a socket.
func newAdminConn(std term.Streams, address string, o adminclient.Options) *adminConn {
	last := ""
	o.ShowWarning = func(text string) {
		if text != last {
			last = text
			_, _ = fmt.Fprintln(std.Err, "warning:", term.Sanitize(text))
		}
	}
	return &adminConn{Client: adminclient.New(address, o), address: address, hasToken: o.Token != ""}
}

func isNumber(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// errNoRelay is wrapped by the error of a request without a response.
var errNoRelay = errors.New("no relay responds")

// connectionClosedError reports that the relay closed the connection without a response. It matches [errNoRelay], so commands
// that wait for a relay continue.
type connectionClosedError struct{ *adminclient.ConnectionError }

func (e *connectionClosedError) Error() string {
	return fmt.Sprintf("the relay at %s closed the connection without a response (%v); it may be overloaded or stopping, "+
		"and may have processed the request: check, then repeat the command", e.Address, e.Err)
}

func (e *connectionClosedError) Is(target error) bool { return target == errNoRelay }

// errInterrupted is returned if the user interrupts a request. The relay may have processed it.
var errInterrupted = errors.New("interrupted before the relay responded")

// callRelay calls an operation of the running relay.
func callRelay[Request, Response any](
	ctx context.Context, c *adminConn, op adminapi.Operation[Request, Response], request Request, params ...string,
) (Response, error) {
	response, err := adminclient.Call(ctx, c.Client, op, request, params...)
	return response, c.explainError(err)
}

// connectAndCall calls an operation of the running relay that the flags select.
func connectAndCall[Request, Response any](
	ctx context.Context, std term.Streams, f *adminFlags, op adminapi.Operation[Request, Response], request Request,
	params ...string,
) (response Response, err error) {
	c, err := f.connect(std)
	if err != nil {
		return response, err
	}
	return callRelay(ctx, c, op, request, params...)
}

// callAndPrint calls an operation and prints its response: in a format for programs, or with show.
func callAndPrint[Request, Response any](
	ctx context.Context, std term.Streams, f *adminFlags, op adminapi.Operation[Request, Response], request Request,
	show func(Response) error, params ...string,
) error {
	response, err := connectAndCall(ctx, std, f, op, request, params...)
	switch {
	case err != nil:
		return err
	case !f.IsTable():
		return f.Print(std.Out, response)
	}
	return show(response)
}

// callAndPrintList reads and prints all pages of a list. empty is printed instead of an empty list.
func callAndPrintList[Entry any](
	ctx context.Context, std term.Streams, f *adminFlags, op adminapi.Operation[adminapi.PageRequest, adminapi.Page[Entry]],
	show func([]Entry) error, empty string,
) error {
	c, err := f.connect(std)
	if err != nil {
		return err
	}
	return printPages(std, &f.Output, func(visit func([]Entry) error) error {
		return forEachPage(ctx, c, op, newPageRequest, visit)
	}, show, empty)
}

// printPages prints a list: in a format for programs, or with show. forEach calls its argument with each page. A table without
// entries is replaced by the text empty.
func printPages[Entry any](
	std term.Streams, o *command.Output, forEach func(visit func([]Entry) error) error, show func([]Entry) error, empty string,
) error {
	list := o.NewList(std.Out)
	found := false
	err := forEach(func(page []Entry) error {
		found = found || len(page) > 0
		if o.IsTable() {
			if len(page) == 0 {
				return nil
			}
			return show(page)
		}
		for i := range page {
			if err := list.Write(page[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.IsTable() && !found {
		_, err = fmt.Fprintln(std.Out, empty)
		return err
	}
	return list.Close()
}

// findNewest returns up to a number of entries of a search, and whether there may be more. fetch returns a page and the start of
// the next one.
func findNewest[Entry any](
	number int, fetch func(limit int, after string) (page []Entry, next string, err error),
) (list []Entry, more bool, err error) {
	for after := ""; ; {
		page, next, err := fetch(min(number-len(list), maxSearchPage), after)
		if err != nil {
			return list, false, err
		}
		list = append(list, page...)
		if next == "" || len(list) >= number {
			return list, next != "", nil
		}
		after = next
	}
}

// newPageRequest returns the request for a page of a list without a filter.
func newPageRequest(p adminapi.PageRequest) adminapi.PageRequest { return p }

// forEachPage calls visit with each page of a list. page sets the page in a request.
func forEachPage[Request, Entry any](
	ctx context.Context, c *adminConn, op adminapi.Operation[Request, adminapi.Page[Entry]],
	page func(adminapi.PageRequest) Request, visit func([]Entry) error, params ...string,
) error {
	return c.explainError(adminclient.ForEachPage(ctx, c.Client, op, page, visit, params...))
}

// notFoundAdvice names the commands that list what an error does not find.
var notFoundAdvice = map[relay.Code]string{
	relay.CodeNoSink:         "'hubrelay sinks list' shows all sinks",
	relay.CodeNoEvent:        "'hubrelay events search' lists the events in the log",
	relay.CodeNotQuarantined: "'hubrelay quarantine list' shows all entries",
	relay.CodeNoDeadLetter:   "'hubrelay deadletters list SINK' shows the dead letters of a sink",
	relay.CodeNoJob:          "'hubrelay jobs list' lists all jobs",
}

// explainError adds to an error what an operator can do.
func (c *adminConn) explainError(err error) error {
	var failed *envelope.Error
	var away *adminclient.ConnectionError
	switch {
	case errors.Is(err, context.Canceled):
		return errInterrupted
	case errors.As(err, &away) && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		return &connectionClosedError{away}
	case errors.As(err, &away):
		return fmt.Errorf("%w at %s (%w): start it and wait until it is ready, or set its admin listener with --admin or -c FILE",
			errNoRelay, away.Address, away.Err)
	case !errors.As(err, &failed):
		return err
	}
	switch failed.Code {
	case relay.CodeWrongRelay:
		return fmt.Errorf("%s belongs to another relay than %s, and nothing was done: check -c FILE, give the command "+
			"the same HUBRELAY_REDIS__… variables as the relay, or name the relay with --admin", c.address, c.file)
	case relay.CodeAuthInvalid:
		text := "the token in HUBRELAY_ADMIN_TOKEN is not one of admin.tokens: correct it"
		if !c.hasToken || adminclient.IsSocketPath(c.address) {
			text = "the relay requires a token of admin.tokens: set HUBRELAY_ADMIN_TOKEN"
		}
		return fmt.Errorf("%s (%s)", text, relay.CodeAuthInvalid)
	}
	if advice, ok := notFoundAdvice[failed.Code]; ok {
		missing, _, _ := strings.Cut(failed.Detail, ";") // without the advice for programs
		failed.Detail = missing + "; " + advice
	}
	failed.Detail, failed.Title = term.Sanitize(failed.Detail), term.Sanitize(failed.Title)
	return failed
}
