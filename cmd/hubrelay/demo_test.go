package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestDemo watches the demo, takes its own commands, and looks that nothing is left behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	home := folder(t)
	p := start(t, []string{"XDG_CACHE_HOME=" + home, "HOME=" + home}, "demo", "--every", "50ms", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	eventually(t, "an event at both ends", func() error { return atBothEnds(p.out.String()) })
	dirs, err := filepath.Glob(filepath.Join(home, "hubrelay-demo-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("the demo's folder is %v, %v", dirs, err)
	}
	pid := redisPID(filepath.Join(dirs[0], "data"))
	if pid == 0 || gone(pid) {
		t.Errorf("the demo's redis-server is %d", pid)
	}
	takeCommands(t, p)
	p.signal(syscall.SIGINT)
	if code := p.exit(t); code != 0 {
		t.Errorf("it ended with %d after SIGINT", code)
	}
	if _, err := os.Stat(dirs[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the demo's folder is left: %v", err)
	}
	eventually(t, "its redis-server to end", func() error {
		if !gone(pid) {
			return fmt.Errorf("process %d is there", pid)
		}
		return nil
	})
	if strings.Contains(p.out.String()+p.err.String(), "\x1b") {
		t.Error("there are escape codes in what is no terminal")
	}
	if text := p.err.String(); text != "" {
		t.Errorf("it complained:\n%s", text)
	}
}

// atBothEnds is nil when some event of the output was published and came to the websocket and to the webhook.
func atBothEnds(out string) error {
	seen := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^[0-9:.]+ (publish|websocket|webhook) +[▶◀] (\S+)`).FindAllStringSubmatch(out, -1) {
		if seen[m[2]] += m[1] + " "; strings.Contains(seen[m[2]], "publish") &&
			strings.Contains(seen[m[2]], "websocket") && strings.Contains(seen[m[2]], "webhook") {
			return nil
		}
	}
	return fmt.Errorf("no event is at both ends:\n%s", out)
}

// takeCommands does what the demo tells its reader to try in a second terminal, as far as it needs no more than a shell.
func takeCommands(t *testing.T, p *process) {
	t.Helper()
	out := p.out.String()
	exported := regexp.MustCompile(`export (HUBRELAY_URL=\S+) (HUBRELAY_KEY=\S+) (HUBRELAY_HUB=\S+)`).FindStringSubmatch(out)
	if exported == nil {
		t.Fatalf("it does not say what to export:\n%s", out)
	}
	if err := errors.Join(hasAll(out, "listen --topics '*.error'", "curl -sS $HUBRELAY_URL", "redis-cli -s ")...); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	out, errOut, code := call(t, exported[1:], "", "publish", "--topic", "container.created", "--object", "by-hand", "--json")
	if code != 0 {
		t.Fatalf("publish to the demo ended with %d: %s%s", code, out, errOut)
	}
	eventually(t, "what was published by hand", func() error {
		if n := strings.Count(p.out.String(), "by-hand"); n < 2 {
			return fmt.Errorf("it was printed %d times", n)
		}
		return nil
	})
}

// TestWithoutRedisServer runs on a machine that has none.
func TestWithoutRedisServer(t *testing.T) {
	t.Parallel()
	home := folder(t)
	env := []string{"PATH=" + filepath.Join(home, "empty"), "XDG_CACHE_HOME=" + home, "HOME=" + home}
	p := start(t, env, "demo", "--every", "50ms", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	eventually(t, "an event at both ends", func() error { return atBothEnds(p.out.String()) })
	if err := p.out.contains("redis-server is not installed")(); err != nil {
		t.Error(err)
	}
	if err := p.out.contains("redis-cli")(); err == nil {
		t.Error("it suggests redis-cli for a Redis that nobody can reach")
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("the demo ended with %d after SIGTERM", code)
	}

	file := write(t, home, "hubrelay.yaml", setup{redis: fmt.Sprintf("data_dir: %q", filepath.Join(home, "data"))}.yaml())
	_, errOut, code := call(t, env, "", "serve", "-c", file)
	if err := errors.Join(hasAll(errOut, "apt install redis-server", "brew install redis", `"memory:"`)...); code != 1 || err != nil {
		t.Errorf("serve ended with %d, %v:\n%s", code, err, errOut)
	}
	file = write(t, home, "memory.yaml", setup{redis: `url: "memory:"`}.yaml())
	d := serveFile(t, file, env...)
	ws := d.connect(t, opsKey, "hub-1", "")
	d.publish(t, "hub-1", "application/json", plain, nil)
	ws.wait(t, 1)
}
