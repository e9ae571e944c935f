package directory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// A user who can write to instance.json or its directories could run commands as the user of the driver.
func TestCheckOwner(t *testing.T) {
	t.Parallel()
	const marker = "/bin/touch"
	for name, change := range map[string]func(home string) (path string, err error){
		"a server directory that its group may write to": func(home string) (string, error) {
			return filepath.Dir(home), os.Chmod(filepath.Dir(home), 0o770)
		},
		"a server directory that others may write to": func(home string) (string, error) {
			return filepath.Dir(home), os.Chmod(filepath.Dir(home), 0o1777)
		},
		"a server directory of another user": func(home string) (string, error) {
			return filepath.Dir(home), os.Chown(filepath.Dir(home), 65534, -1)
		},
		"an instance.json that its group may write to": func(home string) (string, error) {
			return filepath.Join(home, fileInstance), os.Chmod(filepath.Join(home, fileInstance), 0o660)
		},
		"an instance.json of another user": func(home string) (string, error) {
			return filepath.Join(home, fileInstance), os.Chown(filepath.Join(home, fileInstance), 65534, -1)
		},
		"an instance directory that others may write to": func(home string) (string, error) {
			return home, os.Chmod(home, 0o777)
		},
		"an instance directory of another user": func(home string) (string, error) {
			return home, os.Chown(home, 65534, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, marker, "volumes/ran")
			path, err := change(filepath.Join(r.a, "i"))
			if err != nil {
				t.Skip(err) // only root can change the owner
			}
			server := relay.Server{ID: "a", Settings: []byte(`{"path":"` + r.a + `"}`), Instances: []string{"i"}}
			err = r.d.Configure(t.Context(), []relay.Server{server})
			if strings.Contains(name, "server directory") && (err == nil || !strings.Contains(err.Error(), path)) {
				t.Errorf("Configure returned %v, want an error that names %s", err, path)
			}
			p := instanceDir{server: "a", path: r.a, instance: "i"}
			if err := r.d.agents.ensureStarted(t.Context(), p, true); err == nil {
				t.Error("the command was started")
			}
			if err := r.d.Migrate(t.Context(), r.m, r.report); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Migrate returned %v, want an error that names %s", err, path)
			}
			if _, err := os.Stat(filepath.Join(r.a, "i", "volumes", "ran")); err == nil {
				t.Error("the command ran")
			}
		})
	}
}

// A damaged instance.json rejects the migration before the instance is stopped. The job ends, so it holds no slots of its servers.
func TestMigrate_DamagedInstanceFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	r.write("i/instance.json", "{")
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || relay.IsIndeterminate(err) || !strings.Contains(err.Error(), "i/instance.json must be") {
		t.Errorf("got error %v, want one about instance.json that ends the job", err)
	}
	r.running(r.a)
}
