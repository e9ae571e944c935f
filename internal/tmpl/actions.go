package tmpl

import (
	"errors"
	"reflect"
	"strconv"
	"text/template/parse"
	"time"
)

// The library calls each function by reflection, which costs more than what most of them do. So actions whose parts are
// all known when a template is parsed are called here. They stand in the tree as empty texts, which the output knows by
// their place in memory. Whatever goes wrong in one is said by the library, to which the whole is then given as it was
// written: there is one place that words errors.

// errUseLibrary says that a rendering has to be done again by the library alone.
var errUseLibrary = errors.New("has to be rendered by the library alone")

// action is a pipeline of commands, which shows a text.
type action []command

// command is a function with its arguments, to which what the command before it gives is added; or a value alone.
type command struct {
	function any
	args     []argument
}

// argument is a constant, a member of the data, or a pipeline in parentheses.
type argument struct {
	constant any
	member   []int
	inner    action
}

// actionMarkers are the actions of a template by the empty texts that stand for them.
type actionMarkers map[*byte]*parse.PipeNode

// replaceActions puts marks in place of the actions of a list for which the data is the dot.
func (m actionMarkers) replaceActions(list *parse.ListNode, functions map[string]any) {
	if list == nil {
		return
	}
	for i, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.IfNode:
			m.replaceActions(n.List, functions)
			m.replaceActions(n.ElseList, functions)
		case *parse.ActionNode:
			if _, gives := compileAction(n.Pipe, functions); gives == textType {
				mark := make([]byte, 1)
				m[&mark[0]] = n.Pipe
				list.Nodes[i] = &parse.TextNode{NodeType: parse.NodeText, Pos: n.Pos, Text: mark[:0]}
			}
		}
	}
}

// compile are the actions with the functions of one machine.
func (m actionMarkers) compile(functions map[string]any) map[*byte]action {
	all := make(map[*byte]action, len(m))
	for mark, pipe := range m {
		all[mark], _ = compileAction(pipe, functions)
	}
	return all
}

var textType = reflect.TypeFor[string]()

// compileAction also returns what type the pipeline gives, which is nil for one that is left to the library.
func compileAction(pipe *parse.PipeNode, functions map[string]any) (action, reflect.Type) {
	if len(pipe.Decl) > 0 || len(pipe.Cmds) == 0 {
		return nil, nil
	}
	var out action
	var gives reflect.Type
	for i, cmd := range pipe.Cmds {
		nodes := cmd.Args
		var c command
		if name, ok := nodes[0].(*parse.IdentifierNode); ok {
			if c.function = functions[name.Ident]; c.function == nil {
				return nil, nil
			}
			nodes = nodes[1:]
		} else if i > 0 || len(nodes) > 1 {
			return nil, nil
		}
		types := make([]reflect.Type, 0, len(nodes)+1)
		for _, node := range nodes {
			arg, t := compileArgument(node, functions)
			if t == nil {
				return nil, nil
			}
			c.args, types = append(c.args, arg), append(types, t)
		}
		if i > 0 {
			types = append(types, gives)
		}
		if c.function == nil {
			gives = types[0]
		} else if gives = resultType(c.function, types); gives == nil {
			return nil, nil
		}
		out = append(out, c)
	}
	return out, gives
}

func compileArgument(node parse.Node, functions map[string]any) (argument, reflect.Type) {
	switch n := node.(type) {
	case *parse.StringNode:
		return argument{constant: n.Text}, textType
	case *parse.NumberNode:
		if i, err := strconv.Atoi(n.Text); err == nil && n.IsInt && n.Text == strconv.Itoa(i) {
			return argument{constant: i}, reflect.TypeFor[int]()
		}
	case *parse.PipeNode:
		inner, gives := compileAction(n, functions)
		return argument{inner: inner}, gives
	case *parse.FieldNode:
		t, at := reflect.TypeFor[Data](), []int(nil)
		for _, name := range n.Ident {
			if t.Kind() != reflect.Struct {
				return argument{}, nil
			}
			f, ok := t.FieldByName(name)
			if !ok || !f.IsExported() {
				return argument{}, nil
			}
			t, at = f.Type, append(at, f.Index...)
		}
		switch t {
		case textType, reflect.TypeFor[time.Time](), reflect.TypeFor[[]string]():
			return argument{member: at}, t
		}
	}
	return argument{}, nil
}

