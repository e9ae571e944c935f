package status_test

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/status"
)

type textConfig string

func (c textConfig) Print(w io.Writer) error {
	_, err := io.WriteString(w, string(c))
	return err
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	var configs status.Configs
	if list, text, warnings := configs.Current(); text != "" || warnings != nil || len(list) != 0 {
		t.Errorf("no version: got %v, %q, %v", list, text, warnings)
	}
	at := time.Now()
	const total = 12
	for i := 1; i <= total; i++ {
		name := fmt.Sprintf("version %d", i)
		configs.Add(textConfig(name), []string{"warning of " + name}, at.Add(time.Duration(i)*time.Minute))
	}
	list, text, warnings := configs.Current()
	if len(list) != 10 || list[0].Number != total || list[9].Number != 3 || !list[0].AcceptedAt.After(list[9].AcceptedAt) {
		t.Errorf("got versions %v, want 12 down to 3", list)
	}
	if text != "version 12" || !slices.Equal(warnings, []string{"warning of version 12"}) {
		t.Errorf("current: got %q, %v", text, warnings)
	}
	if text, ok := configs.Text(3); !ok || text != "version 3" {
		t.Errorf("version 3: got %q, %t", text, ok)
	}
	if _, ok := configs.Text(2); ok {
		t.Error("version 2 is still there")
	}
}
