package cli

import (
	"errors"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// ErrorHint returns a hint for an error that another flag or environment variable of a client command can fix, or "".
func ErrorHint(err error) string {
	var response *client.Error
	switch {
	case isConnectionError(err):
		return "; is a relay running there? Set HUBRELAY_URL or --url to use another one"
	case !errors.As(err, &response):
		return ""
	case response.Code == relay.CodeMissingArgument && strings.Contains(response.Detail, "X-Hub-Id"):
		return "; set HUBRELAY_HUB or --hub"
	case response.Code == relay.CodeAuthInvalid:
		return "; set HUBRELAY_KEY or --key to a valid key"
	case response.Code == relay.CodeNoURI:
		return "; set HUBRELAY_URL or --url to the public address of the relay, which is server.listen and not " +
			"admin.listen"
	default:
		return ""
	}
}

// isConnectionError reports whether no connection could be opened.
func isConnectionError(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && errors.As(err, &network) && network.Op == "dial"
}

// ErrReported is returned by commands that have already printed their errors to standard error.
var ErrReported = errors.New("reported")

// UsageError is an error in the command line.
type UsageError struct {
	Err     error
	Command string
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// NewUsageError returns err as a [UsageError] of cmd.
func NewUsageError(cmd *cobra.Command, err error) error {
	command := ""
	if cmd.HasParent() {
		command = cmd.CommandPath()[len(cmd.Root().Name())+1:] + " "
	}
	return &UsageError{Err: err, Command: command}
}
