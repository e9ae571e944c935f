package history

import (
	"context"
	_ "embed"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// maxNames is the maximum number of names of sinks, topics and reasons that have numbers. Records contain other names in
// full.
const maxNames = 10_000

//go:embed scripts/names.lua
var namesSource string

var namesScript = redisconn.NewScript(namesSource)

// nameTable gives numbers to the names in records. A number is reused only if Redis has
// lost its name. It may be used concurrently.
type nameTable struct {
	client redis.UniversalClient
	key    string
	known  atomic.Pointer[knownNames]

	mu      sync.Mutex
	unknown map[string]struct{} // names without a number, for the next resolveUnknown
	isFull  bool                // further names get no number
}

// knownNames is immutable.
type knownNames struct {
	numbers map[string]uint64
	texts   map[uint64]string
}

func newNameTable(client redis.UniversalClient, key string) *nameTable {
	t := &nameTable{client: client, key: key, unknown: make(map[string]struct{})}
	t.known.Store(newKnownNames(0))
	return t
}

// numberOf returns the number of a name. It returns 0 for an unknown name, which the next resolveUnknown gives a number.
func (t *nameTable) numberOf(name string) uint64 {
	if n, ok := t.known.Load().numbers[name]; ok {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isFull && len(t.unknown) < maxNames {
		t.unknown[name] = struct{}{}
	}
	return 0
}

func (t *nameTable) textOf(number uint64) (string, bool) {
	name, ok := t.known.Load().texts[number]
	return name, ok
}

// resolveUnknown gives numbers to the names that were unknown.
func (t *nameTable) resolveUnknown(ctx context.Context) error {
	t.mu.Lock()
	names := slices.Collect(maps.Keys(t.unknown))
	clear(t.unknown)
	t.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	args := make([]any, 0, 1+len(names))
	args = append(args, maxNames)
	for _, name := range names {
		args = append(args, name)
	}
	numbers, err := namesScript.Run(ctx, t.client, []string{t.key}, args...).Int64Slice()
	if err != nil || len(numbers) != len(names) {
		return redisconn.WrapError("store names of the history", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.known.Load().clone()
	for i, n := range numbers {
		if n > 0 {
			next.add(names[i], uint64(n))
		}
		t.isFull = t.isFull || n == 0
	}
	t.known.Store(next)
	return nil
}

// loadAll replaces the names by those in Redis: other nodes have added some, and a failover may have lost some.
func (t *nameTable) loadAll(ctx context.Context) error {
	stored, err := t.client.HGetAll(ctx, t.key).Result()
	if err != nil {
		return redisconn.WrapError("read names of the history", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isFull = len(stored) >= maxNames
	next := newKnownNames(len(stored))
	for name, text := range stored {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil && n > 0 {
			next.add(name, n)
		}
	}
	t.known.Store(next)
	return nil
}

func newKnownNames(size int) *knownNames {
	return &knownNames{make(map[string]uint64, size), make(map[uint64]string, size)}
}

func (k *knownNames) clone() *knownNames {
	next := newKnownNames(len(k.numbers) + 1)
	maps.Copy(next.numbers, k.numbers)
	maps.Copy(next.texts, k.texts)
	return next
}

func (k *knownNames) add(name string, number uint64) { k.numbers[name], k.texts[number] = number, name }
