package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	sinkv1 "github.com/hubrelay/hubrelay/plugins/proto/sink/v1"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxBatch and maxBatchBytes limit one message to the plugin. A larger delivery is sent alone. Larger messages save
	// nothing. gRPC reuses buffers of this size, but clears a MiB for each buffer of the next size.
	maxBatch      = 256
	maxBatchBytes = 30 << 10
	// messageOverhead is an upper estimate of the size of a notification besides its data.
	messageOverhead = 256
	// maxUnknownAcks is the maximum number of acknowledgments of attempts that are not in progress, beyond the number of others.
	// Handling more would only cost CPU time.
	maxUnknownAcks = 10_000
	// maxEmptyResponses is the maximum number of messages per second that acknowledge nothing and add no credit. More only cost
	// CPU time, so they wait in the window of the stream.
	maxEmptyResponses = 1000
)

type deliverStream = grpc.BidiStreamingClient[sinkv1.DeliverRequest, sinkv1.DeliverResponse]

type attemptKey struct {
	id      string
	attempt uint32
}

// deliveryCall is one attempt in progress.
type deliveryCall struct {
	key       attemptKey
	message   *sinkv1.Delivery
	size      int
	deadline  time.Time  // zero without one
	response  chan error // has room for the result
	sent      bool
	abandoned bool // the caller no longer waits
}

// deliveryStream carries the deliveries of one run of a plugin. The credits of the plugin limit the number of
// concurrent attempts.
type deliveryStream struct {
	wire     deliverStream
	cancel   context.CancelFunc // of wire
	o        *Options
	now      func() time.Time
	wake     chan struct{} // contains a value if there may be something to send
	received chan struct{} // closed when nothing more is received
	end      chan error    // contains the reason by then
	ready    chan struct{} // closed with the first credit

	mu       sync.Mutex
	pending  map[attemptKey]*deliveryCall // queued, sent, or abandoned and not yet acknowledged
	queue    []*deliveryCall
	cancels  []*sinkv1.Cancellation
	credits  int
	running  int // sent and neither acknowledged nor abandoned
	draining bool
	failErr  error // the reason why deliveries fail
	lastAck  time.Time

	unknownAcks    int // each known one reduces it; belongs to receive
	emptyResponses *rate.Limiter
}

func newStream(w deliverStream, cancel context.CancelFunc, o *Options) *deliveryStream {
	return &deliveryStream{
		wire: w, cancel: cancel, o: o, now: time.Now,
		wake: make(chan struct{}, 1), received: make(chan struct{}), end: make(chan error, 1),
		ready:   make(chan struct{}),
		pending: make(map[attemptKey]*deliveryCall), emptyResponses: rate.NewLimiter(maxEmptyResponses, maxEmptyResponses),
	}
}

// run sends and receives until the plugin or the connection ends.
func (s *deliveryStream) run() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.send()
	}()
	err := s.receive()
	s.end <- streamError(err)
	close(s.received)
	<-sent
}

// deliverAttempt makes one attempt. It returns when the plugin has responded, ctx has ended or the stream has failed.
func (s *deliveryStream) deliverAttempt(ctx context.Context, d relay.Delivery) error {
	c := &deliveryCall{response: make(chan error, 1)}
	c.deadline, _ = ctx.Deadline()
	for i := range d.Notifications {
		n := &d.Notifications[i]
		c.size += len(n.Data) + len(n.Topic) + len(n.Hub) + len(n.Account) + messageOverhead
	}
	if c.size > wire.MaxMessage {
		return relay.Permanent(fmt.Errorf("the delivery is too large for a plugin: about %d bytes, the maximum is %d",
			c.size, wire.MaxMessage))
	}
	c.message = wire.FromDelivery(d)
	c.key = attemptKey{d.ID, c.message.GetAttempt()}
	if err := s.enqueueCall(c); err != nil {
		return err
	}
	err, late := await.Value(ctx, c.response)
	if late != nil {
		return s.abandonCall(c, late)
	}
	return err
}

var errStillRunning = errors.New("the plugin has not yet responded to an earlier call for the same attempt")

func (s *deliveryStream) enqueueCall(c *deliveryCall) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failErr != nil {
		return relay.Postpone(s.failErr, 0)
	}
	if _, ok := s.pending[c.key]; ok {
		return errStillRunning
	}
	s.pending[c.key] = c
	s.queue = append(s.queue, c)
	s.wakeUp()
	return nil
}

// abandonCall stops waiting for a response, unless there is one.
func (s *deliveryStream) abandonCall(c *deliveryCall, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case err := <-c.response:
		return err
	default:
	}
	c.abandoned = true
	if !c.sent {
		delete(s.pending, c.key) // send removes it from the queue
		return relay.Postpone(fmt.Errorf("wait for the plugin to accept the delivery: %w", cause), 0)
	}
	s.running--
	s.reportConcurrency()
	s.cancels = append(s.cancels, &sinkv1.Cancellation{DeliveryId: c.key.id, Attempt: c.key.attempt})
	s.wakeUp()
	return fmt.Errorf("wait for the response of the plugin: %w", cause)
}

func (s *deliveryStream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *deliveryStream) send() {
	for {
		request, closing := s.next()
		if request != nil {
			if s.wire.Send(request) != nil {
				return // receive gets the reason
			}
			continue
		}
		if closing {
			_ = s.wire.CloseSend()
			return
		}
		select {
		case <-s.wake:
			runtime.Gosched() // let more attempts join the same message
		case <-s.received:
			return
		}
	}
}

