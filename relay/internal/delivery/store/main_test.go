package store

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// testSink is the sink of most tests.
const testSink = "billing"

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	// A pool whose server is gone checks once per second whether it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// testStore is a store with its connection.
type testStore struct {
	*redisconn.Conn
	*Store
}

// startStore opens a store on a new server.
func startStore(t *testing.T) *testStore {
	t.Helper()
	return openStore(t, redistest.Start(t))
}

// openStore opens a store on a server, like another node.
func openStore(t *testing.T, server *redistest.Server) *testStore {
	t.Helper()
	c := conntest.Open(t, server, redisconn.Options{})
	return &testStore{c, New(c.Commands(), c.Keys())}
}

// encodeRecord returns the stored text of a delivery.
func encodeRecord(t *testing.T, d relay.Delivery) string {
	t.Helper()
	text, err := NewRecord(d, time.Time{}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// schedule schedules a delivery that arrived an hour ago.
func (s *testStore) schedule(t *testing.T, id, orderingKey string, wait time.Duration) {
	t.Helper()
	d := Scheduled{ID: id, Body: encodeRecord(t, newDelivery(id)), OrderingKey: orderingKey}
	if _, err := s.Retries.Schedule(t.Context(), testSink, d, wait, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
}

// claim claims up to ten due deliveries.
func (s *testStore) claim(t *testing.T, lease time.Duration) []Claim {
	t.Helper()
	return s.poll(t, PollRequest{Sink: testSink, MaxClaims: 10, Lease: lease}).Claims
}

func (s *testStore) poll(t *testing.T, q PollRequest) PollResult {
	t.Helper()
	r := s.Retries.Poll(t.Context(), []PollRequest{q})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

// listClaimed returns the IDs of claims.
func listClaimed(claims []Claim) []string {
	var ids []string
	for _, c := range claims {
		ids = append(ids, c.ID)
	}
	return ids
}

// addDeadLetters adds dead letters in this order.
func (s *testStore) addDeadLetters(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		s.addDeadLetter(t, Claim{Sink: testSink}, 0, newDelivery(id))
	}
}

// addDeadLetter makes a dead letter of a delivery with one failed attempt.
func (s *testStore) addDeadLetter(
	t *testing.T, c Claim, maxBacklog int64, d relay.Delivery,
) (dropped int64, held bool) {
	t.Helper()
	r := NewRecord(d, time.Now())
	r.AddAttempt(NewAttempt(time.Now(), time.Second, errServer))
	entry, err := NewDeadLetter(d.ID, r, "attempts_exhausted", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if dropped, held, err = s.DeadLetters.Add(t.Context(), c, DeadLetterLimit{Max: maxBacklog, AccountShare: 50}, entry); err != nil {
		t.Fatal(err)
	}
	return dropped, held
}

// listDeadLetters returns the IDs of the selected dead letters and the Next of the page.
func (s *testStore) listDeadLetters(t *testing.T, sel Selection) (ids []string, next string) {
	t.Helper()
	page, err := s.DeadLetters.List(t.Context(), testSink, sel)
	if err != nil {
		t.Fatal(err)
	}
	for i := range page.Letters {
		ids = append(ids, page.Letters[i].ID)
	}
	return ids, page.Next
}
