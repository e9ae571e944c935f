package migration

import (
	"os"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/keyspace"
)

// Key names are documented for operators, and a change would lose data.
func TestKeys_MatchArchitecture(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	space, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	k := keys{space}
	for documented, key := range map[string]string{
		"inventory:servers":               k.servers(),
		"inventory:version":               k.inventoryVersion(),
		"inventory:seed":                  k.inventorySeed(),
		"inventory:imports":               k.inventoryImports(),
		"inventory:containers:{p}":        k.containers(0),
		"inventory:instances:{p}":         k.instances(0),
		"inventory:imported:{p}":          k.lastImport(0),
		"moved:{p}":                       k.migratedTo(0),
		"migrating:{p}":                   k.activeMigrations(0),
		"job:<id>":                        k.job("<id>", 0),
		"jobs:{p}":                        k.jobs(0),
		"jobs:{p}:<container>/<instance>": k.instanceJobs(0, "<container>/<instance>"),
		"jobs:recent:{p}":                 k.recentJobs(0),
		"migrating:leases:{p}":            k.migrationLeases(0),
		"turns":                           k.serverSlots(),
		"turns:accounts:{hubrelay:turns}": k.accountStarts(),
	} {
		if want := "hubrelay:" + strings.ReplaceAll(documented, "{p}", "{0}"); key != want {
			t.Errorf("got key %q, want %q", key, want)
		}
		if !strings.Contains(string(text), "`"+documented+"`") {
			t.Errorf("ARCHITECTURE.md does not document %q", documented)
		}
	}
	cluster, err := keyspace.New("hubrelay", 1, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := (keys{cluster}).servers(), "hubrelay:{inventory}:servers"; got != want {
		t.Errorf("in a cluster: got key %q, want %q", got, want)
	}
	if got, want := (keys{cluster}).inventoryImports(), "hubrelay:{inventory}:imports"; got != want {
		t.Errorf("in a cluster: got key %q, want %q", got, want)
	}
}
