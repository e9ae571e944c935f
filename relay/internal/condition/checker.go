package condition

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"

	"github.com/hubrelay/hubrelay/internal/suggest"
)

// chargeName cannot be written in an expression.
const chargeName = "(charge)"

// checker visits a typed expression. It records the first error and adds a charge to each iteration of a loop.
type checker struct {
	firstError *Error
	location   file.Location
}

// Visit implements ast.Visitor. The children of node are visited before.
func (c *checker) Visit(node *ast.Node) {
	before := c.firstError
	defer func() {
		if c.firstError != before {
			*node = &ast.NilNode{} // prevents later passes from expanding it, such as a range
		}
	}()
	switch n := (*node).(type) {
	case *ast.BuiltinNode:
		if !slices.Contains(allowedFunctions(), n.Name) {
			c.rejectNode(n, fmt.Sprintf("there is no function %q", n.Name), functionHint(n.Name))
		}
	case *ast.IdentifierNode:
		if n.Value == "$env" {
			c.rejectNode(n, "$env is not supported", "write topic, object or context")
		}
	case *ast.BinaryNode:
		c.checkBinary(n)
	case *ast.MemberNode:
		if _, constant := n.Property.(*ast.StringNode); !constant && isStruct(n.Node.Type()) {
			c.rejectNode(n, "the name of a member must be literal", "write object.state, or context.hub_id")
		}
	case *ast.MapNode:
		c.rejectNode(n, "maps are not supported", "write lists: topic in [\"job.created\"]")
	case *ast.PredicateNode:
		c.addBudget(n)
	}
}

func (c *checker) checkBinary(n *ast.BinaryNode) {
	switch n.Operator {
	case "..":
		c.rejectNode(n, "ranges are not supported", "compare with < and >")
	case "in", "not in":
		if isStruct(n.Right.Type()) {
			c.rejectNode(n, "in requires a list", "write \"production\" in context.clusters")
		}
	case "matches":
		// Other patterns could come from the notification.
		if _, constant := n.Right.(*ast.StringNode); !constant {
			c.rejectNode(n, "the pattern after matches must be a text in quotes",
				"use contains, startsWith or endsWith for other values")
		}
	case "+":
		if !isNumber(n.Left.Type()) || !isNumber(n.Right.Type()) {
			c.rejectNode(n, "only numbers can be added", "compare the parts one by one, with and")
		}
	}
}

// isNumber returns false for types that are known only at run time.
func isNumber(t reflect.Type) bool {
	return t != nil && (t.Kind() == reflect.Int || t.Kind() == reflect.Float64)
}

func isStruct(t reflect.Type) bool {
	return t != nil && (t.Kind() == reflect.Struct || t.Kind() == reflect.Pointer)
}

// addBudget inserts a call of chargeIteration before the body of a loop.
func (c *checker) addBudget(n *ast.PredicateNode) {
	call := &ast.CallNode{
		Callee:    &ast.IdentifierNode{Value: chargeName},
		Arguments: []ast.Node{&ast.IdentifierNode{Value: "(budget)"}, &ast.BoolNode{Value: isSearch(n.Node)}},
	}
	n.Node = &ast.SequenceNode{Nodes: []ast.Node{call, n.Node}}
	for _, part := range []ast.Node{call, call.Callee, call.Arguments[0], call.Arguments[1], n.Node} {
		part.SetLocation(n.Location())
	}
}

// isSearch reports whether the body of a loop contains another loop, or an operation whose time depends on a member of the
// notification or on a variable, which may contain one.
func isSearch(body ast.Node) bool {
	return containsNode(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.PredicateNode:
			return true
		case *ast.BuiltinNode:
			return containsNode(n, isMember)
		case *ast.BinaryNode:
			switch n.Operator {
			case "in", "not in", "contains", "matches":
				return containsNode(n, isMember)
			case "==", "!=", "<", ">", "<=", ">=": // takes no longer than reading the shorter value
				return containsNode(n.Left, isMember) && containsNode(n.Right, isMember)
			}
		}
		return false
	})
}

func isMember(n ast.Node) bool {
	identifier, ok := n.(*ast.IdentifierNode)
	return ok && !strings.HasPrefix(identifier.Value, "(")
}

// containsNode reports whether a node or one of its children has a property.
func containsNode(n ast.Node, has func(ast.Node) bool) bool {
	f := nodeFinder{has: has}
	ast.Walk(&n, &f)
	return f.found
}

type nodeFinder struct {
	has   func(ast.Node) bool
	found bool
}

// Visit implements ast.Visitor.
func (f *nodeFinder) Visit(node *ast.Node) { f.found = f.found || f.has(*node) }

// rejectNode records the first error in the text.
func (c *checker) rejectNode(n ast.Node, text, hint string) {
	if location := n.Location(); c.firstError == nil || location.From < c.location.From {
		c.firstError, c.location = &Error{Text: text, Hint: hint}, location
	}
}

func functionHint(name string) string {
	if near := suggest.ClosestName(name, allowedFunctions()); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "the functions are " + strings.Join(allowedFunctions(), ", ")
}
