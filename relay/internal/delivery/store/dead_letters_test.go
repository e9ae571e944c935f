package store

import "testing"

func FuzzDeadLetterContent(f *testing.F) {
	f.Add(`{"topic":"job.created"}`, `[{"error":"x"}]`, "")
	f.Add("not json", "[", `[{"id":"a","data":"{}"}]`)
	f.Add("", "null", `[{"data":"{"}]`)
	f.Fuzz(func(t *testing.T, data, attempts, notifications string) {
		c := decodeDeadLetter(
			map[string]any{"id": "d", "data": data, "attempts": attempts, "notifications": notifications},
		)
		if c.ID != "d" || len(c.Notifications) > 0 && c.Raw != "" || c.Attempts != len(c.History) {
			t.Errorf("%+v", c)
		}
	})
}
