package resp

import (
	"encoding/binary"
	"fmt"
	"io"
)

// readHeader reads the first line of a reply, which has its kind and a number.
func (c *Conn) readHeader() (kind byte, n int64, err error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 3 {
		return 0, 0, fmt.Errorf("redis sent %q", line)
	}
	kind, line = line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return kind, 0, ServerError(line)
	case '+':
		return kind, 0, nil
	}
	n, ok := parseInt(line)
	if !ok || n > maxBulk {
		return 0, 0, fmt.Errorf("redis sent %.40q", line)
	}
	return kind, n, nil
}

func parseInt(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// readArrayLen reads the length of an array. It is -1 for a null array.
func (c *Conn) readArrayLen() (int64, error) {
	kind, n, err := c.readHeader()
	if err == nil && kind != '*' {
		err = fmt.Errorf("redis sent %q instead of a list", kind)
	}
	return n, err
}

func (c *Conn) expectArray(want int64) error {
	n, err := c.readArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("redis sent a list of %d elements, want %d", n, want)
	}
	return err
}

// readBulk appends a string to b.
func (c *Conn) readBulk(b []byte) ([]byte, error) {
	n, err := c.readBulkLen()
	if err != nil {
		return b, err
	}
	return c.readBody(b, n)
}

// readField appends the length of a string and the string to b. If b then exceeds the limit, it omits the end of the
// string, and all of it if b exceeded the limit before.
func (c *Conn) readField(b []byte) (_ []byte, omitted int64, err error) {
	n, err := c.readBulkLen()
	if err != nil {
		return b, 0, err
	}
	if c.maxEntry > 0 && int64(len(b))+n > int64(c.maxEntry) {
		kept := max(0, int64(c.maxEntry-len(b)))
		omitted = n - kept
		if kept == 0 {
			return b, omitted, c.discard(n + 2)
		}
		b = binary.AppendUvarint(b, uint64(kept))
		for kept > 0 {
			piece, err := c.reader.Peek(int(min(kept, int64(c.reader.Size()))))
			if err != nil {
				return b, omitted, err
			}
			b = append(b, piece...)
			kept -= int64(len(piece))
			if err := c.discard(int64(len(piece))); err != nil {
				return b, omitted, err
			}
		}
		return b, omitted, c.discard(omitted + 2)
	}
	b, err = c.readBody(binary.AppendUvarint(b, uint64(n)), n)
	return b, 0, err
}

func (c *Conn) discard(n int64) error {
	_, err := c.reader.Discard(int(n))
	return err
}

func (c *Conn) readBulkLen() (int64, error) {
	kind, n, err := c.readHeader()
	if err == nil && (kind != '$' || n < 0) {
		err = fmt.Errorf("redis sent %q instead of a string", kind)
	}
	return n, err
}

func (c *Conn) readBody(b []byte, n int64) ([]byte, error) {
	if whole := int(n) + 2; whole <= c.reader.Buffered() { // nearly always
		piece, err := c.reader.Peek(whole)
		if err != nil {
			return b, err
		}
		if piece[n] != '\r' || piece[n+1] != '\n' {
			return b, io.ErrUnexpectedEOF
		}
		b = append(b, piece[:n]...)
		_, err = c.reader.Discard(whole)
		return b, err
	}
	// Memory is allocated while the bytes arrive, so a wrong length allocates none.
	for n > 0 {
		piece, err := c.reader.Peek(int(min(n, int64(c.reader.Size()))))
		if err != nil {
			return b, err
		}
		b = append(b, piece...)
		n -= int64(len(piece))
		if _, err := c.reader.Discard(len(piece)); err != nil {
			return b, err
		}
	}
	end, err := c.reader.Peek(2)
	if err != nil {
		return b, err
	}
	if end[0] != '\r' || end[1] != '\n' {
		return b, io.ErrUnexpectedEOF
	}
	_, err = c.reader.Discard(2)
	return b, err
}
