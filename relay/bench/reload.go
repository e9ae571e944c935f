package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	reloadSinks  = 200
	reloadRounds = 10
	reloadAfter  = 100 * time.Millisecond // of a steady round's beginning
)

// measureReload changes one of 200 sinks of a running daemon. It measures the duration of the reload, and the delays of
// notifications for another sink during that time. The best round of each counts.
func measureReload(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	lines := []string{to.webhookConfig("steady", hookTopics)}
	for other := range reloadSinks - 2 {
		lines = append(lines, to.webhookConfig("other"+strconv.Itoa(other), "billing.*"))
	}
	configuration := func(n int) string {
		changes := fmt.Sprintf("headers: {X-Round: %q}, topics:", strconv.Itoa(n))
		return sinksConfig(append(lines,
			strings.Replace(to.webhookConfig("changes", "billing.*"), "topics:", changes, 1))...)
	}
	took, check, without, beside := math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	err = r.withDaemon(ctx, configuration(0), func(d *daemon) error {
		if _, err := d.measureSteady(to); err != nil { // connections and caches
			return err
		}
		for n := range reloadRounds {
			late, err := d.measureSteady(to)
			if err != nil {
				return err
			}
			without = min(without, late)
			began := time.Now()
			if out, err := exec.CommandContext(ctx, r.daemon, "config", "check", "-c",
				d.file).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			check = min(check, toMilliseconds(time.Since(began)))
			reloaded := make(chan error, 1)
			var one time.Duration
			go func() {
				time.Sleep(reloadAfter)
				var err error
				one, err = reloadConfig(ctx, d, configuration(n), configuration(n+1))
				reloaded <- err
			}()
			late, err = d.measureSteady(to)
			if failed := <-reloaded; failed != nil {
				return failed
			}
			if err != nil {
				return err
			}
			beside, took = min(beside, late), min(took, toMilliseconds(one))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []row{
		newRow("reload of 200 sinks, one of them changed", took, "ms from SIGHUP to applied", "config check",
			check).atMost(200),
		// Reading 200 sinks keeps one core busy for a part of the round.
		newRow("p99 of another sink during the reload", beside, "ms from published to received", "without it",
			without).ratioAtMost(2),
	}, nil
}

// reloadConfig replaces a part of the daemon's configuration and returns how long it took to take that over.
func reloadConfig(ctx context.Context, d *daemon, before, after string) (time.Duration, error) {
	text, err := os.ReadFile(d.file)
	if err != nil {
		return 0, err
	}
	if err := writeFile(d.file, strings.Replace(string(text), before, after, 1)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return 0, err
	}
	for range 100 { // seldom, since the figures of 200 sinks take their time too
		if err := sleepFor(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
		at, err := d.reloadedAt(ctx)
		if err != nil || at.After(began) {
			return at.Sub(began), err
		}
	}
	return 0, fmt.Errorf("the configuration was not applied: %s", d.log.String())
}

// reloadedAt returns the time at which the daemon last applied a configuration.
func (d *daemon) reloadedAt(ctx context.Context) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.health+"/metrics", http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "hubrelay_config_last_reload_success_timestamp_seconds "); ok {
			seconds, err := strconv.ParseFloat(text, 64)
			return time.UnixMicro(int64(seconds * 1e6)), err
		}
	}
	return time.Time{}, fmt.Errorf("no metric has the time of the last reload")
}

func toMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
