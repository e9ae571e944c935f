package migration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Caller is who asks.
type Caller struct {
	// KeyName names the key. Idempotency keys are its own.
	KeyName string
	// Hub is the hub that the key opens and the request names.
	Hub string
	// Sees tells whether what belongs to an account may be shown to the caller.
	Sees func(account string) bool
}

// Request asks for an instance to be migrated.
type Request struct {
	Caller
	Container string
	Instance  string
	// ContentType and IdempotencyKey are the request's headers, empty where absent.
	ContentType    string
	IdempotencyKey string
	Body           []byte
}

// Service answers requests for migrations. It may be used concurrently.
type Service struct {
	store     *jobStore
	inventory *Inventory
	newID     func() string
}

// NewService returns a service. newID returns a new ID for a notification.
func NewService(c *redisconn.Conn, inventory *Inventory, newID func() string) *Service {
	return &Service{store: newJobStore(c), inventory: inventory, newID: newID}
}

func newJobStore(c *redisconn.Conn) *jobStore {
	return &jobStore{client: c.Commands(), readers: c.Readers(), keys: c.Keys()}
}

// maxTries bounds how often a request is looked at anew because its instance has just moved.
const maxTries = 3

// Migrate checks a request and stores its job. What it refuses is a *relay.Error; once it returns a descriptor, the job
// is as safe as everything in Redis.
func (s *Service) Migrate(ctx context.Context, r Request) (relay.TaskDescriptor, error) {
	in, refused := parseMigrateRequest(r.ContentType, r.Body)
	if refused != nil {
		return relay.TaskDescriptor{}, refused
	}
	key, digest := "", ""
	if r.IdempotencyKey != "" {
		key, digest = eventlog.HashScopedKey("migrate", r.KeyName, r.Hub, r.IdempotencyKey), eventlog.HashScopedKey(r.Container, r.Instance, string(r.Body))
		known, err := s.store.jobForKey(ctx, r.Hub, key, digest)
		if err != nil || known != "" {
			return relay.TaskDescriptor{Action: actionMigrate, JobID: known}, s.clientError(err)
		}
	}
	for range maxTries {
		o, err := s.newJobSpec(ctx, r, in)
		if err != nil {
			return relay.TaskDescriptor{}, err
		}
		id, err := s.store.createJob(ctx, newJobRequest{order: o, events: s.creationEvents(&o), key: key, digest: digest})
		switch {
		case err == nil:
			return relay.TaskDescriptor{Action: actionMigrate, JobID: id}, nil
		case errors.Is(err, errMigrating):
			return relay.TaskDescriptor{}, relay.NewError(relay.CodeInvalidState,
				"the instance is being migrated already, by the job "+id+"; wait until it is over").WithExtra("job_id", id)
		case !errors.Is(err, errInstanceMoved):
			return relay.TaskDescriptor{}, s.clientError(err)
		}
	}
	return relay.TaskDescriptor{}, relay.NewError(relay.CodeNotReady, "the instance moves all the time; try again")
}

// newJobSpec checks a request against the inventory.
func (s *Service) newJobSpec(ctx context.Context, r Request, in migrateRequest) (jobSpec, error) {
	found, err := s.findInstance(ctx, r.Caller, r.Container, r.Instance, in.destination)
	if err != nil {
		return jobSpec{}, err
	}
	const at = "/value/destination_server_id"
	name := strconv.Quote(relay.Truncate(in.destination, 60))
	switch {
	case found.Destination.ID == "":
		return jobSpec{}, relay.NewError(relay.CodeInvalidArgument, "the inventory has no server "+name).WithPointer(at)
	case found.Destination.ID == found.Source.ID:
		return jobSpec{}, relay.NewError(relay.CodeInvalidState, "the instance is on the server "+name+" already").WithPointer(at)
	case found.Source.Cluster == "":
		return jobSpec{}, relay.NewError(relay.CodeInvalidState, "the server "+strconv.Quote(found.Source.ID)+
			" that the instance is on has left the inventory; name it there again")
	case found.Destination.Cluster != found.Source.Cluster:
		return jobSpec{}, relay.NewError(relay.CodeNotCompatible, "the server "+name+" is in another cluster than the instance, which is in "+
			strconv.Quote(found.Source.Cluster)).WithPointer(at)
	}
	c := found.Container
	return jobSpec{
		ID: s.newID(), Hub: c.Hub, Account: c.Account, Environment: c.Environment, Cluster: found.Source.Cluster,
		Container: c.ID, Instance: r.Instance, Source: found.Source.ID, Destination: found.Destination.ID,
		Stateful: c.Stateful, CopyVolumes: in.copyVolumes, Options: in.options, Key: r.KeyName,
	}, nil
}

