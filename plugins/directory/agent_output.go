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
	// maxOutput bounds output.log, in bytes; what was before it is kept once, as output.log.1.
	maxOutput = 4 << 20
)

// agentOutput writes what a command prints into a file of bounded length.
type agentOutput struct {
	// pipe is the end that the command writes to.
	pipe *os.File

	path     string
	maxBytes int64
	read     *os.File
	done     chan struct{}

	mu   sync.Mutex
	file *os.File
	size int64
}

func openOutput(path string, most int64) (*agentOutput, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &agentOutput{pipe: w, path: path, maxBytes: most, read: r, done: make(chan struct{})}
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

// write never fails: a full disk costs the output, not the instance.
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

// writeNote adds a line of the agent's own.
func (o *agentOutput) writeNote(format string, args ...any) {
	o.write(fmt.Appendf(nil, "hubrelay agent, %s: %s\n", time.Now().UTC().Format(time.RFC3339),
		fmt.Sprintf(format, args...)))
}

// Close ends the output. Data in the pipe is still written, even to a slow disk. Output of remaining processes is lost
// after a second.
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
