package webhook

import (
	"log/slog"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
)

// secrets are the signing keys. They follow changes of their files. They may be used concurrently.
type secrets struct {
	fixed []signer
	files []*filewatch.Value[[]signer]
}

func newSecrets(c *Config, log *slog.Logger, now func() time.Time) (*secrets, error) {
	s := &secrets{}
	for _, text := range c.Secrets {
		key, err := parseSigner(text)
		if err != nil {
			return nil, err
		}
		s.fixed = append(s.fixed, key)
	}
	for _, name := range c.SecretFiles {
		file, err := filewatch.Open(name, parseSigners, log, now)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, file)
	}
	return s, nil
}

// allSigners returns all keys. The caller must not change them.
func (s *secrets) allSigners() []signer {
	if len(s.files) == 0 {
		return s.fixed
	}
	all := slices.Clone(s.fixed)
	for _, f := range s.files {
		all = append(all, f.Current()...)
	}
	return all
}
