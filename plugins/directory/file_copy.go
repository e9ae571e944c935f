package directory

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

const (
	// blockSize is the size of a read. It is part of the manifest format, because checksums are computed over blocks.
	blockSize = 1 << 20
	// pipelineMinSize is the minimum size of a file for which reading and writing overlap.
	pipelineMinSize = 4 * blockSize
)

// fileCopier copies files one after the other. It is not safe for concurrent use.
type fileCopier struct {
	t       *treeCopy
	buffers [3][]byte
	digest  *xxhash.Digest
}

func newCopier(t *treeCopy) *fileCopier {
	c := &fileCopier{t: t, digest: xxhash.New()}
	for i := range c.buffers {
		c.buffers[i] = make([]byte, blockSize)
	}
	return c
}

// copyFile copies a file, or adopts the copy of an earlier lease.
func (c *fileCopier) copyFile(ctx context.Context, f fileTask) error {
	src, err := openAt(int(f.dir.src.Fd()), f.name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return sourceChanged(f.path, err)
	}
	err = c.copyOpen(ctx, f, src)
	return cmp.Or(err, src.Close())
}

func (c *fileCopier) copyOpen(ctx context.Context, f fileTask, src *os.File) error {
	var before, after unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &before); err != nil {
		return sourceChanged(f.path, err)
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return sourceChanged(f.path, errors.New("it is no longer a regular file"))
	}
	r := manifestRecord{kind: 'f', fileStamp: stampOf(&before), path: f.path}
	reused, err := c.reuseEarlier(ctx, f, &r)
	if err != nil {
		return err
	}
	if reused {
		return c.t.manifest.add(r)
	}
	dst, err := openAt(int(f.dir.dst.Fd()), f.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return writeError(f.path, err)
	}
	r.sum, err = c.copyContents(ctx, src, dst, &before)
	switch {
	case errors.Is(err, errFileGrew):
		err = sourceChanged(f.path, err)
	case err != nil:
		err = fmt.Errorf("copy %s: %w", f.path, err)
	}
	if err == nil {
		err = copyMetadata(src, dst, int(f.dir.dst.Fd()), f.name, f.path, &before)
	}
	if err = cmp.Or(err, dst.Close()); err != nil {
		return err
	}
	if err := unix.Fstat(int(src.Fd()), &after); err != nil || stampOf(&after) != r.fileStamp {
		return sourceChanged(f.path, err)
	}
	err = c.t.manifest.add(r)
	c.t.v.driver.stepHook("file")
	return err
}

// reuseEarlier adopts a file that an earlier lease has copied completely, if neither the source nor the copy has
// changed.
func (c *fileCopier) reuseEarlier(ctx context.Context, f fileTask, r *manifestRecord) (bool, error) {
	for _, old := range c.t.earlierCopies {
		known, ok := old.records[f.path]
		if !ok || known.fileStamp != r.fileStamp {
			continue
		}
		path := filepath.Join(old.root, f.path)
		sum, size, err := c.checksum(ctx, path, nil)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil || sum != known.sum || size != known.size {
			continue
		}
		if err := unix.Renameat(unix.AT_FDCWD, path, int(f.dir.dst.Fd()), f.name); err != nil {
			continue
		}
		r.sum = sum
		c.t.bytes.Add(size)
		return true, nil
	}
	return false, nil
}

// chunk is a block that was read and is to be written.
type chunk struct {
	data []byte
	at   int64
}

// copyContents copies the contents of a file of st.Size bytes and returns their checksum. It preserves holes.
func (c *fileCopier) copyContents(ctx context.Context, src, dst *os.File, st *unix.Stat_t) (uint64, error) {
	sparse := st.Blocks*512 < st.Size
	var counted int64
	write := func(k chunk) error {
		n := int64(len(k.data))
		if k.at+n > st.Size { // the file might grow forever
			return errFileGrew
		}
		counted += n
		c.t.bytes.Add(n)
		if sparse && isAllZero(k.data) {
			return nil
		}
		_, err := dst.WriteAt(k.data, k.at)
		return err
	}
	var err error
	var sum uint64
	if st.Size >= pipelineMinSize {
		sum, err = c.copyOverlapped(ctx, src, sparse, write)
	} else {
		sum, _, err = c.readBlocks(ctx, src, sparse, func() []byte { return c.buffers[0] }, write)
	}
	if err == nil && sparse {
		err = dst.Truncate(st.Size)
	}
	c.t.bytes.Add(st.Size - counted) // count holes as copied
	return sum, err
}

