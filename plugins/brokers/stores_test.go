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

func TestPostgres(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := startPostgres(t, a)
	login := []string{"PGPASSWORD=" + secret, "PGCONNECT_TIMEOUT=10", "PGSSLMODE=disable"}
	psql := []string{
		"psql", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", testUser, "-d", "postgres",
		"-v", "ON_ERROR_STOP=1", "-At", "-c",
	}
	selectAll := `SELECT uuid, encode(convert_to(payload::text, 'UTF8'), 'hex'), ` +
		`encode(convert_to(metadata::text, 'UTF8'), 'hex') FROM relay.events_a`
	testkit.Eventually(t, "PostgreSQL to be ready", func() error {
		cmd := exec.Command(psql[0], append(psql[1:], "CREATE SCHEMA IF NOT EXISTS relay")...)
		cmd.Env = append(os.Environ(), login...)
		return cmd.Run()
	})
	r := s.rig(withTestLogin(t, s, Config{Broker: Postgres, Database: "postgres", Table: "relay.events_{account}"}),
		func(t *testing.T) []received {
			var all []received
			for line := range strings.Lines(s.run(login, append(psql, selectAll)...)) {
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
	s.run(login, append(psql, "CREATE TABLE strange (a int)")...)
	other.Table = "strange"
	expectFailure(t, other, relay.OutcomeRetry, "strange", "columns")
	s.run(login, append(psql, "CREATE INDEX an_index ON strange (a)")...)
	other.Table = "an_index"
	expectFailure(t, other, relay.OutcomeRetry, "an_index", "is not a table")
	for _, table := range []string{
		"names_uuid", "names_uuid_idx", "names", "relay.names", // "names_uuid_idx" is PostgreSQL's name of an index
	} {
		other.Table = table
		testNoRepeatedRows(t, other, func() string { return s.run(login, append(psql, "SELECT uuid FROM "+table)...) })
	}
	// A subscriber of Watermill has created the table, without the unique index.
	s.run(login, append(psql, "CREATE TABLE subscribed (LIKE names INCLUDING DEFAULTS)")...)
	other.Table = "subscribed"
	testNoRepeatedRows(t, other, func() string { return s.run(login, append(psql, "SELECT uuid FROM subscribed")...) })
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
