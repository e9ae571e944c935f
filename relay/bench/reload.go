package main

import (
	"bufio"
	"context"
	"errors"
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
	reloadDelay  = 100 * time.Millisecond // after the start of a round
)

// measureReload changes one of 200 sinks while the daemon runs. It measures the time of the reload, and the latency
// of another sink during it. The best round of each counts.
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
		line := strings.Replace(to.webhookConfig("changes", "billing.*"), "topics:", changes, 1)
		return sinksConfig(append(lines, line)...)
	}
	took, check, without, during := math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	err = r.runWithDaemon(ctx, configuration(0), func(d *daemon) error {
		if _, err := d.measureLatency(to); err != nil { // warm-up
			return err
		}
		for n := range reloadRounds {
			late, err := d.measureLatency(to)
			if err != nil {
				return err
			}
			without = min(without, late)
			startedAt := time.Now()
			out, err := exec.CommandContext(ctx, r.daemon, "config", "check", "-c", d.file).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			check = min(check, milliseconds(time.Since(startedAt)))
			reloaded := make(chan error, 1)
			var one time.Duration
			go func() {
				time.Sleep(reloadDelay)
				var err error
				one, err = reloadConfig(ctx, d, configuration(n), configuration(n+1))
				reloaded <- err
			}()
			late, err = d.measureLatency(to)
			if failed := <-reloaded; failed != nil {
				return failed
			}
			if err != nil {
				return err
			}
			during, took = min(during, late), min(took, milliseconds(one))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []row{
		newRow("reload of 200 sinks, one of them changed", took, "ms from SIGHUP to applied",
			"config check", check).atMost(200),
		// Reading 200 sinks occupies one core for a part of the round.
		newRow("p99 of another sink during that", during, "ms from published to received",
			"without it", without).ratioAtMost(2),
	}, nil
}

// reloadConfig replaces a part of the daemon's configuration and returns the time until it was applied.
func reloadConfig(ctx context.Context, d *daemon, before, after string) (time.Duration, error) {
	text, err := os.ReadFile(d.file)
	if err != nil {
		return 0, err
	}
	if err := writeFile(d.file, strings.Replace(string(text), before, after, 1)); err != nil {
		return 0, err
	}
	startedAt := time.Now()
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return 0, err
	}
	for range 100 { // rarely, because collecting the metrics of 200 sinks takes time too
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
		at, err := d.reloadedAt(ctx)
		if err != nil || at.After(startedAt) {
			return at.Sub(startedAt), err
		}
	}
	return 0, fmt.Errorf("the configuration was not applied: %s", d.log.String())
}

// reloadedAt returns the time when the daemon last applied a configuration.
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
	return time.Time{}, errors.New("the metrics have no time of the last reload")
}
