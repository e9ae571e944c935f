package migration

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// operatorFile is the operator's inventory file. The settings of its servers decide where commands run and files
// are written, so they never come from Redis or from the API.
type operatorFile struct {
	file    *File
	servers map[string]relay.Server // by ID
	// generation counts the calls of SetFile.
	generation int64
}

// ServersError reports an import that would change servers. Only the operator's inventory file may do that.
type ServersError struct {
	// Server is the ID of the first server that differs.
	Server string
	change string
}

func (e *ServersError) Error() string {
	return fmt.Sprintf("the import %s the server %q: only migration.inventory_file of the relay defines servers; "+
		"change them there, or remove clusters from the import", e.change, e.Server)
}

// SetFile sets the operator's inventory file, which defines all servers. Before the first call the list is empty.
func (inv *Inventory) SetFile(f *File) {
	next := &operatorFile{
		file: f, servers: make(map[string]relay.Server, len(f.Servers)), generation: inv.operator.Load().generation + 1,
	}
	for _, s := range f.Servers {
		next.servers[s.ID] = s
	}
	inv.operator.Store(next)
}

// settings returns the settings of a server, or nil if the operator's file does not define it.
func (inv *Inventory) settings(id string) []byte { return inv.operator.Load().servers[id].Settings }

// withOperatorServers returns the import with the operator's servers. It returns a [ServersError] if the import
// defines different ones.
func (inv *Inventory) withOperatorServers(f *File) (*File, error) {
	own := inv.operator.Load().servers
	if !f.keepServers {
		return f, compareServers(own, f.Servers)
	}
	full := &File{Containers: f.Containers}
	for _, s := range own {
		full.Servers = append(full.Servers, s)
	}
	slices.SortFunc(full.Servers, func(a, b relay.Server) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range f.Containers {
		for _, i := range c.Instances {
			if _, ok := own[i.Server]; !ok {
				return nil, &ServersError{Server: i.Server, change: "names"}
			}
		}
	}
	return full, nil
}

func compareServers(own map[string]relay.Server, list []relay.Server) error {
	listed := make(map[string]bool, len(list))
	for _, s := range list {
		listed[s.ID] = true
		known, ok := own[s.ID]
		switch {
		case !ok:
			return &ServersError{Server: s.ID, change: "adds"}
		case known.Cluster != s.Cluster || !bytes.Equal(known.Settings, s.Settings):
			return &ServersError{Server: s.ID, change: "changes"}
		}
	}
	for id := range own {
		if !listed[id] {
			return &ServersError{Server: id, change: "removes"}
		}
	}
	return nil
}
