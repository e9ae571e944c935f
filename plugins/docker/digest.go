package docker

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// digestReader passes on a tar stream and computes a digest of every entry: name, kind, owner, mode, time, target,
// attributes and contents.
type digestReader struct {
	io.Reader
	pipe   *io.PipeWriter
	result chan digestResult
}

type digestResult struct {
	digest string
	err    error
}

func newSummer(r io.Reader) *digestReader {
	in, out := io.Pipe()
	s := &digestReader{Reader: io.TeeReader(r, out), pipe: out, result: make(chan digestResult, 1)}
	go func() {
		digest, err := digestOf(in)
		_ = in.CloseWithError(err) // stops the writer of the stream
		s.result <- digestResult{digest, err}
	}()
	return s
}

// finish returns the digest once nothing more is read, or because of why reading ended.
func (s *digestReader) finish(why error) (string, error) {
	_ = s.pipe.CloseWithError(why) // it never fails
	r := <-s.result
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
		addHeader(sum, h)
		if _, err := io.Copy(sum, entries); err != nil {
			return "", err
		}
	}
	if _, err := io.Copy(io.Discard, tail); err != nil {
		return "", err
	}
	if !tail.endsWithEOF() {
		return "", errors.New("the files ended before their end") // Docker ends a failed answer like this
	}
	return strconv.FormatUint(sum.Sum64(), 16), nil
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

// tailReader reports whether the stream ends as a tar archive does, with two blocks of zeros.
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
