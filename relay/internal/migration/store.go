package migration

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

const (
	// jobTTL is how long a job that is over can be looked at.
	jobTTL = 30 * 24 * time.Hour
	// maxJobsPerInstance is how many jobs of an instance are listed.
	maxJobsPerInstance = 100
	// workers is the consumer group of the jobs' streams.
	workers = "workers"
)

var (
	//go:embed scripts/common.lua
	commonSource string
	//go:embed scripts/create.lua
	createSource string
	//go:embed scripts/claim_job.lua
	takeSource string
	//go:embed scripts/update_job.lua
	changeSource string
	//go:embed scripts/heartbeat.lua
	beatSource string
	//go:embed scripts/server_slot.lua
	turnSource string
	//go:embed scripts/requeue.lua
	putOffSource string

	createScript = redis.NewScript(commonSource + createSource)
	takeScript   = redis.NewScript(commonSource + takeSource)
	changeScript = redis.NewScript(commonSource + changeSource)
	beatScript   = redis.NewScript(beatSource)
	turnScript   = redis.NewScript(commonSource + turnSource)
	putOffScript = redis.NewScript(putOffSource)
)

var (
	errSuperseded      = errors.New("another worker has taken the job over")
	errJobMissing      = fmt.Errorf("the job is gone from Redis, so that %w", errSuperseded)
	errMigrating       = errors.New("the instance is being migrated already")
	errInstanceMoved   = errors.New("the instance has moved meanwhile")
	errInstanceRemoved = errors.New("the instance has left the inventory")
)

// jobStore is the jobs in Redis. All times are Redis' own. It may be used concurrently.
type jobStore struct {
	client  redis.UniversalClient
	readers redis.UniversalClient
	keys    keyspace.Space
}

// newJobRequest is a job that is to be stored.
type newJobRequest struct {
	order  jobSpec
	events []relay.Notification
	// key is a hash of the idempotency key with its owner, empty for none; digest tells the request from others.
	key, digest string
}

