package document_test

import (
	"fmt"

	"github.com/hubrelay/hubrelay/relay/document"
)

func ExampleReporter() {
	r := &document.Reporter{File: "inventory.yaml"}
	root := r.Parse([]byte("servers:\n  a: {path: /srv}\nserver: 2\n"), document.Position{Line: 1, Column: 1})
	for _, e := range root.Entries {
		if e.Key != "servers" {
			r.ErrorAt(e.At, e.Key, "unknown key", document.DidYouMean(e.Key, []string{"servers"}))
		}
	}
	fmt.Println(document.Problems(document.Sorted(r.Problems)))
	// Output: inventory.yaml:3:1: server: unknown key; did you mean "servers"?
}
