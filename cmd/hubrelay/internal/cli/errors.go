package cli

import (
	"errors"
	"net"
	"net/url"
	"strings"

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
