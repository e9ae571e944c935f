package when

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"

	"github.com/hubrelay/hubrelay/relay"
)

// spendName cannot be written in an expression.
const spendName = "(spend)"

// guard walks over an expression whose types are known. It remembers the first thing that is not allowed, and makes
// every loop pay for its passes.
type guard struct {
	bad *Error
	at  file.Location
}

// Visit implements ast.Visitor; what stands below node has been visited.
func (g *guard) Visit(node *ast.Node) {
	before := g.bad
	defer func() {
		if g.bad != before {
			*node = &ast.NilNode{} // so that nobody makes an effort with it, such as writing out a range
		}
	}()
	switch n := (*node).(type) {
	case *ast.BuiltinNode:
		if !slices.Contains(functions(), n.Name) {
			g.refuse(n, fmt.Sprintf("there is no function %q", n.Name), functionHint(n.Name))
		}
	case *ast.IdentifierNode:
		if n.Value == "$env" {
			g.refuse(n, "$env has no meaning here", "write topic, object or context")
		}
	case *ast.BinaryNode:
		g.binary(n)
	case *ast.MemberNode:
		if _, constant := n.Property.(*ast.StringNode); !constant && isStruct(n.Node.Type()) {
			g.refuse(n, "a name must be written out here", "write object.state, or context.hub_id")
		}
	case *ast.MapNode:
		g.refuse(n, "there are no maps here", "write lists: topic in [\"job.created\"]")
	case *ast.PredicateNode:
		g.meter(n)
	}
}

func (g *guard) binary(n *ast.BinaryNode) {
	switch n.Operator {
	case "..":
		g.refuse(n, "there are no ranges here", "compare with < and >")
	case "in", "not in":
		if isStruct(n.Right.Type()) {
			g.refuse(n, "only a list can be looked into", "write \"production\" in context.clusters")
		}
	case "matches":
		// Anything else would be a pattern that comes with the notification.
		if _, constant := n.Right.(*ast.StringNode); !constant {
			g.refuse(n, "the pattern behind matches must be a text in quotes", "use contains, startsWith or endsWith for other values")
		}
	case "+":
		if !isNumber(n.Left.Type()) || !isNumber(n.Right.Type()) {
			g.refuse(n, "only numbers can be added", "compare the parts one by one, with and")
		}
	}
}

// isNumber is false for what is known at run time only.
func isNumber(t reflect.Type) bool {
	return t != nil && (t.Kind() == reflect.Int || t.Kind() == reflect.Float64)
}

func isStruct(t reflect.Type) bool {
	return t != nil && (t.Kind() == reflect.Struct || t.Kind() == reflect.Pointer)
}

// meter puts a call of spend in front of what a loop does in each pass.
func (g *guard) meter(n *ast.PredicateNode) {
	call := &ast.CallNode{
		Callee:    &ast.IdentifierNode{Value: spendName},
		Arguments: []ast.Node{&ast.IdentifierNode{Value: "(budget)"}},
	}
	n.Node = &ast.SequenceNode{Nodes: []ast.Node{call, n.Node}}
	for _, part := range []ast.Node{call, call.Callee, call.Arguments[0], n.Node} {
		part.SetLocation(n.Location())
	}
}

// refuse keeps what stands first in the text.
func (g *guard) refuse(n ast.Node, text, hint string) {
	if at := n.Location(); g.bad == nil || at.From < g.at.From {
		g.bad, g.at = &Error{Text: text, Hint: hint}, at
	}
}

func functionHint(name string) string {
	if near := relay.Nearest(name, functions()); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "there are " + strings.Join(functions(), ", ")
}
