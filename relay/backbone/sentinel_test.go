package backbone

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startSentinels starts three that watch the primary on a port, and returns their URL when all know of its replica.
func startSentinels(t *testing.T, primary string) string {
	t.Helper()
	var addrs []string
	for range 3 {
		port, file := freePort(t), filepath.Join(t.TempDir(), "sentinel.conf")
		conf := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor main 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n", port, filepath.Dir(file), primary)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("redis-server", file, "--sentinel")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		addrs = append(addrs, "127.0.0.1:"+port)
	}
	for _, addr := range addrs {
		s := redis.NewSentinelClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = s.Close() })
		eventually(t, "the sentinels know each other and the replica", func() bool {
			m, err := s.Master(t.Context(), "main").Result()
			return err == nil && m["num-slaves"] == "1" && m["num-other-sentinels"] == "2"
		})
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/main"
}

func TestSentinelPromotesTheReplica(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	port := freePort(t)
	primary, replica := startPairOn(t, port)
	url := startSentinels(t, port)
	safe := openURL(t, Options{URL: url, Partitions: 2, MinReplicas: 1})
	plain := openURL(t, Options{URL: url, Partitions: 2})
	tr, stop := startTraffic(ctx, t, safe, plain)
	tr.goesOn("the primary", 30)
	promoted := adminOf(t, replica)
	primary.Kill()
	eventually(t, "the replica takes over", func() bool {
		return infoField(promoted.Info(ctx, "replication").Val(), "role") == "master"
	})
	tr.through(plain) // the new primary has no replica
	tr.goesOn("the new primary", 30)
	stop()
	tr.check(plain)
}