// next returns the next message that may be sent, or nil.
func (s *deliveryStream) next() (request *sinkv1.DeliverRequest, closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var deliveries []*sinkv1.Delivery
	taken, size, now := 0, 0, s.now()
	for _, c := range s.queue {
		if c.abandoned {
			taken++
			continue
		}
		if len(deliveries) >= min(maxBatch, s.credits) || len(deliveries) > 0 && size+c.size > maxBatchBytes {
			break
		}
		if deliveries == nil {
			deliveries = make([]*sinkv1.Delivery, 0, min(maxBatch, s.credits, len(s.queue)))
		}
		if !c.deadline.IsZero() {
			c.message.TimeoutMs = max(1, c.deadline.Sub(now).Milliseconds())
		}
		deliveries = append(deliveries, c.message)
		size += c.size
		c.sent, c.message = true, nil
		taken++
	}
	s.queue = s.queue[taken:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	s.credits -= len(deliveries)
	s.running += len(deliveries)
	cancels := s.cancels
	s.cancels = nil
	if len(deliveries)+len(cancels) == 0 {
		return nil, s.draining
	}
	return &sinkv1.DeliverRequest{Deliveries: deliveries, Cancellations: cancels}, s.draining
}

// reportConcurrency reports the number of attempts that the plugin can make at once. The caller holds s.mu.
func (s *deliveryStream) reportConcurrency() {
	n := s.running + s.credits
	if s.failErr != nil {
		n = 0 // until the next run
	}
	s.o.reportConcurrency(n)
}

func (s *deliveryStream) receive() error {
	for {
		response, err := s.wire.Recv()
		if err != nil {
			return err
		}
		isEmpty := s.applyAcks(response)
		if s.unknownAcks > maxUnknownAcks {
			return errUnknownAcks
		}
		if !isEmpty {
			continue
		}
		if err := s.emptyResponses.Wait(s.wire.Context()); err != nil {
			return err
		}
	}
}

var errUnknownAcks = fmt.Errorf("more than %d acknowledgments of attempts that are not in progress", maxUnknownAcks)

// applyAcks ends the acknowledged attempts, each exactly once. An acknowledgment settles only the attempt that it
// names, and only if the plugin has received it. isEmpty is true if the response has no acknowledgments and adds no credit.
func (s *deliveryStream) applyAcks(r *sinkv1.DeliverResponse) (isEmpty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.GetAcks()) > 0 {
		s.lastAck = s.now()
	}
	for _, ack := range r.GetAcks() {
		key := attemptKey{ack.GetDeliveryId(), ack.GetAttempt()}
		c, ok := s.pending[key]
		switch {
		case !ok || !c.sent:
			s.o.Observe(EventUnknownAck)
			s.unknownAcks++
			continue
		case c.abandoned:
			s.o.Observe(EventLateAck)
		default:
			s.running--
			c.response <- wire.ToOutcome(ack)
		}
		delete(s.pending, key)
		s.unknownAcks = max(s.unknownAcks-1, 0)
	}
	isEmpty = len(r.GetAcks()) == 0
	if more := int(min(r.GetCredits(), wire.MaxCredits)); more > 0 {
		isEmpty = isEmpty && s.credits == wire.MaxCredits
		s.credits = min(s.credits+more, wire.MaxCredits)
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
		s.wakeUp()
	}
	s.reportConcurrency()
	return isEmpty
}

// hangError returns an error if attempts are overdue, and nothing has been acknowledged since their time limit, or they occupy at
// least half of the plugin. A plugin that has acknowledged everything, and then grants no credit, hangs too.
func (s *deliveryStream) hangError(now time.Time) error {
	before := now.Add(-s.o.HangTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, overdue := 0, 0
	for _, c := range s.pending {
		if !c.sent {
			continue
		}
		sent++
		if !c.deadline.IsZero() && c.deadline.Before(before) {
			overdue++
		}
	}
	if sent+s.credits == 0 && s.lastAck.Before(before) {
		return fmt.Errorf("the plugin granted no credit within %s after its last ack and was killed (hang_timeout)", s.o.HangTimeout)
	}
	if overdue == 0 || s.lastAck.After(before) && 2*overdue < sent+s.credits {
		return nil
	}
	return fmt.Errorf("the plugin did not respond to %d attempts for %s after their timeout and was killed (hang_timeout)",
		overdue, s.o.HangTimeout)
}

func (s *deliveryStream) done() <-chan error { return s.end }

// streamError describes the end of the stream.
func streamError(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the plugin closed the stream of deliveries")
	}
	return fmt.Errorf("the plugin broke the stream of deliveries: %s", statusText(status.Convert(err)))
}

// drain lets the plugin finish its deliveries without accepting more.
func (s *deliveryStream) drain() <-chan struct{} {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.wakeUp()
	return s.received
}

// failAll ends all attempts with err, and all later ones. Only attempts that were sent count.
func (s *deliveryStream) failAll(err error) {
	defer s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failErr != nil {
		return
	}
	s.failErr = err
	for _, c := range s.pending {
		switch {
		case c.abandoned:
		case c.sent:
			c.response <- err
		default:
			c.response <- relay.Postpone(err, 0)
		}
	}
	clear(s.pending)
	s.queue = nil
	s.reportConcurrency()
}