// resultType is what type a function gives for such arguments; nil where invoke or the function does not take them.
func resultType(function any, args []reflect.Type) reflect.Type {
	switch function.(type) {
	case func(string) (string, error), func(any) (string, error), func(string, any) (string, error),
		func(string, ...any) (string, error), func(...any) (string, error), func(int, string) (string, error),
		func(string, string, string) (string, error), func(string, time.Time) (string, error),
		func(string, time.Time) (time.Time, error), func(any, ...any) any:
	default:
		return nil
	}
	t := reflect.TypeOf(function)
	fixed := t.NumIn()
	if t.IsVariadic() {
		fixed--
	}
	if len(args) < fixed || len(args) > fixed && !t.IsVariadic() {
		return nil
	}
	for i, arg := range args {
		// What follows the fixed ones is any for all that are called here.
		if i < fixed && !arg.AssignableTo(t.In(i)) {
			return nil
		}
	}
	if gives := t.Out(0); gives.Kind() != reflect.Interface {
		return gives
	}
	for _, arg := range args {
		if arg != args[0] {
			return nil
		}
	}
	return args[0] // one of the arguments is given back
}

// writeAction writes what an action gives.
func (r *rendering) writeAction(a action) (err error) {
	defer func() {
		if recover() != nil {
			err = errUseLibrary
		}
	}()
	v, err := r.evalAction(a)
	switch text, ok := v.(string); {
	case isRetryable(err):
		return err
	case err != nil || !ok:
		return errUseLibrary
	default:
		r.out.add(text)
	}
	return nil
}

func (r *rendering) evalAction(a action) (v any, err error) {
	for i, c := range a {
		before := len(r.args)
		for _, arg := range c.args {
			one := arg.constant
			switch {
			case arg.inner != nil:
				if one, err = r.evalAction(arg.inner); err != nil {
					return nil, err
				}
			case arg.member != nil:
				one = reflect.ValueOf(r.data).Elem().FieldByIndex(arg.member).Interface()
			}
			r.args = append(r.args, one)
		}
		if i > 0 {
			r.args = append(r.args, v)
		}
		args := r.args[before:]
		if c.function == nil {
			v = args[0]
		} else {
			v, err = callFunction(c.function, args)
		}
		clear(args)
		if r.args = r.args[:before]; err != nil {
			return nil, err
		}
	}
	return v, nil
}

// callFunction calls a function with arguments that givenBy has found to fit.
func callFunction(function any, args []any) (any, error) {
	switch f := function.(type) {
	case func(string) (string, error):
		return toAny(f(convertTo[string](args[0])))
	case func(any) (string, error):
		return toAny(f(args[0]))
	case func(string, any) (string, error):
		return toAny(f(convertTo[string](args[0]), args[1]))
	case func(string, ...any) (string, error):
		return toAny(f(convertTo[string](args[0]), args[1:]...))
	case func(...any) (string, error):
		return toAny(f(args...))
	case func(int, string) (string, error):
		return toAny(f(convertTo[int](args[0]), convertTo[string](args[1])))
	case func(string, string, string) (string, error):
		return toAny(f(convertTo[string](args[0]), convertTo[string](args[1]), convertTo[string](args[2])))
	case func(string, time.Time) (string, error):
		return toAny(f(convertTo[string](args[0]), convertTo[time.Time](args[1])))
	case func(string, time.Time) (time.Time, error):
		return toAny(f(convertTo[string](args[0]), convertTo[time.Time](args[1])))
	case func(any, ...any) any:
		return f(args[0], args[1:]...), nil
	}
	return nil, errUseLibrary
}

func toAny[T any](v T, err error) (any, error) { return v, err }

// convertTo is the type that givenBy has seen.
func convertTo[T any](v any) T {
	t, _ := v.(T)
	return t
}
