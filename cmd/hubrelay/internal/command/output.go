package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// The output formats.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputJSONL = "jsonl"
	outputYAML  = "yaml"
)

// Output is the output format of a command, set by its flags --output and --json.
type Output struct {
	format string
}

// Register adds the flags.
func (o *Output) Register(flags *pflag.FlagSet) {
	o.format = outputTable
	flags.VarP((*outputFormat)(o), "output", "o", "output format: table for people; json or yaml, one document; or jsonl, JSON lines")
	flags.BoolFunc("json", "print JSON lines, the same as -o jsonl", func(text string) error {
		isSet, err := strconv.ParseBool(text)
		if err == nil && isSet {
			o.format = outputJSONL
		}
		return err
	})
}

// IsTable reports whether the output is for people.
func (o *Output) IsTable() bool { return o.format == outputTable }

// CheckStream returns a usage error if the format is one document, for a command that prints values as they arrive.
func (o *Output) CheckStream(cmd *cobra.Command) error {
	if o.format == outputJSON {
		return NewUsageError(cmd, errors.New("the list has no end: use -o jsonl or -o yaml"))
	}
	return nil
}

// Print prints a value in a format for programs: as one line of JSON, or as one document of YAML. A command that prints
// values as they arrive calls it for each.
func (o *Output) Print(out io.Writer, value any) error {
	text, err := encodeLine(value)
	if err == nil && o.format == outputYAML {
		if text, err = yamldoc.FromJSON(text); err == nil {
			text = append([]byte("---\n"), text...)
		}
	}
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// NewList returns a writer of lists in a format for programs.
func (o *Output) NewList(out io.Writer) *ListWriter { return &ListWriter{out: out, format: o.format} }

// ListWriter prints the entries of a list as JSON lines, or as one array of JSON or YAML. For a table, which the command prints
// itself, only Close may be called.
type ListWriter struct {
	out    io.Writer
	format string
	count  int
}

// Write prints an entry.
func (w *ListWriter) Write(value any) error {
	text, err := encodeLine(value)
	if err != nil {
		return err
	}
	switch w.format {
	case outputJSON:
		separator := ",\n"
		if w.count == 0 {
			separator = "["
		}
		text = append([]byte(separator), bytes.TrimSuffix(text, []byte("\n"))...)
	case outputYAML:
		text = append(append([]byte("["), text...), ']')
		if text, err = yamldoc.FromJSON(text); err != nil {
			return err
		}
	}
	w.count++
	_, err = w.out.Write(text)
	return err
}

// Close ends the list. It prints nothing for a table.
func (w *ListWriter) Close() error {
	end := ""
	switch {
	case w.format == outputTable, w.format == outputJSONL:
		return nil
	case w.count == 0:
		end = "[]\n"
	case w.format == outputJSON:
		end = "]\n"
	}
	_, err := io.WriteString(w.out, end)
	return err
}

func encodeLine(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return text.Bytes(), err
}

// outputFormat is the value of --output.
type outputFormat Output

func (f *outputFormat) Set(text string) error {
	switch text {
	case outputTable, outputJSON, outputJSONL, outputYAML:
		f.format = text
		return nil
	}
	return errors.New("use table, json, jsonl or yaml")
}

func (f *outputFormat) String() string { return f.format }

// Type returns the name of the value in the help.
func (*outputFormat) Type() string { return "FORMAT" }
