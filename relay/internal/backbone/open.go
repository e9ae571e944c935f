package backbone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
)

// Options says which Redis a [Store] uses and under which names.
type Options struct {
	// URL is the address; see parseAddress for its forms. It may hold a password, which never shows in errors or logs.
	URL string
	// Prefix is what every key begins with; empty means "hubrelay".
	Prefix string
	// Partitions is the number of partitions of the log, 1 where zero.
	Partitions int
	// Log may be nil.
	Log *slog.Logger
	// MinReplicas is how many replicas must have what [Store.Append] and [Store.StoreInboxEntries] stored before they
	// return; 0 waits for none.
	MinReplicas int
	// SingleProcess promises that no other process uses this Redis and prefix, as the lock on an embedded server's folder
	// does: leases that a killed process left behind are then taken at once instead of waited for.
	SingleProcess bool
	// Dialer, where set, connects instead of URL.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Store is the relay's Redis. It may be used concurrently.
type Store struct {
	client         redis.UniversalClient
	blockingClient redis.UniversalClient
	keys           keyspace.Space
	log            *slog.Logger
	bootID         string // begins the value of every lease of this process
	exclusive      bool
	groupCommit    groupCommit

	minReplicas int
	// readerConnects counts the connections that readers made: behind a new one may be another server.
	readerConnects atomic.Int64
}

// MaxBlock is the longest time that a blocking read may wait: a cancelled context does not end it sooner.
const MaxBlock = 2 * time.Second

const dialTimeout = 2 * time.Second

const (
	retryMin = 50 * time.Millisecond
	retryMax = time.Second
	// waitLogInterval is how often the log says what Open waits for.
	waitLogInterval = 10 * time.Second
)

// Open connects to Redis, checks its version and the stored number of partitions, and returns when it answers. While
// Redis is away or loads its data, Open waits until ctx ends. What waiting cannot mend (a bad address, refused
// credentials, an old version, another number of partitions) is an error at once.
func Open(ctx context.Context, o Options) (*Store, error) {
	b, err := newStore(o)
	if err != nil {
		return nil, err
	}
	wait, told := retryMin, time.Time{}
	for {
		err := b.checkServer(ctx)
		if err == nil {
			b.warnEvictionPolicy(ctx)
			b.warnReplicationInfo(ctx)
			return b, nil
		}
		if !isUnavailable(err) {
			b.Close()
			return nil, err
		}
		if time.Since(told) >= waitLogInterval {
			b.logWaiting(ctx, err)
			told = time.Now()
		}
		if !relay.Sleep(ctx, wait) {
			b.Close()
			return nil, newUnavailableError("connect to redis", err)
		}
		wait = min(2*wait, retryMax)
	}
}

func (b *Store) logWaiting(ctx context.Context, why error) {
	if b.exclusive { // our own, which is loading
		b.log.WarnContext(ctx, "waiting for redis", "error", why)
		return
	}
	b.log.WarnContext(ctx, "waiting for redis, which has to answer where redis.url says", "error", why)
}

func newStore(o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = "hubrelay"
	}
	if o.Partitions == 0 {
		o.Partitions = 1
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	address := &redis.UniversalOptions{Addrs: []string{"dialer"}}
	if o.Dialer == nil {
		var err error
		if address, err = parseAddress(o.URL); err != nil {
			return nil, err
		}
	}
	keys, err := keyspace.New(o.Prefix, o.Partitions, address.IsClusterMode)
	if err != nil {
		return nil, err
	}
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: dialTimeout, TLSConfig: address.TLSConfig})
	}
	address.Dialer = idleTimeoutDialer(o.Dialer)
	logging.Disable() // go-redis writes to standard error by itself, and all it says comes as an error too
	b := &Store{keys: keys, log: o.Log, exclusive: o.SingleProcess, bootID: randomHex() + ":", minReplicas: o.MinReplicas}
	b.client = withSlotReload(redis.NewUniversalClient(clientOptions(*address)))
	readers := clientOptions(*address)
	readers.PoolSize += o.Partitions
	readers.OnConnect = func(context.Context, *redis.Conn) error {
		b.readerConnects.Add(1)
		return nil
	}
	b.blockingClient = withSlotReload(redis.NewUniversalClient(readers))
	b.groupCommit.flush = b.flushBatch
	return b, nil
}

// clientOptions completes o with what we want of every client.
func clientOptions(o redis.UniversalOptions) *redis.UniversalOptions {
	o.Protocol = 2 // we use nothing of 3, and every server and proxy knows 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// A command whose reply was lost may have been executed: the caller decides what a repeat does. In a cluster
	// MaxRedirects counts those repeats too.
	o.MaxRetries, o.MaxRedirects = -1, -1
	o.DialTimeout = dialTimeout
	o.DialerRetries = 1
	o.ReadTimeout, o.WriteTimeout = 5*time.Second, 5*time.Second
	o.PoolTimeout = 5 * time.Second
	o.PoolSize = 64
	o.PipelinePoolSize = -1
	o.ConnMaxIdleTime = time.Minute
	return &o
}

