package app

import "testing"

func TestMostClients(t *testing.T) {
	for _, tt := range []struct{ wanted, files, want int }{
		{0, 0, 0},
		{50, 0, 50},
		{0, 20_000, 18_000},
		{0, 1024, 768},
		{0, 100, 50},
		{700, 1024, 700},
		{5000, 1024, 768},
	} {
		if got := mostClients(tt.wanted, tt.files); got != tt.want {
			t.Errorf("%d of %d files: %d, want %d", tt.wanted, tt.files, got, tt.want)
		}
	}
	if files := openFiles(); files < 0 {
		t.Errorf("%d files", files)
	}
}
