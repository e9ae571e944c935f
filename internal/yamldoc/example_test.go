package yamldoc_test

import (
	"fmt"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

func ExampleReporter() {
	r := &yamldoc.Reporter{File: "inventory.yaml"}
	root := r.Parse([]byte("servers:\n  a: {path: /srv}\nserver: 2\n"), yamldoc.Position{Line: 1, Column: 1})
	for _, e := range root.Entries {
		if e.Key != "servers" {
			r.ErrorAt(e.At, e.Key, "unknown key", yamldoc.DidYouMean(e.Key, []string{"servers"}))
		}
	}
	fmt.Println(yamldoc.Problems(yamldoc.Sorted(r.Problems)))
	// Output: inventory.yaml:3:1: server: unknown key; did you mean "servers"?
}
