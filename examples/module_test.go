package examples

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// setting is the input of testdata/scenario.mjs.
type setting struct {
	URL     string `json:"url"`    // through a proxy that cuts connections
	Direct  string `json:"direct"` // address of the daemon
	Key     string `json:"key"`
	Hub     string `json:"hub"`
	Cut     string `json:"cut"`
	Batches int    `json:"batches"`
}

// refusal is an error of the module.
type refusal struct {
	Name, Code, Source, Message string
	Status                      int
	Extra                       map[string]any
}

// seen is the result of the scenario.
type seen struct {
	Numbered struct {
		End         string
		Heard       []string
		Connections int
	}
	WrongKey, WrongPublish, WrongJob, WrongTopics, WrongAfter refusal

	Forgotten []string
	Aborted   string
	Unreached []bool
	Moved     *struct {
		Same         bool
		State, Error string
	}
}

// runtimes run the function scenario of a file in testdata and return its result.
var runtimes = map[string]func(t *testing.T, d *daemon, file string, told []byte) []byte{
	"node with ws":       nodeWithPackage,
	"node with built-in": nodeBuiltIn,
	"browser":            inBrowser,
}

// TestModule runs a program that uses hubrelay.mjs in Node and in a page.
func TestModule(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	way := testkit.StartProxy(t, func() string { return d.Public })
	cut := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { way.Cut() }))
	defer cut.Close()
	for name, run := range runtimes {
		t.Run(name, func(t *testing.T) {
			s := setting{
				URL: "http://" + way.Addr(), Direct: d.url, Key: d.Key, Hub: "hub-" + rand.Text(),
				Cut: cut.URL, Batches: 16,
			}
			if name == "node with ws" {
				s.Hub = "hub-moved"
			}
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			before := d.figure(t, compressedFrames)
			out := run(t, d, "scenario.mjs", text)
			var got seen
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got.check(t, s)
			d.compresses(t, before+float64(s.Batches*50))
		})
	}
}

func (s *seen) check(t *testing.T, told setting) {
	t.Helper()
	var want []string
	for i := range told.Batches * 50 {
		want = append(want, fmt.Sprint(i))
	}
	if want = append(want, "last"); !slices.Equal(s.Numbered.Heard, want) {
		t.Errorf("of %d came %d: %q", len(want), len(s.Numbered.Heard), s.Numbered.Heard)
	}
	if s.Numbered.End != "ended" || s.Aborted != "ended" {
		t.Errorf("an abort: %q and %q", s.Numbered.End, s.Aborted)
	}
	if s.Numbered.Connections <= told.Batches/3 {
		t.Errorf("%d connections", s.Numbered.Connections)
	}
	if want := []string{"container.created", "hubrelay.resync", "container.created"}; !slices.Equal(s.Forgotten, want) {
		t.Errorf("after a lost cursor got %q", s.Forgotten)
	}
	for code, got := range map[string]refusal{
		"401.auth-invalid": s.WrongKey, "422.invalid-argument": s.WrongPublish, "404.job": s.WrongJob,
	} {
		if got.Name != "HubrelayError" || got.Code != code || got.Message == "" ||
			!strings.HasPrefix(code, fmt.Sprint(got.Status)) {
			t.Errorf("want %s, got %+v", code, got)
		}
	}
	if s.WrongPublish.Source != "/topic" {
		t.Errorf("the source of %+v", s.WrongPublish)
	}
	for parameter, got := range map[string]refusal{"topics": s.WrongTopics, "after": s.WrongAfter} {
		if got.Code != "422.invalid-argument" || got.Extra["parameter"] != parameter {
			t.Errorf("wrong %s: %+v", parameter, got)
		}
	}
	if !slices.Equal(s.Unreached, []bool{true, true, true}) {
		t.Errorf("the pauses do not grow: %v", s.Unreached)
	}
	if s.Moved != nil && (!s.Moved.Same || s.Moved.State != "completed") ||
		(s.Moved == nil) != (told.Hub != "hub-moved") {
		t.Errorf("the migration: %+v", s.Moved)
	}
}

const scenarioScript = `
const { scenario } = await import("./testdata/" + process.argv[3]);
const WebSocket = process.argv[2] === "ws" ? (await import("ws")).default : undefined;
console.log("seen " + JSON.stringify(await scenario({ ...JSON.parse(process.argv[1]), WebSocket })));`

// inNode also checks that the program ends, so no timers or connections remain.
func inNode(t *testing.T, from, file string, told []byte, flags ...string) []byte {
	t.Helper()
	out := run(t, nil, "node", append(flags, "--input-type=module", "-e", scenarioScript, string(told), from, file)...)
	_, result, _ := strings.Cut(out, "seen ")
	return []byte(result)
}

func nodeWithPackage(t *testing.T, _ *daemon, file string, told []byte) []byte {
	return inNode(t, "ws", file, told)
}

func nodeBuiltIn(t *testing.T, _ *daemon, file string, told []byte) []byte {
	const flag = "--experimental-websocket" // on by default in Node 22
	if exec.Command("node", flag, "-e", "WebSocket.name").Run() != nil {
		t.Skip("this Node has no WebSocket built in")
	}
	return inNode(t, "built-in", file, told, flag, "--no-warnings")
}

func inBrowser(t *testing.T, d *daemon, file string, told []byte) []byte {
	listener, err := net.Listen("tcp", "127.0.0.1:"+d.pagePort)
	if err != nil {
		t.Fatal(err)
	}
	page := httptest.NewUnstartedServer(http.FileServer(http.Dir(".")))
	_ = page.Listener.Close()
	page.Listener = listener
	page.Start()
	t.Cleanup(page.Close)
	b := startBrowser(t)
	b.call(t, "/url", map[string]any{"url": page.URL + "/testdata/"})
	script := `const [told, file, done] = arguments;
		import("/testdata/" + file).then((module) => module.scenario(told)).then(done, (error) => done(String(error)));`
	return b.call(t, "/execute/async", map[string]any{"script": script, "args": []any{json.RawMessage(told), file}})
}

// In a new project of npm, the module works with import and with require.
func TestModule_NewProject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, err := os.ReadFile("hubrelay.mjs")
	if err != nil {
		t.Fatal(err)
	}
	const use = `; const client = new Hubrelay({ url: "http://127.0.0.1:9" }); console.log(typeof client.listen)`
	for name, content := range map[string]string{
		"package.json": `{"name":"new","version":"1.0.0","type":"commonjs"}`, "hubrelay.mjs": string(text),
		"import.mjs": `import { Hubrelay } from "./hubrelay.mjs"` + use,
		"require.js": `const { Hubrelay } = require("./hubrelay.mjs")` + use,
		"dynamic.js": `import("./hubrelay.mjs").then(({ Hubrelay }) => {` + use + `})`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"import.mjs", "dynamic.js"}
	if exec.Command("node", "-e", "process.exit(process.features.require_module ? 0 : 1)").Run() == nil {
		files = append(files, "require.js")
	}
	for _, file := range files {
		out, err := exec.Command("node", "--no-warnings", filepath.Join(dir, file)).CombinedOutput()
		if err != nil || string(out) != "function\n" {
			t.Errorf("%s: %v, %s", file, err, out)
		}
	}
}
