package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/gorilla/websocket"
)

// barrier stops a follower from reading. The zero value is open.
type barrier struct {
	mu   sync.Mutex
	shut chan struct{} // closed once the barrier opens; nil while it is open
}

func (b *barrier) set(open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case open && b.shut != nil:
		close(b.shut)
		b.shut = nil
	case !open && b.shut == nil:
		b.shut = make(chan struct{})
	}
}

// pass waits until the barrier is open or ctx ends, and reports whether it was closed.
func (b *barrier) pass(ctx context.Context) (waited bool) {
	b.mu.Lock()
	shut := b.shut
	b.mu.Unlock()
	if shut == nil {
		return false
	}
	select {
	case <-shut:
	case <-ctx.Done():
	}
	return true
}

// noteEnd counts connections that the relay closed because the follower was too slow.
func (f *follower) noteEnd(err error) {
	var closed *websocket.CloseError
	if errors.As(err, &closed) && closed.Code == websocket.CloseTryAgainLater {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tooSlow++
	}
}

// closeOf returns the close event of an event stream as an error.
func closeOf(data string) error {
	var c struct {
		Code   int
		Reason string
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return err
	}
	return &websocket.CloseError{Code: c.Code, Text: c.Reason}
}
