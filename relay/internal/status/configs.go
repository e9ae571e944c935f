package status

import (
	"bytes"
	"compress/flate"
	"io"
	"slices"
	"sync"
	"time"
)

// maxVersions is the number of versions that [Configs] keeps.
const maxVersions = 10

// Configs keeps the newest accepted configurations as text without secrets, compressed. The zero value is empty. It may be
// used concurrently.
type Configs struct {
	mu       sync.Mutex
	list     []ConfigVersion // the newest first
	warnings []string        // about the newest
}

// ConfigVersion is an accepted configuration.
type ConfigVersion struct {
	// Number counts from 1.
	Number     int
	AcceptedAt time.Time

	text []byte // compressed
}

// Config is a configuration.
type Config interface {
	// Print writes it as YAML without secrets.
	Print(w io.Writer) error
}

// Add adds an accepted configuration as the current version, with its warnings.
func (c *Configs) Add(cfg Config, warnings []string, at time.Time) {
	var text bytes.Buffer
	w, _ := flate.NewWriter(&text, flate.DefaultCompression) // the level is valid
	_ = cfg.Print(w)                                         // a Buffer does not fail
	_ = w.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	number := 1
	if len(c.list) > 0 {
		number = c.list[0].Number + 1
	}
	newest := ConfigVersion{number, at.UTC().Truncate(time.Millisecond), text.Bytes()}
	c.warnings = warnings
	c.list = slices.Insert(c.list, 0, newest)
	c.list = c.list[:min(len(c.list), maxVersions)]
}

// Current returns the versions, the newest first, with the text and the warnings of the newest. They are empty before the
// first [Configs.Add].
func (c *Configs) Current() (versions []ConfigVersion, text string, warnings []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) > 0 {
		text = c.list[0].readText()
	}
	return slices.Clone(c.list), text, c.warnings
}

// Text returns the text of a version that is kept.
func (c *Configs) Text(number int) (text string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.list {
		if c.list[i].Number == number {
			return c.list[i].readText(), true
		}
	}
	return "", false
}

func (v *ConfigVersion) readText() string {
	text, _ := io.ReadAll(flate.NewReader(bytes.NewReader(v.text))) // Add has written it
	return string(text)
}
