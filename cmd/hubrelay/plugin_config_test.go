package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A plugin checks its configuration before it is applied. If it cannot be asked, there is a warning.
func TestConfigCheckAsksPlugins(t *testing.T) {
	t.Parallel()
	script := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		sinks, idleResources string
		flags                []string
		code                 int
		want                 []string
	}{
		"unknown key": {
			sinks: "  shown:\n    type: plugin\n    command: [\"builtin:print\"]\n    startup_timeout: 2m\n    config:\n      dta: true\n",
			code:  1,
			want:  []string{`hubrelay.yaml:LINE:12: sinks.shown.config.dta: is an unknown key; did you mean data?`},
		},
		"wrong type": {
			sinks: "  shown: {type: plugin, command: [\"builtin:print\"], startup_timeout: 2m, config: {data: much}}\n", code: 1,
			want: []string{`sinks.shown.config.data: must be a boolean, not a string`},
		},
		"left out": {
			sinks: "  shown: {type: plugin, command: [\"builtin:print\"], startup_timeout: 2m, config: {data: much}}\n", flags: []string{
				"--no-plugins",
			},
			want: []string{"is valid: 2 keys, 1 sink"},
		},
		"driver": {
			idleResources: "migration: {driver: {command: [\"builtin:directory\"], config: {stedy: 1s}}}\n", code: 1,
			want: []string{`migration.driver.config.stedy: is an unknown key; this plugin takes no configuration`},
		},
		"good": {
			sinks: "  shown: {type: plugin, command: [\"builtin:print\"], startup_timeout: 2m, config: {data: true}}\n",
			want:  []string{"is valid: 2 keys, 1 sink"},
		},
		"hangs": {
			sinks: "  stuck: {type: plugin, command: [./hangs], startup_timeout: 300ms}\n",
			want: []string{"warning: ", "sinks.stuck.command: cannot check its configuration: the " +
				"plugin did not write its handshake within 300ms (startup_timeout)", "is valid"},
		},
		"ends": {
			sinks: "  ended: {type: plugin, command: [./ends]}\n",
			want: []string{"sinks.ended.command: cannot check its configuration: the plugin exited " +
				"with status 3 before it was ready: no database"},
		},
		"draws": {
			sinks: "  drawn: {type: plugin, command: [./draws]}\n",
			want: []string{"sinks.drawn.command: cannot check its configuration: the plugin exited " +
				"with status 3 before it was ready: \uFFFD[2Jall is good"},
		},
		"missing": {
			sinks: "  later: {type: plugin, command: [./later]}\n", want: []string{
				"sinks.later.command: cannot be started", "later does not exist",
			},
		},
		"another pin": {
			sinks: "  pinned: {type: plugin, command: [./ends], sha256: " + strings.Repeat("ab", 32) + "}\n",
			want:  []string{"sinks.pinned.command: cannot be started", "sha256 pins abab"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			script(dir, "hangs", "sleep 60")
			script(dir, "ends", "echo no database >&2; exit 3")
			script(dir, "draws", `printf '\033[2Jall is good\n' >&2; exit 3`)
			text := daemonConfig{redis: `url: "memory:"`, sinks: c.sinks}.renderYAML() + c.idleResources
			file := writeFile(t, dir, "hubrelay.yaml", text)
			out, errOut, code := call(t, nil, "", append([]string{"config", "check", "-c", file}, c.flags...)...)
			line := 1 + strings.Count(text[:max(0, strings.Index(text, "dta:"))], "\n")
			for _, want := range c.want {
				if want = strings.Replace(want, "LINE", fmt.Sprint(line), 1); !strings.Contains(out+errOut, want) {
					t.Errorf("no %q in\n%s%s", want, out, errOut)
				}
			}
			if code != c.code {
				t.Errorf("it ended with %d:\n%s%s", code, out, errOut)
			}
		})
	}
}

// If a plugin rejects a change, the whole reload is rejected, and the old sink continues. At a start, the sink fails
// with the first message of the plugin.
func TestReloadAsksPlugins(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	with := func(config string) daemonConfig {
		return daemonConfig{
			redis: fmt.Sprintf("url: %q", server.URL()),
			sinks: `  shown: {type: plugin, command: ["builtin:print"], env: ["GORACE=atexit_sleep_ms=0"], config: ` +
				config + "}\n",
		}
	}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", with("{dta: true}").renderYAML())
	d := serveFile(t, file)
	const fault = "rejects its configuration: config: dta is an unknown key"
	list := func() string {
		out, _, _ := call(t, nil, "", "sinks", "list", "--admin", d.Admin)
		return out
	}
	testkit.Eventually(t, "the sink to be failed", func() error {
		if out := list(); !strings.Contains(out, fault) {
			return errors.New(out)
		}
		return nil
	})
	for range 5 { // during its restarts
		if out := list(); !strings.Contains(out, fault) || strings.Contains(out, "active") {
			t.Errorf("later it is\n%s", out)
		}
	}

	d.reconfigure(t, file, with("{data: true}"), 1)
	published := 0
	show := func() {
		t.Helper()
		d.Publish(t, "hub-1", "application/x-ndjson", lines(1), nil)
		published++
		testkit.Eventually(t, "the event", func() error {
			if got := strings.Count(d.Err.String(), `"msg":"notification"`); got != published {
				return fmt.Errorf("%d were shown", got)
			}
			return nil
		})
	}
	show()
	taken := 1
	runs := strings.Count(d.Err.String(), "plugin started")
	for tries := 1; !d.rejects(t, file, with("{data: much}"), taken,
		"sinks.shown.config.data: must be a boolean, not a string"); tries++ {
		if tries == 5 {
			t.Fatalf("a mistake was taken over %d times:\n%s", tries, d.Err.Tail(6000))
		}
		taken += 2
		d.reconfigure(t, file, with("{data: true}"), taken)
		show()
		runs = strings.Count(d.Err.String(), "plugin started")
	}
	testkit.Eventually(t, "the figure", func() error {
		if !strings.Contains(d.Metrics(t), "hubrelay_config_last_reload_successful 0") {
			return errors.New("it is not 0")
		}
		return nil
	})
	show()
	if got := strings.Count(d.Err.String(), "plugin started"); got != runs {
		t.Errorf("the plugin was started again")
	}
	// A plugin that does not respond delays a reload but does not prevent it.
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "hangs"), []byte("#!/bin/sh\nsleep 60\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	more := with("{data: false}")
	more.sinks += "  stuck: {type: plugin, command: [./hangs]}\n"
	d.reconfigure(t, file, more, taken+1)
	testkit.Eventually(t, "the warning", d.Err.Contains("sinks.stuck.command: cannot check its "+
		"configuration: the plugin did not respond within "))
	show()
}

// rejects installs a configuration that a plugin rejects, and reports whether the reload was rejected. On a busy
// machine the plugin can respond too late; then the configuration is applied.
func (d *daemon) rejects(t *testing.T, file string, s daemonConfig, taken int, mistake string) bool {
	t.Helper()
	if err := os.Rename(writeFile(t, filepath.Dir(file), "fresh.yaml", s.renderYAML()), file); err != nil {
		t.Fatal(err)
	}
	refused := false
	testkit.Eventually(t, "the mistake", func() error {
		log := d.Err.String()
		refused = strings.Contains(log, mistake)
		if !refused && strings.Count(log, "configuration was applied") == taken {
			return errors.New("nothing is said")
		}
		return nil
	})
	if !refused {
		testkit.Eventually(t, "why a mistake was taken over",
			d.Err.Contains("sinks.shown.command: cannot check its configuration: "))
	}
	return refused
}