// createJob stores a job and returns its id, for a repeat that of the first time. Where the instance is being migrated
// already, it returns errMigrating and the id of that job.
func (s *jobStore) createJob(ctx context.Context, c newJobRequest) (string, error) {
	text, err := c.order.encode()
	if err != nil {
		return "", err
	}
	o := &c.order
	p := s.keys.Partition(o.Hub)
	keys := []string{
		s.keys.Job(o.ID, p), eventlog.Key(s.keys, p), s.keys.Jobs(p), s.keys.InstanceJobs(p, InstanceField(o.Container, o.Instance)), s.keys.ActiveMigrations(p),
		s.keys.MigratedTo(p), s.keys.Instances(p),
	}
	if c.key != "" {
		keys = append(keys, eventlog.IdempotencyKey(s.keys, p, c.key))
	}
	args := []any{
		InstanceField(o.Container, o.Instance), o.Source, o.ID, text, c.digest, eventlog.IdempotencyTime.Milliseconds(), jobTTL.Milliseconds(), maxJobsPerInstance,
	}
	reply, err := createScript.Run(ctx, s.client, keys, appendEvents(args, c.events)...).StringSlice()
	if err != nil {
		return "", fmt.Errorf("store a job: %w", err)
	}
	if len(reply) != 2 {
		return "", errors.New("store a job: redis answered something else than was asked")
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

// jobForKey returns the job that a request with this idempotency key has made, "" for none.
func (s *jobStore) jobForKey(ctx context.Context, hub, key, digest string) (string, error) {
	text, err := s.client.Get(ctx, eventlog.IdempotencyKey(s.keys, s.keys.Partition(hub), key)).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for an earlier request: %w", err)
	}
	if len(text) <= len(digest) || text[:len(digest)+1] != digest+"\n" {
		return "", eventlog.ErrKeyReused
	}
	return text[len(digest)+1:], nil
}

// loadJob returns a job of a hub, nil where there is none.
func (s *jobStore) loadJob(ctx context.Context, hub, id string) (*job, error) {
	fields, err := s.client.HGetAll(ctx, s.keys.Job(id, s.keys.Partition(hub))).Result()
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

// jobsOfInstance returns the ids of an instance's jobs, the newest first.
func (s *jobStore) jobsOfInstance(ctx context.Context, hub, container, instance string) ([]string, error) {
	ids, err := s.client.LRange(ctx, s.keys.InstanceJobs(s.keys.Partition(hub), InstanceField(container, instance)), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the jobs of an instance: %w", err)
	}
	return ids, nil
}

// claimJob takes a job up for a worker, nil where there is nothing left to do.
func (s *jobStore) claimJob(ctx context.Context, partition int, entry, id, worker string) (*job, error) {
	keys := []string{s.keys.Job(id, partition), s.keys.MigrationLeases(partition), s.keys.Jobs(partition)}
	reply, err := takeScript.Run(ctx, s.client, keys, worker, entry).Slice()
	if err != nil {
		return nil, fmt.Errorf("take up a job: %w", err)
	}
	if len(reply) == 0 {
		return nil, nil
	}
	pairs, ok := reply[len(reply)-1].([]any)
	if !ok || len(reply) != 3 {
		return nil, errors.New("take up a job: redis answered something else than was asked")
	}
	at, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("take up a job: redis' time: %w", err)
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
	j.noteClocks(time.UnixMilli(at), time.Now())
	return j, nil
}

// recoverDamaged makes as much of a job whose order cannot be read as it takes to end it.
func (s *jobStore) recoverDamaged(ctx context.Context, partition int, id string, fields map[string]string) (*job, error) {
	container, instance, _ := strings.Cut(fields["field"], "/")
	value, err := s.client.HGet(ctx, s.keys.Containers(partition), container).Result()
	if err != nil {
		return nil, fmt.Errorf("%w, and its container %q is not in the inventory: %w", errDamaged, relay.Truncate(container, 60), err)
	}
	c, err := containerOf(container, value)
	if err != nil {
		return nil, err
	}
	o := jobSpec{ID: id, Hub: c.Hub, Account: c.Account, Environment: c.Environment, Container: container, Instance: instance, Stateful: c.Stateful}
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

// jobUpdate is a change of a job that a worker holds.
type jobUpdate struct {
	// fields are names and values; the value "@now" is the time.
	fields []string
	events []relay.Notification
	// isFinal is set where nothing follows; the instance has moved to movedTo then, or, where that is empty, has not.
	isFinal bool
	movedTo string
}

// applyUpdate makes the change, once for a mark. It returns errSuperseded where the job has another worker by now.
func (s *jobStore) applyUpdate(ctx context.Context, j *job, mark string, u jobUpdate) error {
	p := s.keys.Partition(j.Hub)
	keys := []string{
		s.keys.Job(j.ID, p), eventlog.Key(s.keys, p), s.keys.Jobs(p), s.keys.ActiveMigrations(p), s.keys.MigratedTo(p), s.keys.Instances(p),
	}
	keep := ""
	if u.isFinal {
		keep = strconv.FormatInt(jobTTL.Milliseconds(), 10)
	}
	args := []any{j.lease, mark, keep, u.movedTo, len(u.fields)}
	for _, f := range u.fields {
		args = append(args, f)
	}
	return leaseHeld(changeScript.Run(ctx, s.client, keys, appendEvents(args, u.events)...), "change a job")
}

// heartbeat shows that a job is being worked on; with an idle of more than zero it seems to have been left alone for so long.
func (s *jobStore) heartbeat(ctx context.Context, j *job, worker string, idle time.Duration) error {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.Job(j.ID, p), s.keys.Jobs(p)}
	return leaseHeld(beatScript.Run(ctx, s.client, keys, j.lease, worker, idle.Milliseconds()), "hold a job")
}

// requeue puts a job behind all that are queued.
func (s *jobStore) requeue(ctx context.Context, j *job) error {
	p := s.keys.Partition(j.Hub)
	keys := []string{s.keys.Job(j.ID, p), s.keys.Jobs(p)}
	return leaseHeld(putOffScript.Run(ctx, s.client, keys, j.lease, j.ID), "put a job off")
}

func leaseHeld(cmd *redis.Cmd, doing string) error {
	held, err := cmd.Int()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	case held == 0:
		return fmt.Errorf("%s: %w", doing, errSuperseded)
	case held < 0:
		return fmt.Errorf("%s: %w", doing, errJobMissing)
	}
	return nil
}

// acquireServerSlot asks for a job's turn at its servers, or keeps it for ttl, and tells whether the job may run.
func (s *jobStore) acquireServerSlot(ctx context.Context, j *job, most int, ttl time.Duration) (bool, error) {
	n, err := turnScript.Run(ctx, s.client, []string{s.keys.ServerSlots()},
		j.ID, j.Source, j.Destination, most, ttl.Milliseconds(), j.Queued.UnixMilli()).Int()
	if err != nil {
		return false, fmt.Errorf("ask for a job's turn: %w", err)
	}
	return n == 1, nil
}

// releaseServerSlot gives a job's turn up.
func (s *jobStore) releaseServerSlot(ctx context.Context, id string) error {
	if err := s.client.HDel(ctx, s.keys.ServerSlots(), id).Err(); err != nil {
		return fmt.Errorf("give up a job's turn: %w", err)
	}
	return nil
}
