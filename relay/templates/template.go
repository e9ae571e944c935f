package templates

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
	source   string
	options  Options
	kept     *kept
	most     limits
	parsed   parsed
	machines sync.Pool // of *machine; a template's functions belong to one rendering at a time
}

// machine is a template whose functions share the budget of one rendering.
type machine struct {
	run  *run
	tmpl interface {
		Execute(w io.Writer, data any) error
	}
}

// parsed makes machines.
type parsed interface {
	machine(r *run) (*machine, error)
}

// Parse reads a template. What is wrong with it is a [*Mistake].
func Parse(source string, o Options) (*Template, error) {
	if len(source) > maxSource {
		return nil, &Mistake{Text: fmt.Sprintf("is longer than %d KiB", maxSource>>10)}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Template{source: source, options: o, kept: &kept{}, most: limits{maxSteps, maxWork}}
	var err error
	if t.parsed, err = t.parse(fast); err != nil {
		return nil, mistakeOf(err)
	}
	if err := t.escapes(); err != nil {
		return nil, mistakeOf(err)
	}
	return t, nil
}

// rootName stands in the library's errors.
const rootName = "t"

// way is how a template is parsed: to be rendered fast, by the library alone, or so that it tells where an output became
// too long.
type way int

const (
	fast way = iota
	alone
	everywhere
)

func (t *Template) parse(w way) (parsed, error) {
	functions := (&run{}).functions()
	if t.options.HTML {
		for _, name := range unescaped() {
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
		instrument(whole(trees), w == everywhere)
		return parsedHTML{root.Funcs((&run{}).hidden())}, nil
	}
	root, err := template.New(rootName).Funcs(functions).Parse(t.source)
	if err != nil {
		return nil, err
	}
	var trees []*parse.Tree
	for _, each := range root.Templates() {
		trees = append(trees, each.Tree)
	}
	trees = whole(trees)
	p := parsedText{root.Funcs((&run{}).hidden()), marks{}}
	// What is called may have another dot.
	if w == fast && root.Tree != nil && !slices.ContainsFunc(trees, func(t *parse.Tree) bool { return callsTemplate(t.Root) }) {
		p.marks.take(root.Root, functions)
	}
	instrument(trees, w == everywhere)
	return p, nil
}

// whole leaves out the trees of templates that are named and not defined.
func whole(trees []*parse.Tree) []*parse.Tree {
	return slices.DeleteFunc(trees, func(t *parse.Tree) bool { return t == nil || t.Root == nil })
}

type parsedText struct {
	root  *template.Template
	marks marks
}

func (p parsedText) machine(r *run) (*machine, error) {
	clone, err := p.root.Clone()
	if err != nil {
		return nil, err
	}
	functions := r.functions()
	r.actions = p.marks.bound(functions)
	return &machine{r, clone.Funcs(functions).Funcs(r.hidden())}, nil
}

type parsedHTML struct{ root *htmltemplate.Template }

func (p parsedHTML) machine(r *run) (*machine, error) {
	clone, err := p.root.Clone()
	if err != nil {
		return nil, err
	}
	return &machine{r, clone.Funcs(r.functions()).Funcs(r.hidden())}, nil
}

// escapes finds what html/template says only when it renders.
func (t *Template) escapes() error {
	if !t.options.HTML {
		return nil
	}
	m, err := t.machine(t.parsed)
	if err != nil {
		return err
	}
	var escape *htmltemplate.Error
	if err := m.execute(context.Background(), &Data{}); errors.As(err, &escape) {
		return err
	}
	return nil
}

func (t *Template) machine(p parsed) (*machine, error) {
	return p.machine(&run{now: t.options.Now, kept: t.kept, most: t.most, clean: t.options.Clean})
}

// Render renders d, which may be used by one rendering at a time. An error that every attempt would meet is marked by
// [relay.Permanent] and wraps a [*Mistake]; the end of ctx is none of those.
func (t *Template) Render(ctx context.Context, d *Data) ([]byte, error) {
	m, ok := t.machines.Get().(*machine)
	if !ok {
		var err error
		if m, err = t.machine(t.parsed); err != nil {
			return nil, relay.Permanent(mistakeOf(err))
		}
	}
	err := m.execute(ctx, d)
	if errors.Is(err, errAgain) {
		m, err = t.again(ctx, d, alone)
	}
	if errors.Is(err, errLost) || err == nil && m.run.out.over {
		if _, err = t.again(ctx, d, everywhere); err == nil {
			err = errOutput
		}
	}
	if err != nil {
		if retried(err) {
			return nil, &unfinishedError{mistakeOf(err), err}
		}
		return nil, relay.Permanent(mistakeOf(err))
	}
	out := bytes.Clone(m.run.out.text)
	m.run.data = nil
	t.machines.Put(m)
	return out, nil
}

// again renders another way, to tell more of what went wrong.
func (t *Template) again(ctx context.Context, d *Data, w way) (*machine, error) {
	p, err := t.parse(w)
	if err != nil {
		return nil, err
	}
	m, err := t.machine(p)
	if err != nil {
		return nil, err
	}
	return m, m.execute(ctx, d)
}

// execute renders into the run's output. A panic becomes an error: a template must not stop the daemon.
func (m *machine) execute(ctx context.Context, d *Data) (err error) {
	m.run.begin(ctx, d)
	if err := m.run.late(); err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the rendering panicked (%T)", v) // the value may hold anything
		}
	}()
	return m.tmpl.Execute(m.run, d)
}
