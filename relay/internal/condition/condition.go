// Package condition compiles the expression in a sink's `when` into a [relay.Condition], which is true or false
// for a notification.
//
// The language is a subset of github.com/expr-lang/expr. It has no functions with side effects, no access to the
// time, and none whose result is larger than the arguments. The allowed functions are listed explicitly, so a new
// version of the library adds nothing.
//
// Every evaluation ends, whatever a notification contains: the size of the text and the number of nodes are
// limited, and the iterations of loops are counted. Everything else takes time proportional to the
// notification, whose size ingest limits.
//
// Sinks, the configuration and the handling of failures do not belong here.
package condition

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/vm"

	"github.com/hubrelay/hubrelay/relay"
)

// Limits of an expression.
const (
	maxText  = 4096 // bytes
	maxNodes = 1000
)

// Error describes what is wrong with an expression, and the position.
type Error struct {
	// Line and Column are the position in the expression in characters, from 1. They are 0 for the whole expression.
	Line, Column int
	// Text describes the problem. Hint is advice and may be empty.
	Text, Hint string
}

// Place returns the position for people. It is empty for the whole expression.
func (e *Error) Place() string {
	switch e.Line {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("column %d of the expression", e.Column)
	}
	return fmt.Sprintf("line %d, column %d of the expression", e.Line, e.Column)
}

func (e *Error) Error() string {
	s := e.Text
	if at := e.Place(); at != "" {
		s = at + ": " + s
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Compile compiles an expression into a condition. It returns nil for an empty expression, and an [*Error] for an
// invalid one. The condition may be called concurrently. Its errors are [*Error] values too, and contain nothing
// of the notification.
func Compile(text string) (relay.Condition, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if len(text) > maxText {
		return nil, &Error{Text: fmt.Sprintf("is longer than %d bytes", maxText)}
	}
	if !utf8.ValidString(text) {
		return nil, &Error{Text: "is not UTF-8 text"}
	}
	program, err := compileProgram(text)
	if err != nil {
		return nil, err
	}
	runs := &sync.Pool{New: func() any { return &evaluation{} }}
	return func(e *relay.Envelope) (bool, error) {
		r, ok := runs.Get().(*evaluation)
		if !ok {
			r = &evaluation{}
		}
		defer runs.Put(r)
		return r.evaluate(program, e)
	}, nil
}

// compileProgram recovers from panics of the compiler, because a configuration file must not crash the daemon.
func compileProgram(text string) (program *vm.Program, err error) {
	defer func() {
		if recover() != nil {
			program, err = nil, &Error{Text: "cannot be compiled", Hint: "simplify the expression"}
		}
	}()
	g := &checker{}
	program, err = expr.Compile(text,
		expr.Env(&environment{}), expr.AsBool(), expr.WarnOnAny(), expr.MaxNodes(maxNodes),
		expr.Function(chargeName, chargeIteration, new(func(*evalBudget, bool) bool)), expr.Patch(g))
	if g.firstError != nil {
		setLocation(g.firstError, text, g.location.From)
		return nil, g.firstError
	}
	if err != nil {
		return nil, translateError(text, err)
	}
	return program, nil
}

// setLocation sets line and column from an offset in characters.
func setLocation(e *Error, text string, offset int) {
	at := (&file.Error{Location: file.Location{From: offset}}).Bind(file.NewSource(text))
	e.Line, e.Column = at.Line, at.Column+1
}

// evaluation is the working memory of an evaluation. It is reused.
type evaluation struct {
	machine vm.VM
	env     environment
	budget  evalBudget
}

func (ev *evaluation) evaluate(program *vm.Program, e *relay.Envelope) (bool, error) {
	ev.env.fill(e)
	ev.env.Budget, ev.budget = &ev.budget, evalBudget{envelope: e}
	ev.machine.MemoryBudget = conf.DefaultMemoryBudget
	result, err := ev.machine.Run(program, &ev.env)
	ev.env, ev.budget = environment{}, evalBudget{}
	if err != nil {
		return false, evalError(err)
	}
	passes, ok := result.(bool)
	if !ok {
		return false, &Error{Text: "the result is neither true nor false"}
	}
	return passes, nil
}

// evalError converts an error of an evaluation. It omits the excerpt and the stack that the library adds.
func evalError(err error) error {
	for _, own := range []error{errIterations, errSearched, errBudget} {
		if errors.Is(err, own) {
			return &Error{Text: own.Error()}
		}
	}
	f := &Error{Text: "failed"}
	var at *file.Error
	if errors.As(err, &at) {
		f.Line, f.Column = at.Line, at.Column+1
		f.Text = "failed: " + runtimeMessage(at.Message)
	}
	return f
}
