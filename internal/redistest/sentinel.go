package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// StartSentinels runs three Sentinels for the primary on a port until the test ends. It returns their redis.url when
// all of them know the replica.
func StartSentinels(tb testing.TB, primary string) string {
	tb.Helper()
	var addrs []string
	for range 3 {
		port, file := FreePort(tb), filepath.Join(tb.TempDir(), "sentinel.conf")
		conf := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor main 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds main 5000\nsentinel failover-timeout main 5000\n",
			port, filepath.Dir(file), primary)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			tb.Fatal(err)
		}
		cmd := exec.Command("redis-server", file, "--sentinel")
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		addrs = append(addrs, "127.0.0.1:"+port)
	}
	for _, addr := range addrs {
		s := redis.NewSentinelClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
		tb.Cleanup(func() { _ = s.Close() })
		// A Sentinel whose timer was late does nothing during its tilt period, 30 s by default. Before Redis 7.0, the
		// period cannot be changed.
		_ = s.Process(tb.Context(), redis.NewStatusCmd(tb.Context(), "SENTINEL", "DEBUG", "tilt-period", "2000"))
		testkit.WaitFor(tb, "the Sentinels to know each other and the replica", func() bool {
			m, err := s.Master(tb.Context(), "main").Result()
			return err == nil && m["num-slaves"] == "1" && m["num-other-sentinels"] == "2"
		})
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/main"
}

// StartPair runs a primary on a port, and its replica.
func StartPair(tb testing.TB, port string) (primary, replica *Server) {
	tb.Helper()
	primary = Start(tb, "--port", port, "--repl-diskless-sync-delay", "0")
	replica = Start(tb, "--port", FreePort(tb), "--replicaof", "127.0.0.1", port)
	primary.AwaitReplica()
	return primary, replica
}
