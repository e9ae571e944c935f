package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/client"
)

// A batch on standard input leaves when it is full, or when nothing more has come for a moment: so a file goes out
// in large requests, and the output of a running program at once.
const (
	publishBatch  = 500
	publishBytes  = 768 << 10
	publishLinger = 20 * time.Millisecond

	// maxInput bounds a line, and a JSON text over several lines: no relay takes a larger body.
	maxInput = 64 << 20
)

// inputLine is one line of standard input, with its line break where it has one.
type inputLine struct {
	number int // from 1
	text   []byte
	err    error // why there is no line, and no further one
}

func (l inputLine) isBlank() bool { return len(bytes.TrimSpace(l.text)) == 0 && l.err == nil }

// publishStream sends standard input: lines as they come, or, where the first is no whole JSON object, all of it as one
// text.
func publishStream(ctx context.Context, std term.Streams, f *publishFlags) error {
	// The reader cannot be interrupted: a signal leaves it behind in its last read, and the process ends.
	lines := make(chan inputLine, publishBatch)
	go readLines(ctx, std.In, lines)
	var head []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, ok := <-lines:
			head = append(head, line.text...)
			switch {
			case !ok:
				return nil
			case line.err != nil:
				return line.err
			case line.isBlank():
			case isPartOfText(line.text):
				return publishText(ctx, std, f, head, lines)
			default:
				b := &publishBatchBuffer{std: std, client: f.newClient(), asJSON: f.asJSON}
				return b.send(ctx, line, lines)
			}
		}
	}
}

// isPartOfText says whether line is an array or the beginning of something longer. What is no JSON at all is left to
// the relay to refuse at once, since more of it may not come for long.
func isPartOfText(line []byte) bool {
	err := json.NewDecoder(bytes.NewReader(line)).Decode(new(json.RawMessage))
	return errors.Is(err, io.ErrUnexpectedEOF) || err == nil && bytes.TrimSpace(line)[0] == '['
}

// publishText sends head and all further lines in one request.
func publishText(ctx context.Context, std term.Streams, f *publishFlags, head []byte, lines <-chan inputLine) error {
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted: nothing has been sent, since the JSON text did not end")
		case line, ok := <-lines:
			if !ok {
				return publishBody(ctx, std, f, head)
			}
			if line.err != nil {
				return line.err
			}
			if head = append(head, line.text...); len(head) > maxInput {
				return fmt.Errorf("standard input is one JSON text of more than %d MiB: send one notification on "+
					"each line", maxInput>>20)
			}
		}
	}
}

func readLines(ctx context.Context, from io.Reader, lines chan<- inputLine) {
	defer close(lines)
	in := bufio.NewReaderSize(from, 64<<10)
	for number, more := 1, true; more; number++ {
		text, err := readLine(in)
		more = err == nil
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("read line %d of standard input: %w", number, err)
		}
		select {
		case lines <- inputLine{number: number, text: text, err: err}:
		case <-ctx.Done():
			return
		}
	}
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxInput {
			return nil, fmt.Errorf("it is longer than %d MiB", maxInput>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// publishBatchBuffer gathers lines for one request.
type publishBatchBuffer struct {
	std     term.Streams
	client  *client.Client
	asJSON  bool
	body    bytes.Buffer
	numbers []int // of the lines in body
}

// send sends first and what follows it, until lines ends.
func (b *publishBatchBuffer) send(ctx context.Context, first inputLine, lines <-chan inputLine) error {
	if err := b.add(ctx, first); err != nil {
		return err
	}
	linger := time.NewTimer(publishLinger)
	defer linger.Stop()
	for {
		select {
		case <-ctx.Done():
			if left := len(b.numbers) + len(lines); left > 0 {
				return fmt.Errorf("interrupted: the last %d lines that were read have not been sent", left)
			}
			return nil
		case <-linger.C:
			if err := b.flush(ctx); err != nil {
				return err
			}
		case line, ok := <-lines:
			if !ok {
				return b.flush(ctx)
			}
			if err := b.add(ctx, line); err != nil {
				return err
			}
			linger.Reset(publishLinger)
		}
	}
}

// add takes line into the batch and sends what is full. Lines before one that could not be read are sent.
func (b *publishBatchBuffer) add(ctx context.Context, line inputLine) error {
	if line.isBlank() {
		return nil
	}
	if line.err != nil || b.body.Len()+len(line.text) > publishBytes {
		if err := errors.Join(b.flush(ctx), line.err); err != nil {
			return err
		}
	}
	b.body.Write(bytes.TrimRight(line.text, "\r\n"))
	b.body.WriteByte('\n')
	b.numbers = append(b.numbers, line.number)
	if len(b.numbers) == publishBatch {
		return b.flush(ctx)
	}
	return nil
}

func (b *publishBatchBuffer) flush(ctx context.Context) error {
	if len(b.numbers) == 0 {
		return nil
	}
	ids, err := b.client.Publish(ctx, "application/x-ndjson", "", b.body.Bytes())
	if err != nil {
		return b.withLine(err)
	}
	b.body.Reset()
	b.numbers = b.numbers[:0]
	return printIDs(b.std, b.asJSON, ids)
}

// withLine says which line of the input the relay refused, and where to go on.
func (b *publishBatchBuffer) withLine(err error) error {
	var answer *client.Error
	if !errors.As(err, &answer) {
		return err
	}
	index, ok := answer.Extra["index"].(float64)
	if !ok || index < 0 || int(index) >= len(b.numbers) {
		return err
	}
	return fmt.Errorf("line %d of standard input: %w; nothing was published from line %d on", b.numbers[int(index)],
		err, b.numbers[0])
}
