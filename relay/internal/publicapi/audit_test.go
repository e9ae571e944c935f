package publicapi

import "testing"

// External keys of different accounts may have the same name. One does not hide the exceeded quota of another.
func TestExceededQuotas_SameNameInTwoAccounts(t *testing.T) {
	t.Parallel()
	var q exceededQuotas
	for _, c := range []struct {
		account string
		want    bool
	}{{"acme", true}, {"acme", false}, {"other", true}, {"other", false}} {
		if got := q.shouldRecord(c.account, "jwt:key-17"); got != c.want {
			t.Errorf("account %s: got %t, want %t", c.account, got, c.want)
		}
	}
}
