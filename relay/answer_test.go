package relay

import (
	"context"
	"testing"
)

func TestAnswered(t *testing.T) {
	ReportStatus(t.Context(), 200) // nobody asks
	got := 0
	ctx, cancel := context.WithCancel(WithStatusCallback(t.Context(), func(status int) { got = status }))
	defer cancel()
	if ReportStatus(ctx, 204); got != 204 {
		t.Errorf("told %d", got)
	}
}
