package adminserver

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
)

// The numbers of deliveries in a page. One line for each event of a batch may exceed them.
const (
	defaultDeliveryPage = 100
	maxDeliveryPage     = 500
)

func listDeliveries(
	s Sinks, r *http.Request, request adminapi.ListDeliveriesRequest,
) (adminapi.Page[adminapi.Delivery], error) {
	sel := delivery.Selection{
		Sink: request.Sink, After: request.After, Limit: min(cmp.Or(request.Limit, defaultDeliveryPage), maxDeliveryPage),
	}
	var err error
	if sel.Topics, err = relay.ParsePatterns(splitTopics(request.Topics)); err != nil {
		return adminapi.Page[adminapi.Delivery]{}, relay.NewError(relay.CodeInvalidArgument, err.Error()).
			WithExtra("parameter", "topics")
	}
	for _, name := range splitTopics(request.States) {
		state := adminapi.DeliveryState(name)
		if !slices.Contains(delivery.ListedStates(), state) {
			return adminapi.Page[adminapi.Delivery]{}, errState(name)
		}
		sel.States = append(sel.States, state)
	}
	if request.Since != "" {
		var ok bool
		if sel.Since, ok = parseTime(request.Since, time.Now()); !ok {
			return adminapi.Page[adminapi.Delivery]{}, errSince()
		}
	}
	return s.ListDeliveries(r.Context(), sel)
}

func errState(name string) error {
	var known []string
	for _, state := range delivery.ListedStates() {
		known = append(known, string(state))
	}
	detail := "there is no state " + strconv.Quote(relay.Truncate(name, 100)) +
		"; the states are retrying, waiting, dead, dropped and delivered"
	if near := suggest.ClosestName(name, known); near != "" {
		detail = "there is no state " + strconv.Quote(relay.Truncate(name, 100)) + "; did you mean " + near + "?"
	}
	return relay.NewError(relay.CodeInvalidArgument, detail).WithExtra("parameter", "states")
}
