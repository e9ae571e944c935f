package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hubrelay/hubrelay/internal/strictjson"
	"github.com/hubrelay/hubrelay/relay"
)

// settings are the settings of a server in the inventory.
type settings struct {
	Path string `json:"path"`
}

// serverPath returns the path in the settings of a server.
func serverPath(s relay.Server) (string, error) {
	var c settings
	switch err := strictjson.Decode(s.Settings, &c); {
	case err != nil:
		return "", fmt.Errorf("server %s: its settings must be {path: DIRECTORY}: %w", s.ID, err)
	case c.Path == "":
		return "", fmt.Errorf("server %s: path is missing; set it to the directory of the instances", s.ID)
	case !filepath.IsAbs(c.Path):
		return "", fmt.Errorf("server %s: path %q must start with /", s.ID, c.Path)
	}
	return filepath.Clean(c.Path), nil
}

// checkElement rejects an ID that cannot be the name of a directory.
func checkElement(what, id string) error {
	switch {
	case id == "" || len(id) > 128 || strings.ContainsAny(id, "/\\\x00") || !filepath.IsLocal(id):
		return fmt.Errorf("%s %.80q cannot be the name of a directory", what, id)
	case strings.HasPrefix(id, "."):
		return fmt.Errorf("%s %.80q starts with a dot, which is reserved for directories of the driver", what, id)
	}
	return nil
}

// checkServers returns the servers that have their own, usable directory, with the instances that have a valid ID, and the
// errors of the others.
func checkServers(servers []relay.Server, paths map[string]string) (usable []relay.Server, err error) {
	var errs []error
	infos, failed := make(map[string]os.FileInfo, len(servers)), make(map[string]bool)
	fail := func(server string, err error) {
		failed[server] = true
		errs = append(errs, fmt.Errorf("server %s: %w", server, err))
	}
	for _, s := range servers {
		path := paths[s.ID]
		info, err := checkServerDir(path)
		if err != nil {
			fail(s.ID, err)
			continue
		}
		for _, other := range servers {
			known := infos[other.ID]
			if known != nil && (os.SameFile(info, known) || isWithin(path, paths[other.ID]) || isWithin(paths[other.ID], path)) {
				failed[other.ID] = true
				fail(s.ID, fmt.Errorf("path %s is the path of server %s, or one contains the other; use separate directories",
					path, other.ID))
				break
			}
		}
		infos[s.ID] = info
	}
	for _, s := range servers {
		if failed[s.ID] {
			continue
		}
		instances := s.Instances
		s.Instances = nil
		for _, instance := range instances {
			if err := checkElement("instance", instance); err != nil {
				errs = append(errs, fmt.Errorf("server %s: %w", s.ID, err))
				continue
			}
			s.Instances = append(s.Instances, instance)
		}
		usable = append(usable, s)
	}
	return usable, errors.Join(errs...)
}

func isWithin(path, other string) bool {
	return strings.HasPrefix(path+"/", strings.TrimSuffix(other, "/")+"/")
}

func checkServerDir(path string) (os.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("path %s does not exist; create the directory, or mount it", path)
	case err != nil:
		return nil, fmt.Errorf("path: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("path %s is not a directory", path)
	}
	if err := checkOwner(path, info); err != nil {
		return nil, fmt.Errorf("path %w", err)
	}
	if err := os.Mkdir(filepath.Join(path, dirFence), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("path %s is not writable: %w", path, err)
	}
	probe, err := os.MkdirTemp(filepath.Join(path, dirFence), tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("path %s is not writable: %w", path, err)
	}
	return info, os.Remove(probe)
}
