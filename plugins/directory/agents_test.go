package directory

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// newRelayRig returns a rig whose driver belongs to a relay. The instance is running on server a.
func newRelayRig(t *testing.T, relayID string) *rig {
	t.Helper()
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.d.agents.relay = relayID
	r.configure()
	r.running(r.a)
	return r
}

func (r *rig) agents() []Agent {
	r.t.Helper()
	list, err := Agents()
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(a Agent) bool { return !strings.HasPrefix(a.Path, filepath.Dir(r.a)) })
}

func TestDriver_StopsAgentOfRemovedInstance(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(r *rig) []relay.Server{
		"the instance is removed": func(r *rig) []relay.Server {
			return []relay.Server{
				server("a", r.a), server("b", r.b),
			}
		},
		"its server is removed": func(r *rig) []relay.Server { return []relay.Server{server("b", r.b)} },
		"its server is removed, and it is on another": func(r *rig) []relay.Server {
			return []relay.Server{
				server("b", r.b, "i"),
			}
		},
		"all servers are removed": func(*rig) []relay.Server { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelayRig(t, "relay-"+t.Name())
			// Another driver process of the same relay, as after a restart.
			again := newDriver()
			again.agents.relay = r.d.agents.relay
			if err := again.Configure(t.Context(), after(r)); err != nil {
				t.Fatal(err)
			}
			if list := r.agents(); len(list) != 0 {
				t.Errorf("got agents %+v, want none", list)
			}
			if text, err := os.ReadFile(filepath.Join(r.a, "i/volumes/data/log")); err != nil ||
				!strings.Contains(string(text), "stopped") {
				t.Errorf("the command received no SIGTERM: %q, %v", text, err)
			}
			r.configure()
			r.running(r.a)
		})
	}
}

// An import may place the instance on another server that has a copy of it.
func TestDriver_StopsAgentAtFormerServer(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t, "relay-"+t.Name())
	r.until("the agent writes nothing more", func() bool { // or a file could disappear while it is copied
		state, err := readState(filepath.Join(r.a, "i"))
		return err == nil && state.Stable
	})
	if err := os.CopyFS(filepath.Join(r.b, "i"), os.DirFS(filepath.Join(r.a, "i"))); err != nil {
		t.Fatal(err)
	}
	r.configure(server("a", r.a), server("b", r.b, "i"))
	r.running(r.b)
}

// During a migration the directory of the instance does not exist on its server, and its agent runs on the destination.
func TestDriver_KeepsAgentAtDestination(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t, "relay-"+t.Name())
	r.configure(server("a", r.a), server("b", r.b, "i"))
	r.running(r.a)
}

// A server that cannot be used does not keep agents of removed instances running elsewhere.
func TestDriver_StopsAgentIfAnotherServerIsInvalid(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t, "relay-"+t.Name())
	if err := r.d.Configure(t.Context(), []relay.Server{
		server("a", r.a), server("b", filepath.Join(r.b, "missing")),
	}); err == nil {
		t.Error("Configure accepted a server without a directory")
	}
	if list := r.agents(); len(list) != 0 {
		t.Errorf("got agents %+v, want none", list)
	}
}

// A server that cannot be used does not keep the instances of others from starting.
func TestDriver_StartsAgentsIfAnotherServerIsInvalid(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	missing := filepath.Join(t.TempDir(), "missing")
	err := r.d.Configure(t.Context(), []relay.Server{
		server("missing", missing, "j"), server("a", r.a, "../i", "i"), server("b", r.b),
	})
	if err == nil || !strings.Contains(err.Error(), "server missing: path "+missing+" does not exist") ||
		!strings.Contains(err.Error(), `server a: instance "../i"`) {
		t.Errorf("got error %v, want it to name the missing directory and the invalid instance", err)
	}
	r.running(r.a)
}

func TestDriver_KeepsAgentsOfOtherRelays(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t, "relay-"+t.Name())
	for _, other := range []string{anyRelay, "another"} {
		d := newDriver()
		d.agents.relay = other
		if err := d.Configure(t.Context(), []relay.Server{server("a", r.a), server("b", r.b)}); err != nil {
			t.Fatal(err)
		}
		r.running(r.a)
	}
}

func TestAgents_ListAndStop(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t, "relay-"+t.Name())
	list := r.agents()
	if len(list) != 1 || list[0].Instance != "i" || list[0].Path != r.a || list[0].Relay != r.d.agents.relay ||
		list[0].Started.IsZero() {
		t.Fatalf("got %+v, want the agent of i in %s", list, r.a)
	}
	wrong := list[0]
	wrong.Instance = "other" // as when the PID was reused
	if err := wrong.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.running(r.a)
	if err := list[0].Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if list := r.agents(); len(list) != 0 {
		t.Errorf("got agents %+v after Stop, want none", list)
	}
	if err := list[0].Stop(t.Context()); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}
