package demo

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

func (d *demo) printWelcome(a daemon.Addresses) {
	p := d.paint
	url := "http://" + a.Public.String()
	notification := `{"topic":"container.created","object":{"id":"mine"},"context":{"hub_id":"` + hubID +
		`","containers":["mine"]}}`
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s %s", p.Bold("hubrelay demo"), p.Dim(d.options.Version))
	line("  relay    %s", url)
	line("  health   http://%s  (/metrics, /healthz, /readyz)", a.Health)
	line("  admin    %s  (for this user's hubrelay commands)", a.Admin)
	if d.memory {
		line("  redis    %s", p.Yellow("in this process, because redis-server is not installed"))
	} else {
		line("  redis    unix://%s", filepath.Join(d.dir, "data", "redis.sock"))
	}
	line("  servers  %s  (see inventory.yaml in the parent directory)", d.serversDir())
	line("\n%s", p.Bold("In a second terminal:"))
	exported := "HUBRELAY_URL=" + url + " HUBRELAY_KEY=" + d.key + " HUBRELAY_HUB=" + hubID + " HUBRELAY_ADMIN=" +
		a.Admin.String()
	if !d.memory {
		exported += " HUBRELAY_SOCKET=" + filepath.Join(d.dir, "data", "redis.sock")
	}
	line("  export %s\n", exported)
	line("  %s\n  %s listen --topic '*.error'\n", p.Dim("# print errors"), term.ProgramName())
	line("  %s", p.Dim("# publish, and see it arrive here"))
	line("  curl -sS $HUBRELAY_URL/v1/hubs/current/notifications -H \"Authorization: Bearer $HUBRELAY_KEY\" \\")
	line("    -H \"X-Hub-Id: $HUBRELAY_HUB\" -H 'Content-Type: application/json' -d '%s'\n", notification)
	if d.memory {
		line("  %s\n  %s publish --topic container.error --container mine --error 'out of memory'\n",
			p.Dim("# the same, shorter"), term.ProgramName())
	} else {
		line("  %s", p.Dim("# publish with Redis only"))
		line("  redis-cli -s $HUBRELAY_SOCKET XADD hubrelay:inbox '*' data '%s'\n", notification)
	}
	d.suggestMigrations(line)
	line("%s", p.Dim("Ctrl-C ends the demo."))
	d.printLinef("%s", b.String())
}

// suggestMigrations prints migrations of instances that the demo itself does not move.
func (d *demo) suggestMigrations(line func(format string, args ...any)) {
	line("  %s\n  %s migrate shop shop-1 --to server-2 --copy-volumes --wait\n",
		d.paint.Dim("# migrate an instance, and watch the progress"), term.ProgramName())
	line("  %s", d.paint.Dim("# migrate another one with curl, and show the job"))
	line("  curl -sS $HUBRELAY_URL/v1/containers/shop/instances/shop-2/tasks -H \"Authorization: Bearer " +
		"$HUBRELAY_KEY\" \\")
	line("    -H \"X-Hub-Id: $HUBRELAY_HUB\" -H 'Content-Type: application/json' \\")
	line(`    -d '{"action":"migrate","value":{"destination_server_id":"server-3","stateful":{"copy_volumes":true}}}'`)
	line("  %[1]s jobs show \"$(%[1]s jobs list shop shop-2 | head -1)\"\n", term.ProgramName())
	line("  %s\n  %s inventory list\n", d.paint.Dim("# list all instances"), term.ProgramName())
}
