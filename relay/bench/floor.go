package main

import (
	"bufio"
	"fmt"
	"net"
	"time"
)

// playFloor is the loop that fan-out is compared with: one write for each message and connection, and nothing else.
// It prints its address, is told "CONNECTIONS MESSAGES EVERY SIZE", prints "done" when all is written, and ends with
// its input.
func playFloor(lines *bufio.Scanner) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	fmt.Println(listener.Addr())
	told, err := heard(lines)
	if err != nil {
		return nil //nolint:nilerr // it was wanted for its weight only
	}
	var (
		connections, messages, size int
		every                       time.Duration
	)
	if _, err := fmt.Sscan(told, &connections, &messages, &every, &size); err != nil {
		return err
	}
	conns := make([]net.Conn, connections)
	for i := range conns {
		if conns[i], err = listener.Accept(); err != nil {
			return err
		}
	}
	fmt.Println("connected")
	if _, err := heard(lines); err != nil {
		return err
	}
	frame := textFrame(size)
	err = paced(messages, every, func() error {
		for _, c := range conns {
			if _, err := c.Write(frame); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("done")
	_, _ = heard(lines) // its CPU time is read while it still is
	return nil
}

// textFrame is an unmasked websocket text frame of that size in all, header included.
func textFrame(size int) []byte {
	frame := make([]byte, size)
	frame[0], frame[1] = 0x81, 126
	frame[2], frame[3] = byte((size-4)>>8), byte(size-4)
	return frame
}

// paced runs do that many times at a steady pace, catching up where it fell behind.
func paced(times int, every time.Duration, do func() error) error {
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for sent := 0; sent < times; {
		<-tick.C
		for due := int(time.Since(began) / every); sent < min(due, times); sent++ {
			if err := do(); err != nil {
				return err
			}
		}
	}
	return nil
}
