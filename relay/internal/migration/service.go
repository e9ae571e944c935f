package migration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/module"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Request is a request to migrate an instance.
type Request struct {
	module.Caller
	Container string
	Instance  string
	// ContentType and IdempotencyKey are the headers of the request. They are empty if missing.
	ContentType    string
	IdempotencyKey string
	Body           []byte
}

// Service handles requests for migrations. It may be used concurrently.
type Service struct {
	store     *jobStore
	inventory *Inventory
	newID     func() string
}

// NewService returns a service that stores its jobs in c. newID returns a new notification ID.
func NewService(c *redisconn.Conn, inventory *Inventory, newID func() string) *Service {
	return &Service{store: newJobStore(c), inventory: inventory, newID: newID}
}

func newJobStore(c *redisconn.Conn) *jobStore {
	return &jobStore{conn: c, client: c.Commands(), readers: c.Readers(), keys: keys{c.Keys()}}
}

// maxTries is the maximum number of attempts to create a job while the instance moves.
const maxTries = 3

// Migrate validates a request and stores its job. It returns a *relay.Error for an invalid request. If it returns
// a descriptor, the job is stored in Redis.
func (s *Service) Migrate(ctx context.Context, r Request) (relay.TaskDescriptor, error) {
	in, rejected := parseMigrateRequest(r.ContentType, r.Body)
	if rejected != nil {
		return relay.TaskDescriptor{}, rejected
	}
	key, digest := "", ""
	if r.IdempotencyKey != "" {
		key = eventlog.HashScopedKey("migrate", r.KeyName, r.Account, r.Hub, r.IdempotencyKey)
		digest = eventlog.HashScopedKey(r.Container, r.Instance, string(r.Body))
		known, err := s.store.jobForKey(ctx, r.Hub, key, digest)
		if err != nil || known != "" {
			return relay.TaskDescriptor{Action: actionMigrate, JobID: known}, s.clientError(err)
		}
	}
	return s.createJob(ctx, r, in, key, digest)
}

// createJob validates a request against the inventory and stores its job. key and digest are hashes of the idempotency key and
// of the request, or empty.
func (s *Service) createJob(
	ctx context.Context, r Request, in migrateRequest, key, digest string,
) (relay.TaskDescriptor, error) {
	for range maxTries {
		o, err := s.newJobSpec(ctx, r, in)
		if err != nil {
			return relay.TaskDescriptor{}, err
		}
		id, err := s.store.createJob(ctx, newJobRequest{
			spec: o, events: s.creationEvents(&o), key: key, digest: digest,
		})
		switch {
		case err == nil:
			return relay.TaskDescriptor{Action: actionMigrate, JobID: id}, nil
		case errors.Is(err, errMigrating):
			return relay.TaskDescriptor{}, relay.NewError(relay.CodeInvalidState,
				"the instance is already being migrated by job "+id+"; wait until that job has ended").WithExtra(
				"job_id", id,
			)
		case !errors.Is(err, errInstanceMoved):
			return relay.TaskDescriptor{}, s.clientError(err)
		}
	}
	return relay.TaskDescriptor{}, relay.NewError(relay.CodeNotReady,
		"the instance moved repeatedly during the request; try again")
}

// newJobSpec validates a request against the inventory.
func (s *Service) newJobSpec(ctx context.Context, r Request, in migrateRequest) (jobSpec, error) {
	found, err := s.findInstance(ctx, r.Caller, r.Container, r.Instance, in.destination)
	if err != nil {
		return jobSpec{}, err
	}
	const pointer = "/value/destination_server_id"
	name := strconv.Quote(relay.Truncate(in.destination, 60))
	switch {
	case found.Destination.ID == "":
		return jobSpec{}, relay.NewError(relay.CodeInvalidArgument,
			"the inventory has no server "+name).WithPointer(pointer)
	case found.Destination.ID == found.Source.ID:
		return jobSpec{}, relay.NewError(relay.CodeInvalidState,
			"the instance is already on the server "+name).WithPointer(pointer)
	case found.Source.Cluster == "":
		return jobSpec{}, relay.NewError(relay.CodeInvalidState, "the server "+strconv.Quote(found.Source.ID)+
			" of the instance was removed from the inventory; add it again")
	case found.Destination.Cluster != found.Source.Cluster:
		return jobSpec{}, relay.NewError(relay.CodeNotCompatible, "the server "+name+" is not in the cluster of "+
			"the instance, "+strconv.Quote(found.Source.Cluster)).WithPointer(pointer)
	}
	c := found.Container
	return jobSpec{
		ID: s.newID(), Hub: c.Hub, Account: c.Account, Environment: c.Environment, Cluster: found.Source.Cluster,
		Container: c.ID, Instance: r.Instance, Source: found.Source.ID, Destination: found.Destination.ID,
		Stateful: c.Stateful, CopyVolumes: in.copyVolumes, Key: r.KeyName,
	}, nil
}

