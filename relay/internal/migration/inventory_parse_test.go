package migration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

const good = `
containers: # may stand before the clusters
  web:
    hub_id: 5f0c
    account_id: 12
    environment_id: ""
    stateful: true
    instances:
      web-1: {server_id: b}
      web-0: {server_id: a.1}
  idle: {hub_id: h}
clusters:
  production:
    servers:
      b: {path: "/srv/b", weight: 2, share: 0.5, ssd: yes, tags: [x, {y: null}]}
      a.1:
  empty:
`

func TestParseFile(t *testing.T) {
	t.Parallel()
	f, err := ParseFile("x.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Servers: []relay.Server{
			server("a.1", "production", `{}`),
			server("b", "production", `{"path":"/srv/b","share":0.5,"ssd":"yes","tags":["x",{"y":null}],"weight":2}`),
		},
		Containers: []FileContainer{
			{Container: Container{ID: "idle", Hub: "h"}},
			{
				Container: Container{ID: "web", Hub: "5f0c", Account: "12", Stateful: true},
				Instances: []FileInstance{{"web-0", "a.1"}, {"web-1", "b"}},
			},
		},
	}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("got %+v", f)
	}
	json := `{"clusters": {"p": {"servers": {"s": {"path": "/a"}}}}, "containers": {"c": {"hub_id": "h", ` +
		`"instances": {"i": {"server_id": "s"}}}}}`
	f, err = ParseFile("x.json", []byte(json))
	if err != nil || len(f.Servers) != 1 || f.Containers[0].Instances[0] != (FileInstance{"i", "s"}) {
		t.Errorf("got %+v and error %v", f, err)
	}
	if f, err := ParseFile("x", []byte("clusters: {}")); err != nil || !reflect.DeepEqual(f, &File{}) {
		t.Errorf("got %+v and error %v", f, err)
	}
}

