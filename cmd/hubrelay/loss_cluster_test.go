package main_test

import (
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

// victim is a Redis with failures that lose no confirmed data.
type victim struct {
	url    string
	store  redis.UniversalClient
	ports  []int // in addition to unix sockets
	blows  int   // number of failures
	strike func(blow int, random *rand.Rand, moment time.Duration) (what string)
}

// oneRedis is a single server that is killed and hangs.
func oneRedis(t *testing.T) victim {
	t.Helper()
	server := redistest.Start(t)
	return victim{
		url: server.URL(), store: redisAt(t, server.Socket), blows: 2,
		strike: func(blow int, _ *rand.Rand, moment time.Duration) string { return killOrHang(server, blow, moment) },
	}
}

func killOrHang(server *redistest.Server, blow int, moment time.Duration) string {
	if blow == 0 {
		server.Kill()
		time.Sleep(moment / 2)
		server.Restart()
		return "redis killed"
	}
	server.Signal(syscall.SIGSTOP)
	time.Sleep(moment)
	server.Signal(syscall.SIGCONT)
	return "redis hung"
}

// threeMasters are killed and hang, and partitions of the log move between them. The test waits for a master that is
// down, because a replica can lack confirmed data.
func threeMasters(t *testing.T) victim {
	t.Helper()
	masters, replicas, url := redistest.StartCluster(t)
	v := victim{url: url, store: inCluster(t, append(masters, replicas...)...), blows: 3}
	for _, m := range append(masters, replicas...) {
		port, _ := strconv.Atoi(m.Port)
		v.ports = append(v.ports, port)
	}
	v.strike = func(blow int, random *rand.Rand, moment time.Duration) string {
		shard := random.IntN(len(masters))
		master := &masters[shard]
		switch blow {
		case 0, 1:
			return killOrHang(master.Server, blow, moment)
		default:
			return moveLog(t, v.store, master, &masters[(shard+1)%len(masters)])
		}
	}
	return v
}

// moveLog moves a partition of the log to another master, if the first one has a partition.
func moveLog(t *testing.T, store redis.UniversalClient, from, to *redistest.Member) string {
	t.Helper()
	for _, key := range logKeys(t, store) {
		slot := int(from.Admin.ClusterKeySlot(t.Context(), key).Val())
		if n := from.Admin.ClusterCountKeysInSlot(t.Context(), slot).Val(); n > 0 {
			redistest.MoveSlot(t, from, to, slot)
			return "a slot moved"
		}
	}
	return "no slot to move"
}

// TestLongNothingIsLostInCluster is TestLongNothingIsLost on three masters with a replica each.
func TestLongNothingIsLostInCluster(t *testing.T) {
	t.Parallel()
	nothingIsLost(t, threeMasters(t), *lossInCluster)
}
