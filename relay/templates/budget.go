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
	// maxLost bounds what is rendered behind that until somebody notices, which HTML takes long to escape.
	maxLost = 4 * MaxOutput
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

// run is the budget of one rendering, which belongs to one goroutine.
type run struct {
	ctx   context.Context
	now   func() time.Time
	began time.Time
	out   output
	steps int
	depth int
	work  int
	most  limits
	kept  *kept
	clean func(string) string // of the template's Options

	data    *Data
	actions map[*byte]action
	args    []any // of the functions that actions are calling
}

// begin gives the run a new budget.
func (r *run) begin(ctx context.Context, d *Data) {
	r.ctx, r.began, r.data = ctx, time.Now(), d
	r.steps, r.depth, r.work = 1, 0, 0 // the whole is a step
	r.args = r.args[:0]
	r.out.begin()
}

// Write is what the library writes to. It fails for actions, and far behind an output that is too long, where no loop has noticed: both
// are rendered once more, to tell the place.
func (r *run) Write(p []byte) (int, error) {
	if r.out.lost > maxLost {
		return 0, errLost
	}
	if len(p) == 0 && cap(p) > 0 {
		if a, ok := r.actions[&p[:1][0]]; ok {
			return 0, r.show(a)
		}
	}
	if r.out.fits(len(p)) {
		r.out.text = append(r.out.text, p...)
	}
	return len(p), nil
}

// output keeps what was written up to MaxOutput, and says whether there was more.
type output struct {
	text []byte
	over bool
	lost int // bytes behind that
}

func (o *output) begin() {
	if cap(o.text) > 64<<10 {
		o.text = nil // a large one is not kept for small ones
	}
	o.text, o.over, o.lost = o.text[:0], false, 0
}

// fits tells whether so much more may be added. More is no error where it is written, which would lose the place in the
// template; the next step knows.
func (o *output) fits(n int) bool {
	if o.over = o.over || len(o.text)+n > MaxOutput; o.over {
		o.lost += n
	}
	return !o.over
}

func (o *output) add(text string) {
	if o.fits(len(text)) {
		o.text = append(o.text, text...)
	}
}

var errOutput = limitError(fmt.Sprintf("the output is longer than %d MiB", MaxOutput>>20))

// errLost is the same where the place is not known.
var errLost = errors.New(string(errOutput))

// step is what every pass of a loop begins with.
func (r *run) step() (string, error) {
	r.steps++
	switch {
	case r.out.over:
		return "", errOutput
	case r.steps > r.most.steps:
		return "", limitError(fmt.Sprintf("takes more than %d steps: does a loop or a template that calls itself never end?", r.most.steps))
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
	if r.work += n; n < 0 || r.work < before || r.work > r.most.work {
		return limitError(fmt.Sprintf("its functions read and write more than %d MiB", r.most.work>>20))
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
		if total += weighAny(v, 4*MaxOutput-total, 0); total > 4*MaxOutput {
			return limitError("is given more than it may read")
		}
	}
	return r.spend(total)
}

// least is what a value weighs that holds no others.
const least = 16

// weighAny is weigh for what values mostly are, without reflection.
func weighAny(v any, most, depth int) int {
	if depth > 200 {
		return most + 1
	}
	switch v := v.(type) {
	case string:
		return least + len(v)
	case []any:
		total := least
		for i := 0; i < len(v) && total <= most; i++ {
			total += weighAny(v[i], most-total, depth+2)
		}
		return total
	case map[string]any:
		total := least
		for name, value := range v {
			total += least + len(name) + weighAny(value, most-total, depth+2)
			if total > most {
				break
			}
		}
		return total
	}
	return weigh(reflect.ValueOf(v), most, depth)
}

// weigh is about what a value takes when it is written, in bytes; it stops beyond most.
func weigh(v reflect.Value, most, depth int) int {
	if depth > 200 {
		return most + 1
	}
	switch v.Kind() {
	case reflect.String:
		return least + v.Len()
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return least
		}
		if heavy, ok := v.Interface().(interface{ weight() int }); ok {
			return heavy.weight()
		}
		return weigh(v.Elem(), most, depth+1)
	case reflect.Slice, reflect.Array:
		total := least
		for i := 0; i < v.Len() && total <= most; i++ {
			total += weigh(v.Index(i), most-total, depth+1)
		}
		return total
	case reflect.Map:
		total := least
		for each := v.MapRange(); total <= most && each.Next(); {
			total += weigh(each.Key(), most-total, depth+1)
			total += weigh(each.Value(), most-total, depth+1)
		}
		return total
	case reflect.Struct:
		total := least
		for i := 0; i < v.NumField() && total <= most; i++ {
			if v.Type().Field(i).IsExported() {
				total += weigh(v.Field(i), most-total, depth+1)
			}
		}
		return total
	}
	return least
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
