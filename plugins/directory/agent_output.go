package directory

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/internal/procpipe"
)

const (
	fileOutput = "output.log"
	// maxOutput is the maximum size of output.log in bytes. The previous file is kept as output.log.1.
	maxOutput = 4 << 20
)

// agentOutput writes the output of a command to a file of limited size.
type agentOutput struct {
	// pipe is the end of the pipe to which the command writes.
	pipe *os.File

	path     string
	maxBytes int64
	read     *os.File
	done     chan struct{}

	mu   sync.Mutex
	file *os.File
	size int64
}

func openOutput(path string, maxBytes int64) (*agentOutput, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &agentOutput{pipe: w, path: path, maxBytes: maxBytes, read: r, done: make(chan struct{})}
	if err := o.open(); err != nil {
		return nil, cmp.Or(err, r.Close(), w.Close())
	}
	go o.copyLoop()
	return o, nil
}

func (o *agentOutput) open() error {
	f, err := os.OpenFile(o.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return cmp.Or(err, f.Close())
	}
	o.file, o.size = f, info.Size()
	return nil
}

func (o *agentOutput) copyLoop() {
	defer close(o.done)
	r := bufio.NewReaderSize(procpipe.NewReader(o.read), 64<<10)
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		some, _ := r.Peek(r.Buffered())
		o.write(some)
		_, _ = r.Discard(len(some))
	}
}

// write drops output that cannot be written, because a full disk must not stop the instance.
func (o *agentOutput) write(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return
	}
	if o.size > 0 && o.size+int64(len(p)) > o.maxBytes {
		_ = o.file.Close()
		o.file = nil
		_ = os.Rename(o.path, o.path+".1")
		if o.open() != nil {
			return
		}
	}
	n, _ := o.file.Write(p)
	o.size += int64(n)
}

// writeNote adds a message of the agent to the output.
func (o *agentOutput) writeNote(format string, args ...any) {
	o.write(fmt.Appendf(nil, "hubrelay agent, %s: %s\n", time.Now().UTC().Format(time.RFC3339),
		fmt.Sprintf(format, args...)))
}

// Close writes the data that is still in the pipe, even to a slow disk, and closes the file. It drops the output of
// remaining processes after one second.
func (o *agentOutput) Close() error {
	err := o.pipe.Close()
	if e := o.read.SetReadDeadline(time.Now().Add(time.Second)); e != nil {
		err = cmp.Or(err, e)
	}
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	err = cmp.Or(err, o.read.Close())
	if o.file != nil {
		err = cmp.Or(err, o.file.Close())
		o.file = nil
	}
	return err
}
