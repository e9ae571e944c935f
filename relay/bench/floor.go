package main

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"time"
)

// playFloor is the bare loop that fan-out is compared with. It does one write per message and connection, and nothing
// more. It prints its address and reads "CONNECTIONS MESSAGES INTERVAL SIZE". For each further line, it writes all
// messages and prints "done". It ends with its input.
func playFloor(lines *bufio.Scanner) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	fmt.Println(listener.Addr())
	command, err := readCommand(lines)
	if err != nil {
		return nil //nolint:nilerr // started only to measure its memory
	}
	var (
		connections, messages, size int
		every                       time.Duration
	)
	if _, err := fmt.Sscan(command, &connections, &messages, &every, &size); err != nil {
		return err
	}
	conns := make([]net.Conn, connections)
	for i := range conns {
		if conns[i], err = listener.Accept(); err != nil {
			return err
		}
	}
	fmt.Println("connected")
	frame := textFrame(size)
	for {
		if _, err := readCommand(lines); err != nil {
			return nil //nolint:nilerr // the input has ended
		}
		err := runPaced(messages, every, func(due time.Time) error {
			stampFrame(frame, due)
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
	}
}

// stampFrame writes the due time into a text frame, in the same form as in events.
func stampFrame(frame []byte, due time.Time) {
	const header = 4
	copy(frame[min(header, len(frame)):], publishedAt+strconv.FormatInt(due.UnixNano(), 10)+`"`)
}

// textFrame returns an unmasked websocket text frame. The size includes the header.
func textFrame(size int) []byte {
	frame := make([]byte, size)
	frame[0], frame[1] = 0x81, 126
	frame[2], frame[3] = byte((size-4)>>8), byte(size-4)
	return frame
}

// runPaced calls do at a steady rate, with the time when each call was due. It catches up if it is late.
func runPaced(times int, every time.Duration, do func(due time.Time) error) error {
	startedAt := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for sent := 0; sent < times; {
		<-tick.C
		for due := int(time.Since(startedAt) / every); sent < min(due, times); sent++ {
			if err := do(startedAt.Add(time.Duration(sent+1) * every)); err != nil {
				return err
			}
		}
	}
	return nil
}
