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

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	cli := []string{"redis-cli", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "--user", testUser, "--pass", secret, "--no-auth-warning", "--raw"}
	r := s.rig(withLogin(t, s, Config{Broker: Redis, Stream: "events:{topic}", MaxLen: 1_000_000}), func(*testing.T) []received {
		var all []received
		for _, key := range []string{"events:container.created", "events:hubrelay.digest"} {
			lines := strings.Split(strings.TrimSuffix(s.run(nil, append(cli, "XRANGE", key, "-", "+")...), "\n"), "\n")
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
	suite(t, r)
	refused(t, wrongLogin(r.config), relay.OutcomeRetry, "user", testUser, "password")
	s.run(nil, append(cli, "SET", "taken", "1")...)
	other := r.config
	other.Stream = "taken"
	refused(t, other, relay.OutcomeRetry, "taken", "stream")
	other.Stream, other.MaxLen = "short", 1
	sink := started(t, other)
	for i := range 400 {
		if err := r.deliver(t, sink, delivery(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := strconv.Atoi(strings.TrimSpace(s.run(nil, append(cli, "XLEN", "short")...))); n < 1 || n > 200 {
		t.Errorf("a stream with maxlen 1 has %d entries", n)
	}
	r.encrypted(t)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := startPostgres(t, a)
	login := []string{"PGPASSWORD=" + secret, "PGCONNECT_TIMEOUT=10", "PGSSLMODE=disable"}
	psql := []string{"psql", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", testUser, "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c"}
	testkit.Eventually(t, "PostgreSQL to be ready", func() error {
		cmd := exec.Command(psql[0], append(psql[1:], "CREATE SCHEMA IF NOT EXISTS relay")...)
		cmd.Env = append(os.Environ(), login...)
		return cmd.Run()
	})
	r := s.rig(withLogin(t, s, Config{Broker: Postgres, Database: "postgres", Table: "relay.events_{account}"}), func(t *testing.T) []received {
		var all []received
		for line := range strings.Lines(s.run(login, append(psql, `SELECT uuid, encode(convert_to(payload::text, 'UTF8'), 'hex'), encode(convert_to(metadata::text, 'UTF8'), 'hex') FROM relay.events_a`)...)) {
			words := strings.Split(strings.TrimSpace(line), "|")
			payload, err := hex.DecodeString(words[1])
			metadata, bad := hex.DecodeString(words[2])
			beside := map[string]string{}
			if err := errors.Join(err, bad, json.Unmarshal(metadata, &beside)); err != nil {
				t.Fatal(err)
			}
			beside["uuid"] = words[0]
			all = append(all, received{"relay.events_a", words[0], string(payload), beside})
		}
		return all
	})
	r.kill = func() { s.end(syscall.SIGQUIT) } // an immediate shutdown, which is a crash: the next start recovers from the log
	suite(t, r)
	sink, again := started(t, r.config), delivery(1)
	for range 2 {
		if err := r.deliver(t, sink, again); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.find(t, map[string]relay.Delivery{again.ID: again}); len(got[again.ID]) != 1 {
		t.Errorf("a repeat made %d rows", len(got[again.ID]))
	}
	refused(t, wrongLogin(r.config), relay.OutcomeRetry, "user", testUser, "password")
	other, no := r.config, false
	other.Database = "missing"
	refused(t, other, relay.OutcomeRetry, "database", "missing")
	other = r.config
	other.Table, other.CreateTable = "absent", &no
	refused(t, other, relay.OutcomeRetry, "absent", "create_table")
	s.run(login, append(psql, "CREATE TABLE strange (a int)")...)
	other.Table = "strange"
	refused(t, other, relay.OutcomeRetry, "strange", "columns")
	overTLS(t, a, r.config)
}
