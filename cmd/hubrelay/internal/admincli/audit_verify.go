package admincli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/hashchain"
)

// auditResult is the JSON output of `hubrelay audit verify`.
type auditResult struct {
	Lines          int64  `json:"lines"`
	Unprotected    int64  `json:"unprotected_lines"`
	BrokenLine     int64  `json:"broken_line,omitempty"`
	Reason         string `json:"reason,omitempty"`
	PreviousSHA256 string `json:"previous_sha256"`
	LastSHA256     string `json:"last_sha256"`
}

func newAuditVerify(std term.Streams) *cobra.Command {
	var output command.Output
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check the hash chain of an audit file",
		Long: `Checks whether lines of an audit file were changed, inserted or removed since they were written with
audit.hash_chain. The chain cannot show that its last lines were removed: keep the hash that the command prints elsewhere,
and compare it. If the first line continues an earlier file, the command also prints the hash that the last line of that
file must have. Name the files of a rotation in their order, the oldest first.

The exit status is 1 if the chain is broken, or if no line has a hash.`,
		Example: `  hubrelay audit verify /var/log/hubrelay/audit.log
  hubrelay audit verify audit.log.2 audit.log.1 audit.log --json`,
		Args: command.NamedArgs(1, math.MaxInt),
		RunE: func(_ *cobra.Command, files []string) error {
			result, err := verifyAuditFiles(files)
			if err != nil {
				return err
			}
			return printAuditResult(std, &output, result)
		},
	}
	output.Register(cmd.Flags())
	return cmd
}

func verifyAuditFiles(names []string) (hashchain.Result, error) {
	var readers []io.Reader
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return hashchain.Result{}, err
		}
		defer func() { _ = file.Close() }()
		readers = append(readers, file)
	}
	return hashchain.Verify(io.MultiReader(readers...))
}

func printAuditResult(std term.Streams, o *command.Output, r hashchain.Result) error {
	var broken error
	out := auditResult{
		Lines: r.Lines, Unprotected: r.Unprotected, PreviousSHA256: r.PreviousSHA256, LastSHA256: r.LastSHA256,
	}
	if r.Broken != nil {
		out.BrokenLine, out.Reason = r.Broken.Line, string(r.Broken.Reason)
		broken = fmt.Errorf("the chain is broken at line %d: %s", out.BrokenLine, out.Reason)
	} else if r.Lines == 0 {
		broken = errors.New("there is no line: the file is new, or its lines were removed")
	} else if r.Unprotected == r.Lines {
		broken = errors.New("no line has a hash: audit.hash_chain was not set, or the hashes were removed")
	}
	if !o.IsTable() {
		return errors.Join(o.Print(std.Out, out), broken)
	}
	if broken != nil {
		return broken
	}
	text := fmt.Sprintf("%d lines, the chain is intact\n", out.Lines)
	if out.Unprotected > 0 {
		text += fmt.Sprintf("the first %d lines have no hash: they were written before audit.hash_chain was set\n",
			out.Unprotected)
	}
	if out.PreviousSHA256 != "" && out.PreviousSHA256 != hashchain.Zero {
		text += "lines before the first one are in another file, or were removed: the hash of the last of them is " +
			out.PreviousSHA256 + "\n"
	}
	text += "last hash: " + out.LastSHA256 + "\n"
	_, err := io.WriteString(std.Out, text)
	return err
}
