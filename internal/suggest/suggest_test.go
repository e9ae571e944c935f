package suggest

import "testing"

func TestClosestName(t *testing.T) {
	names := []string{"key", "key_file", "account_id", "hubs", "max_body"}
	for word, want := range map[string]string{
		"account": "account_id", "ACCOUNT": "account_id", "accounts": "", "hub": "hubs", "key": "key", "kye": "key", "max": "max_body", "": "",
		"a": "", "x": "",
	} {
		if got := ClosestName(word, names); got != want {
			t.Errorf("ClosestName(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"abc", "abc", 0},
		{"acb", "abc", 1},
		{"kitten", "sitting", 3},
		{"ca", "abc", 3},
	} {
		if got := editDistance([]byte(tc.a), []byte(tc.b)); got != tc.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
