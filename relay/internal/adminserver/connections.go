package adminserver

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// Connections lists the clients of this node. Its method may be called concurrently and does not block. Its error
// is [hub.ErrBadPageToken].
type Connections interface {
	// Connections returns a page of the selected connections, and the token of the next page.
	Connections(s hub.Selection) (page []hub.ConnectionInfo, next string, err error)
}

// connection is one client of the stream.
type connection struct {
	Hub     string `json:"hub_id,omitempty"`
	Account string `json:"account_id,omitempty"` // of an account pipeline
	Key     string `json:"key"`
	Remote  string `json:"remote"`
	// Type is "websocket" or "sse".
	Type   string              `json:"type"`
	Since  time.Time           `json:"since"`
	Topics []string            `json:"topics"`
	Queued int                 `json:"queued_bytes"`
	State  hub.ConnectionState `json:"state"`
}

func (o *apiHandler) handleConnections(pattern string, connections func() Connections) {
	if connections == nil {
		return
	}
	o.handle(pattern, maxRequest, adminapi.RoleViewer, func(r *http.Request) (int, any, error) {
		c := connections()
		if c == nil {
			return 0, nil, errStarting()
		}
		return listConnections(c, r)
	}, http.MethodGet, http.MethodHead)
}

func listConnections(c Connections, r *http.Request) (int, any, error) {
	query, refused := httpserver.ParseQuery(r, "hub", "key", "after", "limit")
	if refused != nil {
		return 0, nil, refused
	}
	s := hub.Selection{Hub: query.Get("hub"), Key: query.Get("key"), After: query.Get("after")}
	var err error
	if s.Limit, err = pageLimit(query, hub.MaxPage); err != nil {
		return 0, nil, err
	}
	page, next, err := c.Connections(s)
	if errors.Is(err, hub.ErrBadPageToken) {
		return 0, nil, relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if err != nil {
		return 0, nil, err
	}
	list := make([]connection, len(page))
	for i, p := range page {
		list[i] = connection{
			Hub: p.Hub, Account: p.Account, Key: p.Key, Remote: p.Remote, Type: "websocket",
			Since:  p.Since.UTC().Truncate(time.Millisecond),
			Topics: []string{}, Queued: p.Queued, State: p.State,
		}
		if p.SSE {
			list[i].Type = "sse"
		}
		if p.Topics != "" {
			list[i].Topics = strings.Split(p.Topics, ",")
		}
	}
	return http.StatusOK, pageResponse{list, next}, nil
}
