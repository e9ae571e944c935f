// Package storage stops publishing before the memory of Redis is full, so deliveries, retries and acknowledgments
// have room and free space.
//
// It knows neither keys nor how notifications are stored.
package storage

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	checkInterval = time.Second
	logInterval   = time.Minute
	// resumeMargin is the share of the memory that must become free before publishing continues, so that it does not
	// stop and start with each entry.
	resumeMargin = 0.01
	// sinkShare is the share of the memory that the queues of sinks may take together. Their dead letters may always keep the
	// same share.
	sinkShare = 0.25
	// nearlyFullMargin is the share of the memory before the limit in which dead letters are limited and replays rejected. They
	// must not stop publishing.
	nearlyFullMargin = 0.05
)

// advice names the ways to free space.
const advice = "raise redis.max_memory (or maxmemory of your Redis), lower redis.retention, or see `hubrelay sinks list` for " +
	"sinks that do not deliver or have many dead letters, and `hubrelay quarantine list` for rejected events"

// Observer receives the measurements. Its method must not block.
type Observer interface {
	// StorageUsed is called at least once per second. ratio is the used share of the memory of the fullest server, from 0 to 1,
	// or 0 without a limit.
	StorageUsed(ratio float64, full bool)
}

// Options are the settings of a [Monitor]. All fields are required.
type Options struct {
	// Read returns the memory of the fullest server.
	Read func(context.Context) (redisconn.Memory, error)
	// Limit is the used share of the memory at which publishing stops, from 0 to 1.
	Limit    float64
	Log      *slog.Logger
	Observer Observer
}

// Monitor measures the memory of Redis once per second. Its methods may be called concurrently.
type Monitor struct {
	opts Options
	full atomic.Pointer[relay.Error] // nil while publishing is possible
	used atomic.Int64
	max  atomic.Int64

	shares roomShares

	mu               sync.Mutex // of Measure
	logged           time.Time
	isReported       bool // the end of this full state must be logged
	loggedUnmeasured time.Time
}

// NewMonitor returns a monitor that allows everything until Run has measured.
func NewMonitor(o Options) *Monitor { return &Monitor{opts: o} }

// Check returns nil, or a *[relay.Error] with the code 503.storage-full while nothing may be stored.
func (m *Monitor) Check() error {
	if full := m.full.Load(); full != nil {
		return full
	}
	return nil
}

// MaxMemory returns the memory limit of the fullest server in bytes, or 0 if it has none or Run has not measured.
func (m *Monitor) MaxMemory() int64 { return m.max.Load() }

// UsedMemory returns the memory that the fullest server uses, in bytes, or 0 if Run has not measured.
func (m *Monitor) UsedMemory() int64 { return m.used.Load() }

// QueueLimit returns the memory that the queues of all sinks should not exceed together, in bytes, or 0 if Redis has no
// limit. It is a quarter of the memory, and less if little memory is left until publishing stops, because many queues can be
// filled at once. While publishing is stopped and isFull set, it is half of the rest.
func (m *Monitor) QueueLimit() (total int64, isFull bool) {
	maxMemory, used := float64(m.max.Load()), float64(m.used.Load())
	if maxMemory == 0 {
		return 0, false
	}
	lowest := max(maxMemory*(1-m.opts.Limit)/2, 1)
	if m.full.Load() != nil {
		return int64(lowest), true
	}
	return int64(min(maxMemory*sinkShare, lowest+max(maxMemory*m.opts.Limit-used, 0))), false
}

// IsNearlyFull reports whether publishing is stopped or stops soon.
func (m *Monitor) IsNearlyFull() bool {
	maxMemory := float64(m.max.Load())
	return maxMemory > 0 && float64(m.used.Load()) >= maxMemory*(m.opts.Limit-nearlyFullMargin)
}

// DeadLetterLimit returns the memory that the dead letters of all sinks may keep together in bytes, or 0 for no limit. There
// is a limit only in a nearly full Redis.
func (m *Monitor) DeadLetterLimit() int64 {
	if !m.IsNearlyFull() {
		return 0
	}
	return max(int64(float64(m.max.Load())*sinkShare), 1)
}

// NewFullError returns the error for publishers. state describes how full the storage is.
func NewFullError(state string) *relay.Error {
	return relay.NewError(relay.CodeStorageFull, state+", so this request stored nothing; repeat the request later. The "+
		"operator of the relay can free space: "+advice)
}

// Run measures until ctx ends, and returns nil. While Redis does not respond, the last result applies.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		m.Measure(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Measure measures now. If Redis does not respond, the last result applies.
func (m *Monitor) Measure(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	memory, err := m.opts.Read(ctx)
	if err != nil {
		m.shares.resetUsage()
		m.logUnmeasured(err)
		return
	}
	m.used.Store(memory.Used)
	m.max.Store(memory.Max)
	ratio := 0.0
	if memory.Max > 0 {
		ratio = float64(memory.Used) / float64(memory.Max)
	}
	limit := m.opts.Limit
	wasFull := m.full.Load() != nil
	if wasFull {
		limit -= resumeMargin
	}
	full := ratio >= limit
	maxMemory := float64(memory.Max)
	m.shares.beginInterval(float64(memory.Used), maxMemory*m.opts.Limit, maxMemory, full)
	m.opts.Observer.StorageUsed(ratio, full)
	switch {
	case full:
		m.full.Store(NewFullError(fmt.Sprintf("the storage of the relay is full (%.0f%%)", math.Floor(ratio*100))))
		if time.Since(m.logged) >= logInterval { // not each time, because a full storage can change its state often
			m.logged, m.isReported = time.Now(), true
			m.opts.Log.Error("storage is full, publishing is stopped: "+advice, "used_bytes", memory.Used, "max_bytes", memory.Max)
		}
	case wasFull:
		m.full.Store(nil)
		if !m.isReported {
			return
		}
		m.isReported = false
		m.opts.Log.Info("storage is no longer full, publishing continues", "used_bytes", memory.Used,
			"max_bytes", memory.Max)
	}
}

// logUnmeasured logs that Redis rejects the measurement. Others log that it does not respond.
func (m *Monitor) logUnmeasured(err error) {
	if redisconn.IsTransient(err) || time.Since(m.loggedUnmeasured) < logInterval {
		return
	}
	m.loggedUnmeasured = time.Now()
	m.opts.Log.Warn("memory of redis cannot be measured, so publishing does not stop at redis.full_at: allow INFO "+
		"for its user (ACL SETUSER … +info)", "error", err)
}
