package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/relay/client"
)

// A batch on standard input leaves when it is full, or when nothing more has come for a moment: so a file goes out
// in large requests, and the output of a running program at once.
const (
	publishBatch  = 500
	publishBytes  = 768 << 10
	publishLinger = 20 * time.Millisecond
	maxLine       = 1 << 20
)

type publishFlags struct {
	remote
	single     sample
	idempotent string
	asJSON     bool
}

func newPublish(std streams) *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish [FILE | -]",
		Short: "Publish notifications",
		Long: `Publishes notifications and prints the id of each.

FILE holds one notification as JSON, an array of them, or one on each line (NDJSON); "-" is standard input, where
lines are sent as they come. Without FILE, --topic and its companions describe one notification.`,
		Example: `  hubrelay publish --topic container.created --container 5f0c
  hubrelay publish events.json
  tail -f events.ndjson | hubrelay publish -`,
		Args: checked(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && f.single.Topic != "":
				return newUsageError(cmd, errors.New("give either a file or --topic, not both"))
			case len(args) == 1:
				return publishFile(cmd.Context(), std, &f, args[0])
			case f.single.Topic == "":
				return newUsageError(cmd, errors.New("nothing to publish: give a file, - for standard input, or --topic"))
			}
			f.single.Context.HubID = f.hub
			body, err := json.Marshal(f.single)
			if err != nil {
				return err
			}
			return publishBody(cmd.Context(), std, &f, body)
		},
	}
	f.register(cmd, std)
	flags := cmd.Flags()
	flags.StringVar(&f.single.Topic, "topic", "", "topic of a single notification ('hubrelay topics' lists them)")
	flags.StringVar(&f.single.Object.ID, "object", "", "object.id, what it is about (the relay's own id where not given)")
	flags.StringVar(&f.single.Object.State, "state", "", "object.state")
	flags.StringVar(&f.single.Object.Error, "error", "", "object.error")
	flags.StringSliceVar(&f.single.Context.Environments, "environment", nil, "environment id, may repeat")
	flags.StringSliceVar(&f.single.Context.Clusters, "cluster", nil, "cluster name, may repeat")
	flags.StringSliceVar(&f.single.Context.Containers, "container", nil, "container id, may repeat")
	flags.StringSliceVar(&f.single.Context.DNSZones, "dns-zone", nil, "DNS zone id, may repeat")
	flags.StringVar(&f.idempotent, "idempotency-key", "", "makes a repeat of this call within 10 minutes safe (not for -)")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON lines")
	return cmd
}

func publishFile(ctx context.Context, std streams, f *publishFlags, name string) error {
	if name == "-" {
		if f.idempotent != "" {
			return errors.New("--idempotency-key names one request, standard input may become several: publish a file instead")
		}
		return publishStream(ctx, std, f)
	}
	body, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return publishBody(ctx, std, f, body)
}

func publishBody(ctx context.Context, std streams, f *publishFlags, body []byte) error {
	// Anything that is not one JSON text is taken for NDJSON; the relay says which line is wrong where it is neither.
	contentType := "application/x-ndjson"
	if json.Valid(body) {
		contentType = "application/json"
	}
	ids, err := f.client().Publish(ctx, contentType, f.idempotent, body)
	if err != nil {
		return err
	}
	return printIDs(std, f.asJSON, ids)
}

func (r *remote) client() *client.Client { return &client.Client{URL: r.url, Key: r.key, Hub: r.hub} }

func printIDs(std streams, asJSON bool, ids []string) error {
	out := bufio.NewWriter(std.out)
	for _, id := range ids {
		if asJSON {
			_, _ = fmt.Fprintf(out, "{\"id\":%q}\n", id)
		} else {
			_, _ = fmt.Fprintln(out, id)
		}
	}
	return out.Flush()
}

// publishStream sends standard input. A first line that is no whole JSON value means that the input is one text over
// several lines.
func publishStream(ctx context.Context, std streams, f *publishFlags) error {
	in := bufio.NewReaderSize(std.in, 64<<10)
	first, err := readLine(in)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if trimmed := bytes.TrimSpace(first); len(trimmed) > 0 && (trimmed[0] != '{' || !json.Valid(trimmed)) {
		rest, err := io.ReadAll(io.LimitReader(in, maxLine+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		return publishBody(ctx, std, f, append(first, rest...))
	}

	// The reader cannot be interrupted: a signal leaves it behind in its last read, and the process ends.
	lines := make(chan []byte, publishBatch)
	failed := make(chan error, 1)
	go func() {
		defer close(lines)
		for line := first; ; {
			if len(bytes.TrimSpace(line)) > 0 {
				select {
				case lines <- line:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					failed <- err
				}
				return
			}
			line, err = readLine(in)
		}
	}()
	if err := sendBatches(ctx, std, f, lines); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("read standard input: %w", err)
	default:
		return nil
	}
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, errors.New("a line is longer than 1 MiB")
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func sendBatches(ctx context.Context, std streams, f *publishFlags, lines <-chan []byte) error {
	c := f.client()
	var body bytes.Buffer
	count := 0
	flush := func() error {
		if count == 0 {
			return nil
		}
		ids, err := c.Publish(ctx, "application/x-ndjson", "", body.Bytes())
		if err != nil {
			return err
		}
		body.Reset()
		count = 0
		return printIDs(std, f.asJSON, ids)
	}
	linger := time.NewTimer(publishLinger)
	defer linger.Stop()
	for {
		select {
		case <-ctx.Done():
			if count > 0 {
				return fmt.Errorf("interrupted: the last %d lines that were read have not been sent", count)
			}
			return nil
		case <-linger.C:
			if err := flush(); err != nil {
				return err
			}
		case line, ok := <-lines:
			if !ok {
				return flush()
			}
			if body.Len()+len(line) > publishBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			body.Write(bytes.TrimRight(line, "\r\n"))
			body.WriteByte('\n')
			count++
			if count == publishBatch {
				if err := flush(); err != nil {
					return err
				}
			}
			linger.Reset(publishLinger)
		}
	}
}
