package main

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"time"
)

// playFloor is the baseline of fan-out: one write per message and connection. It prints its address and reads
// "CONNECTIONS MESSAGES EVERY SIZE". For each further line it writes all messages and prints "done". It ends when its
// input ends.
func playFloor(lines *bufio.Scanner) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	fmt.Println(listener.Addr())
	told, err := nextLine(lines)
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
	frame := textFrame(size)
	for {
		if _, err := nextLine(lines); err != nil {
			return nil //nolint:nilerr // that was all
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

// stampFrame writes into a text frame when it was due, as events say it.
func stampFrame(frame []byte, due time.Time) {
	const header = 4
	copy(frame[min(header, len(frame)):], publishedAt+strconv.FormatInt(due.UnixNano(), 10)+`"`)
}

// textFrame is an unmasked websocket text frame of that size in all, header included.
func textFrame(size int) []byte {
	frame := make([]byte, size)
	frame[0], frame[1] = 0x81, 126
	frame[2], frame[3] = byte((size-4)>>8), byte(size-4)
	return frame
}

// runPaced calls do at a steady pace and catches up if it is late. It passes the time at which each call was due.
func runPaced(times int, every time.Duration, do func(due time.Time) error) error {
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for sent := 0; sent < times; {
		<-tick.C
		for due := int(time.Since(began) / every); sent < min(due, times); sent++ {
			if err := do(began.Add(time.Duration(sent+1) * every)); err != nil {
				return err
			}
		}
	}
	return nil
}