// findInstance finds an instance. A container that the caller is not allowed to see counts as missing.
func (s *Service) findInstance(
	ctx context.Context, c module.Caller, container, instance, destination string,
) (InstanceLookup, error) {
	found, err := s.inventory.Find(ctx, c.Hub, container, instance, destination)
	switch {
	case errors.Is(err, ErrNoContainer) || found.Container.ID != "" && !c.Sees(found.Container.Account):
		return InstanceLookup{}, relay.NewError(relay.CodeNoContainer,
			"the hub has no container "+strconv.Quote(relay.Truncate(container, 60)))
	case errors.Is(err, ErrNoInstance):
		return InstanceLookup{}, relay.NewError(relay.CodeNoInstance,
			"the container has no instance "+strconv.Quote(relay.Truncate(instance, 60)))
	}
	return found, s.clientError(err)
}

func (s *Service) creationEvents(o *jobSpec) []relay.Notification {
	e := &eventBuilder{job: o, newID: s.newID}
	return e.addJobState(topicJobCreated, relay.JobNew, "", o.Source).addJobState(topicJobChanged, relay.JobQueued, "",
		o.Source).notifications
}

// Jobs returns the migrations of an instance, the newest first.
func (s *Service) Jobs(
	ctx context.Context, c module.Caller, container, instance string,
) ([]relay.TaskDescriptor, error) {
	if _, err := s.findInstance(ctx, c, container, instance, ""); err != nil {
		return nil, err
	}
	jobs, err := s.store.jobsOfInstance(ctx, c.Hub, container, instance)
	if err != nil {
		return nil, s.clientError(err)
	}
	list := make([]relay.TaskDescriptor, 0, len(jobs))
	for _, j := range jobs {
		if j.Hub == c.Hub && c.Sees(j.Account) { // the container may have belonged to another hub or account
			list = append(list, relay.TaskDescriptor{Action: actionMigrate, JobID: j.ID})
		}
	}
	return list, nil
}

// Job returns the state of a job of the caller's hub.
func (s *Service) Job(ctx context.Context, c module.Caller, id string) (relay.Job, error) {
	notFound := relay.NewError(relay.CodeNoJob,
		"the hub has no job "+strconv.Quote(relay.Truncate(id, 60))+", or it was deleted after 30 days or 100 newer jobs of its instance")
	if !isJobID(id) {
		return relay.Job{}, notFound
	}
	j, err := s.store.loadJob(ctx, c.Hub, id)
	switch {
	case err != nil:
		return relay.Job{}, s.clientError(err)
	case j == nil || !c.Sees(j.Account):
		return relay.Job{}, notFound
	}
	return j.toView(), nil
}

// isJobID reports whether id has the form of a job ID.
func isJobID(id string) bool {
	return len(id) == 24 && strings.Trim(id, "0123456789abcdef") == ""
}

// clientError converts an error to a *relay.Error with advice for the client. It keeps the cause for the log.
func (s *Service) clientError(err error) error {
	var apiError *relay.Error
	switch {
	case err == nil || errors.As(err, &apiError) || errors.Is(err, errDamaged):
		return err
	case errors.Is(err, eventlog.ErrKeyReused):
		return relay.NewError(relay.CodeInvalidArgument,
			"this Idempotency-Key was used for another request within ten minutes; use a new key for each new request")
	case errors.Is(err, errInstanceRemoved):
		return relay.NewError(relay.CodeNoInstance, "the instance was removed from the inventory")
	case errors.Is(err, redisconn.ErrTooFewReplicas):
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady, "the job was stored and starts, but fewer replicas "+
			"than redis.min_replicas have it, so a failover may lose it. A repeat with the same Idempotency-Key waits for "+
			"them again, and one without is rejected until the job has ended"), err)
	}
	return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
		"Redis does not respond, and the job may have been stored. Send an Idempotency-Key to make repeats safe"), err)
}
