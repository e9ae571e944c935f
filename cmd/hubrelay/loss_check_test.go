package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// checkLog waits until the inbox is empty and returns the numbers of each hub in the log.
func (l *losses) checkLog() map[string][]int {
	l.t.Helper()
	var found map[string][]int
	testkit.Eventually(l.t, "the inbox to be in the log", func() error {
		found = numbersIn(l.t, l.redis.store)
		hub := lossHubs[len(lossHubs)-1]
		if n := int(l.accepted[hub].Load()); len(found[hub]) < n {
			return fmt.Errorf("%d of %d are", len(found[hub]), n)
		}
		return nil
	})
	for _, hub := range lossHubs {
		if err := checkSequence(found[hub], 1, int(l.accepted[hub].Load())); err != nil {
			l.t.Errorf("the log of %s: %v", hub, err)
		}
	}
	return found
}

func numberOf(id string) (hub string, n int, err error) {
	hub, text, _ := strings.Cut(id, "/")
	n, err = strconv.Atoi(text)
	return hub, n, err
}

// checkSequence returns an error unless the list contains every number from first to last in order.
func checkSequence(list []int, first, last int) error {
	for i, n := range list {
		if n != first+i {
			return fmt.Errorf("got %d instead of %d, after %v", n, first+i, list[max(0, i-3):i])
		}
	}
	if len(list) != last-first+1 {
		return fmt.Errorf("it ends with %d and not with %d", first+len(list)-1, last)
	}
	return nil
}

func total(lists map[string][]int) (n int) {
	for _, list := range lists {
		n += len(list)
	}
	return n
}

// checkHooks waits until the webhook has received everything at least once.
func (l *losses) checkHooks() {
	l.t.Helper()
	testkit.Eventually(l.t, "every webhook", func() error {
		came := make(map[string]bool)
		for _, h := range l.hooks.of("/") {
			came[objectID(h.body)] = true
		}
		for _, hub := range lossHubs {
			for n := 1; n <= int(l.accepted[hub].Load()); n++ {
				if !came[fmt.Sprintf("%s/%d", hub, n)] {
					return fmt.Errorf("%s/%d has not come", hub, n)
				}
			}
		}
		return nil
	})
}

// spareConnections is the number of connections that a Redis pool may keep for a minute after a peak.
const spareConnections = 64

// idleResources counts the resources of an idle node.
type idleResources struct {
	goroutines int
	files      int // without pooled connections to Redis and the webhook
	redis      int // pooled connections, and sockets whose connection was reset
	profile    string
}

// measureIdle measures the node that is never killed.
func (l *losses) measureIdle() idleResources {
	l.t.Helper()
	l.way.Cut()
	http.DefaultClient.CloseIdleConnections()
	d := l.nodes[0].Load()
	of := func(file string) string { return fmt.Sprintf("/proc/%d/%s", d.Cmd.Process.Pid, file) }
	pooled, toRedis, open := make(map[string]bool), make(map[string]bool), make(map[string]bool) // inodes
	port, _ := strconv.Atoi(l.hooks.url[strings.LastIndexByte(l.hooks.url, ':')+1:])
	for line := range strings.Lines(l.read(of("net/tcp"))) {
		f := strings.Fields(line)
		leadsTo := func(port int) bool { return strings.HasSuffix(f[2], fmt.Sprintf(":%04X", port)) }
		open[f[9]] = true
		pooled[f[9]] = leadsTo(port)
		toRedis[f[9]] = slices.ContainsFunc(l.redis.ports, leadsTo)
	}
	for line := range strings.Lines(l.read(of("net/unix"))) {
		inode := strings.Fields(line)[6]
		open[inode], toRedis[inode] = true, true
	}
	names, err := filepath.Glob(of("fd/*"))
	if err != nil {
		l.t.Fatal(err)
	}
	r := idleResources{profile: l.get(d, "/debug/pprof/goroutine?debug=1")}
	for _, name := range names {
		to, err := os.Readlink(name)
		inode, isSocket := strings.CutPrefix(strings.TrimSuffix(to, "]"), "socket:[")
		switch {
		case err != nil || isSocket && pooled[inode]:
		case isSocket && (toRedis[inode] || !open[inode]):
			// A killed Redis resets its connections. A pool closes such a connection when it would use it, and the kernel
			// lists it no longer.
			r.redis++
		default:
			r.files++
		}
	}
	if _, err := fmt.Sscanf(r.profile, "goroutine profile: total %d", &r.goroutines); err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (l *losses) read(file string) string {
	l.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

func (l *losses) get(d *daemon, path string) string {
	l.t.Helper()
	r, err := d.GetAdmin(l.t.Context(), path)
	if err != nil || r.Status != http.StatusOK {
		l.t.Fatal(r.Status, err)
	}
	return r.Body
}

func (r idleResources) restored(now idleResources) error {
	if now.goroutines <= r.goroutines && now.files <= r.files && now.redis <= r.redis+spareConnections {
		return nil
	}
	return fmt.Errorf("got %d files, %d connections to Redis and %d goroutines, want at most %d, %d and %d",
		now.files, now.redis, now.goroutines, r.files, r.redis+spareConnections, r.goroutines)
}
