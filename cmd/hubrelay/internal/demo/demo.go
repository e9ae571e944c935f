// Package demo runs a relay on this machine with sample events, a websocket client, a webhook receiver and migrations.
//
// The client, the producer and the receiver use only the public HTTP API, like the programs of a user.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

const (
	hubID     = "demo"
	accountID = "acme"
)

// Options are the settings of a demo.
type Options struct {
	Listen, Health string        // addresses; if a port is in use, a free one is used
	Interval       time.Duration // between two sample events
	Version        string
	Kinds          daemon.Kinds
}

// demo is one run. The producer, the client and the receiver use only the public HTTP API.
type demo struct {
	options  Options
	claimed  *claimedDir
	dir      string // path of claimed
	memory   bool
	key      string
	secret   string
	client   *client.Client
	lastStep string // last step that was printed
	cancel   context.CancelFunc

	mu    sync.Mutex
	std   term.Streams
	paint term.Palette
}

// Run runs a demo until ctx ends or the terminal is closed. It returns yamldoc.Problems if the flags are not valid.
func Run(ctx context.Context, std term.Streams, o Options) error {
	d := &demo{options: o, std: std, paint: term.NewPalette(std.Out, std.Env)}
	log := slog.New(term.NewLogHandler(std.Err, slog.LevelWarn, std.Env))
	if err := d.setUp(ctx, log); err != nil {
		return err
	}
	defer d.claimed.remove()
	defer d.endServers(log)

	receiver, err := newReceiver(d.secret, d.onWebhook)
	if err != nil {
		return err
	}
	defer receiver.close()
	cfg, err := d.loadConfig(receiver.url)
	if err != nil {
		return err
	}
	ready := make(chan daemon.Addresses, 1)
	relayed, err := daemon.New(cfg, daemon.Options{
		Version: o.Version, Log: log, Sinks: o.Kinds.Sinks, Driver: o.Kinds.Driver,
		Ready: func(a daemon.Addresses) { ready <- a },
	})
	if err != nil {
		return err
	}

	ctx, cancel := whileTerminalOpen(ctx)
	d.cancel = cancel
	done := make(chan error, 1)
	go func() { done <- relayed.Run(ctx) }()
	var others sync.WaitGroup
	select {
	case err := <-done:
		cancel()
		return err
	case addresses := <-ready:
		d.client = &client.Client{URL: "http://" + addresses.Public.String(), Key: d.key, Hub: hubID, Log: log}
		d.printWelcome(addresses)
		others.Go(func() { d.listen(ctx) })
		others.Go(func() { d.produceLoop(ctx) })
		others.Go(func() { d.migrateLoop(ctx) })
	}
	err = <-done
	cancel()
	others.Wait()
	d.endServers(log)
	d.printLinef("%s", d.paint.Dim("demo ended, its data was removed"))
	return err
}

