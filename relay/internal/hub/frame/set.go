package frame

// Set holds the frames of one notification, one per encoding. The zero value is empty. Its owner serializes all calls.
type Set struct {
	frames [EncodingCount][]byte
	// savedBytes is the difference between the plain and the compressed frame, without and with a cursor.
	savedBytes [WithCursor + 1]int32
}

// Get returns the frame in an encoding, or nil if it has not been made.
func (s *Set) Get(as Encoding) []byte { return s.frames[as] }

// Saved returns by how many bytes compression makes the frame shorter.
func (s *Set) Saved(as Encoding) int {
	if as&Deflated == 0 {
		return 0
	}
	return int(s.savedBytes[as&^Deflated])
}

// Make makes the frame in an encoding and returns the number of bytes it allocates. The deflater is needed for Deflated
// only; if it does not compress the notification, the frame is the plain one. For live, see [Deflater].
func (s *Set) Make(data []byte, as Encoding, cursor []byte, d *Deflater, live bool) (allocated int) {
	if as&Deflated == 0 {
		s.frames[as] = New(data, as, cursor)
		return len(s.frames[as])
	}
	plain, saved := as&^Deflated, 0
	s.frames[as] = encodeWith(func(parts ...[]byte) (frame []byte) {
		frame, saved = d.compressFrame(live, parts)
		return frame
	}, data, as, cursor)
	s.savedBytes[plain] = int32(saved)
	if s.frames[as] != nil {
		return len(s.frames[as])
	}
	if s.frames[plain] == nil {
		s.frames[plain] = New(data, plain, cursor)
		allocated = len(s.frames[plain])
	}
	s.frames[as] = s.frames[plain]
	return allocated
}
