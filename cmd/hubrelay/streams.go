package main

import (
	"io"
	"strings"
)

// streams is what a command sees of the outside world.
type streams struct {
	in       io.Reader
	out, err io.Writer
	env      []string
}

// getenv returns the value of an environment variable, empty where it is not set.
func (s streams) getenv(name string) string {
	for _, v := range s.env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
