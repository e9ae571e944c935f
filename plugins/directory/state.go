package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hubrelay/hubrelay/relay"
)

// jobNote is stored in both work directories and identifies their contents.
type jobNote struct {
	Job string `json:"job"`
	// Destination is the directory of the destination server.
	Destination string `json:"destination"`
	// Stop identifies one stop of the instance. Copies from an earlier stop are useless.
	Stop string `json:"stop"`
}

func readNote(p instanceDir) (jobNote, error) {
	var n jobNote
	data, err := os.ReadFile(p.workFile(fileJob))
	if errors.Is(err, fs.ErrNotExist) {
		return n, p.checkLease()
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, err
}

func (n jobNote) write(p instanceDir) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return p.supersededError(replaceFile(p.workFile(fileJob), data))
}

// diskState is the state of a migration on the disks.
type diskState struct {
	atSource               bool // the instance is at its path on the source
	stoppedAtSource        bool // the stopped instance is in the work directory of the source
	switched               bool // the copy may have been renamed to its path on the destination
	ready                  bool // a verified copy is in the work directory of the destination
	atDestination          bool // the path of the instance exists on the destination
	destinationUnreachable bool // the destination's directory cannot be read
}

// isMoved reports whether the instance is at its path on the destination.
func (d diskState) isMoved() bool {
	return d.atDestination && !d.atSource && !d.ready && (d.switched || !d.stoppedAtSource)
}

// inspect reads the state of the migration from the disks.
func (m *migration) inspect() (diskState, error) {
	var f diskState
	if err := m.source.checkLease(); err != nil {
		return f, fmt.Errorf("the directory of server %s has disappeared: %w", m.source.server, err)
	}
	for _, q := range []struct {
		path string
		to   *bool
	}{
		{m.source.instancePath(), &f.atSource},
		{m.source.workFile(dirInstance), &f.stoppedAtSource},
		{m.source.workFile(fileSwitched), &f.switched},
	} {
		var err error
		if *q.to, err = exists(q.path); err != nil {
			return f, err
		}
	}
	err := m.destination.checkLease()
	if errors.Is(err, relay.ErrSuperseded) {
		return f, err
	}
	if err == nil {
		f.atDestination, err = exists(m.destination.instancePath())
	}
	if err == nil {
		f.ready, err = exists(m.destination.workFile(dirReady))
	}
	f.destinationUnreachable = err != nil
	return f, nil
}
