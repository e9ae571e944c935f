package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func newVersion(std term.Streams, build Build) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(std.Out).Encode(map[string]string{
					"version": build.Version,
					"go":      runtime.Version(),
				})
			}
			_, err := fmt.Fprintf(std.Out, "hubrelay %s (%s, %s/%s)\n", build.Version, runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON line")
	return cmd
}
