package relay

import (
	"context"
	"testing"
)

func TestReportStatus_CallsCallback(t *testing.T) {
	ReportStatus(t.Context(), 200) // Without a callback nothing happens.
	got := 0
	ctx, cancel := context.WithCancel(WithStatusCallback(t.Context(), func(status int) { got = status }))
	defer cancel()
	if ReportStatus(ctx, 204); got != 204 {
		t.Errorf("callback got status %d, want 204", got)
	}
}
