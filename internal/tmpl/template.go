package tmpl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"slices"
	"sync"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// maxSource is the maximum size of a template in bytes.
const maxSource = 256 << 10

// Options are the options of a template.
type Options struct {
	// HTML escapes all values for their context, as html/template does. Templates cannot turn escaping off.
	HTML bool
	// Clean is applied to all texts and member names of a notification before the template sees them, and to texts that
	// the template decodes. If it is nil, texts are not changed.
	Clean func(string) string
	// Now is the clock. If it is nil, time.Now is used.
	Now func() time.Time
}

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	source    string
	options   Options
	cache     *compileCache
	limits    limits
	parsed    executorFactory
	executors sync.Pool // of *executor; the functions of an executor serve one rendering at a time
}

// executor is a template whose functions share the budget of one rendering.
type executor struct {
	run  *rendering
	tmpl interface {
		Execute(w io.Writer, data any) error
	}
}

// executorFactory creates executors of a parsed template.
type executorFactory func(*rendering) (*executor, error)

// goTemplate is the common part of text/template and html/template.
type goTemplate[T any] interface {
	Clone() (T, error)
	Funcs(functions template.FuncMap) T
	Execute(w io.Writer, data any) error
}

// Parse parses a template. Its errors are a [*TemplateError].
func Parse(source string, o Options) (*Template, error) {
	if len(source) > maxSource {
		return nil, &TemplateError{Text: fmt.Sprintf("is longer than %d KiB", maxSource>>10)}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Template{source: source, options: o, cache: &compileCache{}, limits: limits{maxSteps, maxWork}}
	var err error
	if t.parsed, err = t.parse(false); err != nil {
		return nil, newTemplateError(err)
	}
	if err := t.checkEscaping(); err != nil {
		return nil, newTemplateError(err)
	}
	return t, nil
}

// rootName is the name of the template in the errors of text/template.
const rootName = "t"

// parse parses the source and adds the limits. With everyNode, an error names the node at which the output became too
// long.
func (t *Template) parse(everyNode bool) (executorFactory, error) {
	functions := (&rendering{}).templateFunctions()
	if t.options.HTML {
		for _, name := range unsafeFunctions() {
			delete(functions, name)
		}
		root, err := htmltemplate.New(rootName).Funcs(functions).Parse(t.source)
		if err != nil {
			return nil, err
		}
		var trees []*parse.Tree
		for _, each := range root.Templates() {
			trees = append(trees, each.Tree)
		}
		return newExecutorFactory(root, trees, everyNode), nil
	}
	root, err := template.New(rootName).Funcs(functions).Parse(t.source)
	if err != nil {
		return nil, err
	}
	var trees []*parse.Tree
	for _, each := range root.Templates() {
		trees = append(trees, each.Tree)
	}
	return newExecutorFactory(root, trees, everyNode), nil
}

// newExecutorFactory adds the limits to the trees of a parsed template.
func newExecutorFactory[T goTemplate[T]](root T, trees []*parse.Tree, everyNode bool) executorFactory {
	isUndefined := func(t *parse.Tree) bool { return t == nil || t.Root == nil } // used, but not defined
	addLimits(slices.DeleteFunc(trees, isUndefined), everyNode)
	root.Funcs((&rendering{}).internalFunctions())
	return func(r *rendering) (*executor, error) {
		clone, err := root.Clone()
		if err != nil {
			return nil, err
		}
		return &executor{r, clone.Funcs(r.templateFunctions()).Funcs(r.internalFunctions())}, nil
	}
}

// checkEscaping renders once, because html/template reports errors of escaping only then.
func (t *Template) checkEscaping() error {
	if !t.options.HTML {
		return nil
	}
	m, err := t.newExecutor(t.parsed)
	if err != nil {
		return err
	}
	var escape *htmltemplate.Error
	if err := m.execute(context.Background(), &Data{}); errors.As(err, &escape) {
		return err
	}
	return nil
}

func (t *Template) newExecutor(p executorFactory) (*executor, error) {
	return p(&rendering{now: t.options.Now, cache: t.cache, limits: t.limits, clean: t.options.Clean})
}

// Render renders d. Only one rendering at a time may use d. An error that would occur in every attempt is marked with
// [relay.Permanent] and wraps a [*TemplateError]. The end of ctx is not permanent.
func (t *Template) Render(ctx context.Context, d *Data) ([]byte, error) {
	m, ok := t.executors.Get().(*executor)
	if !ok {
		var err error
		if m, err = t.newExecutor(t.parsed); err != nil {
			return nil, relay.Permanent(newTemplateError(err))
		}
	}
	err := m.execute(ctx, d)
	if errors.Is(err, errOverflow) || err == nil && m.run.out.overflowed {
		err = t.locateOverflow(ctx, d)
	}
	if err != nil {
		if isRetryable(err) {
			return nil, &deadlineError{newTemplateError(err), err}
		}
		return nil, relay.Permanent(newTemplateError(err))
	}
	out := bytes.Clone(m.run.out.text)
	t.executors.Put(m)
	return out, nil
}

// locateOverflow renders d again with a check after every node. It returns an error that names the node at which the
// output became too long.
func (t *Template) locateOverflow(ctx context.Context, d *Data) error {
	p, err := t.parse(true)
	if err != nil {
		return err
	}
	m, err := t.newExecutor(p)
	if err != nil {
		return err
	}
	if err := m.execute(ctx, d); err != nil {
		return err
	}
	return errOutput
}

// execute renders d into m.run.out. It converts a panic to an error, because a template must not stop the daemon.
func (e *executor) execute(ctx context.Context, d *Data) (err error) {
	e.run.reset(ctx)
	if err := e.run.checkDeadline(); err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the rendering panicked (%T)", v) // the value is not shown because it may contain secrets
		}
	}()
	return e.tmpl.Execute(e.run, d)
}
