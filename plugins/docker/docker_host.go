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

	"github.com/hubrelay/hubrelay/relay"
)

// requestTimeout limits requests that change or inspect a container. Docker does nothing with a container while files are copied
// from or to it, so a request may have to wait until the connection of an outdated process has ended.
const requestTimeout = 2 * time.Minute

// dockerHost is a Docker host as one lease of an instance sees it.
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

// claimPrefix begins the names of the volumes by which leases claim instances.
const claimPrefix = "hubrelay.lease."

// Labels of the volumes that the driver makes.
const (
	labelClaim = "hubrelay.claim" // the instance
	labelLease = "hubrelay.lease"
	labelJob   = "hubrelay.job"
)

// claimVolume is the name of the volume that says that a lease has claimed the instance.
func (h *dockerHost) claimVolume(lease int64) string {
	return fmt.Sprintf("%s%s.%d", claimPrefix, h.instance, lease)
}

// claim claims the host for the lease until a higher one arrives. Claims are only added, and the highest counts, so two
// processes cannot remove each other's claim.
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
		if n < highest { // what cannot be removed now does no harm
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

// Kinds of containers in transit: the part of the name after the instance.
const (
	kindLeaving  = "leaving"  // at the source: stopped, or about to be; the destination has not been started
	kindLeft     = "left"     // at the source: stopped; the destination may run
	kindArriving = "arriving" // at the destination: what the instance will be
	kindCarrier  = "carrier"  // at both: never started, has the volumes for copying
)

// workName returns the name of a container in transit. It carries the lease. A higher lease adopts the container by
// renaming it, so requests of an outdated process fail.
func (h *dockerHost) workName(kind string) string {
	return fmt.Sprintf("%s.%s-%d", h.instance, kind, h.lease)
}

// arrivingName is the name of the container at the destination, which says whose volumes go with it.
func (h *dockerHost) arrivingName(job string) string {
	return h.workName(kindArriving) + "." + jobTag(job)
}

// restoreInfo contains the data to restore a source. It is part of the name, because both must change atomically.
type restoreInfo struct {
	job        string // see jobTag
	arrivalID  string // the first digits of the id of the container at the destination
	wasRunning bool
	policy     container.RestartPolicy
}

func (t restoreInfo) String() string {
	state, policy := "down", cmp.Or(string(t.policy.Name), "no")
	if t.wasRunning {
		state = "up"
	}
	if t.policy.MaximumRetryCount > 0 {
		policy += "-" + strconv.Itoa(t.policy.MaximumRetryCount)
	}
	return strings.Join([]string{t.job, t.arrivalID, state, policy}, ".")
}

func jobTag(job string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(job)))[:8] }

func shortID(id string) string { return id[:min(12, len(id))] }

// containerRef is a container as a list shows it.
type containerRef struct {
	id, name, kind string
	lease          int64
	ticket         restoreInfo
	suffix         string
}

var workForm = regexp.MustCompile(`^(leaving|left|arriving|carrier)-([0-9]{1,19})` +
	`(\.([0-9a-f]{8})(?:\.([0-9a-f]{12})\.(up|down)\.(no|always|unless-stopped|on-failure)(?:-([0-9]{1,9}))?)?)?$`)

// classify returns the role of a container with this name for the instance. ok is false if it has none.
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
	count, _ := strconv.Atoi(m[8]) // the form leaves digits or nothing
	b.ticket = restoreInfo{job: m[4], arrivalID: m[5], wasRunning: m[6] == "up", policy: container.RestartPolicy{
		Name: container.RestartPolicyMode(m[7]), MaximumRetryCount: count,
	}}
	return b, true
}

// containerSet contains the containers of the instance on a host, or nil.
type containerSet struct{ inPlace, leaving, arriving, carrier *containerRef }

func (b *containerSet) ofKind(kind string) **containerRef {
	switch kind {
	case kindArriving:
		return &b.arriving
	case kindCarrier:
		return &b.carrier
	case "":
		return &b.inPlace
	}
	return &b.leaving
}

// listContainers finds the containers of the instance, and takes over what lower leases have left.
func (h *dockerHost) listContainers(ctx context.Context) (containerSet, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var err error
	for range 5 {
		if err = h.checkLease(ctx); err != nil {
			return containerSet{}, err
		}
		var found containerSet
		if found, err = h.takeOver(ctx); err == nil || !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			return found, err
		}
	}
	return containerSet{}, err
}

func (h *dockerHost) takeOver(ctx context.Context) (containerSet, error) {
	var found containerSet
	list, err := h.client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("name", h.instance),
	})
	if err != nil {
		return found, err
	}
	var all []containerRef
	for _, c := range list.Items {
		for _, name := range c.Names { // links give a container more names
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
			return found, fmt.Errorf("server %s has the instance twice, as %s and as %s; remove the one that is wrong",
				h.server, found.leaving.name, b.name)
		case *at != nil: // made by an overtaken process that did not know it yet
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

// remove removes a container if it exists, and optionally its anonymous volumes.
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

// waitRemoved waits for a removal that another process has begun, such as a killed driver. After too long it returns
// why.
func (h *dockerHost) waitRemoved(ctx context.Context, name string, why error) error {
	for {
		if _, err := h.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{}); errdefs.IsNotFound(err) {
			return nil
		}
		if !relay.Sleep(ctx, 50*time.Millisecond) {
			return why
		}
	}
}

func (h *dockerHost) inspectContainer(ctx context.Context, name string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := h.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if err == nil && (r.Container.State == nil || r.Container.Config == nil || r.Container.HostConfig == nil) {
		err = fmt.Errorf("server %s says too little of container %s", h.server, name)
	}
	return r.Container, err
}

// singleLine makes a sentence of an error; its kind stays.
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

// isStopped reports whether the end of ctx caused an error, not the error of a request.
func isStopped(ctx context.Context, err error) bool {
	return ctx.Err() != nil && !errors.Is(err, relay.ErrSuperseded)
}