// The hash depends on the content, not on the notation.
func TestFile_ContentHash(t *testing.T) {
	t.Parallel()
	digest := func(text string) string {
		f, err := ParseFile("x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d, err := f.contentHash()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	one := digest("clusters: {p: {servers: {a: {x: 1, y: 2}, b: {}}}}")
	if digest("clusters:\n  p: {servers: {b: , a: {'y': 2, x: 1}}} # the same\ncontainers:\n") != one {
		t.Error("the hashes of equal files differ")
	}
	for _, other := range []string{
		"clusters: {p: {servers: {a: {x: 1, y: 3}, b: {}}}}", "clusters: {q: {servers: {a: {x: 1, y: 2}, b: {}}}}",
		"clusters: {p: {servers: {a: {x: 1, y: 2}, b: {}}}}\ncontainers: {c: {hub_id: h}}",
	} {
		if digest(other) == one {
			t.Error("the hash is the same for ", other)
		}
	}
}

func TestParseFile_Errors(t *testing.T) {
	t.Parallel()
	const clusters = "clusters: {p: {servers: {server-1: {}, server-2: {}}}}\n"
	long := strings.Repeat("x", 257)
	for name, c := range map[string]struct {
		text string
		want []string // expected errors, after the file name
	}{
		"empty":     {"", []string{":1:1: the file is empty; write clusters: {} for an empty inventory"}},
		"comment":   {"# comment\n", []string{":1:1: the file is empty; write clusters: {} for an empty inventory"}},
		"empty map": {"{}", []string{":1:1: the file is empty; write clusters: {} for an empty inventory"}},
		"not a map": {
			"[a]", []string{":1:1: must be a map, not a list; the keys here are clusters, containers"},
		},
		"invalid YAML":  {"a: b: c", []string{":1:"}},
		"invalid UTF-8": {"clusters: \xff", []string{":1:11: is not UTF-8 text; save the file as UTF-8"}},
		"two documents": {
			clusters + "---\na: b", []string{":3:1: a second YAML document starts here; keep one document in the file"},
		},
		"unknown key": {
			clusters + "container: {}", []string{`:2:1: container: unknown key; did you mean "containers"?`},
		},
		"unknown key without suggestion": {
			clusters + "x: {}", []string{`:2:1: x: unknown key; the keys here are clusters, containers`},
		},
		"clusters list": {"clusters: [a]", []string{":1:11: clusters: must be a map, not a list"}},
		"cluster text": {
			"clusters: {p: a}", []string{":1:15: clusters.p: must be a map, not a string; the keys here are servers"},
		},
		"cluster key": {
			"clusters: {p: {server: {}}}", []string{`:1:16: clusters.p.server: unknown key; did you mean "servers"?`},
		},
		"cluster name": {
			"clusters: {\"a\\nb\": {}, \"\": {}}",
			[]string{"the name of a cluster contains control characters", "the name of a cluster is empty"},
		},
		"cluster long": {
			"clusters: {" + long + ": {}}", []string{"the name of a cluster has 257 bytes, the limit is 256"},
		},
		"servers list": {
			"clusters: {p: {servers: [a]}}", []string{":1:25: clusters.p.servers: must be a map, not a list"},
		},
		"settings text": {
			"clusters: {p: {servers: {a: /srv}}}", []string{":1:29: clusters.p.servers.a: must be a map, not a string"},
		},
		"server id": {
			"clusters: {p: {servers: {a/b: {}}}}",
			[]string{
				":1:26: clusters.p.servers.a/b: is not a valid ID for a server; start with a letter or a digit, " +
					"then up to 127 of A-Z, a-z, 0-9, ., _ and -",
			},
		},
		"server dot":     {"clusters: {p: {servers: {..: {}}}}", []string{"is not a valid ID for a server"}},
		"server unicode": {"clusters: {p: {servers: {é: {}}}}", []string{"is not a valid ID for a server"}},
		"server long": {
			"clusters: {p: {servers: {" + strings.Repeat("a", 129) + ": {}}}}", []string{
				"is not a valid ID for a server",
			},
		},
		"server twice": {
			"clusters:\n  p: {servers: {a: {}}}\n  q: {servers: {a: {}}}",
			[]string{
				":3:17: clusters.q.servers.a: is also in cluster p; the other is in line 2; a server belongs to one " +
					"cluster",
			},
		},
		"server repeated": {
			"clusters: {p: {servers: {a: {}, a: {}}}}",
			[]string{":1:33: clusters.p.servers.a: is given twice; the first is in line 1"},
		},
		"container id": {
			"containers: {-c: {hub_id: h}}", []string{":1:14: containers.-c: is not a valid ID for a container"},
		},
		"container text": {
			"containers: {c: h}",
			[]string{
				":1:17: containers.c: must be a map, not a string; the keys here are hub_id, account_id, " +
					"environment_id, stateful, instances",
			},
		},
		"missing hub": {
			"containers: {c: {account_id: a}}",
			[]string{":1:14: containers.c: has no hub_id; set it to the hub that receives the events of the container"},
		},
		"empty container": {"containers:\n  c:\n", []string{":2:3: containers.c: has no hub_id"}},
		"hub empty":       {"containers: {c: {hub_id: \"\"}}", []string{":1:26: containers.c.hub_id: is empty"}},
		"hub list": {
			"containers: {c: {hub_id: [h]}}", []string{":1:26: containers.c.hub_id: must be a string, not a list"},
		},
		"hub control": {
			"containers: {c: {hub_id: \"a\\tb\"}}", []string{":1:26: containers.c.hub_id: contains control characters"},
		},
		"account long": {
			"containers: {c: {hub_id: h, account_id: " + long + "}}",
			[]string{"containers.c.account_id: has 257 bytes, the limit is 256"},
		},
		"environment map": {
			"containers: {c: {hub_id: h, environment_id: {a: b}}}",
			[]string{"containers.c.environment_id: must be a string, not a map"},
		},
		"container key": {
			"containers: {c: {hub_id: h, statefull: true}}",
			[]string{`containers.c.statefull: unknown key; did you mean "stateful"?`},
		},
		"stateful": {
			"containers: {c: {hub_id: h, stateful: \"true\"}}",
			[]string{
				":1:39: containers.c.stateful: must be true or false, not a string; write true or false, " +
					"without quotes",
			},
		},
		"instances list": {
			"containers: {c: {hub_id: h, instances: [i]}}",
			[]string{":1:40: containers.c.instances: must be a map, not a list"},
		},
		"instance id": {
			clusters + "containers: {c: {hub_id: h, instances: {i j: {server_id: server-1}}}}",
			[]string{":2:41: containers.c.instances.i j: is not a valid ID for an instance"},
		},
		"instance text": {
			clusters + "containers: {c: {hub_id: h, instances: {i: server-1}}}",
			[]string{":2:44: containers.c.instances.i: must be a map, not a string; the keys here are server_id"},
		},
		"missing server": {
			clusters + "containers: {c: {hub_id: h, instances: {i: {}}}}",
			[]string{":2:41: containers.c.instances.i: has no server_id; set it to the server of the instance"},
		},
		"unknown server": {
			clusters + "containers: {c: {hub_id: h, instances: {i: {server_id: servr-2}}}}",
			[]string{
				`:2:56: containers.c.instances.i.server_id: there is no server "servr-2" in clusters; did you ` +
					`mean "server-2"?`,
			},
		},
		"unknown server without suggestion": {
			clusters + "containers: {c: {hub_id: h, instances: {i: {server_id: zzz}}}}",
			[]string{`there is no server "zzz" in clusters`},
		},
		"server empty": {
			clusters + "containers: {c: {hub_id: h, instances: {i: {server_id: ''}}}}",
			[]string{`containers.c.instances.i.server_id: is empty`},
		},
		"instance twice": {
			clusters +
				"containers:\n  c: {hub_id: h, instances: {i: {server_id: server-1}}}\n  d: {hub_id: h, " +
				"instances: {i: {server_id: server-1}}}",
			[]string{
				":4:30: containers.d.instances.i: is also an instance of container c; the other is in line 3; " +
					"instance IDs are unique in the inventory",
			},
		},
		"instance key": {
			clusters + "containers: {c: {hub_id: h, instances: {i: {server: server-1}}}}",
			[]string{"has no server_id", "containers.c.instances.i.server: unknown key; did you mean \"server_id\"?"},
		},
		"tag": {"clusters: {p: !x {}}", []string{"tags are not supported"}},
		"several errors": {
			"clusters: {p: {servers: {'': }}}\ncontainers: {c: {hub: h, instances: {i: {server_id: s}}}}\nx: y",
			[]string{":1:26: ", ":2:14: ", ":2:18: ", ":2:53: ", ":3:1: "},
		},
		"tag in settings": {
			"clusters: {p: {servers: {a: {b: !x c}}}}", []string{"tags are not supported"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := ParseFile("inv.yaml", []byte(c.text))
			var problems yamldoc.Problems
			if f != nil || !errors.As(err, &problems) {
				t.Fatalf("got %+v and error %v", f, err)
			}
			if len(problems) != len(c.want) {
				t.Fatalf("got %d problems:\n%v", len(problems), err)
			}
			for i, want := range c.want {
				got := problems[i].String()
				if !strings.HasPrefix(got, "inv.yaml:") || !strings.Contains(got, want) {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inv.yaml")
	if _, err := ReadFile(path); err == nil ||
		err.Error() != path+": cannot be read: no such file or directory; name a YAML file, such as a copy of "+
			"configs/inventory.yaml" {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(good+"x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err == nil || !strings.HasPrefix(err.Error(), path+":18:1: x: unknown key") {
		t.Error(err)
	}
}

// Aliases can multiply values.
func TestParseFile_LimitsAliases(t *testing.T) {
	t.Parallel()
	text := "clusters:\n  p:\n    servers:\n      s0: &s0 {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"
	for i := 1; i < 10; i++ {
		text += fmt.Sprintf("      s%d: &s%d {a: [%s*s%d]}\n", i, i, strings.Repeat(fmt.Sprintf("*s%d, ", i-1), 9), i-1)
	}
	if _, err := ParseFile("x", []byte(text)); err == nil || !strings.Contains(err.Error(), "exceeds the limit") {
		t.Error(err)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("clusters: {p: {servers: {a: &a {b: 1}, c: *a}}}\ncontainers: {c: {<<: {hub_id: h}}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := ParseFile("x", text)
		if (file == nil) == (err == nil) {
			t.Fatal(file, err)
		}
		if file == nil {
			return
		}
		for _, c := range file.Containers {
			if !isValidID(c.ID) || c.Hub == "" {
				t.Errorf("got %+v", c)
			}
		}
		if _, err := file.contentHash(); err != nil {
			t.Error(err)
		}
	})
}

func TestReadFile_ShippedInventories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../configs/inventory*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if _, err := ReadFile(file); err != nil {
			t.Error(err)
		}
	}
}
