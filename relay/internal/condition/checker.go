package condition

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

// checker walks over an expression whose types are known. It remembers the first thing that is not allowed, and makes
// every loop pay for its passes.
type checker struct {
	firstError *Error
	location   file.Location
}

// Visit implements ast.Visitor; what stands below node has been visited.
func (g *checker) Visit(node *ast.Node) {
	before := g.firstError
	defer func() {
		if g.firstError != before {
			*node = &ast.NilNode{} // so that nobody makes an effort with it, such as writing out a range
		}
	}()
	switch n := (*node).(type) {
	case *ast.BuiltinNode:
		if !slices.Contains(allowedFunctions(), n.Name) {
			g.reject(n, fmt.Sprintf("there is no function %q", n.Name), functionHint(n.Name))
		}
	case *ast.IdentifierNode:
		if n.Value == "$env" {
			g.reject(n, "$env has no meaning here", "write topic, object or context")
		}
	case *ast.BinaryNode:
		g.binary(n)
	case *ast.MemberNode:
		if _, constant := n.Property.(*ast.StringNode); !constant && isStruct(n.Node.Type()) {
			g.reject(n, "a name must be written out here", "write object.state, or context.hub_id")
		}
	case *ast.MapNode:
		g.reject(n, "there are no maps here", "write lists: topic in [\"job.created\"]")
	case *ast.PredicateNode:
		g.addBudget(n)
	}
}

func (g *checker) binary(n *ast.BinaryNode) {
	switch n.Operator {
	case "..":
		g.reject(n, "there are no ranges here", "compare with < and >")
	case "in", "not in":
		if isStruct(n.Right.Type()) {
			g.reject(n, "only a list can be looked into", "write \"production\" in context.clusters")
		}
	case "matches":
		// Anything else would be a pattern that comes with the notification.
		if _, constant := n.Right.(*ast.StringNode); !constant {
			g.reject(n, "the pattern behind matches must be a text in quotes", "use contains, startsWith or endsWith for other values")
		}
	case "+":
		if !isNumber(n.Left.Type()) || !isNumber(n.Right.Type()) {
			g.reject(n, "only numbers can be added", "compare the parts one by one, with and")
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

// addBudget puts a call of spend in front of what a loop does in each pass.
func (g *checker) addBudget(n *ast.PredicateNode) {
	call := &ast.CallNode{
		Callee:    &ast.IdentifierNode{Value: spendName},
		Arguments: []ast.Node{&ast.IdentifierNode{Value: "(budget)"}},
	}
	n.Node = &ast.SequenceNode{Nodes: []ast.Node{call, n.Node}}
	for _, part := range []ast.Node{call, call.Callee, call.Arguments[0], n.Node} {
		part.SetLocation(n.Location())
	}
}

// reject keeps what stands first in the text.
func (g *checker) reject(n ast.Node, text, hint string) {
	if at := n.Location(); g.firstError == nil || at.From < g.location.From {
		g.firstError, g.location = &Error{Text: text, Hint: hint}, at
	}
}

func functionHint(name string) string {
	if near := relay.ClosestName(name, allowedFunctions()); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "there are " + strings.Join(allowedFunctions(), ", ")
}