// whileTerminalOpen returns a context that ends when the terminal is closed. If a reader of the output such as head
// exits, printLinef fails instead.
func whileTerminalOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	if signal.Ignored(syscall.SIGHUP) { // started by nohup
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// setUp creates the key and the secret, claims a directory and free ports, and creates the instances.
func (d *demo) setUp(ctx context.Context, log *slog.Logger) error {
	d.key, d.secret = apikey.New(), setup.NewWebhookSecret()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	if d.claimed, err = claimDir(cache); err != nil {
		return err
	}
	d.dir = d.claimed.path
	if err := d.cleanUp(ctx, log); err != nil {
		d.claimed.remove()
		return err
	}
	if err := d.makeServers(); err != nil {
		d.claimed.remove()
		return fmt.Errorf("create servers of the demo: %w", err)
	}
	if _, err := embeddedredis.FindBinary(); err != nil {
		d.memory = true
	}
	d.options.Listen = freeAddress(d.options.Listen)
	d.options.Health = freeAddress(d.options.Health)
	return nil
}

// freeAddress returns address, or its host with port 0 if the port is in use.
func freeAddress(address string) string {
	l, err := net.Listen("tcp", address)
	if err == nil {
		_ = l.Close()
		return address
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return net.JoinHostPort(host, "0")
}

func (d *demo) redisURL() string {
	if d.memory {
		return "memory:"
	}
	return ""
}

// loadConfig writes the configuration file and loads it as serve does.
func (d *demo) loadConfig(receiver string) (*daemon.Config, error) {
	text := fmt.Sprintf(`server: {listen: %q, shutdown_grace: 5s, allowed_origins: ["*"]}
health: {listen: %q}
redis: {url: %q, data_dir: %q}
auth:
  keys:
    - {name: demo, key: %q, account_id: %q, hubs: ["*"],
       capabilities: [notifications-publish, containers-instances-migrate]}
migration: {driver: {command: ["builtin:directory"]}, inventory_file: inventory.yaml}
sinks:
  receiver: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8]}
`, d.options.Listen, d.options.Health, d.redisURL(), filepath.Join(d.dir, "data"), d.key, accountID, receiver, d.secret)
	file := filepath.Join(d.dir, "hubrelay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration of the demo: %w", err)
	}
	return daemon.LoadConfig(file, nil, d.options.Kinds)
}

func (d *demo) printLinef(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintf(d.std.Out, format+"\n", args...); err != nil {
		d.cancel() // the output is closed
	}
}

func (d *demo) produceLoop(ctx context.Context) {
	samples := newGenerator(uint64(time.Now().UnixNano()), hubID, accountID)
	tick := time.NewTicker(d.options.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.publish(ctx, samples.nextEvent()); err != nil && ctx.Err() == nil {
			d.printLinef("%s %s %v", d.formatNow(), d.paint.Red("rejected   ▶"), err)
		}
	}
}

// publish prints an event before sending it, so this line precedes the lines of its receivers.
func (d *demo) publish(ctx context.Context, one Event) error {
	body, err := json.Marshal(one)
	if err != nil {
		return err
	}
	d.printLinef("%s %s %s", d.formatNow(), d.paint.Yellow("publish    ▶"),
		notificationSummary(d.paint, relay.Notification{Topic: one.Topic, Data: body}))
	_, err = d.client.Publish(ctx, "application/json", "", body)
	return err
}

func (d *demo) listen(ctx context.Context) {
	for n, err := range d.client.Listen(ctx, client.ListenOptions{}) {
		if err != nil {
			if ctx.Err() == nil {
				d.printLinef("%s %s %v", d.formatNow(), d.paint.Red("websocket  ✗"), err)
			}
			return
		}
		if d.isNews(n) {
			d.printLinef("%s %s %s", d.formatNow(), d.paint.Cyan("websocket  ◀"), notificationSummary(d.paint, n))
		}
	}
}

// isNews reports whether to print an event. It returns false for the end of a step whose start was printed last.
func (d *demo) isNews(n relay.Notification) bool {
	job := term.ParseJobEvent(n)
	if job == nil || job.Object.Task == nil {
		return true
	}
	step := job.Object.JobID + " " + job.Object.Task.ID
	repeated := step == d.lastStep && job.Object.Task.State.Current == relay.JobCompleted
	d.lastStep = step
	return !repeated
}

func (d *demo) onWebhook(id string, n relay.Notification, attempt error) {
	if attempt != nil {
		d.printLinef("%s %s %v", d.formatNow(), d.paint.Red("webhook    ✗"), attempt)
		return
	}
	if job := term.ParseJobEvent(n); job != nil && job.Object.Task != nil {
		return // too many; the websocket client prints them
	}
	d.printLinef("%s %s %s %s", d.formatNow(), d.paint.Green("webhook    ◀"), notificationSummary(d.paint, n),
		d.paint.Dim("signature ok, "+id))
}

func (d *demo) formatNow() string { return d.paint.Dim(time.Now().Format("15:04:05.000")) }

// notificationSummary returns a notification as a short line.
func notificationSummary(paint term.Palette, n relay.Notification) string {
	text := paint.Topic(fmt.Sprintf("%-42s", term.Sanitize(n.Topic)))
	e, err := n.Envelope()
	if err != nil {
		return text
	}
	parts := []string{term.Sanitize(e.Object.State)}
	if job := term.ParseJobEvent(n); job != nil {
		parts = append(parts, term.Sanitize(job.Object.InstanceID), term.Sanitize(job.Route()),
			term.Sanitize(job.StepText()))
	}
	if e.Object.Error != "" {
		parts = append(parts, paint.Red(term.Sanitize(e.Object.Error)))
	}
	parts = slices.DeleteFunc(parts, func(w string) bool { return w == "" })
	if len(parts) == 0 {
		parts = []string{paint.Dim(term.Sanitize(e.Object.ID))}
	}
	return text + " " + strings.Join(parts, "  ")
}