var errFileGrew = errors.New("it grew")

// copyOverlapped copies a file and writes each block while it reads the next.
func (c *fileCopier) copyOverlapped(
	ctx context.Context, src *os.File, sparse bool, write func(chunk) error,
) (uint64, error) {
	free := make(chan []byte, len(c.buffers))
	for _, b := range c.buffers {
		free <- b
	}
	full := make(chan chunk, len(c.buffers))
	written := make(chan error, 1)
	go func() {
		var err error
		for k := range full {
			if err == nil {
				err = write(k)
			}
			free <- k.data[:blockSize]
			if err != nil {
				break
			}
		}
		written <- err
	}()
	sum, _, err := c.readBlocks(ctx, src, sparse, func() []byte {
		select {
		case b := <-free:
			return b
		case failed := <-written:
			written <- failed
			return nil
		}
	}, func(k chunk) error {
		full <- k // never blocks: the channel has room for every buffer
		return nil
	})
	close(full)
	if failed := <-written; failed != nil {
		return 0, failed
	}
	return sum, err
}

// readBlocks reads a file block by block. The checksum covers each block that contains a non-zero byte, and the
// position of the block. So holes count as zeros on every file system.
func (c *fileCopier) readBlocks(
	ctx context.Context, src *os.File, sparse bool, buffer func() []byte, each func(chunk) error,
) (sum uint64, size int64, err error) {
	c.digest.Reset()
	var place [8]byte
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return 0, at, err
		}
		if sparse {
			if at, err = nextBlock(src, at); err != nil {
				return 0, at, err
			}
		}
		b := buffer()
		if b == nil {
			return 0, at, nil // the writer failed and reports the error
		}
		n, err := src.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, at, err
		}
		ended := err != nil
		if n > 0 && !isAllZero(b[:n]) {
			binary.LittleEndian.PutUint64(place[:], uint64(at))
			_, _ = c.digest.Write(place[:])
			_, _ = c.digest.Write(b[:n])
		}
		if n > 0 {
			if err := each(chunk{b[:n], at}); err != nil {
				return 0, at, err
			}
		}
		at += int64(n)
		if ended {
			return c.digest.Sum64(), at, nil
		}
	}
}

// nextBlock returns the position of the next block that contains data, at or after the given position.
func nextBlock(src *os.File, at int64) (int64, error) {
	data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // only a hole up to the end
		info, err := src.Stat()
		if err != nil {
			return at, err
		}
		return max(at, info.Size()), nil
	case err != nil:
		return at, nil // the file system does not support holes
	}
	return max(at, data/blockSize*blockSize), nil
}

// checksum computes the checksum of a file.
func (c *fileCopier) checksum(ctx context.Context, path string, each func(n int)) (sum uint64, size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		sum, size, err = c.readBlocks(ctx, f, st.Blocks*512 < st.Size, func() []byte { return c.buffers[0] },
			func(k chunk) error {
				if each != nil {
					each(len(k.data))
				}
				return nil
			})
	}
	return sum, size, cmp.Or(err, f.Close())
}

// isAllZero reports whether b contains only zeros. The first word is usually enough to decide.
func isAllZero(b []byte) bool {
	for len(b)%8 != 0 {
		if b[len(b)-1] != 0 {
			return false
		}
		b = b[:len(b)-1]
	}
	for i := 0; i < len(b); i += 8 {
		if binary.NativeEndian.Uint64(b[i:]) != 0 {
			return false
		}
	}
	return true
}
