package tmpl

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"time"
)

const (
	// maxPattern bounds a regular expression, in bytes.
	maxPattern = 1 << 10
	// maxProgram bounds what it compiles to, by which its time grows with each byte of a text.
	maxProgram = 10_000
	// maxKept bounds how many compiled ones a template keeps, and how many time zones.
	maxKept = 64
)

// compileCache remembers what a template has compiled or read, since that costs more than a rendering. It may be used concurrently.
type compileCache struct {
	mu       sync.Mutex
	patterns map[string]compiled
	zones    map[string]*time.Location
}

type compiled struct {
	*regexp.Regexp
	size int // instructions
}

func (k *compileCache) compiledPattern(pattern string) (compiled, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return getOrCompute(&k.patterns, pattern, compile)
}

func (k *compileCache) loadZone(name string) (*time.Location, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return getOrCompute(&k.zones, name, time.LoadLocation)
}

func getOrCompute[T any](all *map[string]T, name string, get func(string) (T, error)) (T, error) {
	if v, ok := (*all)[name]; ok {
		return v, nil
	}
	v, err := get(name)
	if err != nil {
		return v, err
	}
	if *all == nil || len(*all) >= maxKept {
		*all = make(map[string]T)
	}
	(*all)[name] = v
	return v, nil
}

func compile(pattern string) (compiled, error) {
	if len(pattern) > maxPattern {
		return compiled{}, limitError(fmt.Sprintf("has a pattern of more than %d bytes", maxPattern))
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return compiled{}, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return compiled{}, err
	}
	if len(program.Inst) > maxProgram {
		return compiled{}, limitError("has a pattern that repeats too much")
	}
	re, err := regexp.Compile(pattern)
	return compiled{re, len(program.Inst)}, err
}

// compiledPattern returns a compiled pattern and pays for matching it with a text.
func (r *rendering) compiledPattern(pattern, text string) (compiled, error) {
	re, err := r.cache.compiledPattern(pattern)
	if err == nil {
		err = r.charge(len(text) * (32 + 4*re.size)) // about as much time as other bytes take
	}
	return re, err
}

func (r *rendering) match(pattern, text string) (bool, error) {
	re, err := r.compiledPattern(pattern, text)
	if err != nil {
		return false, err
	}
	return re.MatchString(text), nil
}

func (r *rendering) replaceAll(pattern, replacement, text string) (string, error) {
	re, err := r.compiledPattern(pattern, text)
	if err != nil {
		return "", err
	}
	// The library builds the whole before anybody can look at its length.
	groups := 1 + strings.Count(replacement, "$")
	if most := (len(text)+1)*len(replacement) + len(text)*groups; most > MaxOutput || most < 0 {
		matches := 0
		re.ReplaceAllStringFunc(text, func(string) string { matches++; return "" })
		if most := matches*len(replacement) + len(text)*groups; most > MaxOutput || most < 0 {
			return "", limitError(fmt.Sprintf("may make a text of more than %d MiB", MaxOutput>>20))
		}
	}
	return r.chargeResult(re.ReplaceAllString(text, replacement))
}
