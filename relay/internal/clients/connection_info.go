package clients

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/clients/frame"
)

// ConnectionInfo describes one client for operators. It contains no secrets.
type ConnectionInfo struct {
	// Hub is the hub of the stream. It is empty for an account stream.
	Hub string
	// Account is the account of an account stream, "*" for all. Account and Topics are unknown while a client
	// closes.
	Account     string
	Key         string
	Address     string
	SSE         bool // an event stream, otherwise a websocket
	ConnectedAt time.Time
	Topics      string
	Queued      int // bytes in its write queue
	State       ConnectionState
}

// ConnectionState is the phase of a client.
type ConnectionState string

// The states of a client.
const (
	ConnectionLive      ConnectionState = "live"      // receives broadcasts
	ConnectionReplaying ConnectionState = "replaying" // receives missed entries
	ConnectionClosing   ConnectionState = "closing"   // receives at most what was queued before its close frame
)

// Selection chooses clients.
type Selection struct {
	Hub, Key string // empty chooses all
	// After is the end of the previous page. It is empty for the first page.
	After string
	// Limit is the maximum size of the page. Zero means [DefaultPage]; values above [MaxPage] mean MaxPage.
	Limit int
}

// The sizes of a page of connections.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// ErrBadPageToken rejects a Selection whose After is not the end of a page.
var ErrBadPageToken = errors.New("after is not the value of next in an earlier response")

// Connections returns a page of the clients that match s, oldest first, and the After of the next page, which is
// empty on the last one. It holds the lock of the server only to copy the list of clients, which does not delay
// broadcasts.
func (s *Server) Connections(sel Selection) (page []ConnectionInfo, next string, err error) {
	var after uint64
	if sel.After != "" {
		if after, err = strconv.ParseUint(sel.After, 10, 64); err != nil {
			return nil, "", ErrBadPageToken
		}
	}
	chosen := slices.DeleteFunc(s.allConnections(), func(c *connection) bool {
		return sel.Hub != "" && sel.Hub != c.lease.owner.hub || sel.Key != "" && sel.Key != c.key || c.seq <= after
	})
	slices.SortFunc(chosen, func(a, b *connection) int { return cmp.Compare(a.seq, b.seq) })
	limit := min(cmp.Or(max(sel.Limit, 0), DefaultPage), MaxPage)
	if len(chosen) > limit {
		chosen = chosen[:limit]
		next = strconv.FormatUint(chosen[limit-1].seq, 10)
	}
	page = make([]ConnectionInfo, 0, len(chosen))
	for _, c := range chosen {
		if one, connected := s.describeConnection(c); connected {
			page = append(page, one)
		}
	}
	return page, next, nil
}

// maxReceivers is the maximum number of clients in the result of [Server.Receivers].
const maxReceivers = 100

// Receivers returns the names of the keys of up to 100 connected clients that were sent n when it was stored, sorted, one for
// each client. It does not know clients that resumed later.
func (s *Server) Receivers(n relay.Notification, storedAt time.Time) (keys []string) {
	for _, c := range s.allConnections() {
		if len(keys) == maxReceivers {
			break
		}
		if c.opened.After(storedAt) || !c.allows(n.Hub, n.Account) {
			continue
		}
		if g := s.index.groupOf(c); g != nil && g.filter.patterns.Match(n.Topic) {
			keys = append(keys, c.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// describeConnection returns false for a client whose handshake is not complete.
func (s *Server) describeConnection(c *connection) (one ConnectionInfo, connected bool) {
	c.mu.Lock()
	held, now, queued, conn := c.handshakePending, c.state, c.queue.size, c.conn
	c.mu.Unlock()
	if held || conn == nil {
		return one, false
	}
	one = ConnectionInfo{
		Hub: c.lease.owner.hub, Key: c.key, Address: conn.RemoteAddr().String(), SSE: c.format&frame.SSE != 0,
		ConnectedAt: c.opened, Queued: queued, State: ConnectionReplaying,
	}
	account, topics := "", ""
	switch g := s.index.groupOf(c); {
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

// QueueStats returns the number of clients with queued frames, and the bytes queued for them.
func (s *Server) QueueStats() (clients, bytes int) {
	for _, c := range s.allConnections() {
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
