package migration

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// jobTTL is the time for which an ended job is stored.
	jobTTL = 30 * 24 * time.Hour
	// maxJobsPerInstance is the maximum number of stored jobs per instance. The oldest ones are deleted.
	maxJobsPerInstance = 100
	// workers is the consumer group of the job streams.
	workers = "workers"
)

var (
	//go:embed scripts/common.lua
	commonSource string
	//go:embed scripts/create.lua
	createSource string
	//go:embed scripts/known_key.lua
	knownKeySource string
	//go:embed scripts/claim_job.lua
	claimSource string
	//go:embed scripts/update_job.lua
	updateSource string
	//go:embed scripts/heartbeat.lua
	heartbeatSource string
	//go:embed scripts/server_slot.lua
	slotSource string
	//go:embed scripts/requeue.lua
	requeueSource string
	//go:embed scripts/cancel_job.lua
	cancelSource string

	createScript    = redisconn.NewScript(commonSource + createSource)
	knownKeyScript  = redisconn.NewScript(commonSource + knownKeySource)
	claimScript     = redisconn.NewScript(commonSource + claimSource)
	updateScript    = redisconn.NewScript(commonSource + updateSource)
	heartbeatScript = redisconn.NewScript(commonSource + heartbeatSource)
	slotScript      = redisconn.NewScript(commonSource + slotSource)
	requeueScript   = redisconn.NewScript(commonSource + requeueSource)
	cancelScript    = redisconn.NewScript(commonSource + cancelSource)
)

var (
	errSuperseded      = errors.New("another worker has taken over the job")
	errJobMissing      = fmt.Errorf("the job is missing in Redis: %w", errSuperseded)
	errJobEnded        = fmt.Errorf("the job has ended: %w", errSuperseded)
	errStartLost       = fmt.Errorf("the job has ended without a stored start: %w", errSuperseded)
	errMigrating       = errors.New("the instance is already being migrated")
	errInstanceMoved   = errors.New("the instance has moved")
	errInstanceRemoved = errors.New("the instance was removed from the inventory")
)

// jobStore stores the jobs in Redis. All times are from the clock of Redis. It may be used concurrently.
type jobStore struct {
	conn    *redisconn.Conn
	client  redis.UniversalClient
	readers redis.UniversalClient
	keys    keys
}

// newJobRequest is a new job with its events and its idempotency key.
type newJobRequest struct {
	spec   jobSpec
	events []relay.Notification
	// key is a hash of the idempotency key and its owner, or empty. digest is a hash of the request.
	key, digest string
}

// createJob stores a job and returns its ID. For a repeated request it returns the ID of the first job. If the instance
// is already being migrated, it returns errMigrating and the ID of the running job.
func (s *jobStore) createJob(ctx context.Context, c newJobRequest) (string, error) {
	text, err := c.spec.encode()
	if err != nil {
		return "", err
	}
	o := &c.spec
	p := s.keys.Partition(o.Hub)
	keys := []string{
		s.keys.job(o.ID, p), eventlog.Key(s.keys.Space, p), s.keys.jobs(p), s.keys.instanceJobs(p,
			InstanceField(o.Container, o.Instance)), s.keys.activeMigrations(p),
		s.keys.migratedTo(p), s.keys.instances(p), s.keys.recentJobs(p),
	}
	if c.key != "" {
		keys = append(keys, eventlog.IdempotencyKey(s.keys.Space, p, c.key))
	}
	args := []any{
		InstanceField(
			o.Container, o.Instance,
		), o.Source, o.ID, text, c.digest, eventlog.IdempotencyTime.Milliseconds(), jobTTL.Milliseconds(),
		maxJobsPerInstance, maxRecentJobs,
	}
	var id string
	err = s.conn.WithReplication(ctx, keys[0], func(r redisconn.Runner) (err error) {
		// A rejection writes nothing. Its error ends the call without a wait for replicas.
		id, err = createdJob(createScript.Run(ctx, r, keys, appendEvents(args, c.events)...))
		return err
	})
	return id, err
}

// createdJob returns the job of a reply of create.lua.
func createdJob(cmd *redis.Cmd) (string, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return "", fmt.Errorf("store a job: %w", err)
	}
	if len(reply) != 2 {
		return "", errors.New("store a job: unexpected response of Redis")
	}
	switch reply[0] {
	case "created":
		return reply[1], nil
	case "migrating":
		return reply[1], errMigrating
	case "elsewhere":
		return "", errInstanceMoved
	case "reused":
		return "", eventlog.ErrKeyReused
	}
	return "", errInstanceRemoved
}

