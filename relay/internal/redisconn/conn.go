// Package redisconn connects to Redis, be it one server, Sentinel or a cluster. It classifies errors, waits for
// replicas and checks the server. The stores of the relay (packages eventlog, inbox, queue, lease and others) share
// one [Conn].
//
// Keys and scripts of the stores do not belong here.
package redisconn

import (
	"context"
	"crypto/fips140"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
)

// Options configure a [Conn].
type Options struct {
	// URL is the address; see parseAddress for its forms. It may contain a password, which never appears in errors or
	// logs.
	URL string
	// Prefix starts every key. The default is "hubrelay".
	Prefix string
	// Partitions is the number of partitions of the log. The default is 1.
	Partitions int
	// Log may be nil.
	Log *slog.Logger
	// MinReplicas is the number of replicas that must have a write of [Conn.WithReplication] before it returns. 0 waits
	// for none.
	MinReplicas int
	// SingleProcess promises that no other process uses this Redis and prefix, for example because the data directory
	// of an embedded server is locked. Leases of a killed process are then free at once instead of after their expiry.
	SingleProcess bool
	// Dialer connects instead of URL if it is set.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Conn is the connection to the relay's Redis. It may be used concurrently.
type Conn struct {
	client         redis.UniversalClient
	blockingClient redis.UniversalClient
	keys           keyspace.Space
	log            *slog.Logger
	singleProcess  bool
	minReplicas    int
	// readerConnects counts the connections of the blocking client. A new one may lead to another server.
	readerConnects atomic.Int64
}

// MaxBlock is the longest time for which a blocking read may wait. The end of a context does not interrupt it.
const MaxBlock = 2 * time.Second

const (
	dialTimeout  = 2 * time.Second
	replyTimeout = 5 * time.Second
	poolSize     = 64
	// readerWriteBuffer is sufficient for the commands of a blocking read, in bytes. The default is 32 KiB.
	readerWriteBuffer = 4 << 10
)

// RetryMin and RetryMax bound the delay between two attempts to reach Redis.
const (
	RetryMin = 50 * time.Millisecond
	RetryMax = time.Second
)

// waitLogInterval is the time between two log messages while Open waits.
const waitLogInterval = 10 * time.Second

// Open connects to Redis, checks its version and the stored number of partitions, and returns when Redis responds. While
// Redis is unreachable or loads its data, Open waits until ctx ends. A problem that waiting cannot solve is an error at
// once: an invalid address, rejected credentials, an old version, another number of partitions.
func Open(ctx context.Context, o Options) (*Conn, error) {
	c, err := newConn(o)
	if err != nil {
		return nil, err
	}
	retry, lastLog := backoff.Backoff{Min: RetryMin, Max: RetryMax}, time.Time{}
	for {
		err := c.checkServer(ctx)
		if err == nil {
			c.warnEvictionPolicy(ctx)
			c.warnReplicationInfo(ctx)
			return c, nil
		}
		if !IsUnavailable(err) || errors.Is(err, ErrCredentials) {
			c.Close()
			return nil, err
		}
		if time.Since(lastLog) >= waitLogInterval {
			c.logWaiting(ctx, err)
			lastLog = time.Now()
		}
		if !retry.Sleep(ctx) {
			c.Close()
			return nil, newUnavailableError("connect to redis", err)
		}
	}
}

// logWaiting logs the text of cause, because an [OutageHandler] would summarize the error.
func (c *Conn) logWaiting(ctx context.Context, cause error) {
	if c.singleProcess { // the embedded server, which loads its data
		c.log.WarnContext(ctx, "waiting for redis", "error", cause.Error())
		return
	}
	c.log.WarnContext(ctx, "waiting for redis at redis.url", "error", cause.Error())
}

func newConn(o Options) (*Conn, error) {
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
	logging.Disable() // go-redis would write to standard error what it also returns as an error
	c := &Conn{keys: keys, log: o.Log, singleProcess: o.SingleProcess, minReplicas: o.MinReplicas}
	c.client = withSlotReload(redis.NewUniversalClient(clientOptions(*address)))
	readers := clientOptions(*address)
	readers.PoolSize += o.Partitions
	readers.WriteBufferSize = readerWriteBuffer
	readers.OnConnect = func(context.Context, *redis.Conn) error {
		c.readerConnects.Add(1)
		return nil
	}
	c.blockingClient = withSlotReload(redis.NewUniversalClient(readers))
	return c, nil
}

// clientOptions adds the settings that all clients share to o.
func clientOptions(o redis.UniversalOptions) *redis.UniversalOptions {
	o.Protocol = 2 // every server and proxy speaks it, and no feature of version 3 is used
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// A command whose reply was lost may have been executed, so only the caller can decide to repeat it. In a cluster,
	// MaxRedirects also counts these repeats.
	o.MaxRetries, o.MaxRedirects = -1, -1
	o.DialTimeout = dialTimeout
	o.DialerRetries = 1
	o.ReadTimeout, o.WriteTimeout = replyTimeout, replyTimeout
	o.PoolTimeout = replyTimeout
	o.PoolSize = poolSize
	o.PipelinePoolSize = -1
	o.ConnMaxIdleTime = time.Minute
	return &o
}

// IsCluster reports whether Redis is a cluster, whose partitions can be on several servers.
func (c *Conn) IsCluster() bool {
	_, isCluster := c.client.(*redis.ClusterClient)
	return isCluster
}

// Commands returns the client for commands that do not block. It never repeats a command.
func (c *Conn) Commands() redis.UniversalClient { return c.client }

// Readers returns the client for blocking reads of at most [MaxBlock]. It has its own connections, so a blocked read
// never delays a command.
func (c *Conn) Readers() redis.UniversalClient { return c.blockingClient }

// ReaderConnects returns the number of connections that [Conn.Readers] has made.
func (c *Conn) ReaderConnects() int64 { return c.readerConnects.Load() }

// Keys returns the names of the keys.
func (c *Conn) Keys() keyspace.Space { return c.keys }

// Logger returns the logger of Options.Log. It is never nil.
func (c *Conn) Logger() *slog.Logger { return c.log }

// SingleProcess reports whether no other process uses this Redis and prefix.
func (c *Conn) SingleProcess() bool { return c.singleProcess }

// Close closes all connections. Stop all readers first. It may be called twice.
func (c *Conn) Close() {
	_ = c.client.Close()
	_ = c.blockingClient.Close()
}

func (c *Conn) checkServer(ctx context.Context) error {
	if err := c.checkVersion(ctx); err != nil {
		return err
	}
	want := strconv.Itoa(c.keys.Partitions())
	stored, err := c.getOrStore(ctx, PartitionsKey(c.keys), want)
	if err != nil {
		return WrapError("read the number of partitions", err)
	}
	if stored != want {
		return fmt.Errorf("redis.partitions is %s but the data below prefix %q was written with %s: "+
			"set redis.partitions to %s, or choose another redis.prefix to start with an empty log",
			want, c.keys.Prefix(), stored, stored)
	}
	return nil
}

// warnEvictionPolicy warns if Redis may evict keys. A volatile policy evicts only keys with an expiry, but these
// include leases, tokens and idempotency keys.
func (c *Conn) warnEvictionPolicy(ctx context.Context) {
	info, err := c.client.Info(ctx, "memory").Result()
	if err != nil {
		return // not every server has this section; miniredis does not
	}
	policy := InfoField(info, "maxmemory_policy")
	if policy == "" || policy == "noeviction" || InfoField(info, "maxmemory") == "0" {
		return
	}
	c.log.WarnContext(ctx, "redis may evict keys and lose events when its memory is full: "+
		"set maxmemory-policy noeviction", "policy", policy)
}

// warnReplicationInfo warns if Redis does not report its replication ID, by which the log reader notices a failover.
func (c *Conn) warnReplicationInfo(ctx context.Context) {
	info, err := c.client.Info(ctx, "replication").Result()
	if err != nil && (IsUnavailable(err) || strings.Contains(err.Error(), "not supported")) { // miniredis
		return
	}
	if InfoField(info, "master_replid") == "" {
		c.log.WarnContext(ctx, "redis does not report its replication ID, so a failover that loses events "+
			"may go unnoticed: allow INFO for its user (ACL SETUSER … +info)", "error", err)
	}
}

// InfoField returns a field of a reply to INFO, or "" if it is missing.
func InfoField(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return v
		}
	}
	return ""
}

