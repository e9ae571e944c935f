package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

// The printed lines are a configuration that accepts the printed token.
func TestKeysNew_AdminToken(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	run := func(args string) error {
		out.Reset()
		cmd := newKeysNew(term.Streams{Out: &out})
		cmd.SetArgs(strings.Fields(args))
		return cmd.ExecuteContext(t.Context())
	}
	if err := run("--admin --name oncall --role operator"); err != nil {
		t.Fatal(err)
	}
	token, text, _ := strings.Cut(out.String(), "\n")
	_, text, _ = strings.Cut(text, "\nadmin:\n")
	file := filepath.Join(t.TempDir(), "hubrelay.yaml")
	text = "auth: {keys: [{name: a, key: 0123456789abcdef, hubs: ['*']}]}\nadmin:\n" + text
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := daemon.LoadConfig(file, nil, daemon.Kinds{})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(token))
	if got := cfg.Admin.Tokens[0]; !strings.HasPrefix(token, "hra_") || got.Name != "oncall" ||
		got.Role != "operator" ||
		got.TokenSHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("token %s: got %+v, want the printed name, role and hash", token, got)
	}
	var printed struct{ Name, Role, Token string }
	if err := run("--admin --name oncall --role viewer --json"); err != nil ||
		json.Unmarshal(out.Bytes(), &printed) != nil ||
		printed.Name != "oncall" || printed.Role != "viewer" || !strings.HasPrefix(printed.Token, "hra_") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestKeysNew_RejectsInvalidFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--admin --webhook":   "without --webhook",
		"--role viewer":       "use --admin too",
		"--admin --role root": "choose one of viewer, operator, admin",
	} {
		var out, errOut bytes.Buffer
		cmd := newKeysNew(term.Streams{Out: &out, Err: &errOut})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		var usage *command.UsageError
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("keys new %s: got error %v and output %s%s, want a usage error with %q", args, err, out.String(),
				errOut.String(), want)
		}
	}
}
