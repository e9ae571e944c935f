package admincli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// The output formats.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputJSONL = "jsonl"
)

// outputFlags select the output format of a command.
type outputFlags struct {
	format string
}

// asJSON reports whether the format is JSON.
func (f *outputFlags) asJSON() bool { return f.format != outputTable }

func (f *outputFlags) register(flags *pflag.FlagSet) {
	f.format = outputTable
	flags.VarP((*outputFormat)(f), "output", "o", "output format: table for people; json, one document; or jsonl, JSON lines")
	flags.BoolFunc("json", "print JSON lines, the same as -o jsonl", func(text string) error {
		isSet, err := strconv.ParseBool(text)
		if err == nil && isSet {
			err = (*outputFormat)(f).Set(outputJSONL)
		}
		return err
	})
}

// outputFormat is the value of --output.
type outputFormat outputFlags

func (f *outputFormat) Set(text string) error {
	switch text {
	case outputTable, outputJSON, outputJSONL:
		f.format = text
		return nil
	}
	return errors.New("use table, json or jsonl")
}

func (f *outputFormat) String() string { return f.format }

// Type returns the name of the value in the help.
func (*outputFormat) Type() string { return "FORMAT" }

// printJSON prints each value on one line.
func printJSON[T any](std term.Streams, values ...T) error {
	w := jsonWriter{out: std.Out}
	for _, v := range values {
		if err := w.write(v); err != nil {
			return err
		}
	}
	return nil
}

// jsonWriter prints the entries of a list as JSON lines, or as one array.
type jsonWriter struct {
	out     io.Writer
	isArray bool
	count   int
}

func (w *jsonWriter) write(value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	w.count++
	line := text.Bytes()
	if w.isArray {
		separator := ",\n"
		if w.count == 1 {
			separator = "["
		}
		line = append([]byte(separator), bytes.TrimSuffix(line, []byte("\n"))...)
	}
	_, err := w.out.Write(line)
	return err
}

// close ends an array.
func (w *jsonWriter) close() error {
	end := "]\n"
	switch {
	case !w.isArray:
		return nil
	case w.count == 0:
		end = "[]\n"
	}
	_, err := io.WriteString(w.out, end)
	return err
}

// printPages prints a list: as JSON, or with show. forEach calls its argument with each page. empty is printed instead of a
// list without entries.
func printPages[Entry any](
	std term.Streams, f *outputFlags, forEach func(visit func([]Entry) error) error, show func([]Entry) error, empty string,
) error {
	w := jsonWriter{out: std.Out, isArray: f.format == outputJSON}
	found := false
	err := forEach(func(page []Entry) error {
		found = found || len(page) > 0
		if !f.asJSON() {
			if len(page) == 0 {
				return nil
			}
			return show(page)
		}
		for i := range page {
			if err := w.write(page[i]); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case f.asJSON():
		return w.close()
	case !found:
		_, err = fmt.Fprintln(std.Out, empty)
	}
	return err
}
