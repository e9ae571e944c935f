package adminserver

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
)

// Connections lists the clients of this node. Its method may be called concurrently and does not block. Its error
// is [clients.ErrBadPageToken].
type Connections interface {
	// Connections returns a page of the selected connections, and the token of the next page.
	Connections(s clients.Selection) (page []clients.ConnectionInfo, next string, err error)
}

func listConnections(
	c Connections, _ *http.Request, request adminapi.ListConnectionsRequest,
) (list adminapi.Page[adminapi.Connection], err error) {
	page, next, err := c.Connections(clients.Selection{
		Hub: request.HubID, Key: request.Key, After: request.After, Limit: request.Limit,
	})
	if errors.Is(err, clients.ErrBadPageToken) {
		return list, relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	for _, p := range page {
		one := adminapi.Connection{
			HubID: p.Hub, AccountID: p.Account, Key: p.Key, Address: p.Address, Type: "websocket",
			ConnectedAt: p.ConnectedAt.UTC().Truncate(time.Millisecond), Topics: []string{}, QueuedBytes: p.Queued,
			State: string(p.State),
		}
		if p.SSE {
			one.Type = "sse"
		}
		if p.Topics != "" {
			one.Topics = strings.Split(p.Topics, ",")
		}
		list.Data = append(list.Data, one)
	}
	list.Next = next
	return list, err
}
