package migration

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// operatorServers are the servers of the operator's inventory file. Their settings decide where commands run and files are
// written, so they never come from Redis or from the API.
type operatorServers struct {
	byID map[string]relay.Server
	// generation counts the calls of SetServers.
	generation int64
}

// ServersError says that an import would change servers, which only the operator's inventory file may do.
type ServersError struct {
	// Server is the ID of the first server that differs.
	Server string
	change string
}

func (e *ServersError) Error() string {
	return fmt.Sprintf("the import %s the server %q: servers are defined by migration.inventory_file of the daemon alone; "+
		"change them there, or leave clusters out of the import", e.change, e.Server)
}

// SetServers sets the servers of the operator's inventory file. Until it is called there are none.
func (v *Inventory) SetServers(list []relay.Server) {
	next := &operatorServers{byID: make(map[string]relay.Server, len(list)), generation: v.servers.Load().generation + 1}
	for _, s := range list {
		next.byID[s.ID] = s
	}
	v.servers.Store(next)
}

// settings returns the settings of a server, nil if the operator's file does not define it.
func (v *Inventory) settings(id string) []byte { return v.servers.Load().byID[id].Settings }

// withOperatorServers returns the import with the operator's servers. It returns a [ServersError] if the import defines
// others.
func (v *Inventory) withOperatorServers(f *File) (*File, error) {
	own := v.servers.Load().byID
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
	given := make(map[string]bool, len(list))
	for _, s := range list {
		given[s.ID] = true
		known, ok := own[s.ID]
		switch {
		case !ok:
			return &ServersError{Server: s.ID, change: "adds"}
		case known.Cluster != s.Cluster || !bytes.Equal(known.Settings, s.Settings):
			return &ServersError{Server: s.ID, change: "changes"}
		}
	}
	for id := range own {
		if !given[id] {
			return &ServersError{Server: id, change: "removes"}
		}
	}
	return nil
}
