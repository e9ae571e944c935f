// Package admincli contains the commands that use the admin API of a running relay, and print its responses.
package admincli

import (
	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// Commands returns the commands, except the one of [NewJobsCancel]. keysNew and sinksExplain need no running relay; they
// become part of the groups keys and sinks.
func Commands(std term.Streams, keysNew, sinksExplain *cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		newStatus(std), newNodes(std), newConsole(std), newSinks(std, sinksExplain), newSources(std), newConnections(std), newStreams(std),
		newAudit(std), newAccounts(std), newEvents(std), newDeliveries(std), newDeadLetters(std), newQuarantine(std),
		newInventory(std), newKeys(std, keysNew),
	}
}
