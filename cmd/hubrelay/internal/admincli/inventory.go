package admincli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

func newInventory(std term.Streams) *cobra.Command {
	cmd := command.NewGroup("inventory", "Show and change servers and container instances",
		newInventoryImport(std), newInventoryList(std), newInventoryAgents(std))
	cmd.Long = `Shows and changes the servers and container instances of a running relay. Migrations move instances
between these servers. The relay must have a driver in migration.driver of its configuration.

` + adminHelp
	return cmd
}

// summarizeChanges returns the changes, such as "servers 2 added, 1 removed". Without changes it returns "".
func summarizeChanges(c adminapi.ChangeCount, kind string) string {
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
	return kind + " " + strings.Join(parts, ", ")
}

func newInventoryImport(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Replace the containers and instances with those in a file",
		Long: `Replaces the containers and instances of all nodes with the ones in a file, and removes all others. The
file is YAML or JSON; see configs/inventory.yaml. Only migration.inventory_file of the relay defines servers, so
leave out the section clusters, or copy it from there.

An instance that was migrated stays on its server until the file names this server or the server is removed. During a
migration, an import is rejected if it removes or moves an instance of the same container.`,
		Example: "  hubrelay inventory import inventory.yaml",
		Args:    command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importInventory(cmd.Context(), std, &f, args[0])
		},
	}
	f.register(cmd, std)
	return cmd
}

func importInventory(ctx context.Context, std term.Streams, f *adminFlags, file string) error {
	data, err := daemon.ReadImport(file) // read here, so problems name the file
	if err != nil {
		return command.PrintProblems(std, err)
	}
	return callAndPrint(ctx, std, f, adminapi.ImportInventory(), adminapi.InventoryFile(data),
		func(done adminapi.InventoryChanges) error { return printImport(std, done) })
}

func printImport(std term.Streams, done adminapi.InventoryChanges) error {
	if !done.Changed {
		_, err := fmt.Fprintln(std.Out, "nothing was changed: the inventory is already up to date")
		return err
	}
	var parts []string
	for _, words := range []string{
		summarizeChanges(done.Servers, "servers"), summarizeChanges(done.Containers, "containers"),
		summarizeChanges(done.Instances, "instances"),
	} {
		if words != "" {
			parts = append(parts, words)
		}
	}
	if done.MovesCleared > 0 {
		parts = append(parts, term.Pluralize(done.MovesCleared, "recorded move")+" deleted")
	}
	_, err := fmt.Fprintln(std.Out, "imported: "+strings.Join(parts, "; "))
	return err
}

func newInventoryList(std term.Streams) *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List servers and container instances",
		Long: `Lists the clusters with their servers, and the containers with the current servers of their instances. If
a migration moved an instance, its note shows the server in the inventory file.

--json prints a line for each server and each container, with "kind".`,
		Example: `  hubrelay inventory list
  hubrelay inventory list --json | jq 'select(.kind == "container") | .instances[]'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return listInventory(cmd.Context(), std, &f) },
	}
	f.register(cmd, std)
	return cmd
}

func listInventory(ctx context.Context, std term.Streams, f *adminFlags) error {
	inventory, err := connectAndCall(ctx, std, f, adminapi.ListInventory(), adminapi.Empty{})
	if err != nil {
		return err
	}
	if inventory.DriverError != "" {
		_, _ = fmt.Fprintln(std.Err, "the driver is not ready, and migrations wait for it: "+
			term.Sanitize(inventory.DriverError))
	}
	if !f.IsTable() {
		return writeInventory(f.NewList(std.Out), &inventory)
	}
	if len(inventory.Servers) == 0 {
		_, err := fmt.Fprintln(std.Out,
			"the inventory is empty: define servers in migration.inventory_file of the relay")
		return err
	}
	return printInventory(std, &inventory)
}

func writeInventory(list *command.ListWriter, i *adminapi.Inventory) error {
	for _, s := range i.Servers {
		if err := list.Write(struct {
			Kind string `json:"kind"`
			adminapi.Server
		}{"server", s}); err != nil {
			return err
		}
	}
	for _, c := range i.Containers {
		if err := list.Write(struct {
			Kind string `json:"kind"`
			adminapi.Container
		}{"container", c}); err != nil {
			return err
		}
	}
	return list.Close()
}

func printInventory(std term.Streams, i *adminapi.Inventory) error {
	paint := term.NewPalette(std.Out, std.Env)
	clusters := map[string]string{} // by server
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
			rows = []adminapi.Instance{{}}
		}
		for _, one := range rows {
			instances = append(instances, []string{
				term.Sanitize(c.ID), orDash(one.ID), orDash(one.ServerID), orDash(clusters[one.ServerID]), term.Sanitize(
					c.HubID), orDash(describeMove(one)),
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

// describeMove describes a migration of the instance.
func describeMove(i adminapi.Instance) string {
	switch {
	case i.JobID != "":
		return "migrating (job " + i.JobID + ")"
	case i.MovedFrom != "":
		return "moved; on " + i.MovedFrom + " in the file"
	}
	return ""
}
