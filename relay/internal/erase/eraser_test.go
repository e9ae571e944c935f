package erase

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// Entries wait in the inbox while Redis is full. Those of an erased account must not be published afterwards.
func TestAccount_Inbox(t *testing.T) {
	t.Parallel()
	conn := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	for _, data := range []string{`{"context":{"account_id":"acme"}}`, `{"context":{"account_id":"other"}}`, `<acme>`} {
		entry := &redis.XAddArgs{Stream: inbox.Key(conn.Keys()), Values: []string{"data", data}}
		if err := conn.Commands().XAdd(t.Context(), entry).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Account(t.Context(), Options{
		Conn: conn, Store: store.New(conn.Commands(), conn.Keys()), History: history.NewStore(conn, conn.Keys()),
	}, "acme")
	if err != nil || r.Inbox != 2 {
		t.Errorf("got %+v, %v, want two erased entries of the inbox", r, err)
	}
	left, err := conn.Commands().XLen(t.Context(), inbox.Key(conn.Keys())).Result()
	if err != nil || left != 1 {
		t.Errorf("got %d entries, %v, want 1", left, err)
	}
}
