package history

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxFilterChanges is the number of changes of the filters that are kept for a partition.
	maxFilterChanges = 1000
	// filterMargin is the time for which filters are kept in addition to the maximum age of records. They must survive a
	// pause of all nodes.
	filterMargin = time.Hour
	// maxFilters is the maximum size of decompressed filters.
	maxFilters = 64 << 20
)

// FilterChangesKey is the stream of the changes of the filters of a partition's dispatcher.
func FilterChangesKey(k keyspace.Space, partition int) string {
	return k.InPartition("filters", partition)
}

// FiltersKey is the text of a version of the filters.
func FiltersKey(k keyspace.Space, version string) string { return k.Global("filters:" + version) }

// RecordFilters records that the entries of a partition's log after a position are matched with filters, unless these are
// the last recorded ones. The format of the filters belongs to the caller.
func (r *Recorder) RecordFilters(ctx context.Context, partition int, after string, filters []byte) error {
	if r == nil {
		return nil
	}
	sum := sha256.Sum256(filters)
	version := hex.EncodeToString(sum[:8])
	s := r.opts.Store
	client, changes := s.conn.Commands(), FilterChangesKey(s.keys, partition)
	r.filterVersion.Store(&version)
	if err := client.Set(ctx, FiltersKey(s.keys, version), compress(filters), r.filterTTL()).Err(); err != nil {
		return redisconn.WrapError("store the filters", err)
	}
	last, err := client.XRevRangeN(ctx, changes, "+", "-", 1).Result()
	if err == nil && len(last) > 0 && last[0].Values["version"] == version {
		return nil
	}
	if err == nil {
		err = client.XAdd(ctx, &redis.XAddArgs{
			Stream: changes, MaxLen: maxFilterChanges, Approx: true, Values: []any{"version", version, "after", after},
		}).Err()
	}
	return redisconn.WrapError("store the filters", err)
}

func (r *Recorder) filterTTL() time.Duration { return r.opts.Retention().MaxAge + filterMargin }

// keepFilters extends the time for which the current filters are kept.
func (r *Recorder) keepFilters(ctx context.Context) {
	version := r.filterVersion.Load()
	if version == nil {
		return
	}
	key := FiltersKey(r.opts.Store.keys, *version)
	if err := r.opts.Store.conn.Commands().Expire(ctx, key, r.filterTTL()).Err(); err != nil {
		r.opts.Log.Debug("the filters could not be kept", "error", err)
	}
}

// FiltersAt returns the filters with which an entry of a partition's log was matched. It returns nil if they are no longer
// known.
func (s *Store) FiltersAt(ctx context.Context, partition int, entry string) ([]byte, error) {
	client := s.conn.Commands()
	changes, err := client.XRevRangeN(ctx, FilterChangesKey(s.keys, partition), "+", "-", maxFilterChanges).Result()
	if err != nil {
		return nil, redisconn.WrapError("read the changes of filters", err)
	}
	for _, c := range changes {
		after, _ := c.Values["after"].(string)
		version, _ := c.Values["version"].(string)
		if streamid.Compare(after, entry) >= 0 {
			continue
		}
		text, err := client.Get(ctx, FiltersKey(s.keys, version)).Result()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		if err != nil {
			return nil, redisconn.WrapError("read the filters", err)
		}
		return decompress(text)
	}
	return nil, nil
}

func compress(text []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.DefaultCompression) // the level is valid
	_, _ = w.Write(text)                                  // a buffer returns no error
	_ = w.Close()
	return b.Bytes()
}

func decompress(text string) ([]byte, error) {
	filters, err := io.ReadAll(io.LimitReader(flate.NewReader(strings.NewReader(text)), maxFilters))
	if err != nil {
		return nil, fmt.Errorf("decode the filters: %w", err)
	}
	return filters, nil
}
