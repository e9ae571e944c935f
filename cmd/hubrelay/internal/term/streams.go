package term

import (
	"io"
	"strings"
)

// Streams is what a command sees of the outside world.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Env      []string
}

// Getenv returns the value of an environment variable, empty where it is not set.
func (s Streams) Getenv(name string) string {
	for _, v := range s.Env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
