package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const slots = 16384

// Member is a server of a cluster.
type Member struct {
	*Server
	// Admin is a client of this server.
	Admin *redis.Client
	// Port is the port for clients. ID is the ID in the cluster.
	Port, ID string

	bus string
}

// StartCluster runs a cluster of three masters with one replica each until the test ends, and returns its redis.url.
// args are options of redis-server.
func StartCluster(tb testing.TB, args ...string) (masters, replicas []Member, url string) {
	tb.Helper()
	all := make([]Member, 6)
	for i := range all {
		m := &all[i]
		m.Port, m.bus = FreePort(tb), FreePort(tb)
		m.Server = Start(tb, append([]string{
			"--port", m.Port, "--cluster-enabled", "yes", "--cluster-port", m.bus,
			"--cluster-node-timeout", "15000", "--repl-diskless-sync-delay", "0",
			"--cluster-replica-validity-factor", "0",
		}, args...)...)
		m.Admin = m.Client()
		m.ID = fmt.Sprint(do(tb, m, "CLUSTER", "MYID"))
		// Without distinct epochs, a replica that takes over can have the epoch of its master, and the others ignore it.
		do(tb, m, "CLUSTER", "SET-CONFIG-EPOCH", 1+i)
	}
	for i := range 3 {
		do(tb, &all[i], "CLUSTER", "ADDSLOTSRANGE", i*slots/3, (i+1)*slots/3-1)
	}
	for i := range all[1:] {
		do(tb, &all[1+i], "CLUSTER", "MEET", "127.0.0.1", all[0].Port, all[0].bus)
	}
	for i, m := range all[3:] {
		testkit.WaitFor(tb, "a replica to accept its master", func() bool {
			return m.Admin.ClusterReplicate(tb.Context(), all[i].ID).Err() == nil
		})
	}
	for _, m := range all {
		testkit.WaitFor(tb, "the cluster to be complete", func() bool {
			return strings.Contains(m.Admin.ClusterInfo(tb.Context()).Val(), "cluster_state:ok") &&
				strings.Count(m.Admin.ClusterNodes(tb.Context()).Val(), "slave") == 3
		})
	}
	for _, m := range all[:3] {
		m.AwaitReplica()
	}
	return all[:3], all[3:], "redis+cluster://127.0.0.1:" + all[0].Port + ",127.0.0.1:" + all[1].Port
}

// StartClusterNode starts a cluster of one server and returns its redis.url. Even a single server in cluster mode
// rejects commands that span several slots.
func StartClusterNode(tb testing.TB) (url string) {
	tb.Helper()
	port, bus := FreePort(tb), FreePort(tb)
	s := Start(tb, "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus)
	if err := s.Client().Do(tb.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, slots-1).Err(); err != nil {
		tb.Fatal(err)
	}
	return "redis+cluster://127.0.0.1:" + port
}

// MoveSlot moves a slot with its keys, like redis-cli --cluster reshard.
func MoveSlot(tb testing.TB, from, to *Member, slot int) {
	tb.Helper()
	do(tb, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.ID)
	do(tb, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.ID)
	for {
		keys, _ := do(tb, from, "CLUSTER", "GETKEYSINSLOT", slot, 1000).([]any)
		if len(keys) == 0 {
			break
		}
		do(tb, from, append([]any{"MIGRATE", "127.0.0.1", to.Port, "", 0, 5000, "KEYS"}, keys...)...)
	}
	for _, m := range []*Member{to, from} {
		do(tb, m, "CLUSTER", "SETSLOT", slot, "NODE", to.ID)
	}
}

// Client returns a client of this server, even if the server is part of a cluster. It is closed at the end of the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// AwaitReplica waits until a replica is online, so WAIT counts it.
func (s *Server) AwaitReplica() {
	s.tb.Helper()
	c := s.Client()
	testkit.WaitFor(s.tb, "the replica to be online", func() bool {
		return strings.Contains(c.Info(s.tb.Context(), "replication").Val(), "state=online")
	})
}

// AwaitMaster waits until the server is a master, for example after a failover.
func (s *Server) AwaitMaster() {
	s.tb.Helper()
	c := s.Client()
	testkit.WaitFor(s.tb, "the replica to become the master", func() bool {
		return strings.Contains(c.Info(s.tb.Context(), "replication").Val(), "role:master")
	})
}

// TakeOver makes a replica the master after the death of its master. The node timeout of the cluster is long, so a
// slow machine does not cause a failover.
func (m *Member) TakeOver() {
	m.tb.Helper()
	do(m.tb, m, "CLUSTER", "FAILOVER", "TAKEOVER")
	m.AwaitMaster()
}

// FreePort returns a free TCP port outside the ephemeral range. The system never assigns such a port itself, so a
// server can be restarted on it. No other call of FreePort, in any process, returns the same port until the test ends.
func FreePort(tb testing.TB) string {
	tb.Helper()
	const lowest, tries = 10000, 1000
	above := firstEphemeral()
	if above <= lowest {
		above = 1 << 16 // all ports are ephemeral
	}
	for range tries {
		port := strconv.Itoa(lowest + rand.IntN(above-lowest))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		_ = l.Close()
		claim, err := net.ListenPacket("udp", "127.0.0.1:"+port) // reserves the port; Redis uses only TCP
		if err != nil {
			continue
		}
		tb.Cleanup(func() { _ = claim.Close() })
		return port
	}
	tb.Fatalf("no free port in %d tries", tries)
	return ""
}

// firstEphemeral returns the first port that the system assigns itself.
func firstEphemeral() int {
	first := 32768 // the default of Linux; other systems start higher
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first)
	}
	return first
}

func do(tb testing.TB, m *Member, args ...any) any {
	tb.Helper()
	reply, err := m.Admin.Do(tb.Context(), args...).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return reply
}
