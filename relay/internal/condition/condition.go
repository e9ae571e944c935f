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

// Bounds of an expression.
const (
	maxText  = 4096 // bytes
	maxNodes = 1000
)

// Error says what is wrong with an expression, and where.
type Error struct {
	// Line and Column are the place in the expression, in characters and counted from 1; 0 where all of it is meant.
	Line, Column int
	// Text says what is wrong; Hint says what to do about it and may be empty.
	Text, Hint string
}

// Place says where in the expression, for people; empty where all of it is meant.
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

// Compile checks an expression and its types and returns the condition that it stands for, nil for one that is empty.
// A mistake is an [*Error]. The condition may be called concurrently; its own errors are [*Error] too, one sentence,
// and hold nothing of the notification.
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
	program, err := compile(text)
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

// compile recovers because the compiler is somebody else's, and a configuration file must not crash the daemon.
func compile(text string) (program *vm.Program, err error) {
	defer func() {
		if recover() != nil {
			program, err = nil, &Error{Text: "cannot be understood", Hint: "write it in a simpler way"}
		}
	}()
	g := &checker{}
	program, err = expr.Compile(text,
		expr.Env(&environment{}), expr.AsBool(), expr.WarnOnAny(), expr.MaxNodes(maxNodes),
		expr.Function(spendName, chargeIteration, new(func(*evalBudget) bool)), expr.Patch(g))
	if g.firstError != nil {
		setLocation(g.firstError, text, g.location.From)
		return nil, g.firstError
	}
	if err != nil {
		return nil, translateError(text, err)
	}
	return program, nil
}

// setLocation fills in line and column of the character at an offset.
func setLocation(e *Error, text string, offset int) {
	at := (&file.Error{Location: file.Location{From: offset}}).Bind(file.NewSource(text))
	e.Line, e.Column = at.Line, at.Column+1
}

// evaluation is what one evaluation needs, used again by the next.
type evaluation struct {
	machine vm.VM
	env     environment
	budget  evalBudget
}

func (r *evaluation) evaluate(program *vm.Program, e *relay.Envelope) (bool, error) {
	r.env.fill(e)
	r.env.Budget, r.budget = &r.budget, evalBudget{}
	r.machine.MemoryBudget = conf.DefaultMemoryBudget
	result, err := r.machine.Run(program, &r.env)
	r.env = environment{}
	if err != nil {
		return false, evalError(err)
	}
	answer, ok := result.(bool)
	if !ok {
		return false, &Error{Text: "gave neither true nor false"}
	}
	return answer, nil
}

// evalError is the error of an evaluation without the library's excerpt and stack.
func evalError(err error) error {
	for _, own := range []error{errRounds, errTime, errBudget} {
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
