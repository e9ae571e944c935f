package sdk

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	"github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// Deliver handles deliveries until the daemon closes its side of the stream.
func (s *sinkServer) Deliver(stream grpc.BidiStreamingServer[sinkv1.DeliverRequest, sinkv1.DeliverResponse]) error {
	if !s.started.Load() {
		return status.Error(codes.FailedPrecondition, "the plugin is not configured")
	}
	if !s.opened.CompareAndSwap(false, true) {
		return status.Error(codes.FailedPrecondition, "the stream of deliveries is already open")
	}
	defer close(s.handled)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	w := &deliveryWork{server: s, running: make(map[attemptKey]context.CancelFunc), wake: make(chan struct{}, 1)}
	sent := make(chan error, 1)
	go func() { sent <- w.send(stream, s.o.concurrency) }()
	for {
		r, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				cancel() // the daemon does not receive the results
			}
			w.handlers.Wait()
			w.close()
			return <-sent
		}
		for _, c := range r.GetCancellations() {
			w.cancelDelivery(attemptKey{c.GetDeliveryId(), c.GetAttempt()})
		}
		for _, m := range r.GetDeliveries() {
			w.startDelivery(ctx, m)
		}
	}
}

type attemptKey struct {
	id      string
	attempt uint32
}

// deliveryWork contains the deliveries of one stream that are in progress.
type deliveryWork struct {
	server   *sinkServer
	handlers sync.WaitGroup
	wake     chan struct{} // contains a value if there is something to send

	mu      sync.Mutex
	running map[attemptKey]context.CancelFunc
	acks    []*sinkv1.Ack
	ended   bool
}

func (w *deliveryWork) startDelivery(ctx context.Context, m *sinkv1.Delivery) {
	d, timeout := wire.ToDelivery(m)
	var cancel context.CancelFunc
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	key := attemptKey{m.GetId(), m.GetAttempt()}
	w.mu.Lock()
	w.running[key] = cancel
	w.mu.Unlock()
	w.handlers.Go(func() {
		defer cancel()
		ack := wire.FromOutcome(d.ID, d.Attempt, w.runHandler(ctx, d))
		w.mu.Lock()
		delete(w.running, key)
		w.acks = append(w.acks, ack)
		w.mu.Unlock()
		w.wakeUp()
	})
}

func (w *deliveryWork) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// runHandler calls the handler. A panic is a failure of the attempt.
func (w *deliveryWork) runHandler(ctx context.Context, d relay.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = w.server.panicked(v, "handler", d.ID)
		}
	}()
	return w.server.handler(ctx, d)
}

func (w *deliveryWork) cancelDelivery(key attemptKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel, ok := w.running[key]; ok {
		cancel()
	}
}

func (w *deliveryWork) close() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.wakeUp()
}

// maxAcks is the maximum number of acknowledgments in one message, so it cannot exceed [wire.MaxAckMessage].
const maxAcks = 256

// send grants the first credits, then sends acknowledgments, each with a new credit.
func (w *deliveryWork) send(
	stream grpc.BidiStreamingServer[sinkv1.DeliverRequest, sinkv1.DeliverResponse], credits int,
) error {
	if err := stream.Send(&sinkv1.DeliverResponse{Credits: uint32(credits)}); err != nil {
		return err
	}
	for {
		w.mu.Lock()
		acks, ended := w.acks, w.ended
		if len(acks) > maxAcks {
			acks = acks[:maxAcks]
		}
		w.acks = w.acks[len(acks):]
		w.mu.Unlock()
		if len(acks) > 0 {
			if err := stream.Send(&sinkv1.DeliverResponse{Acks: acks, Credits: uint32(len(acks))}); err != nil {
				return err
			}
			continue
		}
		if ended {
			return nil
		}
		select {
		case <-w.wake:
			runtime.Gosched() // lets more acknowledgments join the same message
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}
