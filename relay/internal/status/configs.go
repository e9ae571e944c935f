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
	list     []ConfigVersion // the oldest first
	warnings []string        // about the last one
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
func (v *Configs) Add(c Config, warnings []string, at time.Time) {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.DefaultCompression) // the level is valid
	_ = c.Print(w)                                        // a Buffer does not fail
	_ = w.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	number := 1
	if len(v.list) > 0 {
		number = v.list[len(v.list)-1].Number + 1
	}
	v.warnings = warnings
	v.list = append(v.list, ConfigVersion{number, at.UTC().Truncate(time.Millisecond), b.Bytes()})
	if len(v.list) > maxVersions {
		v.list = slices.Delete(v.list, 0, 1)
	}
}

// List returns the versions, the newest first.
func (v *Configs) List() []ConfigVersion {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := slices.Clone(v.list)
	slices.Reverse(list)
	return list
}

// Text returns the text of a version that is kept.
func (v *Configs) Text(number int) (string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.list, func(one ConfigVersion) bool { return one.Number == number })
	if i < 0 {
		return "", false
	}
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(v.list[i].text)))
	return string(text), err == nil
}

// Current returns the text and the warnings of the current version. They are empty without a version.
func (v *Configs) Current() (text string, warnings []string) {
	v.mu.Lock()
	if len(v.list) == 0 {
		v.mu.Unlock()
		return "", nil
	}
	number, warnings := v.list[len(v.list)-1].Number, v.warnings
	v.mu.Unlock()
	text, _ = v.Text(number)
	return text, warnings
}
