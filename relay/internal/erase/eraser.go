package erase

import (
	"context"
	_ "embed"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// pageLen is the number of entries that one script checks, so that other commands run in between.
const pageLen = 200

//go:embed scripts/erase.lua
var eraseSource string

var eraseScript = redisconn.NewScript(eraseSource)

// Options are the stores of a relay. All fields are required.
type Options struct {
	Conn  *redisconn.Conn
	Store *store.Store
	// Group is the consumer group of the queues.
	Group string
	// Sinks are the names of all sinks.
	Sinks []string
}

// Result counts what was deleted.
type Result struct {
	// Log, Queued, Scheduled and DeadLetters are the numbers of deleted entries and deliveries.
	Log         int `json:"log"`
	Queued      int `json:"queued"`
	Scheduled   int `json:"scheduled"`
	DeadLetters int `json:"dead_letters"`
	// SharedDeadLetters is the number of dead letters that stay, because they also contain notifications of other
	// accounts.
	SharedDeadLetters int `json:"shared_dead_letters"`
}

// Account deletes the notifications of an account. It may be repeated after an error. What is being delivered, gathered
// for a batch or digest, or kept in the memory of nodes is not deleted.
func Account(ctx context.Context, o Options, account string) (Result, error) {
	var r Result
	keys := o.Conn.Keys()
	for partition := range keys.Partitions() {
		n, err := eraseStream(ctx, o.Conn, eventlog.Key(keys, partition), account, "")
		if r.Log += n; err != nil {
			return r, err
		}
	}
	// Deliveries move from queues to retries to dead letters.
	for _, sink := range o.Sinks {
		for _, key := range queue.Keys(keys, sink) {
			n, err := eraseStream(ctx, o.Conn, key, account, o.Group)
			if r.Queued += n; err != nil {
				return r, err
			}
		}
		n, err := o.Store.Retries.EraseAccount(ctx, sink, account)
		if r.Scheduled += n; err != nil {
			return r, err
		}
		n, shared, err := o.Store.DeadLetters.EraseAccount(ctx, sink, account)
		r.DeadLetters += n
		if r.SharedDeadLetters += shared; err != nil {
			return r, err
		}
	}
	return r, nil
}

func eraseStream(ctx context.Context, conn *redisconn.Conn, key, account, group string) (deleted int, err error) {
	const operation = "delete the entries of an account"
	for next := "-"; next != ""; {
		start := time.Now()
		reply, err := eraseScript.Run(ctx, conn.Commands(), []string{key}, next, pageLen, account, group).Slice()
		if err != nil {
			return deleted, redisconn.WrapError(operation, err)
		}
		if len(reply) != 2 {
			return deleted, redisconn.ErrUnexpectedReply
		}
		n, _ := reply[0].(int64)
		next, _ = reply[1].(string)
		deleted += int(n)
		if err := store.Yield(ctx, time.Since(start)); err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