func appendEvents(args []any, events []relay.Notification) []any {
	for i := range events {
		n := &events[i]
		args = append(args, n.ID, n.Topic, n.Hub, n.Account, []byte(n.Data))
	}
	return args
}

// jobForKey returns the job of an earlier request with this idempotency key, or "". Replicas must have the job.
func (s *jobStore) jobForKey(ctx context.Context, hub, key, digest string) (id string, err error) {
	key = eventlog.IdempotencyKey(s.keys.Space, s.keys.Partition(hub), key)
	err = s.conn.WithReplication(ctx, key, func(r redisconn.Runner) error {
		text, err := knownKeyScript.Run(ctx, r, []string{key}).Text()
		if err != nil {
			return err // also redis.Nil, because replicas need not confirm that there is no such key
		}
		var isSame bool
		if id, isSame = strings.CutPrefix(text, digest+"\n"); !isSame {
			return eventlog.ErrKeyReused
		}
		return nil
	})
	switch {
	case errors.Is(err, redis.Nil):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("find an earlier request: %w", err)
	}
	return id, nil
}

// loadJob returns a job of a hub, or nil if it does not exist.
func (s *jobStore) loadJob(ctx context.Context, hub, id string) (*job, error) {
	fields, err := s.client.HGetAll(ctx, s.keys.job(id, s.keys.Partition(hub))).Result()
	if err != nil {
		return nil, fmt.Errorf("read a job: %w", err)
	}
	if len(fields) == 0 {
		return nil, nil
	}
	j, err := decodeJob(fields)
	if err != nil || j.Hub != hub {
		return nil, err
	}
	return j, nil
}

// jobsOfInstance returns an instance's stored jobs, the newest first.
func (s *jobStore) jobsOfInstance(ctx context.Context, hub, container, instance string) ([]jobSpec, error) {
	p := s.keys.Partition(hub)
	ids, err := s.client.LRange(ctx, s.keys.instanceJobs(p, InstanceField(container, instance)), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the jobs of an instance: %w", err)
	}
	specs := make([]*redis.StringCmd, len(ids))
	_, _ = s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its own error
		for i, id := range ids {
			specs[i] = pipe.HGet(ctx, s.keys.job(id, p), "order")
		}
		return nil
	})
	jobs := make([]jobSpec, 0, len(ids))
	for _, spec := range specs {
		text, err := spec.Bytes()
		if errors.Is(err, redis.Nil) {
			continue // the job has expired
		}
		if err != nil {
			return nil, fmt.Errorf("read a job of an instance: %w", err)
		}
		j, err := decodeJobSpec(text)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// claimJob claims a job for a worker. It returns nil if the job has ended or is missing, or if another worker has it.
func (s *jobStore) claimJob(ctx context.Context, partition int, entry, id, worker string) (*job, error) {
	keys := []string{s.keys.job(id, partition), s.keys.migrationLeases(partition), s.keys.jobs(partition)}
	reply, err := claimScript.Run(ctx, s.client, keys, worker, entry).Slice()
	if err != nil {
		return nil, fmt.Errorf("claim a job: %w", err)
	}
	if len(reply) == 0 {
		return nil, nil
	}
	pairs, ok := reply[len(reply)-1].([]any)
	if !ok || len(reply) != 3 {
		return nil, errors.New("claim a job: unexpected response of Redis")
	}
	now, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("claim a job: parse the time: %w", err)
	}
	fields := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		fields[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	j, err := decodeJob(fields)
	if errors.Is(err, errDamaged) {
		j, err = s.recoverDamaged(ctx, partition, id, fields)
	}
	if err != nil {
		return nil, err
	}
	j.setQueuedLocal(time.UnixMilli(now), time.Now())
	return j, nil
}

// recoverDamaged restores the part of a job with an unreadable spec that is required to end it.
func (s *jobStore) recoverDamaged(
	ctx context.Context, partition int, id string, fields map[string]string,
) (*job, error) {
	container, instance, _ := strings.Cut(fields["field"], "/")
	value, err := s.client.HGet(ctx, s.keys.containers(partition), container).Result()
	if err != nil {
		return nil, fmt.Errorf("%w, and its container %q is not in the inventory: %w", errDamaged,
			relay.Truncate(container, 60), err)
	}
	c, err := decodeContainer(container, value)
	if err != nil {
		return nil, err
	}
	o := jobSpec{
		ID: id, Hub: c.Hub, Account: c.Account, Environment: c.Environment, Container: container, Instance: instance,
		Stateful: c.Stateful,
	}
	if fields["order"], err = o.encode(); err != nil {
		return nil, err
	}
	j, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	j.isDamaged = true
	return j, nil
}

// jobUpdate is a change of a job.
type jobUpdate struct {
	// fields are names and values. The value "@now" means the current time.
	fields []string
	events []relay.Notification
	// isReplicated waits for replicas.
	isReplicated bool
	// isFinal ends the job. If movedTo is not empty, the instance has moved to that server.
	isFinal bool
	movedTo string
}

// applyUpdate stores a change once per mark. It returns errSuperseded if another worker holds the job.
func (s *jobStore) applyUpdate(ctx context.Context, j *job, mark string, u jobUpdate) error {
	p := s.keys.Partition(j.Hub)
	keys := []string{
		s.keys.job(j.ID, p), eventlog.Key(s.keys.Space, p), s.keys.jobs(p), s.keys.activeMigrations(p),
		s.keys.migratedTo(p),
		s.keys.instances(p),
	}
	ttl := ""
	if u.isFinal {
		ttl = strconv.FormatInt(jobTTL.Milliseconds(), 10)
	}
	args := []any{j.lease, mark, ttl, u.movedTo, len(u.fields)}
	for _, f := range u.fields {
		args = append(args, f)
	}
	args = appendEvents(args, u.events)
	update := func(r redisconn.Runner) error {
		return checkLease(updateScript.Run(ctx, r, keys, args...), "update a job")
	}
	if u.isReplicated {
		return s.conn.WithReplication(ctx, keys[0], update)
	}
	return update(s.client)
}

// heartbeatCanceled is the reply of heartbeat.lua for a canceled job.
const heartbeatCanceled = 2

// sendHeartbeat marks a job as active. If idle is positive, the job instead looks abandoned, as if idle had passed since
// the last heartbeat. If steps is not empty, the job is running, and its state is restored if a failover has lost it. sendHeartbeat
// reports whether the job was canceled.
func (s *jobStore) sendHeartbeat(
	ctx context.Context, j *job, worker, steps string, idle time.Duration,
) (canceled bool, err error) {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.job(j.ID, p), s.keys.jobs(p)}
	cmd := heartbeatScript.Run(ctx, s.client, keys, j.lease, worker, idle.Milliseconds(), steps)
	return cmd.Val() == int64(heartbeatCanceled), checkLease(cmd, "renew a job")
}

