package command

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/durations"
)

// SetFirstNonEmpty sets value to the first choice that is not empty, unless it is set already.
func SetFirstNonEmpty(value *string, choices ...string) {
	for _, c := range choices {
		if *value == "" {
			*value = c
		}
	}
}

// FixTimeFlag replaces an age in the value of a flag by the time (RFC 3339), so all requests of a command select the same. An
// empty value stays empty.
func FixTimeFlag(cmd *cobra.Command, flag string, value *string) error {
	if *value == "" {
		return nil
	}
	at, err := ParseTimeFlag(flag, *value, time.Now())
	if err != nil {
		return NewUsageError(cmd, err)
	}
	*value = at.UTC().Format(time.RFC3339Nano)
	return nil
}

// ParseTimeFlag parses the value of a flag, an age or a time (RFC 3339).
func ParseTimeFlag(flag, text string, now time.Time) (time.Time, error) {
	if d, err := durations.Parse(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--%s %q is neither an age such as 2h nor a time such as 2026-11-20T08:00:00Z",
			flag, text)
	}
	return at, nil
}

// ReadFile reads a file of up to limit bytes, or standard input if the name is "-".
func ReadFile(std term.Streams, name string, limit int) ([]byte, error) {
	in := std.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, err
}

// RejectTogether returns a usage error if both flags are set.
func RejectTogether(cmd *cobra.Command, one, other string) error {
	if cmd.Flags().Changed(one) && cmd.Flags().Changed(other) {
		return NewUsageError(cmd, fmt.Errorf("use either --%s or --%s", one, other))
	}
	return nil
}
