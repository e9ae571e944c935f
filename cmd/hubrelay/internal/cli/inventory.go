package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/spf13/cobra"
)

const inventoryPath = "/api/inventory"

func newInventory(std term.Streams) *cobra.Command {
	cmd := commandGroup("inventory", "See and set which servers and container instances there are",
		newInventoryImport(std), newInventoryList(std), newInventoryAgents(std))
	cmd.Long = `Shows the servers and container instances that a running daemon migrates between and moves, and sets them. The daemon must have
a driver under migration.driver in its configuration.

` + adminHelp
	return cmd
}

// changeInfo counts what an import has changed of one sort of things.
type changeInfo struct {
	Added, Changed, Removed int
}

// summaryText say what has changed, such as "servers 2 added, 1 removed"; nothing where nothing has.
func (c changeInfo) summaryText(of string) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Added, "added"}, {c.Changed, "changed"}, {c.Removed, "removed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return of + " " + strings.Join(parts, ", ")
}

func newInventoryImport(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make the inventory what a file says",
		Long: `Makes the containers and instances of all nodes what the file says, and removes what it does not name. The file is
YAML or JSON; configs/inventory.yaml shows it. Servers are defined by migration.inventory_file of the daemon alone: clusters must
say the same, or be left out.

An instance that a migration has moved stays where it is, until the file says the same or that server is gone. As long as a
migration is at work on an instance, an import that removes or moves an instance of the same container is refused.`,
		Example: "  hubrelay inventory import inventory.yaml",
		Args:    WithUsageErrors(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importInventory(cmd.Context(), std, &f, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

func importInventory(ctx context.Context, std term.Streams, f *adminFlags, file string) error {
	data, err := daemon.ReadImport(file) // problems name the file, which the daemon does not know
	if err != nil {
		return printProblems(std, err)
	}
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data json.RawMessage }
	if err := client.doRequest(ctx, http.MethodPut, inventoryPath, "application/yaml", data, &answer); err != nil {
		return err
	}
	if f.asJSON {
		return printRaw(std, answer.Data)
	}
	var done struct {
		Changed                        bool
		Servers, Containers, Instances changeInfo
		Forgotten                      int `json:"moves_forgotten"`
	}
	if err := readAnswer(answer.Data, &done); err != nil {
		return err
	}
	if !done.Changed {
		_, err := fmt.Fprintln(std.Out, "the inventory says the same already: nothing was changed")
		return err
	}
	var parts []string
	for _, words := range []string{
		done.Servers.summaryText("servers"), done.Containers.summaryText("containers"),
		done.Instances.summaryText("instances"),
	} {
		if words != "" {
			parts = append(parts, words)
		}
	}
	if done.Forgotten > 0 {
		parts = append(parts, term.Pluralize(done.Forgotten, "move")+" forgotten")
	}
	_, err = fmt.Fprintln(std.Out, "imported: "+strings.Join(parts, "; "))
	return err
}

// inventoryInfo is what the admin API says of the inventory.
type inventoryInfo struct {
	Servers     []serverInfo
	Containers  []containerInfo
	DriverError string `json:"driver_error"`
}

type serverInfo struct {
	ID        string   `json:"id"`
	Cluster   string   `json:"cluster"`
	Instances []string `json:"instances"`
}

type containerInfo struct {
	ID          string         `json:"id"`
	Hub         string         `json:"hub_id"`
	Account     string         `json:"account_id,omitempty"`
	Environment string         `json:"environment_id,omitempty"`
	Stateful    bool           `json:"stateful"`
	Instances   []instanceInfo `json:"instances"`
}

type instanceInfo struct {
	ID        string `json:"id"`
	Server    string `json:"server_id"`
	MovedFrom string `json:"moved_from,omitempty"`
	Job       string `json:"job_id,omitempty"`
}

func newInventoryList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the servers, and where the container instances are now",
		Long: `Lists the clusters with their servers, and the containers with where their instances are now. An instance that a
migration has moved is marked with the server that the inventory file names.

--json prints a line for each server and each container, with "kind".`,
		Example: `  hubrelay inventory list
  hubrelay inventory list --json | jq 'select(.kind == "container") | .instances[]'`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return listInventory(cmd.Context(), std, &f) },
	}
	f.register(cmd, std)
	return cmd
}

func listInventory(ctx context.Context, std term.Streams, f *adminFlags) error {
	client, err := f.newClient(std)
	if err != nil {
		return err
	}
	var answer struct{ Data inventoryInfo }
	if err := client.get(ctx, inventoryPath, nil, &answer); err != nil {
		return err
	}
	if trouble := answer.Data.DriverError; trouble != "" {
		_, _ = fmt.Fprintln(std.Err, "the driver cannot work, and migrations wait until it can: "+
			term.Sanitize(trouble))
	}
	if f.asJSON {
		return answer.Data.printJSON(std)
	}
	if len(answer.Data.Servers) == 0 {
		_, err := fmt.Fprintln(std.Out,
			"the inventory is empty: name servers in migration.inventory_file of the daemon")
		return err
	}
	return answer.Data.printTables(std)
}

func (i *inventoryInfo) printJSON(std term.Streams) error {
	enc := json.NewEncoder(std.Out)
	enc.SetEscapeHTML(false)
	for _, s := range i.Servers {
		if err := enc.Encode(struct {
			Kind string `json:"kind"`
			serverInfo
		}{"server", s}); err != nil {
			return err
		}
	}
	for _, c := range i.Containers {
		if err := enc.Encode(struct {
			Kind string `json:"kind"`
			containerInfo
		}{"container", c}); err != nil {
			return err
		}
	}
	return nil
}

func (i *inventoryInfo) printTables(std term.Streams) error {
	paint := term.NewPalette(std.Out, std.Env)
	clusters := map[string]string{} // of servers
	var servers, instances [][]string
	for _, s := range i.Servers {
		clusters[s.ID] = s.Cluster
		servers = append(servers, []string{
			term.Sanitize(s.ID), term.Sanitize(s.Cluster),
			term.FormatCount(int64(len(s.Instances))),
		})
	}
	for _, c := range i.Containers {
		rows := c.Instances
		if len(rows) == 0 {
			rows = []instanceInfo{{}}
		}
		for _, one := range rows {
			instances = append(instances, []string{
				term.Sanitize(c.ID), orDash(one.ID), orDash(one.Server), orDash(clusters[one.Server]), term.Sanitize(
					c.Hub), orDash(one.noteText()),
			})
		}
	}
	if err := term.PrintTable(std.Out, paint, []term.Column{
		{Title: "SERVER"},
		{Title: "CLUSTER"},
		{Title: "INSTANCES", Right: true},
	}, servers); err != nil {
		return err
	}
	if len(instances) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(std.Out); err != nil {
		return err
	}
	return term.PrintTable(std.Out, paint, []term.Column{
		{Title: "CONTAINER", MaxWidth: 40},
		{Title: "INSTANCE", MaxWidth: 40},
		{Title: "SERVER", MaxWidth: 40},
		{Title: "CLUSTER", MaxWidth: 20, DropOrder: 1},
		{Title: "HUB", MaxWidth: 24, DropOrder: 2},
		{Title: "NOTE"},
	}, instances)
}

// noteText says what is special about an instance.
func (i *instanceInfo) noteText() string {
	switch {
	case i.Job != "":
		return "migrating (job " + i.Job + ")"
	case i.MovedFrom != "":
		return "moved; the file says " + i.MovedFrom
	}
	return ""
}
