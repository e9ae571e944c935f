package frame

import "github.com/hubrelay/hubrelay/relay"

// Set holds the frames of one notification, one per encoding. The zero value is empty. Its owner serializes all calls.
type Set struct {
	frames []encodedFrame // clients use few encodings
}

type encodedFrame struct {
	frame []byte
	saved int32 // by how many bytes compression made it shorter
	as    Encoding
}

// Get returns the frame in an encoding, or nil if it has not been made.
func (s *Set) Get(as Encoding) []byte {
	for i := range s.frames {
		if s.frames[i].as == as {
			return s.frames[i].frame
		}
	}
	return nil
}

// Saved returns by how many bytes compression made the frame shorter.
func (s *Set) Saved(as Encoding) int {
	for i := range s.frames {
		if s.frames[i].as == as {
			return int(s.frames[i].saved)
		}
	}
	return 0
}

// Make makes the frame in an encoding and returns the number of bytes it allocates. The deflater is needed for Deflated
// only; if it does not compress the notification, the frame is the plain one. For live, see [Deflater].
func (s *Set) Make(n *relay.Notification, as Encoding, cursor []byte, d *Deflater, live bool) (allocated int) {
	if as&Deflated == 0 {
		return s.add(as, New(n, as, cursor), 0)
	}
	saved := 0
	compressed := encodeWith(func(parts ...[]byte) (frame []byte) {
		frame, saved = d.compressFrame(live, parts)
		return frame
	}, n, as, cursor)
	if compressed != nil {
		return s.add(as, compressed, saved)
	}
	plain := as &^ Deflated
	if s.Get(plain) == nil {
		allocated = s.add(plain, New(n, plain, cursor), 0)
	}
	s.add(as, s.Get(plain), 0)
	return allocated
}

func (s *Set) add(as Encoding, frame []byte, saved int) (size int) {
	s.frames = append(s.frames, encodedFrame{frame: frame, saved: int32(saved), as: as})
	return len(frame)
}
