package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/moby/moby/api/types/container"
)

// waitHealthy waits until the health check of the instance succeeds. Without a health check, it waits until the
// instance has run for some time.
func (mg *migration) waitHealthy(ctx context.Context, name string) error {
	deadline := time.Now().Add(time.Duration(mg.config.HealthTimeout))
	var runningSince time.Time
	for {
		asked := time.Now() // a late response describes the state at the time of the request
		c, err := mg.destination.inspectContainer(ctx, name)
		if err != nil {
			return mg.withServer(mg.destination, err)
		}
		s := c.State
		checked := s.Health != nil && s.Health.Status != container.NoHealthcheck
		if runningSince.IsZero() {
			runningSince = time.Now()
		}
		switch {
		case !s.Running || s.Restarting:
			return fmt.Errorf("the instance did not stay up on server %s: its command ended with status %d%s",
				mg.destination.server, s.ExitCode, quoteOutput(s.Error))
		case c.RestartCount > 0: // the exit status is unknown until the command ends again
			if asked.Sub(runningSince) >= time.Duration(mg.config.Settle) || asked.After(deadline) {
				return fmt.Errorf(
					"the instance did not stay up on server %s: its command ended, and the restart policy restarted "+
						"it (restarts: %d)", mg.destination.server, c.RestartCount,
				)
			}
		case checked && s.Health.Status == container.Healthy:
			return nil
		case checked && s.Health.Status == container.Unhealthy:
			return fmt.Errorf("the instance is unhealthy on server %s%s", mg.destination.server, lastCheck(s.Health))
		case !checked && asked.Sub(runningSince) >= time.Duration(mg.config.Settle):
			return nil
		case asked.After(deadline):
			return fmt.Errorf("the instance was not healthy on server %s within %s (health_timeout)%s",
				mg.destination.server, time.Duration(mg.config.HealthTimeout), lastCheck(s.Health))
		}
		if !await.Duration(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// isHealthy reports whether the instance is healthy on the destination. With a health check it does not wait.
func (mg *migration) isHealthy(ctx context.Context, name string) bool {
	c, err := mg.destination.inspectContainer(ctx, name)
	if err != nil || !c.State.Running {
		return false
	}
	if h := c.State.Health; h != nil && h.Status != container.NoHealthcheck {
		return h.Status == container.Healthy
	}
	return mg.waitHealthy(ctx, name) == nil
}

// lastCheck returns the output of the last health check.
func lastCheck(h *container.Health) string {
	if h == nil || len(h.Log) == 0 || h.Log[len(h.Log)-1] == nil {
		return ""
	}
	return quoteOutput(h.Log[len(h.Log)-1].Output)
}

// quoteOutput quotes the output of a program in one short line with a leading colon. It returns an empty string if
// there is no output.
func quoteOutput(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.200q", text)
}
