package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

// Each operation of the admin API has a command with its name: "sinks.pause" is "hubrelay sinks pause". If a group has only one
// operation, the command may be the group.
func TestCommands_OperationsHaveTheirName(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "hubrelay"}
	root.AddCommand(Commands(term.Streams{}, Build{})...)
	others := map[string]string{
		"session.show":   "the commands use it to explain a missing role",
		"jobs.create":    "hubrelay migrate uses the public API",
		"config.show":    "only for the console; hubrelay config print reads the file",
		"config.version": "only for the console",
	}
	operations := make(map[string]int) // by group
	for _, op := range adminapi.Operations() {
		group, _, _ := strings.Cut(op.Describe().Name, ".")
		operations[group]++
	}
	for _, op := range adminapi.Operations() {
		name := op.Describe().Name
		group, _, _ := strings.Cut(name, ".")
		path := strings.ReplaceAll(name, ".", " ")
		cmd, rest, err := root.Find(strings.Fields(path))
		found := err == nil && (len(rest) == 0 || operations[group] == 1 && cmd.Name() == group && cmd.Runnable())
		switch reason := others[name]; {
		case !found && reason == "":
			t.Errorf("there is no command 'hubrelay %s' for the operation %s: add it, or a reason to this test", path, name)
		case found && reason != "":
			t.Errorf("there is a command for the operation %s: remove the reason %q from this test", name, reason)
		}
	}
}
