package lease

import (
	"crypto/rand"
	_ "embed" // the scripts
	"log/slog"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/acquire.lua
	acquireSource string
	//go:embed scripts/release.lua
	releaseSource string

	acquireScript = redisconn.NewScript(acquireSource)
	releaseScript = redisconn.NewScript(releaseSource)
)

// Key is the lock of a lease.
func Key(k keyspace.Space, name string) string { return k.Global("lease:" + name) }

// NodeKey is the lock of a node number.
func NodeKey(k keyspace.Space, number int) string { return k.Global("node:" + strconv.Itoa(number)) }

// Manager creates the leases of one process. It may be used concurrently.
type Manager struct {
	client        redis.UniversalClient
	keys          keyspace.Space
	log           *slog.Logger
	singleProcess bool
	bootID        string // the prefix of all lease values of this process
}

// NewManager returns a manager. With [redisconn.Options.SingleProcess] it takes over the leases of all other processes.
func NewManager(c *redisconn.Conn, keys keyspace.Space) *Manager {
	return &Manager{
		client: c.Commands(), keys: keys, log: c.Logger(), singleProcess: c.SingleProcess(), bootID: rand.Text() + ":",
	}
}

func (m *Manager) newValue() string { return m.bootID + rand.Text() }
