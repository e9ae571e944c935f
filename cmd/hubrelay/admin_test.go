package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// withServer starts a daemon with builtin:directory, one server, and an instance whose command writes a file.
func withServer(t *testing.T, settings string) (d *daemon, dir string) {
	t.Helper()
	dir = tempDir(t)
	t.Cleanup(func() { killAgents(t, filepath.Join(dir, "srv")) })
	home := filepath.Join(dir, "srv", "one")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, home, "instance.json", `{"command": ["/bin/sh", "-c", "while date > ran; do sleep 0.1; done", "`+home+`"]}`)
	writeFile(t, dir, "inventory.yaml", inventoryWith(dir, "one"))
	return serveFile(t, writeFile(t, dir, "hubrelay.yaml", daemonConfig{redis: `data_dir: data`}.renderYAML()+settings+
		"migration: {driver: {command: ['builtin:directory']}, inventory_file: inventory.yaml}\n")), dir
}

func inventoryWith(dir string, instances ...string) string {
	text := fmt.Sprintf("clusters: {p: {servers: {a: {path: %s/srv}}}}\ncontainers: {c: {hub_id: hub-1, instances: {",
		dir)
	for _, instance := range instances {
		text += instance + ": {server_id: a}, "
	}
	return text + "}}}\n"
}

func isThere(file string) func() error {
	return func() error { _, err := os.Stat(file); return err }
}

// An import over the admin API must not make the relay run commands of an attacker, now or after a restart.
func TestImport_CannotRunCommands(t *testing.T) {
	t.Parallel()
	d, dir := withServer(t, "")
	testkit.Eventually(t, "the operator's instance to run", isThere(filepath.Join(dir, "srv/one/ran")))
	evil := filepath.Join(dir, "evil/pwned")
	if err := os.MkdirAll(evil, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, evil, "instance.json", `{"command": ["/bin/sh", "-c", "touch ran"]}`)
	attacks := map[string]string{
		"another path": strings.Replace(inventoryWith(dir, "pwned"), "/srv}", "/evil}", 1),
		"another server": strings.Replace(inventoryWith(dir, "one"), "servers: {", "servers: {b: {path: "+dir+
			"/evil}, ", 1),
	}
	for name, inventory := range attacks {
		out, errOut, code := call(t, []string{"HUBRELAY_ADMIN=" + d.Admin}, "", "inventory", "import",
			writeFile(t, dir, "attack.yaml", inventory))
		if code != 1 || !strings.Contains(errOut, "migration.inventory_file") ||
			!strings.Contains(errOut, "422.invalid-argument") {
			t.Errorf("%s: import ended with %d: %s%s", name, code, out, errOut)
		}
	}
	d.Stop(t)
	d = serveFile(t, filepath.Join(dir, "hubrelay.yaml"))
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	o.run("inventory import "+writeFile(t, dir, "two.yaml", inventoryWith(dir, "one", "two")), "instances 1 added")
	if err := isThere(filepath.Join(evil, "ran"))(); err == nil {
		t.Error("the attacker's command ran")
	}
}

func TestAgent_EndsWithItsInstance(t *testing.T) {
	t.Parallel()
	d, dir := withServer(t, "")
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	agent := func() error {
		out, errOut, code := call(t, nil, "", "inventory", "agents", "list", "--json")
		for line := range strings.Lines(out) {
			var a struct {
				InstanceID string `json:"instance_id"`
				Path       string `json:"path"`
				Relay      string `json:"relay"`
			}
			if err := json.Unmarshal([]byte(line), &a); err != nil || a.Relay == "" {
				t.Fatalf("%q: %v", line, err)
			}
			if a.InstanceID == "one" && a.Path == filepath.Join(dir, "srv") {
				return nil
			}
		}
		return fmt.Errorf("ended with %d: %s%s", code, out, errOut)
	}
	noAgent := func() error {
		if agent() == nil {
			return errors.New("the agent still runs")
		}
		return nil
	}
	testkit.Eventually(t, "the agent", agent)
	o.run("inventory import "+writeFile(t, dir, "none.yaml", inventoryWith(dir)), "instances 1 removed")
	testkit.Eventually(t, "the end of the agent", noAgent)
	o.run("inventory import "+writeFile(t, dir, "one.yaml", inventoryWith(dir, "one")), "instances 1 added")
	testkit.Eventually(t, "the agent again", agent)
	// Changes to the operator's file apply too, without a restart.
	writeFile(t, dir, "inventory.yaml", inventoryWith(dir, "other"))
	testkit.Eventually(t, "the end of the agent", noAgent)
	if _, errOut, code := call(t, nil, "", "inventory", "agents", "stop", "nothing-of-that-name"); code != 1 ||
		!strings.Contains(errOut, "agents list") {
		t.Errorf("stop of nothing ended with %d: %s", code, errOut)
	}
}

