package clients

import (
	"bytes"
	"testing"
)

// FuzzQueue runs operations on a queue and on one slice of bytes, which must agree.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 5, 1, 3, 0, 7, 2, 9, 1, 20, 3, 0})
	f.Add([]byte{2, 10, 1, 4, 3, 0, 0, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		var q writeQueue
		var model []byte
		rest := 0 // unwritten bytes of a partly written first frame
		var next byte
		frame := func(n int) []byte {
			p := make([]byte, n+1)
			for i := range p {
				next++
				p[i] = next
			}
			return p
		}
		for i := 0; i+1 < len(ops); i += 2 {
			n := int(ops[i+1])
			switch ops[i] % 4 {
			case 0:
				p := frame(n)
				q.push(p)
				model = append(model, p...)
			case 1:
				p := make([]byte, n)
				got := q.peekInto(p)
				if !bytes.Equal(p[:got], model[:min(n, len(model))]) {
					t.Fatalf("fill gave %v of %v", p[:got], model)
				}
				q.advance(got)
				model = model[got:]
			case 2:
				if q.written > 0 { // a direct write begins on an empty queue, before others are pushed
					continue
				}
				list := [][]byte{frame(n), frame(2 * n)}
				whole := bytes.Join(list, nil)
				skip := n % (len(whole) + 1)
				q.putBack(list, skip)
				model = append(append([]byte{}, whole[skip:]...), model...)
			case 3:
				rest = 0
				if q.written > 0 {
					rest = len(q.frames[0]) - q.written
				}
				q.dropUnwritten()
				model = model[:rest]
			}
			if q.size != len(model) || q.isEmpty() != (len(model) == 0) {
				t.Fatalf("size %d, empty %v, want %d", q.size, q.isEmpty(), len(model))
			}
		}
	})
}

// dropUnwritten keeps the response to the handshake complete and first.
func TestDropUnwritten_KeepsHandshake(t *testing.T) {
	t.Parallel()
	for written := range len("answer") + 2 {
		var q writeQueue
		q.push([]byte("xy"))
		q.pushHandshake([]byte("answer"))
		q.advance(written)
		q.dropUnwritten()
		q.push([]byte("end"))
		p := make([]byte, 20)
		got := "answerxy"[:written] + string(p[:q.peekInto(p)])
		want := "answerend"
		if written > len("answer") {
			want = "answerxyend"
		}
		if got != want || q.size != len(want)-written {
			t.Errorf("after %d bytes: %q, want %q; size %d", written, got, want, q.size)
		}
	}
}
