package directory

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fileStamp detects changes to a file: equal stamps mean equal contents.
type fileStamp struct {
	ino          uint64
	size         int64
	mtime, ctime int64
}

func stampOf(st *unix.Stat_t) fileStamp {
	s := fileStamp{ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		s.size = 0
	}
	return s
}

// manifestRecord describes the copy of one path of the instance.
type manifestRecord struct {
	kind byte // f: a file, complete on the destination; d: a directory with only complete entries
	fileStamp
	sum  uint64
	path string
}

func (r manifestRecord) encode() []byte {
	b := fmt.Appendf(nil, "%c %d %d %d %d %016x ", r.kind, r.ino, r.size, r.mtime, r.ctime, r.sum)
	return append(strconv.AppendQuote(b, r.path), '\n') // a name may contain any byte
}

func parseRecord(line []byte) (manifestRecord, error) {
	var r manifestRecord
	var quoted string
	fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 7)
	if len(fields) != 7 || !bytes.HasSuffix(line, []byte("\n")) {
		return r, io.ErrUnexpectedEOF
	}
	quoted = string(fields[6])
	_, err := fmt.Sscanf(string(bytes.Join(fields[:6], []byte(" "))), "%c %d %d %d %d %x", &r.kind, &r.ino, &r.size,
		&r.mtime, &r.ctime, &r.sum)
	if err != nil {
		return r, err
	}
	r.path, err = strconv.Unquote(quoted)
	return r, err
}

// manifest lists the complete entries. It is written during the copy and may be used concurrently.
type manifest struct {
	mu      sync.Mutex
	file    *os.File
	w       *bufio.Writer
	flushed time.Time
}

func newManifest(path string) (*manifest, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &manifest{file: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

// add adds a record of a complete path. A crash may lose the records since the last flush.
func (m *manifest) add(r manifestRecord) error {
	line := r.encode()
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.w.Write(line); err != nil {
		return err
	}
	if r.size < 16<<20 && time.Since(m.flushed) < 100*time.Millisecond {
		return nil
	}
	m.flushed = time.Now()
	return m.w.Flush()
}

func (m *manifest) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.w.Flush(), m.file.Close())
}

// readManifest calls each for every record, and stops at a truncated one, which is the last.
func readManifest(path string, each func(manifestRecord) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err == nil {
			var rec manifestRecord
			if rec, err = parseRecord(line); err == nil {
				err = each(rec)
			} else {
				err = io.EOF
			}
		}
		if errors.Is(err, io.EOF) {
			return f.Close()
		}
		if err != nil {
			return cmp.Or(err, f.Close())
		}
	}
}
