package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// verify flushes the copy to the disk, reads it again, compares it with the checksums of the source, and checks that
// the source has not changed.
func (t *treeCopy) verify(ctx context.Context) error {
	return t.withProgress(stepVerify, func() error {
		root, err := os.Open(t.root)
		if err != nil {
			return t.v.destination.supersededError(err)
		}
		if err := cmp.Or(syncAll(root), root.Close()); err != nil {
			return fmt.Errorf("write the copy to the disk of server %s: %w", t.v.destination.server, err)
		}
		return t.compareAll(ctx)
	})
}

func (t *treeCopy) compareAll(ctx context.Context) error {
	records := make(chan manifestRecord, 256)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(records)
		return readManifest(t.manifestPath, func(r manifestRecord) error {
			select {
			case records <- r:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	for range 2 {
		g.Go(func() error {
			c := newCopier(t)
			for r := range records {
				if err := c.compareFile(ctx, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (c *fileCopier) compareFile(ctx context.Context, r manifestRecord) error {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(c.t.source, r.path), &st); err != nil || stampOf(&st) != r.fileStamp {
		return sourceChanged(r.path, err)
	}
	if r.kind != 'f' {
		return nil
	}
	counted := int64(0)
	sum, size, err := c.checksum(ctx, filepath.Join(c.t.root, r.path),
		func(n int) { counted += int64(n); c.t.bytes.Add(int64(n)) })
	c.t.bytes.Add(r.size - counted)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("read the copy of %s: %w", r.path, err)
	case sum != r.sum || size != r.size:
		return fmt.Errorf("the copy of %s on server %s differs from the written data; check the disk before migrating "+
			"again", r.path, c.t.v.destination.server)
	}
	return nil
}

// findWrittenSource returns a path of the source that was changed after the last comparison with the copy, or "". Only a process
// outside of the process group of the command can do that.
func (m *migration) findWrittenSource() (string, error) {
	var compared unix.Stat_t
	if err := unix.Lstat(m.source.workFile(fileVerify), &compared); errors.Is(err, fs.ErrNotExist) { // an older driver compared it
		return "", m.source.checkLease()
	} else if err != nil {
		return "", err
	}
	root, written := m.source.workFile(dirInstance), ""
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		isRemoved := errors.Is(err, fs.ErrNotExist) && path != root
		if isRemoved || err == nil && st.Ctim.Nano() > compared.Ctim.Nano() {
			written = path
			return fs.SkipAll
		}
		return err
	})
	return strings.TrimPrefix(written, root+"/"), err
}
