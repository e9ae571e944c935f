package filewatch

import (
	"context"
	"log/slog"
	"time"
)

// secretsInterval is the time between two reads of secret files. The streams of a removed key must be closed within
// a second.
const secretsInterval = 500 * time.Millisecond

// PollSecrets calls reread periodically until ctx ends, and changed after each change. The name describes the
// secrets in the log. A file that cannot be read changes nothing and is logged once per error.
func PollSecrets(
	ctx context.Context, log *slog.Logger, name string, reread func() (bool, error), changed func(),
) error {
	tick := time.NewTicker(secretsInterval)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		updated, err := reread()
		switch {
		case err != nil && logged != err.Error():
			logged = err.Error()
			log.Error("secret files were not read, the previous secrets stay in use", "secrets", name, "error", err)
		case err == nil:
			logged = ""
		}
		if updated {
			changed()
			log.Info("secret files were reloaded", "secrets", name)
		}
	}
}
