package adminserver

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
) (page adminapi.Page[adminapi.Delivery], err error) {
	sel := delivery.Selection{
		Sink: request.Sink, After: request.After, Limit: min(cmp.Or(request.Limit, defaultDeliveryPage), maxDeliveryPage),
	}
	if sel.Topics, err = parseTopics(request.Topics); err != nil {
		return page, err
	}
	for _, name := range splitTopics(request.States) {
		state := adminapi.DeliveryState(name)
		if !slices.Contains(delivery.ListedStates(), state) {
			return page, newStateError(name)
		}
		sel.States = append(sel.States, state)
	}
	if sel.Since, err = parseTimeParameter("since", request.Since, time.Now()); err != nil {
		return page, err
	}
	return s.ListDeliveries(r.Context(), sel)
}

func newStateError(name string) *relay.Error {
	var known []string
	for _, state := range delivery.ListedStates() {
		known = append(known, string(state))
	}
	hint := "the states are " + strings.Join(known, ", ")
	if near := suggest.ClosestName(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	return relay.NewError(relay.CodeInvalidArgument,
		"there is no state "+strconv.Quote(relay.Truncate(name, 100))+"; "+hint).WithExtra("parameter", "states")
}
