package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
)

// requestTimeout limits requests that change or inspect a container. Docker blocks other requests for a container while
// files are copied from or to it, so a request may have to wait until the connection of an outdated process has ended.
const requestTimeout = 2 * time.Minute

// dockerHost is a Docker host with an instance and the lease of the process that uses it.
type dockerHost struct {
	server   string
	instance string
	lease    int64
	client   *client.Client
}

func openHost(s relay.Server, instance string, lease int64) (*dockerHost, error) {
	c, err := readSettings(s)
	if err != nil {
		return nil, err
	}
	api, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", s.ID, err)
	}
	return &dockerHost{server: s.ID, instance: instance, lease: lease, client: api}, nil
}

// claimPrefix is the name prefix of the volumes with which leases claim instances.
const claimPrefix = "hubrelay.lease."

// Labels of the objects that the driver creates.
const (
	labelClaim   = "hubrelay.claim" // the value is the instance
	labelLease   = "hubrelay.lease"
	labelJob     = "hubrelay.job"
	labelCarrier = "hubrelay.carrier" // marks the image of the carriers
)

// claimVolume returns the name of the volume that records the claim of a lease.
func (h *dockerHost) claimVolume(lease int64) string {
	return fmt.Sprintf("%s%s.%d", claimPrefix, h.instance, lease)
}

// claim claims the host for the lease, until a higher lease claims it. It adds its claim before it removes lower ones,
// so two processes cannot remove each other's claim.
func (h *dockerHost) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	labels := map[string]string{labelClaim: h.instance, labelLease: strconv.FormatInt(h.lease, 10)}
	if _, err := h.client.VolumeCreate(ctx, client.VolumeCreateOptions{
		Name: h.claimVolume(h.lease), Labels: labels,
	}); err != nil {
		return err
	}
	leases, err := h.leases(ctx)
	if err != nil {
		return err
	}
	highest := max(slices.Max(append(leases, 0)), h.lease)
	for _, n := range leases {
		if n < highest { // a claim that cannot be removed does no harm
			_, _ = h.client.VolumeRemove(ctx, h.claimVolume(n), client.VolumeRemoveOptions{})
		}
	}
	if highest > h.lease {
		return relay.ErrSuperseded
	}
	return nil
}

func (h *dockerHost) leases(ctx context.Context) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := h.client.VolumeList(ctx, client.VolumeListOptions{
		Filters: client.Filters{}.Add("label", labelClaim+"="+h.instance),
	})
	if err != nil {
		return nil, err
	}
	var leases []int64
	for _, v := range list.Items {
		if n, err := strconv.ParseInt(v.Labels[labelLease], 10, 64); err == nil && v.Name == h.claimVolume(n) {
			leases = append(leases, n)
		}
	}
	return leases, nil
}

// checkLease returns ErrSuperseded if there is a higher lease.
func (h *dockerHost) checkLease(ctx context.Context) error {
	leases, err := h.leases(ctx)
	if err == nil && slices.Max(append(leases, 0)) > h.lease {
		return relay.ErrSuperseded
	}
	return err
}

// Kinds of containers in transit. The kind follows the instance in the name.
const (
	kindLeaving  = "leaving"  // on the source: stopped or about to be stopped; the new container has not been started
	kindLeft     = "left"     // on the source: stopped; the new container may be running
	kindArriving = "arriving" // on the destination: the new container
	kindCarrier  = "carrier"  // on both: mounts the volumes for copying, and is never started
)

// workName returns the name of a container in transit. It contains the lease. A higher lease adopts the container by
// renaming it, so requests of an outdated process fail.
func (h *dockerHost) workName(kind string) string {
	return fmt.Sprintf("%s.%s-%d", h.instance, kind, h.lease)
}

// arrivingName returns the name of the new container. It contains the job, which owns the volumes of the container.
func (h *dockerHost) arrivingName(job string) string {
	return h.workName(kindArriving) + "." + jobTag(job)
}

// restoreInfo contains the data to restore a source. It is part of the container's name, so it changes atomically with
// the name.
type restoreInfo struct {
	job        string // see jobTag
	arrivalID  string // the first digits of the ID of the new container
	wasRunning bool
	policy     container.RestartPolicy
}

func (r restoreInfo) String() string {
	state, policy := "down", cmp.Or(string(r.policy.Name), "no")
	if r.wasRunning {
		state = "up"
	}
	if r.policy.MaximumRetryCount > 0 {
		policy += "-" + strconv.Itoa(r.policy.MaximumRetryCount)
	}
	return strings.Join([]string{r.job, r.arrivalID, state, policy}, ".")
}

func jobTag(job string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(job)))[:8] }

func shortID(id string) string { return id[:min(12, len(id))] }

// containerRef is a container of the instance, parsed from its name.
type containerRef struct {
	id, name, kind string
	lease          int64
	restore        restoreInfo
	suffix         string
}

var workForm = regexp.MustCompile(`^(leaving|left|arriving|carrier)-([0-9]{1,19})` +
	`(\.([0-9a-f]{8})(?:\.([0-9a-f]{12})\.(up|down)\.(no|always|unless-stopped|on-failure)(?:-([0-9]{1,9}))?)?)?$`)

