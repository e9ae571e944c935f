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

// maxSource bounds the text of a template.
const maxSource = 256 << 10

// Options say what a template is for.
type Options struct {
	// HTML escapes what it shows for the place where it stands, as html/template does, and knows no way around that.
	HTML bool
	// Clean is applied to every text of a notification before the template sees it, names of members included, and to what the
	// template decodes; nil leaves them as they are.
	Clean func(string) string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Template is a parsed template. It is immutable and may be used concurrently.
type Template struct {
	source    string
	options   Options
	kept      *compileCache
	limits    limits
	parsed    executorFactory
	executors sync.Pool // of *machine; a template's functions belong to one rendering at a time
}

// executor is a template whose functions share the budget of one rendering.
type executor struct {
	run  *rendering
	tmpl interface {
		Execute(w io.Writer, data any) error
	}
}

// executorFactory makes machines.
type executorFactory interface {
	newExecutor(r *rendering) (*executor, error)
}

// Parse reads a template. What is wrong with it is a [*TemplateError].
func Parse(source string, o Options) (*Template, error) {
	if len(source) > maxSource {
		return nil, &TemplateError{Text: fmt.Sprintf("is longer than %d KiB", maxSource>>10)}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Template{source: source, options: o, kept: &compileCache{}, limits: limits{maxSteps, maxWork}}
	var err error
	if t.parsed, err = t.parse(modeFast); err != nil {
		return nil, newTemplateError(err)
	}
	if err := t.checkEscaping(); err != nil {
		return nil, newTemplateError(err)
	}
	return t, nil
}

// rootName stands in the library's errors.
const rootName = "t"

// parseMode is how a template is parsed: to be rendered fast, by the library alone, or so that it tells where an output became
// too long.
type parseMode int

const (
	modeFast parseMode = iota
	modeLibrary
	modeTraceSteps
)

func (t *Template) parse(w parseMode) (executorFactory, error) {
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
		addLimits(definedTrees(trees), w == modeTraceSteps)
		return parsedHTML{root.Funcs((&rendering{}).internalFunctions())}, nil
	}
	root, err := template.New(rootName).Funcs(functions).Parse(t.source)
	if err != nil {
		return nil, err
	}
	var trees []*parse.Tree
	for _, each := range root.Templates() {
		trees = append(trees, each.Tree)
	}
	trees = definedTrees(trees)
	p := parsedText{root.Funcs((&rendering{}).internalFunctions()), actionMarkers{}}
	// What is called may have another dot.
	if w == modeFast && root.Tree != nil && !slices.ContainsFunc(trees, func(t *parse.Tree) bool { return callsTemplate(t.Root) }) {
		p.marks.replaceActions(root.Root, functions)
	}
	addLimits(trees, w == modeTraceSteps)
	return p, nil
}

// definedTrees leaves out the trees of templates that are named and not defined.
func definedTrees(trees []*parse.Tree) []*parse.Tree {
	return slices.DeleteFunc(trees, func(t *parse.Tree) bool { return t == nil || t.Root == nil })
}

type parsedText struct {
	root  *template.Template
	marks actionMarkers
}

func (p parsedText) newExecutor(r *rendering) (*executor, error) {
	clone, err := p.root.Clone()
	if err != nil {
		return nil, err
	}
	functions := r.templateFunctions()
	r.actions = p.marks.compile(functions)
	return &executor{r, clone.Funcs(functions).Funcs(r.internalFunctions())}, nil
}

type parsedHTML struct{ root *htmltemplate.Template }

func (p parsedHTML) newExecutor(r *rendering) (*executor, error) {
	clone, err := p.root.Clone()
	if err != nil {
		return nil, err
	}
	return &executor{r, clone.Funcs(r.templateFunctions()).Funcs(r.internalFunctions())}, nil
}

// checkEscaping finds what html/template says only when it renders.
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
	return p.newExecutor(&rendering{now: t.options.Now, cache: t.kept, limits: t.limits, clean: t.options.Clean})
}

// Render renders d, which may be used by one rendering at a time. An error that every attempt would meet is marked by
// [relay.Permanent] and wraps a [*TemplateError]; the end of ctx is none of those.
func (t *Template) Render(ctx context.Context, d *Data) ([]byte, error) {
	m, ok := t.executors.Get().(*executor)
	if !ok {
		var err error
		if m, err = t.newExecutor(t.parsed); err != nil {
			return nil, relay.Permanent(newTemplateError(err))
		}
	}
	err := m.execute(ctx, d)
	if errors.Is(err, errUseLibrary) {
		m, err = t.rerender(ctx, d, modeLibrary)
	}
	if errors.Is(err, errOverflow) || err == nil && m.run.out.overflowed {
		if _, err = t.rerender(ctx, d, modeTraceSteps); err == nil {
			err = errOutput
		}
	}
	if err != nil {
		if isRetryable(err) {
			return nil, &deadlineError{newTemplateError(err), err}
		}
		return nil, relay.Permanent(newTemplateError(err))
	}
	out := bytes.Clone(m.run.out.text)
	m.run.data = nil
	t.executors.Put(m)
	return out, nil
}

// rerender renders another way, to tell more of what went wrong.
func (t *Template) rerender(ctx context.Context, d *Data, w parseMode) (*executor, error) {
	p, err := t.parse(w)
	if err != nil {
		return nil, err
	}
	m, err := t.newExecutor(p)
	if err != nil {
		return nil, err
	}
	return m, m.execute(ctx, d)
}

// execute renders into the run's output. A panic becomes an error: a template must not stop the daemon.
func (m *executor) execute(ctx context.Context, d *Data) (err error) {
	m.run.reset(ctx, d)
	if err := m.run.checkDeadline(); err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the rendering panicked (%T)", v) // the value may hold anything
		}
	}()
	return m.tmpl.Execute(m.run, d)
}
