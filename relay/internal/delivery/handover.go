package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/await"
)

// handoverWait is the time for which [Service.Apply] waits for attempts of sinks that it stops.
const handoverWait = time.Second

// handovers are the sinks that are stopped to remove or replace them. Attempts in progress delay this for up to twice the grace
// period. Other sinks do not wait.
type handovers struct {
	mu      sync.Mutex
	current map[string]*handover // the latest one of each sink
	running sync.WaitGroup
	// changed has an element after handovers have begun or ended.
	changed chan struct{}
}

// handover stops a sink and starts its successor.
type handover struct {
	next *openSink // nil if the sink is removed
	done chan struct{}
}

func (h *handovers) get(name string) *handover {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current[name]
}

// isRemoving reports whether a sink is no longer configured and stops.
func (h *handovers) isRemoving(name string) bool {
	current := h.get(name)
	return current != nil && current.next == nil
}

// begin adds a handover, and returns it with the one of the same sink that must end first.
func (h *handovers) begin(name string, next *openSink) (current, previous *handover) {
	current = &handover{next, make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	previous, h.current[name] = h.current[name], current
	h.signalChange()
	return current, previous
}

func (h *handovers) end(name string, ended *handover) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current[name] == ended {
		delete(h.current, name)
	}
	close(ended.done)
	h.signalChange()
}

func (h *handovers) signalChange() {
	select {
	case h.changed <- struct{}{}:
	default: // the receiver has not taken the last one
	}
}

// configuredSink returns the running sink with a name, or nil if there is none or it is no longer configured.
func (s *Service) configuredSink(name string) *openSink {
	if s.handovers.isRemoving(name) {
		return nil
	}
	return s.sinks.get(name)
}

// appliedSink returns the sink of the configuration that was applied last, or nil. It may not be running yet.
func (s *Service) appliedSink(name string) *openSink {
	if h := s.handovers.get(name); h != nil {
		return h.next
	}
	return s.sinks.get(name)
}

// ActiveSinks returns the sorted names of the sinks in the configuration that was applied last, and of removed sinks that are
// still stopping.
func (s *Service) ActiveSinks() []string {
	names := sinkNames(s.appliedSinks()) // not nil
	names = append(names, sinkNames(s.sinks.list())...)
	slices.Sort(names)
	return slices.Compact(names)
}

// ActiveSinksChanged returns a channel that has an element after [Service.ActiveSinks] has changed. It is for one receiver.
func (s *Service) ActiveSinksChanged() <-chan struct{} { return s.handovers.changed }

// failedAfter is the time after which other nodes learn that a sink has failed on this node. Restarts of plugins usually take
// less.
const failedAfter = 15 * time.Second

// FailedSinks returns the names of the sinks that have had the state failed on this node for [failedAfter].
func (s *Service) FailedSinks() []string {
	var names []string
	for _, sink := range s.sinks.list() {
		since := s.nodeStates.sinceOf(sink.name, adminapi.SinkFailed)
		if !since.IsZero() && time.Since(since) >= failedAfter {
			names = append(names, sink.name)
		}
	}
	return names
}

// appliedSinks returns the sinks of the configuration that was applied last.
func (s *Service) appliedSinks() []*openSink {
	var list []*openSink
	s.handovers.mu.Lock()
	defer s.handovers.mu.Unlock()
	for _, h := range s.handovers.current {
		if h.next != nil {
			list = append(list, h.next)
		}
	}
	for _, sink := range s.sinks.list() {
		if s.handovers.current[sink.name] == nil {
			list = append(list, sink)
		}
	}
	return list
}

// startHandover stops the sink with a name in the background, if there is one, and starts next unless it is nil.
func (s *Service) startHandover(ctx context.Context, name string, next *openSink) *handover {
	h, previous := s.handovers.begin(name, next)
	s.handovers.running.Go(func() {
		defer s.handovers.end(name, h)
		if previous != nil {
			<-previous.done
		}
		if err := s.runHandover(ctx, name, h); err != nil {
			s.log.Warn("sink was not stopped cleanly", "sink", name, "error", err)
		}
	})
	return h
}

// runHandover stops the sink with a name and starts its successor, unless a later handover has begun by then. The
// configuration of the successor is then obsolete.
func (s *Service) runHandover(ctx context.Context, name string, h *handover) (err error) {
	if old := s.sinks.get(name); old != nil {
		err = s.stopSink(ctx, old)
	}
	isObsolete := s.handovers.get(name) != h
	switch {
	case h.next == nil && !isObsolete:
		s.sinks.remove(name)
	case h.next != nil && isObsolete:
		err = errors.Join(err, h.next.close(context.WithoutCancel(ctx)))
	case h.next != nil:
		err = errors.Join(err, s.replaceSink(ctx, h.next))
	}
	return err
}

// awaitHandovers waits up to handoverWait, and returns the names of the sinks that still stop, sorted.
func (s *Service) awaitHandovers(ctx context.Context, started map[string]*handover) (stopping []string) {
	ctx, cancel := context.WithTimeout(ctx, handoverWait)
	defer cancel()
	for name, h := range started {
		if _, err := await.Value(ctx, h.done); err != nil {
			stopping = append(stopping, name)
		}
	}
	slices.Sort(stopping)
	return stopping
}

// Wait waits until all sinks that [Service.Apply] stops have ended. Call it after the last Apply.
func (s *Service) Wait() { s.handovers.running.Wait() }