// classify parses the name of a container. ok is false if the container does not belong to the instance.
func (h *dockerHost) classify(id, name string) (containerRef, bool) {
	b := containerRef{id: id, name: name}
	if name == h.instance {
		return b, true
	}
	rest, ok := strings.CutPrefix(name, h.instance+".")
	m := workForm.FindStringSubmatch(rest)
	if !ok || m == nil {
		return b, false
	}
	b.kind, b.suffix = m[1], m[3]
	away := b.kind == kindLeaving || b.kind == kindLeft
	if away != (m[5] != "") || b.kind == kindCarrier && b.suffix != "" {
		return b, false
	}
	var err error
	if b.lease, err = strconv.ParseInt(m[2], 10, 64); err != nil {
		return b, false
	}
	count, _ := strconv.Atoi(m[8]) // matches digits or an empty string
	b.restore = restoreInfo{job: m[4], arrivalID: m[5], wasRunning: m[6] == "up", policy: container.RestartPolicy{
		Name: container.RestartPolicyMode(m[7]), MaximumRetryCount: count,
	}}
	return b, true
}

// containerSet contains the containers of the instance on a host. A field is nil if there is no such container.
type containerSet struct{ inPlace, leaving, arriving, carrier *containerRef }

func (c *containerSet) ofKind(kind string) **containerRef {
	switch kind {
	case kindArriving:
		return &c.arriving
	case kindCarrier:
		return &c.carrier
	case "":
		return &c.inPlace
	}
	return &c.leaving
}

// listContainers returns the containers of the instance, and adopts the containers of lower leases.
func (h *dockerHost) listContainers(ctx context.Context) (containerSet, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var err error
	for range 5 {
		if err = h.checkLease(ctx); err != nil {
			return containerSet{}, err
		}
		var found containerSet
		if found, err = h.adoptContainers(ctx); err == nil || !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			return found, err
		}
	}
	return containerSet{}, err
}

func (h *dockerHost) adoptContainers(ctx context.Context) (containerSet, error) {
	var found containerSet
	list, err := h.client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("name", h.instance),
	})
	if err != nil {
		return found, err
	}
	var all []containerRef
	for _, c := range list.Items {
		for _, name := range c.Names { // a container with links has several names
			if b, ok := h.classify(c.ID, strings.TrimPrefix(name, "/")); ok {
				all = append(all, b)
			}
		}
	}
	slices.SortFunc(all, func(a, b containerRef) int { return cmp.Compare(b.lease, a.lease) })
	for _, b := range all {
		at := found.ofKind(b.kind)
		switch {
		case b.lease > h.lease:
			return found, relay.ErrSuperseded
		case *at != nil && *at == found.leaving:
			return found, fmt.Errorf("server %s contains the instance twice, as %s and as %s; remove the wrong one",
				h.server, found.leaving.name, b.name)
		case *at != nil: // created by a superseded process
			if err := h.remove(ctx, b.name, true); err != nil {
				return found, err
			}
			continue
		case b.kind != "" && b.lease < h.lease:
			name := h.workName(b.kind) + b.suffix
			if err := h.renameContainer(ctx, b.name, name); err != nil {
				return found, err
			}
			b.name, b.lease = name, h.lease
		}
		*at = &b
	}
	return found, nil
}

func (h *dockerHost) renameContainer(ctx context.Context, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := h.client.ContainerRename(ctx, from, client.ContainerRenameOptions{NewName: to})
	return err
}

// remove removes a container if it exists. It also removes its anonymous volumes if anonymous is set.
func (h *dockerHost) remove(ctx context.Context, name string, anonymous bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := h.client.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: anonymous})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
		return h.waitRemoved(ctx, name, err)
	}
	return err
}

// waitRemoved waits for a removal that another process has started, such as a killed driver. It returns timeoutErr if
// ctx ends first.
func (h *dockerHost) waitRemoved(ctx context.Context, name string, timeoutErr error) error {
	for {
		if _, err := h.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{}); errdefs.IsNotFound(err) {
			return nil
		}
		if !await.Duration(ctx, 50*time.Millisecond) {
			return timeoutErr
		}
	}
}

func (h *dockerHost) inspectContainer(ctx context.Context, name string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := h.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err == nil && (r.Container.State == nil || r.Container.Config == nil || r.Container.HostConfig == nil) {
		err = fmt.Errorf("server %s returned incomplete data for container %s", h.server, name)
	}
	return r.Container, err
}

// singleLine removes line breaks from the text of an error. The new error wraps err, and is indeterminate if err is.
func singleLine(err error) error {
	if err == nil || !strings.ContainsAny(err.Error(), "\r\n") {
		return err
	}
	flat := lineError{err: err, text: strings.Join(strings.Fields(err.Error()), " ")}
	if relay.IsIndeterminate(err) {
		return relay.Indeterminate(flat)
	}
	return flat
}

type lineError struct {
	err  error
	text string
}

func (e lineError) Error() string { return e.text }
func (e lineError) Unwrap() error { return e.err }

// isStopped reports whether the end of ctx caused an error.
func isStopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && !errors.Is(err, relay.ErrSuperseded)
}
