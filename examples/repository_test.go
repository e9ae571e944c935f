package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The tests cannot build the image everywhere, but they can check that the copied files exist.
func TestDockerfileCopiesWhatExists(t *testing.T) {
	file := read(t, "../Dockerfile")
	copies := regexp.MustCompile(`(?m)^COPY (?:--chown=\S+ )?([^-\n].*)$`).FindAllStringSubmatch(file, -1)
	if len(copies) == 0 {
		t.Fatal("the Dockerfile copies nothing")
	}
	// The Dockerfile copies all packages of the program.
	packages := run(t, nil, "go", "list", "-deps", "-f",
		"{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}", "../cmd/hubrelay")
	for path := range strings.Lines(packages) {
		top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(path), "github.com/hubrelay/hubrelay/"), "/")
		if !strings.Contains(file, "\nCOPY "+top+" ./"+top+"\n") {
			t.Errorf("the Dockerfile does not copy %s, which %s is in", top, strings.TrimSpace(path))
		}
	}
	ignore := read(t, "../.dockerignore")
	for _, c := range copies {
		paths := strings.Fields(c[1])
		for _, path := range paths[:len(paths)-1] { // the last one is the destination
			if _, err := os.Stat("../" + path); err != nil {
				t.Errorf("the Dockerfile copies %s: %v", path, err)
			}
			top, _, _ := strings.Cut(path, "/")
			if !strings.Contains(ignore, "\n!"+top+"\n") {
				t.Errorf(".dockerignore leaves %s out of the build", path)
			}
		}
	}
}

// Lock files must not name a registry. Addresses for funding are not registries.
func TestLockFilesNameNoRegistry(t *testing.T) {
	var file struct{ Packages map[string]map[string]any }
	if err := json.Unmarshal([]byte(read(t, "package-lock.json")), &file); err != nil || len(file.Packages) == 0 {
		t.Fatalf("package-lock.json has %d packages: %v", len(file.Packages), err)
	}
	for _, p := range file.Packages {
		delete(p, "funding")
	}
	if lock := fmt.Sprint(file.Packages); strings.Contains(lock, "resolved:") || strings.Contains(lock, "://") {
		t.Error("package-lock.json names addresses: npm config set omit-lockfile-registry-resolved true, then npm " +
			"install again")
	}
}

func TestScriptsParse(t *testing.T) {
	for _, script := range []string{
		"../.ci/run", "../.ci/need", "../.ci/vulncheck", "publish.sh", "publish-redis.sh",
		"listen-events.sh",
	} {
		if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
		if info, err := os.Stat(script); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s cannot be executed (%v)", script, err)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
