package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/erase"
)

// Accounts deletes the data of accounts. It may be used concurrently.
type Accounts interface {
	// Erase deletes the notifications of an account. See [erase.Account].
	Erase(ctx context.Context, account string) (erase.Result, error)
}

func eraseAccount(a Accounts, r *http.Request, _ adminapi.Empty) (adminapi.EraseResult, error) {
	account := r.PathValue("name")
	if account == auth.Wildcard {
		return adminapi.EraseResult{}, relay.NewError(relay.CodeInvalidArgument,
			"all accounts cannot be erased at once; name one")
	}
	e, err := a.Erase(r.Context(), account)
	return adminapi.EraseResult{
		Inbox: e.Inbox, Log: e.Log, Waiting: e.Queued, Retrying: e.Scheduled, DeadLetters: e.DeadLetters, Quarantine: e.Quarantine,
		History: e.History, SharedDeadLetters: e.SharedDeadLetters, Remaining: append([]string{}, e.Remaining...),
	}, err
}
