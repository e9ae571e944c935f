// Command bench measures the promises of hubrelay about speed and prints one table. Each value has a baseline: a
// floor or a peer that is measured in the same run, on the same machine, with the same bytes.
//
// It is a separate module, so the peers are not in hubrelay's go.mod. It runs on Linux, uses only loopback and Unix
// sockets, starts and stops everything that it needs, and takes some minutes, or more on a busy machine. While it
// measures scheduled retries, its Redis uses 1 GiB.
//
// Load generators share the machine with the daemon, so they need little CPU time: requests are
// prebuilt bytes on persistent connections, and clients drain their sockets periodically instead of for each message.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const maxRunTime = 11 * time.Minute

func main() {
	// The program starts itself again for parts that need a separate process.
	if role := os.Getenv(roleVariable); role != "" {
		exitWith(playRole(role, os.Args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, maxRunTime)
	err := runBench(ctx, os.Args[1:])
	cancel()
	stop()
	exitWith(err)
}

func exitWith(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// measurement is one part of the bench. It returns rows of the table.
type measurement struct {
	name string
	run  func(context.Context, *rig) ([]row, error)
}

var measurements = []measurement{
	{"idle", measureIdle},
	{"subscriber", measureSubscriber},
	{"publish", measurePublish},
	{"quotas", measureQuotas},
	{"identity", measureIdentity},
	{"source", measureSource},
	{"fanout", measureFanout},
	{"latency", measureLatency},
	{"return", measureReturn},
	{"burst", measureBurst},
	{"crowd", measureCrowd},
	{"webhook", measureWebhook},
	{"history", measureHistory},
	{"batch", measureBatch},
	{"many", measureMany},
	{"hang", measureHang},
	{"reload", measureReload},
	{"template", measureTemplate},
	{"retries", measureRetries},
	{"plugin", measurePlugin},
	{"migrate", measureMigrate},
	{"copy", measureCopy},
	{"docker", measureDocker},
}

func measurementNames() []string {
	var names []string
	for _, m := range measurements {
		names = append(names, m.name)
	}
	return names
}

func runBench(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	daemon := flags.String("daemon", "", "hubrelay binary to measure")
	only := flags.String("only", "",
		"comma-separated measurements to run (default: all): "+strings.Join(measurementNames(), ", "))
	noDocker := flags.String("no-docker", "", "reason why dockerd cannot run here; skips the measurement docker")
	out := flags.String("out", "", "directory for table.txt, table.json and plot.svg")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *daemon == "" {
		return errors.New("--daemon is missing: name the hubrelay binary, or run make bench")
	}
	r, err := newRig(ctx, *daemon)
	if err != nil {
		return err
	}
	defer r.close()
	var rows []row
	var failed []error // the other measurements count nevertheless
	for _, m := range measurements {
		if *only != "" && !strings.Contains(","+*only+",", ","+m.name+",") {
			continue
		}
		if m.name == "docker" && *noDocker != "" {
			fmt.Fprintln(os.Stderr, "docker was NOT measured:", *noDocker)
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s\n", m.name)
		found, err := m.run(ctx, r)
		if err != nil {
			failed = append(failed, fmt.Errorf("measure %s: %w", m.name, err))
			if ctx.Err() != nil {
				break
			}
		}
		rows = append(rows, found...)
	}
	printTable(os.Stdout, rows)
	if *out != "" {
		failed = append(failed, writeResults(*out, rows))
	}
	return errors.Join(append(failed, checkBars(rows))...)
}

// rig is shared by all measurements: a Redis and a directory that belong to the bench.
type rig struct {
	daemon string
	dir    string
	redis  *redisServer
	env    []string // of daemons, in addition to the environment
}

func newRig(ctx context.Context, daemon string) (*rig, error) {
	daemon, err := filepath.Abs(daemon)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hubrelay-bench")
	if err != nil {
		return nil, err
	}
	server, err := startRedis(ctx, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &rig{daemon: daemon, dir: dir, redis: server}, nil
}

func (r *rig) close() {
	r.redis.close()
	_ = os.RemoveAll(r.dir)
}
