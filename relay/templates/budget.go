package templates

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

// run is the budget of one rendering, which belongs to one goroutine.
type run struct {
	ctx   context.Context
	now   func() time.Time
	began time.Time
	out   output
	steps int
	depth int
	work  int
	kept  *kept
}

// begin gives the run a new budget.
func (r *run) begin(ctx context.Context) {
	r.ctx, r.began = ctx, time.Now()
	r.steps, r.depth, r.work = 0, 0, 0
	r.out.begin()
}

// output keeps what was written up to MaxOutput, and says whether there was more.
type output struct {
	text []byte
	over bool
}

func (o *output) begin() {
	if cap(o.text) > 64<<10 {
		o.text = nil // a large one is not kept for small ones
	}
	o.text, o.over = o.text[:0], false
}

// Write never fails: an error here would lose the place in the template, which the next step knows.
func (o *output) Write(p []byte) (int, error) {
	if o.over = o.over || len(o.text)+len(p) > MaxOutput; !o.over {
		o.text = append(o.text, p...)
	}
	return len(p), nil
}

var errOutput = limitError(fmt.Sprintf("the output is longer than %d MiB", MaxOutput>>20))

// step is what every pass of a loop begins with.
func (r *run) step() (string, error) {
	r.steps++
	switch {
	case r.out.over:
		return "", errOutput
	case r.steps > maxSteps:
		return "", limitError(fmt.Sprintf("takes more than %d steps: does a loop or a template that calls itself never end?", maxSteps))
	case r.steps%64 == 0:
		return "", r.late()
	}
	return "", nil
}

// enter is what every template begins with, and leave its end.
func (r *run) enter() (string, error) {
	if r.depth++; r.depth > maxDepth {
		return "", limitError(fmt.Sprintf("templates call each other more than %d deep: does one call itself without an end?", maxDepth))
	}
	return r.step()
}

func (r *run) leave() string {
	r.depth--
	return ""
}

// late is an error once the rendering must end.
func (r *run) late() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if time.Since(r.began) > maxTime {
		return errTime
	}
	return nil
}

// spend pays for so many bytes that a function reads or writes.
func (r *run) spend(n int) error {
	before := r.work
	if r.work += n; n < 0 || r.work < before || r.work > maxWork {
		return limitError(fmt.Sprintf("its functions read and write more than %d MiB", maxWork>>20))
	}
	if r.work>>20 != before>>20 {
		return r.late()
	}
	return nil
}

// made pays for a text that a function has made.
func (r *run) made(text string) (string, error) {
	if len(text) > MaxOutput {
		return "", limitError(fmt.Sprintf("makes a text of more than %d MiB", MaxOutput>>20))
	}
	return text, r.spend(len(text))
}

// read pays for values that a function reads. A value that would print or encode to much more than MaxOutput is refused,
// so that no list in lists grows without an end.
func (r *run) read(values ...any) error {
	total := 0
	for _, v := range values {
		if total += weigh(reflect.ValueOf(v), 4*MaxOutput-total, 0); total > 4*MaxOutput {
			return limitError("is given more than it may read")
		}
	}
	return r.spend(total)
}

// weigh is about what a value takes when it is written, in bytes; it stops beyond most.
func weigh(v reflect.Value, most, depth int) int {
	const one = 16
	if depth > 200 {
		return most + 1
	}
	switch v.Kind() {
	case reflect.String:
		return one + v.Len()
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return one
		}
		if heavy, ok := v.Interface().(interface{ weight() int }); ok {
			return heavy.weight()
		}
		return weigh(v.Elem(), most, depth+1)
	case reflect.Slice, reflect.Array:
		total := one
		for i := 0; i < v.Len() && total <= most; i++ {
			total += weigh(v.Index(i), most-total, depth+1)
		}
		return total
	case reflect.Map:
		total := one
		for each := v.MapRange(); total <= most && each.Next(); {
			total += weigh(each.Key(), most-total, depth+1)
			total += weigh(each.Value(), most-total, depth+1)
		}
		return total
	case reflect.Struct:
		total := one
		for i := 0; i < v.NumField() && total <= most; i++ {
			if v.Type().Field(i).IsExported() {
				total += weigh(v.Field(i), most-total, depth+1)
			}
		}
		return total
	}
	return one
}

// unfinishedError says where a rendering was when its time was over, and still is what ended it.
type unfinishedError struct {
	*Mistake
	err error
}

func (e *unfinishedError) Unwrap() error { return e.err }

// retried tells errors that another attempt may not meet.
func retried(err error) bool {
	return errors.Is(err, errTime) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
