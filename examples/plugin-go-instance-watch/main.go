// Command plugin-go-instance-watch is a plugin of hubrelay: it keeps the state and health of every instance it hears
// of, says in the daemon's log which one is flapping, and appends a JSON line to a report for each notification.
//
// It is the command of a sink of type plugin, with the topics container.instance.* and config: {report: FILE}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// config is what the operator writes under config.
type config struct {
	Report string `json:"report"`
}

// Validate is called once the configuration is filled in; its error reaches the operator.
func (c *config) Validate() error {
	if c.Report == "" {
		return errors.New("report is missing: name the file to write to")
	}
	return nil
}

func main() {
	var c config
	w := newWatch()
	handle := func(_ context.Context, n relay.Notification) error {
		event, err := n.Envelope()
		if err != nil {
			return relay.Permanent(err) // no further try would mend it
		}
		seen := w.see(event, n.StoredAt())
		if seen.Flapping {
			slog.Warn("an instance is flapping", "instance", seen.Instance, "state", seen.State, "health", seen.Health)
		}
		return appendLine(c.Report, line{Topic: n.Topic, ID: n.ID, Containers: event.Context.Containers, seen: seen})
	}
	// One at a time, so that the report keeps the order.
	if err := sdk.ServeSink(handle, sdk.Config(&c), sdk.Concurrency(1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// line is one line of the report. The same id comes again where an attempt was repeated.
type line struct {
	Topic      string   `json:"topic"`
	ID         string   `json:"id"`
	Containers []string `json:"containers"`
	seen
}

// appendLine fails where the file cannot be written; the notification then comes again.
func appendLine(file string, l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return relay.Permanent(err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}
