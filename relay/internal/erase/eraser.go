// Package erase deletes the notifications of an account from Redis: from the inbox, the log, the queues, the scheduled
// retries, the dead letters, the quarantine and the history.
package erase

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// pageLen is the number of entries that one script checks, so that other commands run in between.
const pageLen = 200

// rewritePoll is the interval between two checks whether the append-only file was rewritten.
const rewritePoll = 50 * time.Millisecond

var (
	//go:embed scripts/page.lua
	pageSource string
	//go:embed scripts/erase.lua
	eraseSource string
	//go:embed scripts/erase_quarantine.lua
	eraseQuarantineSource string

	eraseScript           = redisconn.NewScript(pageSource + eraseSource)
	eraseQuarantineScript = redisconn.NewScript(pageSource + eraseQuarantineSource)
)

// Options are the stores of a relay.
type Options struct {
	Conn    *redisconn.Conn
	Store   *store.Store
	History *history.Store
	// Group is the consumer group of the queues.
	Group string
	// Sinks are the names of all sinks.
	Sinks []string
	// RewriteFile makes Redis rewrite its append-only file at the end, so the file does not contain the deleted entries
	// either. Account then waits for the end of the rewrite.
	RewriteFile bool
}

// Result counts what was deleted.
type Result struct {
	// Inbox, Log, Queued, Scheduled, DeadLetters, Quarantine and History are the numbers of deleted entries, deliveries and
	// records.
	Inbox       int
	Log         int
	Queued      int
	Scheduled   int
	DeadLetters int
	Quarantine  int
	History     int
	// SharedDeadLetters is the number of dead letters that stay, because they also contain notifications of other
	// accounts.
	SharedDeadLetters int
	// Remaining describes data of the account that was not deleted, and how to delete it.
	Remaining []string
}

// Account deletes the notifications of an account that were published before the call. It may be repeated after an error.
// Attempts in progress, and recent notifications in the memory of nodes, are not deleted. Nodes discard deliveries that they have
// read and not attempted. An open digest that mentions the account is sealed first.
func Account(ctx context.Context, o Options, account string) (Result, error) {
	var r Result
	keys := o.Conn.Keys()
	until, err := o.Store.Erasures.Add(ctx, account)
	if err != nil {
		return r, err
	}
	if r.Inbox, err = eraseInbox(ctx, o.Conn, account); err != nil {
		return r, err
	}
	ends, err := readLogEnds(ctx, o.Conn)
	if err != nil {
		return r, err
	}
	for partition, end := range ends {
		n, err := eraseStream(ctx, o.Conn, eraseScript, eventlog.Key(keys, partition), account, "", end)
		if r.Log += n; err != nil {
			return r, err
		}
	}
	// Deliveries move from queues to retries to dead letters.
	for _, sink := range o.Sinks {
		for partition, key := range queue.Keys(keys, sink) { // under the IDs of the log
			n, err := eraseStream(ctx, o.Conn, eraseScript, key, account, o.Group, ends[partition])
			if r.Queued += n; err != nil {
				return r, err
			}
		}
		if err := o.Store.Digests.SealAccount(ctx, sink, account); err != nil {
			return r, err
		}
		n, err := o.Store.Retries.EraseAccount(ctx, sink, account, until)
		if r.Scheduled += n; err != nil {
			return r, err
		}
		n, shared, err := o.Store.DeadLetters.EraseAccount(ctx, sink, account, until)
		r.DeadLetters += n
		if r.SharedDeadLetters += shared; err != nil {
			return r, err
		}
	}
	n, err := eraseStream(ctx, o.Conn, eraseQuarantineScript, inbox.QuarantineKey(keys), account, "", "+")
	if r.Quarantine = n; err == nil {
		r.History, err = o.History.EraseAccount(ctx, account)
	}
	if err == nil { // a failover could restore entries
		err = redisconn.WrapError("replicate the erasure", o.Conn.AwaitReplicas(ctx))
	}
	if err == nil && o.RewriteFile {
		err = rewriteFile(ctx, o.Conn.Commands())
	}
	return r, err
}

// eraseInbox deletes the entries that are in the inbox now. Entries that a node has read from it move to the log within readDelay.
func eraseInbox(ctx context.Context, conn *redisconn.Conn, account string) (deleted int, err error) {
	key := inbox.Key(conn.Keys())
	info, err := redisconn.ReadStreamInfo(ctx, conn.Commands(), key)
	if err != nil || info.Length == 0 {
		return 0, redisconn.WrapError("read the end of the inbox", err)
	}
	if deleted, err = eraseStream(ctx, conn, eraseQuarantineScript, key, account, "", info.LastID); err != nil {
		return deleted, err
	}
	return deleted, waitFor(ctx, readDelay)
}

// readDelay is the time after which nodes have usually read the newest entries of the log and the erasure of the account. The
// deletion of an entry that a node has not read is a gap for its clients.
const readDelay = 2 * time.Second

// readLogEnds returns the last ID of the log of each partition, after readDelay.
func readLogEnds(ctx context.Context, conn *redisconn.Conn) ([]string, error) {
	ends := make([]string, conn.Keys().Partitions())
	for partition := range ends {
		info, err := redisconn.ReadStreamInfo(ctx, conn.Commands(), eventlog.Key(conn.Keys(), partition))
		if err != nil {
			return nil, redisconn.WrapError("read the end of the log", err)
		}
		ends[partition] = info.LastID
	}
	return ends, waitFor(ctx, readDelay)
}

func waitFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rewriteFile makes Redis rewrite its append-only file, and waits until that is done.
func rewriteFile(ctx context.Context, client redis.UniversalClient) error {
	const operation = "rewrite the append-only file"
	// A rewrite that is already running may contain what was deleted since.
	_, err := waitForRewrite(ctx, client)
	if err == nil {
		err = client.BgRewriteAOF(ctx).Err()
	}
	succeeded := false
	if err == nil {
		succeeded, err = waitForRewrite(ctx, client)
	}
	if err == nil && !succeeded {
		return errors.New("redis did not rewrite its append-only file: see its log, and repeat the command")
	}
	return redisconn.WrapError(operation, err)
}

// waitForRewrite waits until Redis does not rewrite its append-only file, and reports whether the last rewrite succeeded.
func waitForRewrite(ctx context.Context, client redis.UniversalClient) (succeeded bool, err error) {
	for {
		state, err := client.Info(ctx, "persistence").Result()
		if err != nil {
			return false, err
		}
		if strings.Contains(state, "aof_rewrite_in_progress:0") && strings.Contains(state, "aof_rewrite_scheduled:0") {
			return strings.Contains(state, "aof_last_bgrewrite_status:ok"), nil
		}
		select {
		case <-time.After(rewritePoll):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// eraseStream deletes the entries of an account from a stream, page by page, up to the ID end. group is its consumer group, or
// empty.
func eraseStream(
	ctx context.Context, conn *redisconn.Conn, script *redis.Script, key, account, group, end string,
) (deleted int, err error) {
	const operation = "delete the entries of an account"
	for next := "-"; next != ""; {
		start := time.Now()
		reply, err := script.Run(ctx, conn.Commands(), []string{key}, next, pageLen, account, group, end).Slice()
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
