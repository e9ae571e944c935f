package hub

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"
)

// Connection is one client as an operator sees it. It holds nothing that opens a stream.
type Connection struct {
	// Hub is whose pipeline it follows; empty for the pipeline of an account.
	Hub string
	// Account is the account of an account pipeline, "*" for all. Like Topics it is unknown while the connection is
	// closing.
	Account string
	Key     string
	Remote  string
	SSE     bool // an event stream, otherwise a websocket
	Since   time.Time
	Topics  string
	Queued  int // bytes that wait for it
	State   ConnectionState
}

// ConnectionState is the state of a connection.
type ConnectionState string

// The states of a client.
const (
	ConnectionLive      ConnectionState = "live"      // what is broadcast
	ConnectionReplaying ConnectionState = "replaying" // what it has missed
	ConnectionClosing   ConnectionState = "closing"   // what was queued before its close frame, at most
)

// Selection chooses clients.
type Selection struct {
	Hub, Key string // empty chooses all
	// After is the end of the previous page, or empty for the first.
	After string
	// Limit bounds the page; zero means [DefaultPage], and more than [MaxPage] is taken for that.
	Limit int
}

// The sizes of a page of connections.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// ErrBadPageToken refuses a Selection whose After was never the end of a page.
var ErrBadPageToken = errors.New("after is not the next of an earlier answer")

// Connections returns a page of the selected connections, oldest first, and the value of After for the next page, or an
// empty string. It holds a lock only while it copies the list, which delays only connects and disconnects.
func (h *Hub) Connections(s Selection) (page []Connection, next string, err error) {
	var after uint64
	if s.After != "" {
		if after, err = strconv.ParseUint(s.After, 10, 64); err != nil {
			return nil, "", ErrBadPageToken
		}
	}
	chosen := slices.DeleteFunc(h.allClients(), func(c *client) bool {
		return s.Hub != "" && s.Hub != c.slot.hub || s.Key != "" && s.Key != c.key || c.seq <= after
	})
	slices.SortFunc(chosen, func(a, b *client) int { return cmp.Compare(a.seq, b.seq) })
	limit := min(cmp.Or(max(s.Limit, 0), DefaultPage), MaxPage)
	if len(chosen) > limit {
		chosen = chosen[:limit]
		next = strconv.FormatUint(chosen[limit-1].seq, 10)
	}
	page = make([]Connection, 0, len(chosen))
	for _, c := range chosen {
		if one, connected := h.describeClient(c); connected {
			page = append(page, one)
		}
	}
	return page, next, nil
}

// describeClient reports false of a client whose upgrade has not been answered.
func (h *Hub) describeClient(c *client) (one Connection, connected bool) {
	c.mu.Lock()
	held, now, queued, conn := c.handshakePending, c.state, c.queue.size, c.conn
	c.mu.Unlock()
	if held || conn == nil {
		return one, false
	}
	one = Connection{
		Hub: c.slot.hub, Key: c.key, Remote: conn.RemoteAddr().String(), SSE: c.format&formatSSE != 0,
		Since: c.opened, Queued: queued, State: ConnectionReplaying,
	}
	account, topics := "", ""
	switch g := h.index.groupOf(c); {
	case g != nil:
		account, topics = g.account, g.filter.name
		one.State = ConnectionLive
	case c.replay != nil:
		account, topics = c.replay.subscription.Account, c.replay.subscription.Topics.String()
	}
	if now != stateLive {
		one.State = ConnectionClosing
	}
	one.Topics = topics
	if one.Hub == "" {
		one.Account = account
	}
	return one, true
}

// QueueStats returns for how many clients something is queued, and how many bytes that is.
func (h *Hub) QueueStats() (clients, bytes int) {
	for _, c := range h.allClients() {
		c.mu.Lock()
		size := c.queue.size
		c.mu.Unlock()
		if size > 0 {
			clients++
			bytes += size
		}
	}
	return clients, bytes
}
