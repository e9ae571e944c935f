package ingest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// failed turns the scanner's fault into an error, with the path to the value and, for syntax, line and column.
func (f *frame) failed(index int) *relay.Error {
	slices.Reverse(f.fault.path)
	pointer := relay.JSONPointer(f.fault.path...)
	detail := f.fault.detail
	if f.fault.code == relay.CodeInvalidSyntax {
		line, column := position(f.data, f.fault.pos)
		detail = fmt.Sprintf("line %d, column %d: %s", line, column, detail)
	}
	return placed(relay.NewError(f.fault.code, detail).At(pointer), index)
}

// position counts lines and, within the line, characters, both from 1.
func position(data []byte, pos int) (line, column int) {
	before := data[:min(pos, len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[start:]) + 1
}

// placed says which notification of a batch an error is about.
func placed(err *relay.Error, index int) *relay.Error {
	if index == noIndex {
		return err
	}
	return err.At("/"+strconv.Itoa(index)+err.Source).With("index", index)
}

// wrongType is about a value that begins with c.
func wrongType(what, want string, c byte) *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, what+" must be "+want+", not "+relay.JSONKind(c))
}

func (d *Decoder) unknownTopic(topic string) *relay.Error {
	text, nearest := d.catalog.Unknown(topic)
	err := relay.NewError(relay.CodeInvalidArgument, text).At("/topic")
	if nearest != "" {
		err = err.With("nearest", nearest)
	}
	return err
}
