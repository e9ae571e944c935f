// Package hashchain makes a file of JSON lines tamper-evident: each line contains the SHA-256 hash of the previous one.
//
// It must not contain: what the lines record.
package hashchain

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Zero is the previous hash of the first line of a new file.
const Zero = "0000000000000000000000000000000000000000000000000000000000000000"

// Hash returns the hash of a line without its line break, in hexadecimal. The next line contains it as the member
// previous_sha256.
func Hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// MaxLine is the maximum length of a line that Verify accepts, without its line break.
const MaxLine = 1 << 20

// Result is the result of [Verify].
type Result struct {
	// Lines is the number of lines.
	Lines int64
	// Unprotected is the number of lines at the beginning that have no hash.
	Unprotected int64
	// Broken is the first broken line. It is nil if the chain is intact.
	Broken *BrokenLine
	// PreviousSHA256 is the hash in the first line. It is 64 zeros, or LastSHA256 of the file before a rotation. It is
	// empty if the first line has no hash.
	PreviousSHA256 string
	// LastSHA256 is the hash of the last line. It is empty if there is no line. No later line contains it, so only a
	// copy of it that is kept elsewhere detects that the last lines were changed or removed.
	LastSHA256 string
}

// BrokenLine is a line that does not follow from the line before it.
type BrokenLine struct {
	// Line is the number of the line. The first line is 1.
	Line   int64
	Reason Reason
}

// Reason describes the fault of a line.
type Reason string

// The reasons why a line is broken.
const (
	ReasonNotJSON Reason = "the line is not a JSON object"
	ReasonTooLong Reason = "the line is longer than 1 MiB"
	ReasonNoHash  Reason = "the line has no previous_sha256"
	// ReasonInserted means that the next line follows from the line before.
	ReasonInserted Reason = "the line was inserted"
	// ReasonChanged means that neither this line nor the next one follows from the line before it.
	ReasonChanged Reason = "the line was changed"
	// ReasonChangedOrRemoved means that the line follows from a line that is missing. A hash cannot show whether that
	// line was changed or removed.
	ReasonChangedOrRemoved Reason = "the line before it was changed, or lines before it were removed"
)

// Verify checks the hash chain of a file. An error means that r could not be read. Files that were rotated are checked
// together if r reads them in order, the oldest first. Verify needs constant memory.
func Verify(r io.Reader) (Result, error) {
	lines := newLineReader(r)
	var v verifier
	for {
		l, err := lines.next()
		if errors.Is(err, io.EOF) {
			v.finish()
			return v.result, nil
		}
		if err != nil {
			return v.result, fmt.Errorf("read line %d of the chain: %w", v.result.Lines+1, err)
		}
		v.add(&l)
	}
}

// verifier checks one line after the other.
type verifier struct {
	result Result
	// last and beforeLast are the hashes of the two lines before the current one.
	last, beforeLast string
	// isProtected reports whether a line had a hash.
	isProtected bool
	// isSuspect reports whether the last line is broken. The next line shows the reason.
	isSuspect bool
}

func (v *verifier) add(l *verifiedLine) {
	v.result.Lines++
	if v.result.Lines == 1 {
		// A line that was inserted before the first one has the same previous hash.
		v.last, v.result.PreviousSHA256 = l.previous, l.previous
	}
	if v.result.Broken == nil {
		v.check(l)
	}
	v.beforeLast, v.last = v.last, l.hash
	v.result.LastSHA256 = l.hash
}

func (v *verifier) check(l *verifiedLine) {
	n := v.result.Lines
	switch {
	case v.isSuspect && l.previous == v.beforeLast:
		v.markBroken(n-1, ReasonInserted)
	case v.isSuspect && (l.previous == v.last || l.reason != ""):
		v.markBroken(n-1, ReasonChangedOrRemoved)
	case v.isSuspect:
		v.markBroken(n-1, ReasonChanged)
	case l.reason == ReasonNoHash && !v.isProtected:
		v.result.Unprotected++
	case l.reason != "":
		v.markBroken(n, l.reason)
	case l.previous == v.last:
		v.isProtected = true
	case l.previous == v.beforeLast:
		v.markBroken(n-1, ReasonInserted)
	default:
		v.isProtected, v.isSuspect = true, true
	}
}

func (v *verifier) finish() {
	if v.isSuspect && v.result.Broken == nil {
		v.markBroken(v.result.Lines, ReasonChangedOrRemoved)
	}
}

func (v *verifier) markBroken(line int64, reason Reason) { v.result.Broken = &BrokenLine{line, reason} }

// verifiedLine is a line without its text.
type verifiedLine struct {
	hash string
	// previous is the hash in the line. It is empty if there is a reason.
	previous string
	reason   Reason
}

// lineReader reads lines of any length and keeps at most MaxLine bytes of them.
type lineReader struct {
	r    *bufio.Reader
	text []byte
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns io.EOF after the last line. The last line may have no line break.
func (r *lineReader) next() (verifiedLine, error) {
	r.text = r.text[:0]
	hash, size := sha256.New(), 0
	for {
		part, err := r.r.ReadSlice('\n')
		isEnd := err == nil
		if isEnd {
			part = part[:len(part)-1]
		}
		size += len(part)
		hash.Write(part)
		if size <= MaxLine {
			r.text = append(r.text, part...)
		}
		switch {
		case isEnd, errors.Is(err, io.EOF) && size > 0:
			l := verifiedLine{hash: hex.EncodeToString(hash.Sum(nil)), reason: ReasonTooLong}
			if size <= MaxLine {
				l.previous, l.reason = previousHash(r.text)
			}
			return l, nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return verifiedLine{}, err
		}
	}
}

// previousHash returns the hash in a line, or why there is none.
func previousHash(line []byte) (string, Reason) {
	var e struct {
		PreviousSHA256 json.RawMessage `json:"previous_sha256"`
	}
	if line = bytes.TrimSpace(line); len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &e) != nil {
		return "", ReasonNotJSON
	}
	var previous string
	if json.Unmarshal(e.PreviousSHA256, &previous) != nil || previous == "" {
		return "", ReasonNoHash
	}
	return previous, ""
}