// findInstance looks an instance up. What the caller may not see does not exist.
func (s *Service) findInstance(ctx context.Context, c Caller, container, instance, destination string) (InstanceLookup, error) {
	found, err := s.inventory.Find(ctx, c.Hub, container, instance, destination)
	switch {
	case errors.Is(err, ErrNoContainer) || found.Container.ID != "" && !c.Sees(found.Container.Account):
		return InstanceLookup{}, relay.NewError(relay.CodeNoContainer, "the hub has no container "+strconv.Quote(relay.Truncate(container, 60)))
	case errors.Is(err, ErrNoInstance):
		return InstanceLookup{}, relay.NewError(relay.CodeNoInstance, "the container has no instance "+strconv.Quote(relay.Truncate(instance, 60)))
	}
	return found, s.clientError(err)
}

func (s *Service) creationEvents(o *jobSpec) []relay.Notification {
	e := &eventBuilder{job: o, newID: s.newID}
	return e.addJobState(topicJobCreated, relay.JobNew, "", o.Source).addJobState(topicJobChanged, relay.JobQueued, "", o.Source).notifications
}

// Jobs lists the migrations of an instance, the newest first.
func (s *Service) Jobs(ctx context.Context, c Caller, container, instance string) ([]relay.TaskDescriptor, error) {
	if _, err := s.findInstance(ctx, c, container, instance, ""); err != nil {
		return nil, err
	}
	ids, err := s.store.jobsOfInstance(ctx, c.Hub, container, instance)
	if err != nil {
		return nil, s.clientError(err)
	}
	list := make([]relay.TaskDescriptor, len(ids))
	for i, id := range ids {
		list[i] = relay.TaskDescriptor{Action: actionMigrate, JobID: id}
	}
	return list, nil
}

// Job shows a job.
func (s *Service) Job(ctx context.Context, c Caller, id string) (relay.Job, error) {
	none := relay.NewError(relay.CodeNoJob, "the hub has no job "+strconv.Quote(relay.Truncate(id, 60))+", or it was over too long ago")
	if !isID(id) {
		return relay.Job{}, none
	}
	j, err := s.store.loadJob(ctx, c.Hub, id)
	switch {
	case err != nil:
		return relay.Job{}, s.clientError(err)
	case j == nil || !c.Sees(j.Account):
		return relay.Job{}, none
	}
	return j.toView(), nil
}

// isID tells whether a job may have this id.
func isID(id string) bool {
	return len(id) == 24 && strings.Trim(id, "0123456789abcdef") == ""
}

// clientError says what the sender can do about an error, and keeps its cause for our own logs.
func (s *Service) clientError(err error) error {
	var answer *relay.Error
	switch {
	case err == nil || errors.As(err, &answer) || errors.Is(err, errDamaged):
		return err
	case errors.Is(err, eventlog.ErrKeyReused):
		return relay.NewError(relay.CodeInvalidArgument,
			"this Idempotency-Key was used for another request within ten minutes; use a new key for every new request")
	case errors.Is(err, errInstanceRemoved):
		return relay.NewError(relay.CodeNoInstance, "the instance has just left the inventory")
	}
	return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
		"the relay's Redis does not answer; it may be that the job was stored. Send an Idempotency-Key to make repeats safe"), err)
}
