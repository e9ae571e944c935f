package cli

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func TestKeysNew_WebhookPair(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	run := func(args ...string) error {
		out.Reset()
		cmd := newKeysNew(term.Streams{Out: &out})
		cmd.SetArgs(append([]string{"--webhook", "--ed25519"}, args...))
		return cmd.ExecuteContext(t.Context())
	}
	if err := run("--json"); err != nil {
		t.Fatal(err)
	}
	var pair struct{ Secret, Public string }
	if err := json.Unmarshal(out.Bytes(), &pair); err != nil {
		t.Fatal(err)
	}
	private, err1 := base64.StdEncoding.DecodeString(strings.TrimPrefix(pair.Secret, "whsk_"))
	public, err2 := base64.StdEncoding.DecodeString(strings.TrimPrefix(pair.Public, "whpk_"))
	if err1 != nil || err2 != nil || len(private) != ed25519.PrivateKeySize || len(public) != ed25519.PublicKeySize ||
		!ed25519.Verify(public, []byte("a"), ed25519.Sign(private, []byte("a"))) {
		t.Errorf("%s", out.String())
	}
	if err := run(); err != nil ||
		!strings.HasPrefix(out.String(), "whsk_") || !strings.Contains(out.String(), "\nwhpk_") {
		t.Errorf("%v: %s", err, out.String())
	}
}