// The kubelet and Prometheus must not reach other endpoints.
func TestHealthListenerHasNoAdminAPI(t *testing.T) {
	t.Parallel()
	d, dir := withServer(t, "")
	for _, path := range []string{
		"/api/sinks", "/api/inventory", "/api/connections", "/debug/pprof/",
		"/debug/pprof/heap",
	} {
		for _, method := range []string{"GET", "PUT", "POST"} {
			req, err := http.NewRequest(method, "http://"+d.Health+path, strings.NewReader(inventoryWith(dir)))
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s on the health listener is answered %d", method, path, res.StatusCode)
			}
		}
	}
}

// Another user of the machine, such as a compromised web server, cannot use the socket.
func TestAdminSocket_RejectsOtherUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	info, err := os.Stat(d.Admin)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
		t.Fatalf("%s is %v, %v; want a socket with mode 0600", d.Admin, info, err)
	}
	curl := func(uid uint32) (string, error) {
		cmd := exec.Command("curl", "-sS", "--unix-socket", d.Admin, "http://localhost/api/sinks")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := curl(0); err != nil || !strings.Contains(out, `"data"`) {
		t.Errorf("root: %s, %v", out, err)
	}
	for dir := filepath.Dir(d.Admin); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []os.FileMode{0o600, 0o666} {
		if err := os.Chmod(d.Admin, mode); err != nil {
			t.Fatal(err)
		}
		if out, err := curl(65534); err == nil || strings.Contains(out, `"data"`) {
			t.Errorf("another user, socket mode %o: %s", mode, out)
		}
	}
}

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestAdminTokens(t *testing.T) {
	t.Parallel()
	const viewer, operators, lost, fresh = "viewer-token-0123456789", "operator-token-0123456789",
		"lost-token-0123456789", "fresh-token-0123456789"
	dir := tempDir(t)
	writeFile(t, dir, "operator", operators)
	configuration := func(admin string) string {
		return daemonConfig{
			redis: `url: "memory:"`,
			sinks: "  written: {type: file, path: ./written.jsonl}",
		}.renderYAML() + fmt.Sprintf(`admin:
  listen: 127.0.0.1:0
  tokens:
    - {name: viewer, role: viewer, token: %s}
    - {name: operator, role: operator, token_file: operator}
    - {name: admin, role: admin, token_sha256: %s}
`, viewer, sha256Hex(admin))
	}
	file := writeFile(t, dir, "hubrelay.yaml", configuration(lost))
	d := serveFile(t, file)
	try := func(token string, args ...string) (string, int) {
		out, errOut, code := call(t, []string{"HUBRELAY_ADMIN=http://" + d.Admin, "HUBRELAY_ADMIN_TOKEN=" + token}, "",
			args...)
		return out + errOut, code
	}
	for _, c := range []struct {
		token, command, part string
		code                 int
	}{
		{"", "sinks list", "HUBRELAY_ADMIN_TOKEN", 1},
		{"wrong-token-0123456789", "sinks list", "HUBRELAY_ADMIN_TOKEN is not one of admin.tokens", 1},
		{viewer, "sinks list", "written", 0},
		{viewer, "sinks pause written", "requires the role operator", 1},
		{operators, "sinks pause written", "", 0},
		{operators, "sinks resume written", "", 0},
		{lost, "sinks list", "written", 0},
	} {
		if text, code := try(c.token, strings.Fields(c.command)...); code != c.code ||
			!strings.Contains(text, c.part) || c.token != "" && strings.Contains(text, c.token) {
			t.Errorf("%s with %q ended with %d: %s", c.command, c.token, code, text)
		}
	}
	// A lost token is replaced by editing the file.
	writeFile(t, dir, "hubrelay.yaml", configuration(fresh))
	testkit.Eventually(t, "the new token", func() error {
		if text, code := try(fresh, "sinks", "list"); code != 0 {
			return errors.New(text)
		}
		return nil
	})
	if text, code := try(lost, "sinks", "list"); code != 1 {
		t.Errorf("the lost token ended with %d: %s", code, text)
	}
	writeFile(t, dir, "operator", "another-operator-token")
	testkit.Eventually(t, "the end of the operator's token", func() error {
		if _, code := try(operators, "sinks", "list"); code == 0 {
			return errors.New("it still works")
		}
		return nil
	})
	if strings.Contains(d.Err.String(), viewer) || strings.Contains(d.Err.String(), fresh) {
		t.Errorf("a token is in the log:\n%s", d.Err.String())
	}
}

