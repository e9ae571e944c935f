package main

import (
	"errors"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// errorHint is what a client command says behind an error that another setting of its own mends, or nothing.
func errorHint(err error) string {
	var answer *client.Error
	switch {
	case isConnectionError(err):
		return "; is a relay running there? HUBRELAY_URL or --url names another"
	case !errors.As(err, &answer):
		return ""
	case answer.Code == relay.CodeMissingArgument && strings.Contains(answer.Detail, "X-Hub-Id"):
		return "; HUBRELAY_HUB or --hub gives it"
	case answer.Code == relay.CodeAuthInvalid:
		return "; HUBRELAY_KEY or --key gives another"
	case answer.Code == relay.CodeNoURI:
		return "; HUBRELAY_URL or --url names the relay's public address, which is server.listen and not admin.listen"
	default:
		return ""
	}
}

// isConnectionError says whether a request of a client command found nobody.
func isConnectionError(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && errors.As(err, &network) && network.Op == "dial"
}

// errReported ends a command that has already said on standard error what is wrong.
var errReported = errors.New("reported")

// usageError is a call that could not be understood.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func newUsageError(cmd *cobra.Command, err error) error {
	command := ""
	if cmd.HasParent() {
		command = cmd.CommandPath()[len(cmd.Root().Name())+1:] + " "
	}
	return &usageError{err: err, command: command}
}
