package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// File is a valid inventory from an operator. Its lists are sorted by ID.
type File struct {
	// Servers have no Instances.
	Servers    []relay.Server
	Containers []FileContainer

	// keepServers is set for an import that omits the servers.
	keepServers bool
}

// FileContainer is a container with all its instances.
type FileContainer struct {
	Container
	Instances []FileInstance
}

// FileInstance is an instance and its server, unless a job has moved it.
type FileInstance struct {
	ID     string
	Server string
}

// Container is a container of the inventory.
type Container struct {
	ID string
	// Hub receives the events of the container. Account and Environment may be empty.
	Hub         string
	Account     string
	Environment string
	// Stateful is set if the instances have volumes.
	Stateful bool
}

// contentHash returns a hash of the content. Equal files have equal hashes.
func (f *File) contentHash() (string, error) {
	text, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encode the inventory: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
