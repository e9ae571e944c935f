package docker

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// digestReader reads a tar stream and computes a digest over the name, type, owner, mode, time, link target, attributes
// and contents of every entry.
type digestReader struct {
	io.Reader
	pipe   *io.PipeWriter
	result chan digestResult
}

type digestResult struct {
	digest string
	err    error
}

func newDigestReader(r io.Reader) *digestReader {
	in, out := io.Pipe()
	s := &digestReader{Reader: io.TeeReader(r, out), pipe: out, result: make(chan digestResult, 1)}
	go func() {
		digest, err := digestOf(in)
		_ = in.CloseWithError(err) // stops the writer of the stream
		s.result <- digestResult{digest, err}
	}()
	return s
}

// finish returns the digest. It is called after the last read, with the error that ended reading, or nil.
func (d *digestReader) finish(readErr error) (string, error) {
	_ = d.pipe.CloseWithError(readErr) // always returns nil
	r := <-d.result
	return r.digest, r.err
}

func digestOf(r io.Reader) (string, error) {
	tail := &tailReader{Reader: r}
	entries, sum := tar.NewReader(tail), xxhash.New()
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		if err := checkTime(h); err != nil {
			return "", err
		}
		addHeader(sum, h)
		if _, err := io.Copy(sum, entries); err != nil {
			return "", err
		}
	}
	if _, err := io.Copy(io.Discard, tail); err != nil {
		return "", err
	}
	if !tail.endsWithEOF() {
		return "", errors.New("the archive is truncated") // Docker truncates the response if it fails
	}
	return strconv.FormatUint(sum.Sum64(), 16), nil
}

// checkTime rejects a modification time that Docker would replace by 1970 when it extracts the archive. Docker keeps the
// times of symbolic links, and a hard link has the time of its file.
func checkTime(h *tar.Header) error {
	if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink ||
		h.ModTime.Unix() >= 0 && h.ModTime.Before(time.Unix(0, math.MaxInt64)) {
		return nil
	}
	_, name, _ := strings.Cut(path.Clean(h.Name), "/")
	return fmt.Errorf("modification time %s of %q cannot be copied; set a time between 1970 and 2262 (touch)",
		h.ModTime.UTC().Format(time.DateOnly), cmp.Or(name, "."))
}

func addHeader(sum *xxhash.Digest, h *tar.Header) {
	_, _ = fmt.Fprintf(sum, "%q %c %o %d:%d %d %q %d %d,%d\n", path.Clean(h.Name), h.Typeflag, h.Mode, h.Uid, h.Gid,
		h.ModTime.Unix(), h.Linkname, h.Size, h.Devmajor, h.Devminor)
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			_, _ = fmt.Fprintf(sum, "%q=%q\n", key, h.PAXRecords[key])
		}
	}
}

// tailReader detects whether the stream ends like a tar archive, with two blocks of zeros.
type tailReader struct {
	io.Reader
	zeros int
}

func (t *tailReader) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	for i := n - 1; ; i-- {
		if i < 0 {
			t.zeros += n
			break
		}
		if p[i] != 0 {
			t.zeros = n - 1 - i
			break
		}
	}
	return n, err
}

func (t *tailReader) endsWithEOF() bool { return t.zeros >= 1024 }
