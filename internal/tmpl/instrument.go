package tmpl

import (
	"slices"
	"text/template/parse"
)

// The names of functions that no template can write, since it is parsed before they are known.
const (
	stepName  = "_step"
	enterName = "_enter"
	leaveName = "_leave"
	// These two take the place of methods of times, which nothing bounds, and are named in errors.
	formatName       = "Format"
	appendFormatName = "AppendFormat"
)

// addLimits puts a step into every loop of a tree, since the library bounds no loop, and enter and leave around the
// whole where templates call each other. With everywhere there is a step behind every node, which tells the place where
// an output became too long.
func addLimits(trees []*parse.Tree, everywhere bool) {
	calls := slices.ContainsFunc(trees, func(t *parse.Tree) bool { return callsTemplate(t.Root) })
	for _, tree := range trees {
		addSteps(tree.Root, everywhere)
		if calls {
			wrapTemplate(tree)
		}
	}
}

// callsTemplate tells whether a template is called in a list.
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

// callNode is a node that calls a function and shows nothing: the declaration of a variable whose name no template can write,
// which html/template leaves alone in every context.
func callNode(name string, at parse.Pos) parse.Node {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: at, Pipe: &parse.PipeNode{
		NodeType: parse.NodePipe, Pos: at,
		Decl: []*parse.VariableNode{{NodeType: parse.NodeVariable, Pos: at, Ident: []string{"$(" + name + ")"}}},
		Cmds: []*parse.CommandNode{{
			NodeType: parse.NodeCommand, Pos: at, Args: []parse.Node{parse.NewIdentifier(name).SetPos(at)},
		}},
	}}
}

// replaceMethods has calls of methods that nothing bounds go to functions of ours.
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
		// Without an argument it is the member of a decoded object, or a mistake.
		if of, name := takeMethod(cmd.Args[0]); of != nil && (i > 0 || len(cmd.Args) > 1) {
			function := parse.NewIdentifier(name).SetPos(cmd.Args[0].Position())
			cmd.Args = append([]parse.Node{function, of}, cmd.Args[1:]...)
		}
	}
}

// takeMethod takes such a method off what it is called on, which is nil where there is none.
func takeMethod(node parse.Node) (of parse.Node, name string) {
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
		of = &rest
	case *parse.VariableNode:
		rest := *n
		rest.Ident = n.Ident[:last+1]
		of = &rest
	case *parse.ChainNode:
		if last == 0 {
			return n.Node, names[last]
		}
		rest := *n
		rest.Field = names[:last]
		of = &rest
	}
	return of, names[last]
}
