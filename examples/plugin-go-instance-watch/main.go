// Command plugin-go-instance-watch is a plugin of hubrelay that tracks the state and health of instances, logs flapping
// ones, and appends a JSON line to a report for each notification.
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

// config is the config of the sink.
type config struct {
	Report string `json:"report"`
}

// Validate checks the configuration. The operator sees its error.
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
			return relay.Permanent(err) // a retry cannot succeed
		}
		state := w.update(event, n.StoredAt())
		if state.Flapping {
			slog.Warn("an instance is flapping",
				"instance_id", state.Instance, "state", state.State, "health", state.Health)
		}
		l := line{Topic: n.Topic, ID: n.ID, Containers: event.Context.Containers, instanceState: state}
		return appendLine(c.Report, l)
	}
	// One at a time, to keep the order in the report.
	if err := sdk.ServeSink(handle, sdk.Config(&c), sdk.Concurrency(1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// line is a line of the report. After a repeated attempt, an id occurs again.
type line struct {
	Topic      string   `json:"topic"`
	ID         string   `json:"id"`
	Containers []string `json:"containers"`
	instanceState
}

// appendLine appends a line. After an error the notification is delivered again.
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