// Commands is the client for everything that does not block. It never repeats a command by itself.
func (b *Store) Commands() redis.UniversalClient { return b.client }

// Readers is the client for blocking reads, of at most [MaxBlock]. It has connections of its own, so that readers
// never keep a command waiting.
func (b *Store) Readers() redis.UniversalClient { return b.blockingClient }

// Keys names the keys.
func (b *Store) Keys() keyspace.Space { return b.keys }

// Close ends all connections. Whoever reads should have been stopped before. It may be called twice.
func (b *Store) Close() {
	_ = b.client.Close()
	_ = b.blockingClient.Close()
}

func (b *Store) checkServer(ctx context.Context) error {
	if err := b.checkVersion(ctx); err != nil {
		return err
	}
	want := strconv.Itoa(b.keys.Partitions())
	if err := b.client.Do(ctx, "SET", b.keys.StoredPartitions(), want, "NX").Err(); err != nil && !errors.Is(err, redis.Nil) {
		return wrapError("store the number of partitions", err)
	}
	stored, err := b.client.Get(ctx, b.keys.StoredPartitions()).Result()
	if err != nil {
		return wrapError("read the number of partitions", err)
	}
	if stored != want {
		return fmt.Errorf("redis.partitions is %s but the data below prefix %q was written with %s: set redis.partitions to %s, or choose another redis.prefix to start anew",
			want, b.keys.Prefix(), stored, stored)
	}
	return nil
}

// warnEvictionPolicy says so where Redis may throw keys away. A volatile policy takes only what has a time to live, which
// includes leases, tokens and idempotency keys.
func (b *Store) warnEvictionPolicy(ctx context.Context) {
	info, err := b.client.Info(ctx, "memory").Result()
	if err != nil {
		return // a server that does not tell, miniredis among them
	}
	if policy := infoField(info, "maxmemory_policy"); policy != "" && policy != "noeviction" && infoField(info, "maxmemory") != "0" {
		b.log.WarnContext(ctx, "redis may evict keys when its memory is full, and notifications with them: set maxmemory-policy noeviction",
			"policy", policy)
	}
}

// warnReplicationInfo says so where Redis does not tell which history its data has: see historyOf.
func (b *Store) warnReplicationInfo(ctx context.Context) {
	info, err := b.client.Info(ctx, "replication").Result()
	if err != nil && (isUnavailable(err) || strings.Contains(err.Error(), "not supported")) { // miniredis
		return
	}
	if infoField(info, "master_replid") == "" {
		b.log.WarnContext(ctx, "redis does not tell which history its data has, so that a failover that loses notifications may go unnoticed: allow INFO to its user (ACL SETUSER … +info)",
			"error", err)
	}
}

// infoField returns a field of an answer to INFO, empty where there is none.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return v
		}
	}
	return ""
}

func (b *Store) checkVersion(ctx context.Context) error {
	info, err := b.client.Info(ctx, "server").Result()
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "not supported"): // miniredis
		// miniredis answers no INFO server, but must answer at all.
		return wrapError("ping redis", b.client.Ping(ctx).Err())
	case redis.HasErrorPrefix(err, "NOPERM"):
		b.log.WarnContext(ctx, "cannot see the version of redis; 6.2 or later is needed", "error", err)
		return nil
	default:
		return wrapError("read the version of redis", err)
	}
	v := infoField(info, "redis_version")
	major, rest, _ := strings.Cut(v, ".")
	minor, _, _ := strings.Cut(rest, ".")
	m, err1 := strconv.Atoi(major)
	n, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (m < 6 || m == 6 && n < 2) {
		return fmt.Errorf("redis is version %s but 6.2 or later is needed: upgrade it, or leave redis.url empty to use a server of our own", v)
	}
	return nil
}

// Ready proves that Redis takes writes and gives them back: an entry goes into a stream of its own and is read again.
func (b *Store) Ready(ctx context.Context) error {
	nonce := randomHex()
	id, err := b.client.XAdd(ctx, &redis.XAddArgs{Stream: b.keys.Probe(), MaxLen: 16, Values: []string{"nonce", nonce}}).Result()
	if err != nil {
		return wrapError("write a probe to redis", err)
	}
	back, err := b.client.XRange(ctx, b.keys.Probe(), id, id).Result()
	if err != nil {
		return wrapError("read a probe from redis", err)
	}
	// Sixteen others may have probed in between.
	if len(back) == 1 && back[0].Values["nonce"] != nonce {
		return errors.New("redis gave back another probe than was written")
	}
	return nil
}

// jittered spreads d by a fifth to both sides.
func jittered(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5+1)
}
