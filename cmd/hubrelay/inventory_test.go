package main_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const twoServers = `clusters:
  production: {servers: {server-1: {path: /srv/1, password: s3cret}, server-2: {path: /srv/2}}}
containers:
  shop: {hub_id: hub-1, account_id: acme, stateful: true,
    instances: {shop-1: {server_id: server-1}, shop-2: {server_id: server-2}}}
  idle: {hub_id: hub-2}
`

// migrating returns a configuration with a driver. The driver need not exist for the inventory.
func migrating(inventory string) string {
	return daemonConfig{redis: `url: "memory:"`}.renderYAML() +
		"migration: {driver: {command: [./driver]}, inventory_file: " + inventory + "}\n"
}

// TestInventory lists the initial inventory and imports other files.
func TestInventory(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	file := writeFile(t, dir, "inventory.yaml", twoServers)
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", migrating("inventory.yaml")))
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	out := o.run("inventory list", "server-1  production          1\n",
		"shop       shop-2    server-2  production  hub-1  -\n",
		"idle       -         -         -           hub-2  -\n")
	if strings.Contains(out, "s3cret") {
		t.Errorf("settings are shown:\n%s", out)
	}
	testkit.Eventually(t, "what is wrong with the driver", func() error {
		_, errOut, _ := call(t, o.env, "", "inventory", "list")
		return errors.Join(hasAll(errOut, "the driver is not ready, and migrations wait for it: start the driver:",
			"driver")...)
	})
	lines := strings.Split(strings.TrimSpace(o.run("inventory list --json")), "\n")
	var shop struct {
		Kind      string
		Hub       string `json:"hub_id"`
		Stateful  bool
		Instances []struct {
			ID     string
			Server string `json:"server_id"`
		}
	}
	if len(lines) != 4 || json.Unmarshal([]byte(lines[3]), &shop) != nil || shop.Kind != "container" ||
		shop.Hub != "hub-1" ||
		!shop.Stateful || len(shop.Instances) != 2 || shop.Instances[1].Server != "server-2" {
		t.Errorf("%q became %+v", lines, shop)
	}
	o.run("inventory import "+file, "nothing was changed: the inventory is already up to date")
	other := writeFile(t, dir, "other.json",
		`{"containers": {"shop": {"hub_id": "hub-1", "instances": {"shop-1": {"server_id": "server-2"}}}}}`)
	o.run("inventory import --json "+other, `"containers":{"added":0,"changed":1,"removed":1}`, `"changed":true`)
	o.run("inventory list", "shop       shop-1    server-2")
	o.run("inventory import "+file, "imported: containers 1 added, 1 changed; instances 1 added, 1 changed")
	o.run("inventory import "+writeFile(t, dir, "none.yaml", "containers: {}"),
		"containers 2 removed; instances 2 removed")
	// Only the file of the operator defines servers. It is read again after a change.
	writeFile(t, dir, "inventory.yaml", "clusters: {production: {servers: {server-2: {}, server-3: {}}}}\n")
	testkit.Eventually(t, "the servers of the changed file", func() error {
		out, _, _ := call(t, o.env, "", "inventory", "list")
		return errors.Join(hasAll(out, "server-2  production          0\n", "server-3  production          0\n")...)
	})
	writeFile(t, dir, "inventory.yaml", "clusters: {}\n")
	testkit.Eventually(t, "the empty inventory", func() error {
		out, _, _ := call(t, o.env, "", "inventory", "list")
		return errors.Join(hasAll(out,
			"the inventory is empty: define servers in migration.inventory_file of the relay")...)
	})
	for _, tc := range []struct{ args, part string }{
		{dir + "/nothing.yaml", "nothing.yaml cannot be read: no such file or directory"},
		{writeFile(t, dir, "bad.yaml", twoServers+"x: y\n"), dir +
			"/bad.yaml:7:1: x: unknown key; the keys here are clusters, containers"},
		{writeFile(t, dir, "servers.yaml", twoServers), `the import adds the server "server-1": only`},
		{other + " --admin http://127.0.0.1:1", "--admin"},
	} {
		out, errOut, code := call(t, o.env, "", append([]string{"inventory", "import"}, strings.Fields(tc.args)...)...)
		if code != 1 || out != "" || !strings.Contains(errOut, tc.part) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("import %s ended with %d: %s%s", tc.args, code, out, errOut)
		}
	}
	if _, errOut, code := call(t, o.env, "", "inventory", "import"); code != 2 || !strings.Contains(errOut, "--help") {
		t.Errorf("without a file: %d, %s", code, errOut)
	}
}

// An invalid inventory prevents the start, and config check reports it.
func TestInventory_Invalid(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	wrong := writeFile(t, dir, "inventory.yaml", strings.ReplaceAll(twoServers, "server_id: server-2",
		"server_id: srver-2"))
	file := writeFile(t, dir, "hubrelay.yaml", migrating("inventory.yaml"))
	for _, command := range []string{"serve", "config check"} {
		out, errOut, code := call(t, nil, "", append(strings.Fields(command), "-c", file)...)
		err := errors.Join(hasAll(errOut, wrong+":5:68: containers.shop.instances.shop-2.server_id: there is no "+
			"server \"srver-2\" in clusters; did you mean \"server-2\"?")...)
		if code != 1 || out != "" || err != nil || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s ended with %d, %v:\n%s%s", command, code, err, out, errOut)
		}
	}
	writeFile(t, dir, "inventory.yaml", twoServers)
	if out, errOut, code := call(t, nil, "", "config", "check", "-c", file); code != 0 ||
		!strings.Contains(out, "2 servers, 2 containers") ||
		!strings.Contains(errOut, "warning: ") {
		t.Errorf("%d: %s%s", code, out, errOut)
	}
}

func TestInventory_WithoutDriver(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	file := writeFile(t, dir, "inventory.yaml", twoServers)
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	for _, args := range []string{"list", "import " + file} {
		_, errOut, code := call(t, []string{"HUBRELAY_ADMIN=" + d.Admin}, "",
			append([]string{"inventory"}, strings.Fields(args)...)...)
		if code != 1 || !strings.Contains(errOut, "migration.driver") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("inventory %s ended with %d: %s", args, code, errOut)
		}
	}
}
