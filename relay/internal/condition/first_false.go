package condition

import (
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"

	"github.com/hubrelay/hubrelay/relay"
)

// FirstFalse returns the first operand of the conjunction in text that is false for an envelope, or all of text if it is no
// conjunction: "a and b and c" is false because of b. It returns "" if the condition is true or fails.
func FirstFalse(text string, e *relay.Envelope) string {
	tree, err := parser.Parse(text)
	if err != nil {
		return ""
	}
	for _, part := range listOperands(tree.Node) {
		condition, err := Compile(part.String())
		if err != nil || condition == nil {
			return text // a part that uses a variable cannot be compiled alone
		}
		passes, err := condition(e)
		if err != nil {
			return ""
		}
		if !passes {
			return part.String()
		}
	}
	return ""
}

// listOperands returns the operands of a conjunction.
func listOperands(node ast.Node) []ast.Node {
	if b, ok := node.(*ast.BinaryNode); ok && (b.Operator == "and" || b.Operator == "&&") {
		return append(listOperands(b.Left), listOperands(b.Right)...)
	}
	return []ast.Node{node}
}
