package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// A whole plugin; a real one's main prints the error to standard error and exits with 1.
func ExampleServeSink() {
	var config struct {
		Label string `json:"label"`
	}
	handler := func(_ context.Context, n relay.Notification) error {
		event, err := n.Envelope()
		if err != nil {
			return relay.Permanent(err)
		}
		slog.Info("an event", "label", config.Label, "topic", n.Topic, "containers", event.Context.Containers)
		return nil
	}
	if err := sdk.ServeSink(handler, sdk.Config(&config)); err != nil {
		fmt.Println(err)
	}
	// Output: this program is a plugin of hubrelay, which starts it: name it as the command of a sink of type plugin or of the migration's driver, or try it with `hubrelay plugins check PROGRAM`
}

// A handler of deliveries knows the attempt, and what a digest counted.
func ExampleServeDeliveries() {
	handler := func(_ context.Context, d relay.Delivery) error {
		if d.Attempt < 3 {
			return relay.RetryAfter(fmt.Errorf("attempt %d is too early", d.Attempt), time.Minute)
		}
		slog.Info("delivered", "id", d.ID, "notifications", len(d.Notifications))
		return nil
	}
	if err := sdk.ServeDeliveries(handler, sdk.Concurrency(1)); err != nil {
		fmt.Println("not started by hubrelay")
	}
	// Output: not started by hubrelay
}

// rename moves instances that are files, between servers that are folders of one disk. A step that cannot be undone is
// one system call here; a driver with more than one keeps the lease at both servers, and compares it before each.
type rename struct{}

type folder struct {
	Path string `json:"path"`
}

func (rename) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{
		Name: "rename", Steps: []relay.MigrationStep{{ID: "rename", Caption: "Rename the file"}},
	}, nil
}

func (rename) Configure(_ context.Context, servers []relay.Server) error {
	for _, s := range servers {
		if _, err := file(s, ""); err != nil {
			return err
		}
	}
	return nil
}

func (rename) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	from, err := file(m.Source, m.Instance)
	if err != nil {
		return err
	}
	to, err := file(m.Destination, m.Instance)
	if err != nil {
		return err
	}
	if _, err := os.Stat(to); err == nil {
		return nil // by an earlier call
	}
	if m.Undo {
		return errors.New("it was asked to bring the instance back, which has not left")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("the instance stays where it is: %w", err)
	}
	report(relay.Progress{Step: "rename", Completed: true})
	return nil
}

func (rename) Close() error { return nil }

func file(s relay.Server, instance string) (string, error) {
	var f folder
	if err := json.Unmarshal(s.Settings, &f); err != nil || f.Path == "" {
		return "", fmt.Errorf("server %s: path is missing: name a folder", s.ID)
	}
	return filepath.Join(f.Path, instance), nil
}

// A whole driver; a real one's main prints the error to standard error and exits with 1.
func ExampleServeDriver() {
	if err := sdk.ServeDriver(rename{}); errors.Is(err, sdk.ErrNotAPlugin) {
		fmt.Println("not started by hubrelay")
	}
	// Output: not started by hubrelay
}
