package tmpl

import (
	"slices"
	"text/template/parse"
)

// The names of internal functions. Templates cannot call them, because they are defined after parsing.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
	// These two replace methods of time.Time that have no limits. Errors show the names.
	formatName       = "Format"
	appendFormatName = "AppendFormat"
)

// addLimits adds a step to every loop, because text/template does not limit loops. If templates call each other, it
// also adds enter and leave to every template. With everyNode, it adds a step after every node, which finds the node at
// which an output became too long.
func addLimits(trees []*parse.Tree, everyNode bool) {
	calls := slices.ContainsFunc(trees, func(t *parse.Tree) bool { return callsTemplate(t.Root) })
	for _, tree := range trees {
		addSteps(tree.Root, everyNode)
		if calls {
			wrapTemplate(tree)
		}
	}
}

// callsTemplate reports whether list contains a template call.
func callsTemplate(list *parse.ListNode) bool {
	if list == nil {
		return false
	}
	return slices.ContainsFunc(list.Nodes, func(node parse.Node) bool {
		switch n := node.(type) {
		case *parse.TemplateNode:
			return true
		case *parse.IfNode:
			return callsTemplate(n.List) || callsTemplate(n.ElseList)
		case *parse.WithNode:
			return callsTemplate(n.List) || callsTemplate(n.ElseList)
		case *parse.RangeNode:
			return callsTemplate(n.List) || callsTemplate(n.ElseList)
		}
		return false
	})
}

func wrapTemplate(tree *parse.Tree) {
	first, last := parse.Pos(0), parse.Pos(0)
	if n := len(tree.Root.Nodes); n > 0 {
		first, last = tree.Root.Nodes[0].Position(), tree.Root.Nodes[n-1].Position()
	}
	nodes := append([]parse.Node{callNode(enterName, first)}, tree.Root.Nodes...)
	tree.Root.Nodes = append(nodes, callNode(leaveName, last))
}

func addSteps(list *parse.ListNode, everywhere bool) {
	if list == nil {
		return
	}
	var nodes []parse.Node
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			replaceMethods(n.Pipe)
		case *parse.TemplateNode:
			replaceMethods(n.Pipe)
		case *parse.IfNode:
			replaceMethods(n.Pipe)
			addSteps(n.List, everywhere)
			addSteps(n.ElseList, everywhere)
		case *parse.WithNode:
			replaceMethods(n.Pipe)
			addSteps(n.List, everywhere)
			addSteps(n.ElseList, everywhere)
		case *parse.RangeNode:
			replaceMethods(n.Pipe)
			addSteps(n.List, everywhere)
			n.List.Nodes = append([]parse.Node{callNode(stepName, n.Pos)}, n.List.Nodes...)
			addSteps(n.ElseList, everywhere)
		}
		nodes = append(nodes, node)
		if everywhere {
			nodes = append(nodes, callNode(stepName, node.Position()))
		}
	}
	list.Nodes = nodes
}

// callNode returns a node that calls a function without output. It declares a variable, because html/template accepts
// declarations in every context. Templates cannot use the variable, because its name is invalid.
func callNode(name string, at parse.Pos) parse.Node {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: at, Pipe: &parse.PipeNode{
		NodeType: parse.NodePipe, Pos: at,
		Decl: []*parse.VariableNode{{NodeType: parse.NodeVariable, Pos: at, Ident: []string{"$(" + name + ")"}}},
		Cmds: []*parse.CommandNode{{
			NodeType: parse.NodeCommand, Pos: at, Args: []parse.Node{parse.NewIdentifier(name).SetPos(at)},
		}},
	}}
}

// replaceMethods replaces calls of methods without limits by calls of internal functions.
func replaceMethods(pipe *parse.PipeNode) {
	if pipe == nil {
		return
	}
	for i, cmd := range pipe.Cmds {
		for _, arg := range cmd.Args {
			if chain, ok := arg.(*parse.ChainNode); ok {
				arg = chain.Node
			}
			if inner, ok := arg.(*parse.PipeNode); ok {
				replaceMethods(inner)
			}
		}
		// Without an argument it is a member of a decoded object, or an error.
		if receiver, name := splitMethod(cmd.Args[0]); receiver != nil && (i > 0 || len(cmd.Args) > 1) {
			function := parse.NewIdentifier(name).SetPos(cmd.Args[0].Position())
			cmd.Args = append([]parse.Node{function, receiver}, cmd.Args[1:]...)
		}
	}
}

// splitMethod splits node into the receiver and the name of a method to replace. The receiver is nil if node is not
// such a method.
func splitMethod(node parse.Node) (receiver parse.Node, name string) {
	var names []string
	switch n := node.(type) {
	case *parse.FieldNode:
		names = n.Ident
	case *parse.VariableNode:
		names = n.Ident[1:]
	case *parse.ChainNode:
		names = n.Field
	}
	last := len(names) - 1
	if last < 0 || names[last] != formatName && names[last] != appendFormatName {
		return nil, ""
	}
	switch n := node.(type) {
	case *parse.FieldNode:
		if last == 0 {
			return &parse.DotNode{NodeType: parse.NodeDot, Pos: n.Pos}, names[last]
		}
		rest := *n
		rest.Ident = names[:last]
		receiver = &rest
	case *parse.VariableNode:
		rest := *n
		rest.Ident = n.Ident[:last+1]
		receiver = &rest
	case *parse.ChainNode:
		if last == 0 {
			return n.Node, names[last]
		}
		rest := *n
		rest.Field = names[:last]
		receiver = &rest
	}
	return receiver, names[last]
}
