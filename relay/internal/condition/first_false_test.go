package condition

import (
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestFirstFalse(t *testing.T) {
	t.Parallel()
	e := &relay.Envelope{Topic: "job.error", Object: relay.Object{ID: "o", State: "failed"}}
	for text, want := range map[string]string{
		`topic == "job.error"`: "",
		`topic == "x"`:         `topic == "x"`,
		`topic == "job.error" and object.state == "x"`:                 `object.state == "x"`,
		`topic == "y" && object.state == "x"`:                          `topic == "y"`,
		`topic == "job.error" and object.id == "o" and object.id=="p"`: `object.id == "p"`,
		`topic == "x" or object.id == "y"`:                             `topic == "x" or object.id == "y"`,
		`not (topic == "job.error") and true`:                          `not (topic == "job.error")`,
		`let x = topic; x == "y"`:                                      `let x = topic; x == "y"`,
		``:                                                             "", `(`: "",
	} {
		if got := FirstFalse(text, e); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
