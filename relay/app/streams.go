package app

import (
	"context"
	"errors"
	"net/http"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/admin"
	"github.com/hubrelay/hubrelay/relay/api"
	"github.com/hubrelay/hubrelay/relay/hub"
)

// streams is the hub as the public interface sees it.
type streams struct{ hub *hub.Hub }

func (s streams) Serve(w http.ResponseWriter, r *http.Request, sub api.Subscription) error {
	refused := s.hub.Serve(w, r, hub.Subscription{
		Hub:     sub.Grant.Hub,
		Account: sub.Grant.Account,
		Allows:  sub.Grant.Allows,
		Topics:  sub.Topics,
		Expires: sub.Grant.Expires,
		Admit: func(ctx context.Context) *relay.Error {
			var refused *relay.Error
			errors.As(sub.Admit(ctx), &refused)
			return refused
		},
	})
	if refused != nil {
		return refused
	}
	return nil
}

// hubObserver counts what the hub reports.
type hubObserver struct{ *admin.Metrics }

func (o hubObserver) Disconnected(e hub.Ending) { o.Metrics.Disconnected(string(e)) }
