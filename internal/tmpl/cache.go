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
	// maxPatternBytes is the maximum length of a regular expression.
	maxPatternBytes = 1 << 10
	// maxInstructions is the maximum size of a compiled expression. The matching time per byte grows with it.
	maxInstructions = 10_000
	// maxCached is the maximum number of cached expressions of a template, and of cached time zones.
	maxCached = 64
)

// compileCache caches compiled expressions and time zones of a template, because compiling them costs more than a
// rendering. It is safe for concurrent use.
type compileCache struct {
	mu       sync.Mutex
	patterns map[string]compiled
	zones    map[string]*time.Location
}

// compiled is a compiled regular expression.
type compiled struct {
	*regexp.Regexp
	size int // the number of instructions
}

func (c *compileCache) compiledPattern(pattern string) (compiled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return getOrCompute(&c.patterns, pattern, compilePattern)
}

func (c *compileCache) loadZone(name string) (*time.Location, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return getOrCompute(&c.zones, name, time.LoadLocation)
}

// getOrCompute returns the cached value for name. If it is missing, getOrCompute calls compute and caches the result.
func getOrCompute[T any](cache *map[string]T, name string, compute func(string) (T, error)) (T, error) {
	if v, ok := (*cache)[name]; ok {
		return v, nil
	}
	v, err := compute(name)
	if err != nil {
		return v, err
	}
	if *cache == nil || len(*cache) >= maxCached {
		*cache = make(map[string]T)
	}
	(*cache)[name] = v
	return v, nil
}

func compilePattern(pattern string) (compiled, error) {
	if len(pattern) > maxPatternBytes {
		return compiled{}, limitError(fmt.Sprintf("has a pattern of more than %d bytes", maxPatternBytes))
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return compiled{}, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return compiled{}, err
	}
	if len(program.Inst) > maxInstructions {
		return compiled{}, limitError("has a pattern that repeats too much")
	}
	re, err := regexp.Compile(pattern)
	return compiled{re, len(program.Inst)}, err
}

// compiledPattern returns a compiled pattern and charges for matching it with text.
func (r *rendering) compiledPattern(pattern, text string) (compiled, error) {
	re, err := r.cache.compiledPattern(pattern)
	if err == nil {
		err = r.charge(len(text) * (32 + 4*re.size)) // a unit of work then takes about as long as in other functions
	}
	return re, err
}

func (r *rendering) matchPattern(pattern, text string) (bool, error) {
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
	// The length must be checked before the replacement, because regexp builds the complete result.
	groups := 1 + strings.Count(replacement, "$")
	if upperBound := (len(text)+1)*len(replacement) + len(text)*groups; upperBound > MaxOutput || upperBound < 0 {
		matches := 0
		re.ReplaceAllStringFunc(text, func(string) string { matches++; return "" })
		if upperBound := matches*len(replacement) + len(text)*groups; upperBound > MaxOutput || upperBound < 0 {
			return "", limitError(fmt.Sprintf("may produce more than %d MiB of text", MaxOutput>>20))
		}
	}
	return r.chargeResult(re.ReplaceAllString(text, replacement))
}
