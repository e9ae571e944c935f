package hub

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/hub/frame"
)

// ConnectionInfo is one client as an operator sees it. It holds nothing that opens a stream.
type ConnectionInfo struct {
	// Hub is whose pipeline it follows; empty for the pipeline of an account.
	Hub string
	// Account is of which account that is, "*" for all of them. Like Topics it is not known of one that is closing.
	Account string
	Key     string
	Remote  string
	SSE     bool // an event stream, else a websocket
	Since   time.Time
	Topics  string
	Queued  int // bytes that wait for it
	State   ConnectionState
}

// ConnectionState says what a client is given.
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
	// After is where an earlier page ended; empty for the first.
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

// Connections returns a page of the clients that s chooses, those first who have been there longest, and what the next page
// comes after, empty where there is none. No lock is held for longer than copying the list of all takes, which keeps nobody
// but those who come and go.
func (h *Hub) Connections(s Selection) (page []ConnectionInfo, next string, err error) {
	var after uint64
	if s.After != "" {
		if after, err = strconv.ParseUint(s.After, 10, 64); err != nil {
			return nil, "", ErrBadPageToken
		}
	}
	chosen := slices.DeleteFunc(h.all(), func(c *connection) bool {
		return s.Hub != "" && s.Hub != c.lease.hub || s.Key != "" && s.Key != c.key || c.seq <= after
	})
	slices.SortFunc(chosen, func(a, b *connection) int { return cmp.Compare(a.seq, b.seq) })
	limit := min(cmp.Or(max(s.Limit, 0), DefaultPage), MaxPage)
	if len(chosen) > limit {
		chosen = chosen[:limit]
		next = strconv.FormatUint(chosen[limit-1].seq, 10)
	}
	page = make([]ConnectionInfo, 0, len(chosen))
	for _, c := range chosen {
		if one, connected := h.describe(c); connected {
			page = append(page, one)
		}
	}
	return page, next, nil
}

// describe reports false of a client whose upgrade has not been answered.
func (h *Hub) describe(c *connection) (one ConnectionInfo, connected bool) {
	c.mu.Lock()
	held, now, queued, conn := c.handshakePending, c.state, c.queue.size, c.conn
	c.mu.Unlock()
	if held || conn == nil {
		return one, false
	}
	one = ConnectionInfo{
		Hub: c.lease.hub, Key: c.key, Remote: conn.RemoteAddr().String(), SSE: c.format&frame.SSE != 0,
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
	for _, c := range h.all() {
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