func (c *Conn) checkVersion(ctx context.Context) error {
	info, err := c.client.Info(ctx, "server").Result()
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "not supported"): // miniredis, which has no INFO server
		return WrapError("ping redis", c.client.Ping(ctx).Err())
	case redis.HasErrorPrefix(err, "NOPERM"):
		c.log.WarnContext(ctx, "cannot read the version of redis; 6.2 or later is required", "error", err)
		return nil
	case isCredentialsError(err):
		return fmt.Errorf("%w: %w", ErrCredentials, err)
	case strings.Contains(err.Error(), "DB index is out of range"):
		return fmt.Errorf("the server does not have the database; correct its number at the end of redis.url: %w", err)
	default:
		return WrapError("read the version of redis", err)
	}
	v := InfoField(info, "redis_version")
	major, rest, _ := strings.Cut(v, ".")
	minor, _, _ := strings.Cut(rest, ".")
	m, err1 := strconv.Atoi(major)
	n, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (m < 6 || m == 6 && n < 2) {
		return fmt.Errorf("redis is version %s but 6.2 or later is required: "+
			"upgrade it, or leave redis.url empty to use an embedded server", v)
	}
	return nil
}

// Ready checks that Redis accepts writes and returns them: it appends an entry to the probe stream and reads it.
func (c *Conn) Ready(ctx context.Context) error {
	const maxProbes = 16
	nonce, key := randomHex(), ProbeKey(c.keys)
	add := redis.XAddArgs{Stream: key, MaxLen: maxProbes, Values: []string{"nonce", nonce}}
	id, err := c.client.XAdd(ctx, &add).Result()
	if err != nil {
		return WrapError("write a probe to redis", err)
	}
	entries, err := c.client.XRange(ctx, key, id, id).Result()
	if err != nil {
		return WrapError("read a probe from redis", err)
	}
	// Concurrent probes of other nodes may have trimmed the entry.
	if len(entries) == 1 && entries[0].Values["nonce"] != nonce {
		return errors.New("read a probe from redis: got another probe")
	}
	return nil
}

// PartitionsKey stores the number of partitions that the data was written with.
func PartitionsKey(k keyspace.Space) string { return k.Global("partitions") }

// ProbeKey is the stream of readiness probes.
func ProbeKey(k keyspace.Space) string { return k.Global("probe") }

// NewScript returns a script that is called by its SHA-1. Redis identifies scripts that way. Because this is not a security
// function, NewScript also works with GODEBUG=fips140=only, which forbids SHA-1.
func NewScript(source string) *redis.Script {
	var script *redis.Script
	fips140.WithoutEnforcement(func() { script = redis.NewScript(source) })
	return script
}
