package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// ErrFull reports that a retry queue contains as many deliveries as the backlog of its sink allows.
var ErrFull = errors.New("the sink's retry queue is full")

var errReply = errors.New("unexpected reply from Redis")

// Store contains the stores of all sinks. They may be used concurrently.
type Store struct {
	Retries      Retries
	DeadLetters  DeadLetters
	Digests      Digests
	Batches      Batches
	Orders       Orders
	States       States
	Rates        Rates
	Stats        StatsStore
	Failures     Failures
	SharedStates SharedStates
	Erasures     Erasures

	db db
}

// New returns a Store on client, which must not retry commands (MaxRetries -1).
func New(client redis.UniversalClient, keys keyspace.Space) *Store {
	return newStore(db{client: client, keys: keys})
}

// NewReplicated is like New. In addition, what replaces an entry of a queue, erasures, and changes of the state of a sink have to
// reach the minimum number of replicas; see [redisconn.Options.MinReplicas].
func NewReplicated(conn *redisconn.Conn, keys keyspace.Space) *Store {
	return newStore(db{client: conn.Commands(), keys: keys, conn: conn})
}

func newStore(d db) *Store {
	return &Store{
		Retries: Retries{d}, DeadLetters: DeadLetters{d}, Digests: Digests{d}, Batches: Batches{d}, Orders: Orders{d},
		States: States{d}, Rates: Rates{d}, Stats: StatsStore{d}, Failures: Failures{d}, SharedStates: SharedStates{d},
		Erasures: Erasures{d},
		db:       d,
	}
}

// db is the connection that all stores share.
type db struct {
	client redis.UniversalClient
	keys   keyspace.Space
	conn   *redisconn.Conn // nil if no write waits for replicas
}

// runReplicated runs a script for an entry of a queue, and waits on the same connection until enough replicas have its changes. In
// a cluster, a queue can be on another server than the replacement of its entries. Without this, a failover of one of them
// could lose a delivery. The script may be repeated after an error.
func (d db) runReplicated(ctx context.Context, script *redis.Script, keys []string, args ...any) *redis.Cmd {
	if d.conn == nil {
		return script.Run(ctx, d.client, keys, args...)
	}
	cmd := redis.NewCmd(ctx)
	if err := d.conn.WithReplication(ctx, keys[0], func(r redisconn.Runner) error {
		cmd = script.Run(ctx, r, keys, args...)
		return cmd.Err()
	}); err != nil {
		cmd.SetErr(err)
	}
	return cmd
}

// confirmReplicas waits until enough replicas have all earlier changes of the server of a key.
func (d db) confirmReplicas(ctx context.Context, key string) error {
	if d.conn == nil {
		return nil
	}
	return d.conn.AwaitReplicasOf(ctx, key)
}

// retryKeys returns the keys that every script of the retry queue expects, with the script's own keys between them.
func (d db) retryKeys(sink string, own ...string) []string {
	keys := append([]string{RetryKey(d.keys, sink), RecordsKey(d.keys, sink), ArrivalKey(d.keys, sink)}, own...)
	return append(keys, OrderKey(d.keys, sink), OrderMembersKey(d.keys, sink))
}

// signalChange makes all nodes check all sinks within about a second. It also works on a full Redis.
func (d db) signalChange(ctx context.Context) error {
	err := signalChangeScript.Run(ctx, d.client, []string{ChangesKey(d.keys)}).Err()
	return redisconn.WrapError("signal a change of sinks", err)
}

// Forget removes everything of a sink that no node has configured. Dead letters are removed only if deadLetters is set.
func (s *Store) Forget(ctx context.Context, sink string, deadLetters bool) error {
	d := s.db
	groups, err := d.client.ZRange(ctx, DigestsKey(d.keys, sink), 0, -1).Result()
	if err != nil {
		return redisconn.WrapError("delete data of sink", err)
	}
	keys := d.retryKeys(sink, DigestsKey(d.keys, sink), DigestCountKey(d.keys, sink), DigestBytesKey(d.keys, sink),
		BatchedIDsKey(d.keys, sink), BatchLogKey(d.keys, sink), StateKey(d.keys, sink), FailureStartKey(d.keys, sink), StatsKey(d.keys, sink),
		RateKey(d.keys, sink))
	for _, group := range groups {
		keys = append(keys, DigestKey(d.keys, sink, group))
	}
	if deadLetters {
		keys = append(keys, DeadLettersKey(d.keys, sink), DeadLetterIndexKey(d.keys, sink))
	}
	_, err = d.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.Unlink(ctx, key)
		}
		return nil
	})
	if err != nil {
		return redisconn.WrapError("delete data of sink", err)
	}
	return nil
}

// Yield pauses for the time that an operation kept Redis busy, at most a second, so other clients get half of its time.
func Yield(ctx context.Context, busy time.Duration) error {
	if !await.Duration(ctx, min(busy, time.Second)) {
		return ctx.Err()
	}
	return nil
}

const (
	persistTimeout  = 30 * time.Second
	minPersistDelay = 100 * time.Millisecond
	maxPersistDelay = 2 * time.Second

	// CommandTimeout limits one command of Redis.
	CommandTimeout = 2 * time.Second
)

// Persist repeats a write for up to 30 seconds, because the alternative is that a destination gets a delivery again. It
// calls write at least once, even if ctx has ended, so the outcome of an attempt is not lost.
func Persist(ctx context.Context, write func(context.Context) error) error {
	repeating, cancel := context.WithTimeout(ctx, persistTimeout)
	defer cancel()
	retry := backoff.Backoff{Min: minPersistDelay, Max: maxPersistDelay}
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CommandTimeout)
			defer cancel()
			return write(ctx)
		}()
		if err == nil || !retry.Sleep(repeating) {
			return err
		}
	}
}
