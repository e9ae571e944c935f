package app

import (
	"context"

	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/api"
	"github.com/hubrelay/hubrelay/relay/backbone"
	"github.com/hubrelay/hubrelay/relay/ingest"
)

// publisher is the ingest as the public interface sees it.
type publisher struct{ ingest *ingest.Publisher }

func (p publisher) Publish(ctx context.Context, one api.Publication) ([]string, error) {
	return p.ingest.Publish(ctx, ingest.Publication(one))
}

// countedLog counts what it stores.
type countedLog struct {
	*backbone.Backbone
	metrics *admin.Metrics
}

func (l countedLog) Append(ctx context.Context, a backbone.Append) ([]string, error) {
	ids, err := l.Backbone.Append(ctx, a)
	if err != nil {
		return nil, err
	}
	// A repeat answers with the ids of the first time and stores nothing.
	if len(ids) > 0 && ids[0] == a.Notifications[0].ID {
		for i := range a.Notifications {
			l.metrics.Accepted(a.Notifications[i].Topic)
		}
	}
	return ids, nil
}
