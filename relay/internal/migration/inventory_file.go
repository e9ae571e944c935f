package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// File is an inventory as an operator writes it, checked. Its lists are ordered by id.
type File struct {
	// Servers have no Instances.
	Servers    []relay.Server
	Containers []FileContainer

	// keepServers is set for an import that does not mention servers.
	keepServers bool
}

// FileContainer is a container with all of its instances.
type FileContainer struct {
	Container
	Instances []FileInstance
}

// FileInstance says on which server an instance is where no job has moved it.
type FileInstance struct {
	ID     string
	Server string
}

// Container is what instances are instances of.
type Container struct {
	ID string
	// Hub is whose notifications tell of the container. Account and Environment may be empty.
	Hub         string
	Account     string
	Environment string
	// Stateful is set for a container whose instances have volumes to keep.
	Stateful bool
}

// contentHash is the same for files that say the same.
func (f *File) contentHash() (string, error) {
	text, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encode the inventory: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
