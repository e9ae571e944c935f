// Command listen-go prints notifications of a hub as they arrive, each as one JSON line.
//
// It reads HUBRELAY_URL, HUBRELAY_KEY and HUBRELAY_HUB; arguments are topic patterns, such as 'container.*' '!*.error'.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := listen(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// listen returns when ctx ends, or with an error that a repetition cannot fix, such as a wrong key. The client
// reconnects automatically and logs it.
func listen(ctx context.Context, patterns []string) error {
	c := &client.Client{
		URL: cmp.Or(os.Getenv("HUBRELAY_URL"), "http://127.0.0.1:8080"),
		Key: os.Getenv("HUBRELAY_KEY"),
		Hub: os.Getenv("HUBRELAY_HUB"),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for notification, err := range c.Listen(ctx, client.ListenOptions{Topics: patterns}) {
		if err != nil {
			return err
		}
		handle(notification)
	}
	return nil
}

// handle prints a notification. Change it for your program. notification.Envelope() decodes the content.
func handle(notification relay.Notification) {
	fmt.Println(string(notification.Data))
}
