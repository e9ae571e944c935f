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
	// MaxOutput is the maximum size of a rendered template, and of each text returned by a function, in bytes.
	MaxOutput = 1 << 20
	// maxOverflow is the maximum number of bytes that are discarded after MaxOutput before Write fails. Without it,
	// html/template would spend a long time on escaping.
	maxOverflow = 4 * MaxOutput
	// maxSteps is the maximum number of loop iterations and template calls.
	maxSteps = 50_000
	// maxDepth is the maximum depth of template calls.
	maxDepth = 100
	// maxWork is the maximum number of bytes that all functions read and write.
	maxWork = 16 << 20
	// maxTime is the last resort and checked occasionally. It is so long that rendering does not fail on a busy
	// machine.
	maxTime = 20 * time.Second
)

var errTime = fmt.Errorf("took longer than %s", maxTime)

// limitError reports that a template exceeded a limit. It does not depend on the machine.
type limitError string

func (e limitError) Error() string { return string(e) }

// limits are the limits that take long to reach. Tests lower them.
type limits struct{ steps, work int }

// rendering holds the output and the used budget of one rendering. Only one goroutine uses it.
type rendering struct {
	ctx       context.Context
	now       func() time.Time
	startedAt time.Time
	out       boundedOutput
	stepCount int
	depth     int
	workDone  int
	limits    limits
	cache     *compileCache
	clean     func(string) string // Options.Clean of the template
}

// reset restores the full budget.
func (r *rendering) reset(ctx context.Context) {
	r.ctx, r.startedAt = ctx, time.Now()
	r.stepCount, r.depth, r.workDone = 1, 0, 0 // the template itself is the first step
	r.out.reset()
}

// Write appends p to the output. It does not fail at MaxOutput, because its error would not name a position in the
// template. The next step detects the overflow. If no step follows, Write fails after maxOverflow bytes, and the
// template is rendered again to find the position.
func (r *rendering) Write(p []byte) (int, error) {
	if r.out.overflowBytes > maxOverflow {
		return 0, errOverflow
	}
	r.out.add(p)
	return len(p), nil
}

// boundedOutput stores up to MaxOutput bytes and discards the rest.
type boundedOutput struct {
	text          []byte
	overflowed    bool
	overflowBytes int // the number of discarded bytes
}

func (o *boundedOutput) reset() {
	if cap(o.text) > 64<<10 {
		o.text = nil // do not keep a large buffer for small outputs
	}
	o.text, o.overflowed, o.overflowBytes = o.text[:0], false, 0
}

func (o *boundedOutput) add(p []byte) {
	o.overflowed = o.overflowed || len(o.text)+len(p) > MaxOutput
	if o.overflowed {
		o.overflowBytes += len(p)
		return
	}
	o.text = append(o.text, p...)
}

var errOutput = limitError(fmt.Sprintf("the output is longer than %d MiB", MaxOutput>>20))

// errOverflow has the text of errOutput, but its position is unknown.
var errOverflow = errors.New(string(errOutput))

// checkStep is called at the start of every loop iteration.
func (r *rendering) checkStep() (string, error) {
	r.stepCount++
	switch {
	case r.out.overflowed:
		return "", errOutput
	case r.stepCount > r.limits.steps:
		return "", limitError(fmt.Sprintf(
			"takes more than %d steps: does a loop or a template that calls itself never end?", r.limits.steps))
	case r.stepCount%64 == 0:
		return "", r.checkDeadline()
	}
	return "", nil
}

// enterTemplate is called at the start of every template if templates call each other.
func (r *rendering) enterTemplate() (string, error) {
	if r.depth++; r.depth > maxDepth {
		return "", limitError(fmt.Sprintf(
			"templates call each other more than %d levels deep: does one call itself forever?", maxDepth))
	}
	return r.checkStep()
}

// leaveTemplate is called at the end of every template if templates call each other.
func (r *rendering) leaveTemplate() string {
	r.depth--
	return ""
}

// checkDeadline returns an error if the rendering must end.
func (r *rendering) checkDeadline() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if time.Since(r.startedAt) > maxTime {
		return errTime
	}
	return nil
}

// charge adds n bytes that a function reads or writes to the work done.
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

// chargeResult charges for a text that a function returns.
func (r *rendering) chargeResult(text string) (string, error) {
	if len(text) > MaxOutput {
		return "", limitError(fmt.Sprintf("produces more than %d MiB of text", MaxOutput>>20))
	}
	return text, r.charge(len(text))
}

// chargeInputs charges for values that a function reads. It rejects values that would be much longer than MaxOutput
// when printed or encoded. Otherwise nested lists could grow exponentially.
func (r *rendering) chargeInputs(values ...any) error {
	total := 0
	for _, v := range values {
		if total += estimateAny(v, 4*MaxOutput-total, 0); total > 4*MaxOutput {
			return limitError(fmt.Sprintf("reads more than %d MiB of values", 4*MaxOutput>>20))
		}
	}
	return r.charge(total)
}

// minSize is the estimated size of a value without elements, in bytes.
const minSize = 16

// estimateAny is estimateSize without reflection for the most frequent types.
func estimateAny(v any, limit, depth int) int {
	if depth > 200 {
		return limit + 1
	}
	switch v := v.(type) {
	case string:
		return minSize + len(v)
	case []any:
		total := minSize
		for i := 0; i < len(v) && total <= limit; i++ {
			total += estimateAny(v[i], limit-total, depth+2)
		}
		return total
	case map[string]any:
		total := minSize
		for name, value := range v {
			total += minSize + len(name) + estimateAny(value, limit-total, depth+2)
			if total > limit {
				break
			}
		}
		return total
	}
	return estimateSize(reflect.ValueOf(v), limit, depth)
}

// estimateSize estimates the length of a printed value in bytes. It stops when the result exceeds limit.
func estimateSize(v reflect.Value, limit, depth int) int {
	if depth > 200 {
		return limit + 1
	}
	switch v.Kind() {
	case reflect.String:
		return minSize + v.Len()
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return minSize
		}
		if sizer, ok := v.Interface().(interface{ size() int }); ok {
			return sizer.size()
		}
		return estimateSize(v.Elem(), limit, depth+1)
	case reflect.Slice, reflect.Array:
		total := minSize
		for i := 0; i < v.Len() && total <= limit; i++ {
			total += estimateSize(v.Index(i), limit-total, depth+1)
		}
		return total
	case reflect.Map:
		total := minSize
		for each := v.MapRange(); total <= limit && each.Next(); {
			total += estimateSize(each.Key(), limit-total, depth+1)
			total += estimateSize(each.Value(), limit-total, depth+1)
		}
		return total
	case reflect.Struct:
		total := minSize
		for i := 0; i < v.NumField() && total <= limit; i++ {
			if v.Type().Field(i).IsExported() {
				total += estimateSize(v.Field(i), limit-total, depth+1)
			}
		}
		return total
	}
	return minSize
}

// deadlineError adds the position in the template to the error that ended a rendering.
type deadlineError struct {
	*TemplateError
	err error
}

func (e *deadlineError) Unwrap() error { return e.err }

// isRetryable reports whether another attempt may succeed.
func isRetryable(err error) bool {
	return errors.Is(err, errTime) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
