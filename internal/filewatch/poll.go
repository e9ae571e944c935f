package filewatch

import (
	"context"
	"errors"
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

// LoadEach loads each item of a list, such as the secrets in files. After an error it continues with the previous result in the
// same place, or with the zero value if previous is nil.
func LoadEach[C, T any](list []C, load func(C) (T, error), previous []T) ([]T, error) {
	results := make([]T, len(list))
	var errs []error
	for i, item := range list {
		result, err := load(item)
		if err != nil {
			errs = append(errs, err)
			if previous != nil {
				result = previous[i]
			}
		}
		results[i] = result
	}
	return results, errors.Join(errs...)
}
