package main_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const unitFile = "../../configs/hubrelay.service"

// readUnit returns the systemd unit with other paths.
func readUnit(t *testing.T, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(replace...).Replace(string(text))
}

func TestSystemdUnit_IsValid(t *testing.T) {
	t.Parallel()
	file := writeFile(t, t.TempDir(), "hubrelay.service", readUnit(t, "/usr/local/bin/hubrelay", binary(t)))
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// The unit starts the relay as an unprivileged user with a configuration that only root can read, as init writes it.
func TestSystemdUnit_Starts(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change to the user of the unit")
	}
	const nobody = 65534
	dir := tempDir(t)
	state := filepath.Join(dir, "state")
	program := filepath.Join(dir, "hubrelay")
	for _, err := range []error{
		os.Chmod(dir, 0o711), os.Link(binary(t), program), os.Mkdir(state, 0o700), os.Chown(state, nobody, nobody),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "hubrelay.yaml")
	if _, errOut, code := call(t, nil, "", "init", "--yes", "--listen", "127.0.0.1:0", "-c", file); code != 0 {
		t.Fatal(errOut)
	}
	unit := readUnit(t, "/usr/local/bin/hubrelay", program, "/etc/hubrelay/hubrelay.yaml", file,
		"/var/lib/hubrelay", state, "chgrp hubrelay", "chgrp "+strconv.Itoa(nobody))
	asUser := []string{
		"setpriv", "--reuid=" + strconv.Itoa(nobody), "--regid=" + strconv.Itoa(nobody), "--clear-groups", "--no-new-privs",
		"--bounding-set=-all", "--inh-caps=-all", "--",
	}
	env := []string{"HUBRELAY_HEALTH__LISTEN=127.0.0.1:0"}
	for _, line := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(unit, -1) {
		env = append(env, line[1])
	}
	for _, line := range regexp.MustCompile(`(?m)^ExecStartPre=(\+?)(.*)$`).FindAllStringSubmatch(unit, -1) {
		args := strings.Fields(line[2])
		if line[1] == "" {
			args = append(asUser[:len(asUser):len(asUser)], args...)
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line[2], err, out)
		}
	}
	command := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	args := append(asUser, strings.Fields(command[1])...)
	path, err := exec.LookPath(args[0])
	if err != nil {
		t.Fatal(err)
	}
	d := testkit.Serve(t, testkit.Command{Path: path, Args: args[1:], Dir: state, Env: env})
	testkit.Eventually(t, "readiness", d.Ready(http.StatusOK))
	if want := filepath.Join(state, "hubrelay-data/admin.sock"); d.Admin != want {
		t.Errorf("the admin socket is %s, want %s", d.Admin, want)
	}
	if out, err := exec.Command(asUser[0], append(asUser[1:], "test", "-w", file)...).CombinedOutput(); err == nil {
		t.Errorf("the relay can write its configuration\n%s", out)
	}
}

// The image starts without a configuration of the user. Keys are created in the running relay.
func TestImage_StartsWithDefaultConfiguration(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	copied := regexp.MustCompile(`COPY (\S+) /etc/hubrelay/hubrelay.yaml`).FindSubmatch(dockerfile)
	if copied == nil {
		t.Fatal("the Dockerfile copies no configuration")
	}
	file, err := filepath.Abs(filepath.Join("../..", string(copied[1])))
	if err != nil {
		t.Fatal(err)
	}
	d := serveIn(t, t.TempDir(), file,
		"HUBRELAY_SERVER__LISTEN=127.0.0.1:0", "HUBRELAY_HEALTH__LISTEN=127.0.0.1:0",
		"HUBRELAY_REDIS__DATA_DIR="+filepath.Join(tempDir(t), "data"))
	out, errOut, code := call(t, nil, "", "keys", "create", "ops", "--account", "*", "--hub", "*", "--json", "--admin", d.Admin)
	key := regexp.MustCompile(`"key":"([^"]+)"`).FindStringSubmatch(out)
	if code != 0 || key == nil {
		t.Fatalf("keys create ended with %d: %s%s", code, out, errOut)
	}
	d.Token(t, key[1], "hub-1")
}
