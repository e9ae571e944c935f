package ingest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/jsontype"
	"github.com/hubrelay/hubrelay/relay"
)

// scanError converts the error of the scanner. It adds the path to the value and, for syntax errors, line and
// column.
func (d *decodeState) scanError(index int) *relay.Error {
	slices.Reverse(d.err.path)
	pointer := relay.JSONPointer(d.err.path...)
	detail := d.err.detail
	if d.err.code == relay.CodeInvalidSyntax {
		line, column := lineColumn(d.data, d.err.pos)
		detail = fmt.Sprintf("line %d, column %d: %s", line, column, detail)
	}
	return withIndex(relay.NewError(d.err.code, detail).WithPointer(pointer), index)
}

// lineColumn returns the line and the column in characters, both from 1.
func lineColumn(data []byte, pos int) (line, column int) {
	before := data[:min(pos, len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[start:]) + 1
}

// withIndex adds the index in the batch to an error.
func withIndex(err *relay.Error, index int) *relay.Error {
	if index == noBatchIndex {
		return err
	}
	return err.WithPointer("/"+strconv.Itoa(index)+err.Source).WithExtra("index", index)
}

// wrongType returns an error about a value that starts with c.
func wrongType(name, want string, c byte) *relay.Error {
	return relay.NewError(relay.CodeInvalidArgument, name+" must be "+want+", not "+jsontype.Name(c))
}

func (d *Decoder) unknownTopic(topic string) *relay.Error {
	text, nearest := d.catalog.DescribeUnknown(topic)
	err := relay.NewError(relay.CodeInvalidArgument, text).WithPointer("/topic")
	if nearest != "" {
		err = err.WithExtra("nearest", nearest)
	}
	return err
}
