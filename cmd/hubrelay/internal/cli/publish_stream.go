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

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/client"
)

// A batch is sent when it is full or no line has arrived for publishLinger. A file is therefore sent in large requests,
// and the output of a running program without delay.
const (
	publishBatch  = 500
	publishBytes  = 768 << 10
	publishLinger = 20 * time.Millisecond

	// maxInput limits a line, and a JSON text over several lines. No relay accepts a larger body.
	maxInput = 64 << 20
)

// inputLine is a line of standard input including its line break, if it has one.
type inputLine struct {
	number int // from 1
	text   []byte
	err    error // read error; no more lines follow
}

func (l inputLine) isBlank() bool { return len(bytes.TrimSpace(l.text)) == 0 && l.err == nil }

// publishStream sends standard input. If the first line is a complete JSON object, it sends lines as they arrive,
// otherwise the whole input as one JSON text.
func publishStream(ctx context.Context, std term.Streams, f *publishFlags) error {
	// A read cannot be interrupted. The goroutine ends with the process.
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
				b := &publishBatchBuffer{std: std, client: f.newClient(), output: &f.Output}
				return b.send(ctx, line, lines)
			}
		}
	}
}

// isPartOfText reports whether line is an array or the start of a longer JSON text. Invalid JSON is sent to the
// relay, which rejects it immediately, because more input may not arrive soon.
func isPartOfText(line []byte) bool {
	err := json.NewDecoder(bytes.NewReader(line)).Decode(new(json.RawMessage))
	return errors.Is(err, io.ErrUnexpectedEOF) || err == nil && bytes.TrimSpace(line)[0] == '['
}

// publishText sends head and all other lines in one request.
func publishText(ctx context.Context, std term.Streams, f *publishFlags, head []byte, lines <-chan inputLine) error {
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted: nothing has been sent, because the JSON text is not complete")
		case line, ok := <-lines:
			if !ok {
				return publishBody(ctx, std, f, head)
			}
			if line.err != nil {
				return line.err
			}
			if head = append(head, line.text...); len(head) > maxInput {
				return fmt.Errorf("standard input is one JSON text of more than %d MiB: send one event on "+
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
			return nil, fmt.Errorf("longer than %d MiB", maxInput>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// publishBatchBuffer collects the lines of one request.
type publishBatchBuffer struct {
	std     term.Streams
	client  *client.Client
	output  *command.Output
	body    bytes.Buffer
	numbers []int // of the lines in body
}

// send sends first and all lines after it.
func (b *publishBatchBuffer) send(ctx context.Context, first inputLine, lines <-chan inputLine) error {
	if err := b.add(ctx, first); err != nil {
		return err
	}
	linger := time.NewTimer(publishLinger)
	defer linger.Stop()
	for {
		select {
		case <-ctx.Done():
			if unsent := len(b.numbers) + len(lines); unsent > 0 {
				return fmt.Errorf("interrupted: the last %d lines that were read have not been sent", unsent)
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

// add appends line to the batch and sends a full batch. It sends the lines before a read error.
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
	return printIDs(b.std, b.output, ids)
}

// withLine adds to err the line of the input that the relay rejected, and the first line that was not published.
func (b *publishBatchBuffer) withLine(err error) error {
	var response *client.Error
	if !errors.As(err, &response) {
		return err
	}
	index, ok := response.Extra["index"].(float64)
	if !ok || index < 0 || int(index) >= len(b.numbers) {
		return err
	}
	return fmt.Errorf("line %d of standard input: %w; nothing was published from line %d on", b.numbers[int(index)],
		err, b.numbers[0])
}
