package clients

import "testing"

// The keys of an account have the turns of one owner, because an identity provider may issue any number of them.
func TestReplayOwner(t *testing.T) {
	for owner, want := range map[leaseOwner]string{
		{account: "acme", key: "acme\x00a"}: "acme", {account: "acme", key: "acme\x00b"}: "acme",
		{key: "\x00ops"}: "\x00ops", {key: "*\x00ops"}: "*\x00ops",
	} {
		if got := owner.replayOwner(); got != want {
			t.Errorf("%+v: got %q, want %q", owner, got, want)
		}
	}
}