// Commands find the daemon by its configuration, by HUBRELAY_ADMIN, and by the default place.
func TestAdminSocketIsFound(t *testing.T) {
	t.Parallel()
	dir, runtime := tempDir(t), tempDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + runtime}
	list := []string{"sinks", "list"}
	d := serveIn(t, dir, writeFile(t, dir, "hubrelay.yaml", daemonConfig{redis: `url: "memory:"`}.renderYAML()), env...)
	if want := filepath.Join(dir, "hubrelay-data/admin.sock"); d.Admin != want {
		t.Errorf("the socket is %s, want %s", d.Admin, want)
	}
	for name, args := range map[string][]string{
		"default place": nil, "-c": {"-c", "hubrelay.yaml"},
		"--admin": {"--admin", "./hubrelay-data/admin.sock"},
	} {
		if out, errOut, code := callIn(t, dir, env, "", append(list, args...)...); code != 0 {
			t.Errorf("%s: ended with %d: %s%s", name, code, out, errOut)
		}
	}
	// A second relay with the same directory uses a private socket, and so does one that cannot write.
	second := serveIn(t, dir, filepath.Join(dir, "hubrelay.yaml"), env...)
	unwritable := serveFile(t, writeFile(t, tempDir(t), "hubrelay.yaml",
		daemonConfig{redis: `url: "memory:", data_dir: /dev/null/data`}.renderYAML()), env...)
	for other, dataDir := range map[*daemon]string{
		second: filepath.Join(dir, "hubrelay-data"), unwritable: "/dev/null/data",
	} {
		_, port, _ := strings.Cut(other.Health, ":")
		want := filepath.Join(runtime, fmt.Sprintf("hubrelay-%d/admin-%s.sock", os.Geteuid(), port))
		if other.Admin != want {
			t.Errorf("the socket is %s, want %s", other.Admin, want)
		}
		text := strings.Replace(daemonConfig{redis: `url: "memory:", data_dir: ` + dataDir}.renderYAML(),
			"health: {listen: \"127.0.0.1:0\"", "health: {listen: \"127.0.0.1:"+port+"\"", 1)
		if out, errOut, code := call(t, env, "",
			append(list, "-c", writeFile(t, tempDir(t), "hubrelay.yaml", text))...); code != 0 {
			t.Errorf("-c with %s: ended with %d: %s%s", other.Admin, code, out, errOut)
		}
	}
	if _, errOut, code := callIn(t, tempDir(t), []string{"XDG_RUNTIME_DIR=" + tempDir(t)}, "", list...); code != 1 ||
		!strings.Contains(errOut, "no relay found") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("without a daemon: ended with %d: %s", code, errOut)
	}
}

// The error for an admin listener without tokens explains what to change.
func TestConfig_AdminListenerRequiresTokens(t *testing.T) {
	t.Parallel()
	file := writeFile(t, tempDir(t), "hubrelay.yaml",
		strings.Replace(daemonConfig{redis: `url: "memory:"`}.renderYAML(),
			"health:", "admin:", 1))
	for _, args := range [][]string{{"config", "check"}, {"serve"}} {
		_, errOut, code := call(t, nil, "", append(args, "-c", file)...)
		if err := errors.Join(hasAll(errOut, "admin.listen", "admin.tokens",
			"hubrelay keys new --admin")...); code != 1 || err != nil {
			t.Errorf("%v ended with %d, %v: %s", args, code, err, errOut)
		}
	}
}
