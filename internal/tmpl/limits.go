package tmpl

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// The limits of one rendering.
const (
	// MaxOutput bounds what a template renders, in bytes, and each text that one of its functions makes.
	MaxOutput = 1 << 20
	// maxOverflow bounds what is rendered behind that until somebody notices, which HTML takes long to escape.
	maxOverflow = 4 * MaxOutput
	// maxSteps bounds the passes of all loops and the calls of templates together.
	maxSteps = 50_000
	maxDepth = 100
	// maxWork bounds what all functions together read and write, in bytes.
	maxWork = 16 << 20
	// maxTime is a last resort, looked at now and then. It is generous, so that a machine that is busy fails nothing.
	maxTime = 20 * time.Second
)

var errTime = fmt.Errorf("took longer than %s", maxTime)

// limitError is a limit that the template itself exceeds, on every machine.
type limitError string

func (e limitError) Error() string { return string(e) }

// limits are those that take a while to reach, which tests lower.
type limits struct{ steps, work int }

// rendering is the budget of one rendering, which belongs to one goroutine.
type rendering struct {
	ctx       context.Context
	now       func() time.Time
	began     time.Time
	out       boundedOutput
	stepCount int
	depth     int
	workDone  int
	limits    limits
	cache     *compileCache
	clean     func(string) string // of the template's Options

	data    *Data
	actions map[*byte]action
	args    []any // of the functions that actions are calling
}

// reset gives the run a new budget.
func (r *rendering) reset(ctx context.Context, d *Data) {
	r.ctx, r.began, r.data = ctx, time.Now(), d
	r.stepCount, r.depth, r.workDone = 1, 0, 0 // the whole is a step
	r.args = r.args[:0]
	r.out.reset()
}

// Write is what the library writes to. It fails for actions, and far behind an output that is too long, where no loop has noticed: both
// are rendered once more, to tell the place.
func (r *rendering) Write(p []byte) (int, error) {
	if r.out.overflowBytes > maxOverflow {
		return 0, errOverflow
	}
	if len(p) == 0 && cap(p) > 0 {
		if a, ok := r.actions[&p[:1][0]]; ok {
			return 0, r.writeAction(a)
		}
	}
	if r.out.reserve(len(p)) {
		r.out.text = append(r.out.text, p...)
	}
	return len(p), nil
}

// boundedOutput keeps what was written up to MaxOutput, and says whether there was more.
type boundedOutput struct {
	text          []byte
	overflowed    bool
	overflowBytes int // bytes behind that
}

func (o *boundedOutput) reset() {
	if cap(o.text) > 64<<10 {
		o.text = nil // a large one is not kept for small ones
	}
	o.text, o.overflowed, o.overflowBytes = o.text[:0], false, 0
}

// reserve tells whether so much more may be added. More is no error where it is written, which would lose the place in the
// template; the next step knows.
func (o *boundedOutput) reserve(n int) bool {
	if o.overflowed = o.overflowed || len(o.text)+n > MaxOutput; o.overflowed {
		o.overflowBytes += n
	}
	return !o.overflowed
}

func (o *boundedOutput) add(text string) {
	if o.reserve(len(text)) {
		o.text = append(o.text, text...)
	}
}

var errOutput = limitError(fmt.Sprintf("the output is longer than %d MiB", MaxOutput>>20))

// errOverflow is the same where the place is not known.
var errOverflow = errors.New(string(errOutput))

// checkStep is what every pass of a loop begins with.
func (r *rendering) checkStep() (string, error) {
	r.stepCount++
	switch {
	case r.out.overflowed:
		return "", errOutput
	case r.stepCount > r.limits.steps:
		return "", limitError(fmt.Sprintf("takes more than %d steps: does a loop or a template that calls itself never end?", r.limits.steps))
	case r.stepCount%64 == 0:
		return "", r.checkDeadline()
	}
	return "", nil
}

