package adminserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
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
	if sel.Topics, err = relay.ParsePatterns(splitTopics(request.Topics)); err != nil {
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

// maxDeliveryIDs is the maximum number of deliveries in a request to change them.
const maxDeliveryIDs = 500

func retryDeliveries(
	s Sinks, r *http.Request, request adminapi.ChangeDeliveriesRequest,
) (adminapi.ChangeResult, error) {
	return changeDeliveries(r, "retried", request, s.RetryDeliveries)
}

func dropDeliveries(
	s Sinks, r *http.Request, request adminapi.ChangeDeliveriesRequest,
) (adminapi.ChangeResult, error) {
	return changeDeliveries(r, "dropped", request, s.DropDeliveries)
}

// changeDeliveries changes the selected deliveries, and records the selection.
func changeDeliveries(
	r *http.Request, pastTense string, request adminapi.ChangeDeliveriesRequest,
	change func(ctx context.Context, sink string, ids []string) (adminapi.ChangeResult, error),
) (adminapi.ChangeResult, error) {
	switch n := len(request.IDs); {
	case n == 0:
		return adminapi.ChangeResult{}, relay.NewError(relay.CodeMissingArgument,
			"name the deliveries in ids").WithPointer("/ids")
	case n > maxDeliveryIDs:
		return adminapi.ChangeResult{}, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("ids has %d entries, at most %d are allowed", n, maxDeliveryIDs)).WithPointer("/ids")
	}
	result, err := change(r.Context(), r.PathValue("name"), request.IDs)
	*auditDetail(r) = fmt.Sprintf("%d %s, %d unchanged: %s", result.Changed, pastTense, len(result.Unchanged),
		strings.Join(request.IDs, " "))
	return result, describePartialChange(err, result.Changed, pastTense)
}

// describePartialChange adds to the error of Redis how many items were changed before it.
func describePartialChange(err error, changed int, pastTense string) error {
	if changed == 0 || !errors.Is(err, redisconn.ErrUnavailable) {
		return err
	}
	return relay.NewError(relay.CodeNotReady, fmt.Sprintf("the relay could not reach Redis; %d were %s before that, and perhaps more",
		changed, pastTense)).WithExtra("changed", changed)
}

// describeLostReply adds to the error of a change that the change may have been made.
func describeLostReply(r *http.Request, err error) error {
	if isChange := r.Method == http.MethodPost || r.Method == http.MethodPut; !isChange || !redisconn.MayHaveRun(err) {
		return err
	}
	return fmt.Errorf("%w; the change may have been made: check it before you repeat the request", err)
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