// requeue moves a job to the end of the queue.
func (s *jobStore) requeue(ctx context.Context, j *job) error {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.job(j.ID, p), s.keys.jobs(p)}
	return checkLease(requeueScript.Run(ctx, s.client, keys, j.lease, j.ID), "requeue a job")
}

func checkLease(cmd *redis.Cmd, operation string) error {
	result, err := cmd.Int()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", operation, err)
	case result == 0:
		return fmt.Errorf("%s: %w", operation, errSuperseded)
	case result == -1:
		return fmt.Errorf("%s: %w", operation, errJobMissing)
	case result == -2:
		return fmt.Errorf("%s: %w", operation, errJobEnded)
	case result == -3:
		return fmt.Errorf("%s: %w", operation, errStartLost)
	}
	return nil
}

// acquireServerSlot requests the server slots of a job for ttl, or renews them. It reports whether the job has them. A job that
// runs gets them even if Redis has lost that it has them, and keeps them for 12 times ttl.
func (s *jobStore) acquireServerSlot(
	ctx context.Context, j *job, maxPerServer int, ttl time.Duration, isRunning bool,
) (bool, error) {
	n, err := slotScript.Run(ctx, s.client, []string{s.keys.serverSlots(), s.keys.accountStarts()},
		j.ID, j.Source, j.Destination, maxPerServer, ttl.Milliseconds(), j.Queued.UnixMilli(), j.Account, isRunning).Int()
	if err != nil {
		return false, fmt.Errorf("acquire server slots: %w", err)
	}
	return n == 1, nil
}

// releaseServerSlot releases the server slots of a job.
func (s *jobStore) releaseServerSlot(ctx context.Context, id string) error {
	if err := s.client.HDel(ctx, s.keys.serverSlots(), id).Err(); err != nil {
		return fmt.Errorf("release server slots: %w", err)
	}
	return nil
}
