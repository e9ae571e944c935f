//go:build unix

package brokers

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	cli := []string{
		"redis-cli", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "--user", testUser, "--pass", secret,
		"--no-auth-warning", "--raw",
	}
	r := s.rig(withTestLogin(t, s, Config{Broker: Redis, Stream: "events:{topic}", MaxLen: 1_000_000}),
		func(*testing.T) []received {
			var all []received
			for _, key := range []string{"events:container.created", "events:hubrelay.digest"} {
				output := s.run(nil, append(cli, "XRANGE", key, "-", "+")...)
				lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
				fields := map[string]string{}
				for i := 0; i+1 < len(lines); i++ {
					switch lines[i] {
					case "id", "topic", "hub", "account", "data":
						fields[lines[i]] = lines[i+1]
						i++
					}
					if len(fields) == 5 {
						payload := fields["data"]
						delete(fields, "data")
						all = append(all, received{key, fields["id"], payload, fields})
						fields = map[string]string{}
					}
				}
			}
			return all
		})
	runSuite(t, r)
	r.testFrozenServer(t)
	expectFailure(t, withWrongPassword(r.config), relay.OutcomeRetry, "user", testUser, "password")
	s.run(nil, append(cli, "SET", "taken", "1")...)
	other := r.config
	other.Stream = "taken"
	expectFailure(t, other, relay.OutcomeRetry, "taken", "not a stream")
	other.Stream, other.MaxLen = "short", 1
	sink := startSink(t, other)
	for i := range 400 {
		if err := r.deliver(t, sink, newDelivery(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := strconv.Atoi(strings.TrimSpace(s.run(nil, append(cli, "XLEN", "short")...))); n < 1 || n > 200 {
		t.Errorf("stream with maxlen 1: got %d entries", n)
	}
	r.testTLSProxy(t)
}

// newPSQL waits until PostgreSQL is ready, and returns a function that runs a query.
func newPSQL(t *testing.T, s *server) func(query string) string {
	t.Helper()
	env := []string{
		"PGPASSWORD=" + secret, "PGCONNECT_TIMEOUT=10", "PGSSLMODE=disable", "PGOPTIONS=-c default_transaction_read_only=off",
	}
	command := []string{
		"psql", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", testUser, "-d", "postgres",
		"-v", "ON_ERROR_STOP=1", "-At", "-c",
	}
	testkit.Eventually(t, "PostgreSQL to be ready", func() error {
		cmd := exec.Command(command[0], append(command[1:], "SELECT 1")...)
		cmd.Env = append(os.Environ(), env...)
		return cmd.Run()
	})
	return func(query string) string { return s.run(env, append(command, query)...) }
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := startPostgres(t, a)
	psql := newPSQL(t, s)
	psql("CREATE SCHEMA relay")
	selectAll := `SELECT uuid, encode(convert_to(payload::text, 'UTF8'), 'hex'), ` +
		`encode(convert_to(metadata::text, 'UTF8'), 'hex') FROM relay.events_a`
	r := s.rig(withTestLogin(t, s, Config{Broker: Postgres, Database: "postgres", Table: "relay.events_{account}"}),
		func(t *testing.T) []received {
			var all []received
			for line := range strings.Lines(psql(selectAll)) {
				words := strings.Split(strings.TrimSpace(line), "|")
				payload, err := hex.DecodeString(words[1])
				encoded, metadataErr := hex.DecodeString(words[2])
				metadata := map[string]string{}
				if err := errors.Join(err, metadataErr, json.Unmarshal(encoded, &metadata)); err != nil {
					t.Fatal(err)
				}
				metadata["uuid"] = words[0]
				all = append(all, received{"relay.events_a", words[0], string(payload), metadata})
			}
			return all
		})
	r.kill = func() { s.stop(syscall.SIGQUIT) } // an immediate shutdown, like a crash
	runSuite(t, r)
	sink, again := startSink(t, r.config), newDelivery(1)
	for range 2 {
		if err := r.deliver(t, sink, again); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.waitForAll(t, map[string]relay.Delivery{again.ID: again}); len(got[again.ID]) != 1 {
		t.Errorf("repeated ID: got %d rows, want 1", len(got[again.ID]))
	}
	expectFailure(t, withWrongPassword(r.config), relay.OutcomeRetry, "user", testUser, "password")
	other, no := r.config, false
	other.Database = "missing"
	expectFailure(t, other, relay.OutcomeRetry, "database", "missing")
	other = r.config
	other.Table, other.CreateTable = "absent", &no
	expectFailure(t, other, relay.OutcomeRetry, "absent", "create_table")
	other.CreateTable = nil
	psql("CREATE TABLE strange (a int)")
	other.Table = "strange"
	expectFailure(t, other, relay.OutcomeRetry, "strange", "columns")
	psql("CREATE INDEX an_index ON strange (a)")
	other.Table = "an_index"
	expectFailure(t, other, relay.OutcomeRetry, "an_index", "is not a table")
	for _, table := range []string{
		"names_uuid", "names_uuid_idx", "names", "relay.names", // "names_uuid_idx" is PostgreSQL's name of an index
	} {
		other.Table = table
		testNoRepeatedRows(t, other, func() string { return psql("SELECT uuid FROM " + table) })
	}
	// A subscriber of Watermill has created the table, without the unique index.
	psql("CREATE TABLE subscribed (LIKE names INCLUDING DEFAULTS)")
	other.Table = "subscribed"
	testNoRepeatedRows(t, other, func() string { return psql("SELECT uuid FROM subscribed") })
	testTLS(t, a, r.config)
}

// testNoRepeatedRows starts two sinks, which may create the table at the same time, and expects one row for an ID that
// both deliver several times.
func testNoRepeatedRows(t *testing.T, c Config, selectIDs func() string) {
	t.Helper()
	d := newDelivery(1)
	var group errgroup.Group
	for range 2 {
		sink := startSink(t, c)
		for range 5 {
			group.Go(func() error { return rig{}.deliver(t, sink, d) })
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(selectIDs()); got != d.ID {
		t.Errorf("table %s: got rows %q, want one with %s", c.Table, got, d.ID)
	}
}

// TestPostgres_ReadOnlySessions makes all sessions of a sink read-only, like a failover. New sessions can write.
func TestPostgres_ReadOnlySessions(t *testing.T) {
	t.Parallel()
	s := startPostgres(t, newAuthority(t))
	psql := newPSQL(t, s)
	for range 2 { // the first round creates the table
		psql("ALTER ROLE " + testUser + " SET default_transaction_read_only = on")
		sink := startSink(t, withTestLogin(t, s, Config{Broker: Postgres, Database: "postgres"}))
		var wg sync.WaitGroup
		for i := range 2 * maxPgConns {
			wg.Go(func() {
				err := rig{}.deliver(t, sink, newDelivery(i))
				if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
					!strings.Contains(err.Error(), "accepts no writes") {
					t.Errorf("read-only session: got %v, want a retry", err)
				}
			})
		}
		wg.Wait()
		psql("ALTER ROLE " + testUser + " RESET default_transaction_read_only")
		for i := range 2 * maxPgConns {
			wg.Go(func() {
				if err := (rig{}).deliver(t, sink, newDelivery(i)); err != nil {
					t.Errorf("first attempt after the failover: got %v", err)
				}
			})
		}
		wg.Wait()
	}
}

func TestPostgres_DroppedTable(t *testing.T) {
	t.Parallel()
	s := startPostgres(t, newAuthority(t))
	psql := newPSQL(t, s)
	psql("CREATE SCHEMA relay")
	c := withTestLogin(t, s, Config{Broker: Postgres, Database: "postgres", Table: "relay.events"})
	sink := startSink(t, c)
	deliver := func(i int, want string) {
		t.Helper()
		err := rig{}.deliver(t, sink, newDelivery(i))
		switch outcome, _ := relay.Classify(err); {
		case err == nil && want != "":
			t.Errorf("got success, want %q", want)
		case err != nil && (want == "" || outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), want)):
			t.Errorf("got %v, want a retry with %q", err, want)
		}
	}
	deliver(1, "")
	psql("DROP TABLE relay.events")
	deliver(2, "the next attempt creates it")
	for range 2 {
		deliver(2, "") // the created table has the unique index
	}
	if got, want := strings.TrimSpace(psql("SELECT uuid FROM relay.events")), newDelivery(2).ID; got != want {
		t.Errorf("got rows %q, want %q", got, want)
	}
	psql("DROP SCHEMA relay CASCADE")
	deliver(3, "the next attempt creates it")
	deliver(3, "create the schema")
	psql("CREATE SCHEMA relay")
	deliver(3, "")
}
