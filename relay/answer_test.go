package relay

import (
	"context"
	"testing"
)

func TestAnswered(t *testing.T) {
	Answered(t.Context(), 200) // nobody asks
	got := 0
	ctx, cancel := context.WithCancel(WithAnswer(t.Context(), func(status int) { got = status }))
	defer cancel()
	if Answered(ctx, 204); got != 204 {
		t.Errorf("told %d", got)
	}
}
