package templates

import "text/template/parse"

// The names of functions that no template can write, since it is parsed before they are known.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
)

// instrument puts a step into every loop of a tree, since the library bounds no loop, and enter and leave around the
// whole. With everywhere there is a step behind every node, which tells the place where an output became too long.
func instrument(tree *parse.Tree, everywhere bool) {
	if tree == nil || tree.Root == nil {
		return
	}
	steps(tree.Root, everywhere)
	first, last := parse.Pos(0), parse.Pos(0)
	if n := len(tree.Root.Nodes); n > 0 {
		first, last = tree.Root.Nodes[0].Position(), tree.Root.Nodes[n-1].Position()
	}
	nodes := append([]parse.Node{call(enterName, first)}, tree.Root.Nodes...)
	tree.Root.Nodes = append(nodes, call(leaveName, last))
}

func steps(list *parse.ListNode, everywhere bool) {
	if list == nil {
		return
	}
	var nodes []parse.Node
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.IfNode:
			steps(n.List, everywhere)
			steps(n.ElseList, everywhere)
		case *parse.WithNode:
			steps(n.List, everywhere)
			steps(n.ElseList, everywhere)
		case *parse.RangeNode:
			steps(n.List, everywhere)
			n.List.Nodes = append([]parse.Node{call(stepName, n.Pos)}, n.List.Nodes...)
			steps(n.ElseList, everywhere)
		}
		nodes = append(nodes, node)
		if everywhere {
			nodes = append(nodes, call(stepName, node.Position()))
		}
	}
	list.Nodes = nodes
}

// call is a node that calls a function and shows nothing: the declaration of a variable whose name no template can write,
// which html/template leaves alone in every context.
func call(name string, at parse.Pos) parse.Node {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: at, Pipe: &parse.PipeNode{
		NodeType: parse.NodePipe, Pos: at,
		Decl: []*parse.VariableNode{{NodeType: parse.NodeVariable, Pos: at, Ident: []string{"$(" + name + ")"}}},
		Cmds: []*parse.CommandNode{{
			NodeType: parse.NodeCommand, Pos: at, Args: []parse.Node{parse.NewIdentifier(name).SetPos(at)},
		}},
	}}
}
