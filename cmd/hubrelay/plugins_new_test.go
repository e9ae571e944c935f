package main_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// inFolder runs a program in a directory until it ends.
func inFolder(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// checkPlugin expects that a program passes all checks without advice.
func checkPlugin(t *testing.T, dir string, args ...string) {
	t.Helper()
	out, errOut, code := callIn(t, dir, nil, "", append([]string{"plugins", "check", "--timeout", "30s"}, args...)...)
	if code != 0 || strings.Contains(out, "advice") || !strings.Contains(out, "ok ") {
		t.Errorf("check %v: %d\n%s%s", args, code, out, errOut)
	}
}

// A new plugin in Go passes its own test and the check, and runs in the daemon, with the commands in its README.
func TestLongPluginsNew_Go(t *testing.T) {
	t.Parallel()
	source, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	out, errOut, code := callIn(t, dir, nil, "", "plugins", "new", "first-go", "--lang", "go", "--replace", source)
	if code != 0 {
		t.Fatalf("%d: %s", code, errOut)
	}
	_, commands, _ := strings.Cut(out, "cd first-go\n")
	ran := 0
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "go" {
			continue
		}
		inFolder(t, filepath.Join(dir, "first-go"), words[0], words[1:]...)
		ran++
	}
	if ran != 3 || !strings.Contains(commands, "hubrelay plugins check ./first-go") {
		t.Errorf("what is next is %s", out)
	}
	inFolder(t, filepath.Join(dir, "first-go"), "go", "vet", "./...")
	checkPlugin(t, dir, "--kind", "sink", "first-go/first-go")

	d := serveIn(t, dir, "first-go/hubrelay.yaml", "HUBRELAY_SERVER__LISTEN=127.0.0.1:0",
		"HUBRELAY_HEALTH__LISTEN=127.0.0.1:0")
	d.Do(t, testkit.Request{
		Method: "POST", Key: "a-key-for-trying-it", Hub: "hub-1", ContentType: "application/json",
		Body: `{"topic":"container.created","object":{"id":"web-1"},"context":{}}`,
	})
	testkit.Eventually(t, "the plugin's line in the log", func() error {
		for line := range strings.Lines(d.Err.String()) {
			if strings.Contains(line, "hello") && strings.Contains(line, "first-go") &&
				strings.Contains(line, "web-1") {
				return nil
			}
		}
		return errors.New("it is not there")
	})
}

// A new plugin in Python does too, with packages of the system only.
func TestPluginsNew_Python(t *testing.T) {
	t.Parallel()
	python := pythonWithGRPC(t)
	dir := tempDir(t)
	out, errOut, code := callIn(t, dir, nil, "", "plugins", "new", "first-python", "--lang", "python")
	if code != 0 || !strings.Contains(out, "cd first-python\n  /usr/bin/python3 -m unittest\n") {
		t.Fatalf("%d: %s%s", code, out, errOut)
	}
	inFolder(t, filepath.Join(dir, "first-python"), python, "-m", "unittest")
	checkPlugin(t, dir, "--no-tls", "--config", `{"greeting":"hello"}`, python, "first-python/plugin.py")
	if out, errOut, code := callIn(t, dir, nil, "", "config", "check", "-c", "first-python/hubrelay.yaml"); code != 0 {
		t.Errorf("%d: %s%s", code, out, errOut)
	}
	if _, errOut, code = callIn(t, dir, nil, "", "plugins", "new", "first-python", "--lang", "python"); code != 1 ||
		!strings.Contains(errOut, "first-python exists and is not empty") {
		t.Errorf("a second time: %d: %s", code, errOut)
	}
}

func TestPluginsNew_RejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--lang is required: go or python":                     {"watch"},
		`the language "rust" is not supported`:                 {"watch", "--lang", "rust"},
		`"Watch" is not a plugin name`:                         {"Watch", "--lang", "python"},
		"use a directory with its source (--re":                {"watch", "--lang", "go"},
		"NAME is missing: usage: hubrelay plugins new NAME --": {"--lang", "go"},
	} {
		if _, errOut, code := call(t, nil, "", append([]string{"plugins", "new"}, args...)...); code != 2 ||
			!strings.Contains(errOut, want) {
			t.Errorf("%v: %d: %s", args, code, errOut)
		}
	}
}

// pythonWithGRPC returns a python3 with the package grpc.
func pythonWithGRPC(t *testing.T) string {
	t.Helper()
	own, err := filepath.Abs("../../.bin/python/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	for _, python := range []string{"/usr/bin/python3", own, "python3"} {
		if exec.Command(python, "-c", "import grpc").Run() == nil {
			return python
		}
	}
	t.Fatal("no python3 has the package grpc: make test installs it")
	return ""
}