// enterTemplate is what every template begins with, and leave its end.
func (r *rendering) enterTemplate() (string, error) {
	if r.depth++; r.depth > maxDepth {
		return "", limitError(fmt.Sprintf("templates call each other more than %d deep: does one call itself without an end?", maxDepth))
	}
	return r.checkStep()
}

func (r *rendering) leaveTemplate() string {
	r.depth--
	return ""
}

// checkDeadline is an error once the rendering must end.
func (r *rendering) checkDeadline() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if time.Since(r.began) > maxTime {
		return errTime
	}
	return nil
}

// charge pays for so many bytes that a function reads or writes.
func (r *rendering) charge(n int) error {
	before := r.workDone
	if r.workDone += n; n < 0 || r.workDone < before || r.workDone > r.limits.work {
		return limitError(fmt.Sprintf("its functions read and write more than %d MiB", r.limits.work>>20))
	}
	if r.workDone>>20 != before>>20 {
		return r.checkDeadline()
	}
	return nil
}

// chargeResult pays for a text that a function has made.
func (r *rendering) chargeResult(text string) (string, error) {
	if len(text) > MaxOutput {
		return "", limitError(fmt.Sprintf("makes a text of more than %d MiB", MaxOutput>>20))
	}
	return text, r.charge(len(text))
}

// chargeInputs pays for values that a function reads. A value that would print or encode to much more than MaxOutput is refused,
// so that no list in lists grows without an end.
func (r *rendering) chargeInputs(values ...any) error {
	total := 0
	for _, v := range values {
		if total += estimateAny(v, 4*MaxOutput-total, 0); total > 4*MaxOutput {
			return limitError("is given more than it may read")
		}
	}
	return r.charge(total)
}

// minWeight is what a value weighs that holds no others.
const minWeight = 16

// estimateAny is weigh for what values mostly are, without reflection.
func estimateAny(v any, most, depth int) int {
	if depth > 200 {
		return most + 1
	}
	switch v := v.(type) {
	case string:
		return minWeight + len(v)
	case []any:
		total := minWeight
		for i := 0; i < len(v) && total <= most; i++ {
			total += estimateAny(v[i], most-total, depth+2)
		}
		return total
	case map[string]any:
		total := minWeight
		for name, value := range v {
			total += minWeight + len(name) + estimateAny(value, most-total, depth+2)
			if total > most {
				break
			}
		}
		return total
	}
	return estimateSize(reflect.ValueOf(v), most, depth)
}

// estimateSize is about what a value takes when it is written, in bytes; it stops beyond most.
func estimateSize(v reflect.Value, most, depth int) int {
	if depth > 200 {
		return most + 1
	}
	switch v.Kind() {
	case reflect.String:
		return minWeight + v.Len()
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return minWeight
		}
		if heavy, ok := v.Interface().(interface{ size() int }); ok {
			return heavy.size()
		}
		return estimateSize(v.Elem(), most, depth+1)
	case reflect.Slice, reflect.Array:
		total := minWeight
		for i := 0; i < v.Len() && total <= most; i++ {
			total += estimateSize(v.Index(i), most-total, depth+1)
		}
		return total
	case reflect.Map:
		total := minWeight
		for each := v.MapRange(); total <= most && each.Next(); {
			total += estimateSize(each.Key(), most-total, depth+1)
			total += estimateSize(each.Value(), most-total, depth+1)
		}
		return total
	case reflect.Struct:
		total := minWeight
		for i := 0; i < v.NumField() && total <= most; i++ {
			if v.Type().Field(i).IsExported() {
				total += estimateSize(v.Field(i), most-total, depth+1)
			}
		}
		return total
	}
	return minWeight
}

// deadlineError says where a rendering was when its time was over, and still is what ended it.
type deadlineError struct {
	*TemplateError
	err error
}

func (e *deadlineError) Unwrap() error { return e.err }

// isRetryable tells errors that another attempt may not meet.
func isRetryable(err error) bool {
	return errors.Is(err, errTime) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
