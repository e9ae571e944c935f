package term

import (
	"io"
	"strings"
)

// Streams are the standard streams and the environment of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Env      []string
}

// Getenv returns the value of an environment variable, or "" if it is not set.
func (s Streams) Getenv(name string) string {
	for _, v := range s.Env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
