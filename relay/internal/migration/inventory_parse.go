package migration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// MaxFile is the maximum size of an inventory, in bytes.
const MaxFile = yamldoc.MaxSize

// ReadFile reads an inventory file. It returns all errors in the file together as [yamldoc.Problems].
func ReadFile(path string) (*File, error) {
	p := newParser(path)
	return p.parseInventory(p.Read(path, "name a YAML file, such as a copy of configs/inventory.yaml"))
}

// ParseFile is like [ReadFile], but parses data. Errors contain name as the name of the file.
func ParseFile(name string, data []byte) (*File, error) {
	p := newParser(name)
	return p.parseInventory(p.Parse(data, yamldoc.Position{Line: 1, Column: 1}))
}

// ParseImport is like [ParseFile], but the data may omit the clusters to keep the servers unchanged.
func ParseImport(name string, data []byte) (*File, error) {
	p := newParser(name)
	p.optionalServers = true
	return p.parseInventory(p.Parse(data, yamldoc.Position{Line: 1, Column: 1}))
}

// inventoryParser converts a document into a File.
type inventoryParser struct {
	*yamldoc.Reporter
	file            *File
	count           int
	optionalServers bool
	// servers and instances contain the first occurrence of each ID.
	servers   map[string]firstSeen
	instances map[string]firstSeen
}

type firstSeen struct {
	container string
	line      int
}

func newParser(name string) *inventoryParser {
	return &inventoryParser{
		Reporter: &yamldoc.Reporter{File: name},
		file:     &File{}, servers: map[string]firstSeen{}, instances: map[string]firstSeen{},
	}
}

func (p *inventoryParser) parseInventory(root *yamldoc.Value) (*File, error) {
	if root != nil && p.parseRoot(root) {
		slices.SortFunc(p.file.Servers, func(a, b relay.Server) int { return cmp.Compare(a.ID, b.ID) })
		slices.SortFunc(p.file.Containers, func(a, b FileContainer) int { return cmp.Compare(a.ID, b.ID) })
	}
	if len(p.Problems) > 0 {
		return nil, yamldoc.Problems(yamldoc.Sorted(p.Problems))
	}
	return p.file, nil
}

// parseRoot parses the clusters first, regardless of their position, because instances refer to servers.
func (p *inventoryParser) parseRoot(root *yamldoc.Value) bool {
	if root.Shape == yamldoc.Null && !root.Invalid || root.Shape == yamldoc.Map && len(root.Entries) == 0 {
		p.ErrorAt(root.At, "", "the file is empty", "write clusters: {} for an empty inventory")
		return false
	}
	members, ok := p.knownMembers(root, "", []string{"clusters", "containers"})
	if !ok {
		return false
	}
	p.file.keepServers = p.optionalServers && members["clusters"] == nil
	for _, e := range p.freeMap(members["clusters"], "clusters") {
		p.parseCluster(e, yamldoc.Join("clusters", e.Key))
	}
	for _, e := range p.freeMap(members["containers"], "containers") {
		p.parseContainer(e, yamldoc.Join("containers", e.Key))
	}
	return true
}

// countValue counts a value and reports whether it may be parsed. The limit is needed because aliases can multiply
// values.
func (p *inventoryParser) countValue(v *yamldoc.Value, path string) bool {
	if p.count++; p.count == yamldoc.MaxValues+1 {
		p.ErrorAt(v.At, path, fmt.Sprintf("exceeds the limit of %d values", yamldoc.MaxValues), "")
	}
	return p.count <= yamldoc.MaxValues && !v.Invalid
}

// freeMap returns the entries of a map with free keys. A missing map is empty.
func (p *inventoryParser) freeMap(v *yamldoc.Value, path string) []yamldoc.Entry {
	if v == nil || !p.countValue(v, path) || v.Shape == yamldoc.Null {
		return nil
	}
	if v.Shape != yamldoc.Map {
		p.ErrorAt(v.At, path, fmt.Sprintf("must be a map, not %s", v.Shape), "")
		return nil
	}
	return v.Entries
}

// knownMembers returns the members of a map that may only have the given keys. It omits null values. The second result
// is false if v is not a map.
func (p *inventoryParser) knownMembers(v *yamldoc.Value, path string, keys []string) (map[string]*yamldoc.Value, bool) {
	if !p.countValue(v, path) {
		return nil, false
	}
	if v.Shape != yamldoc.Map && v.Shape != yamldoc.Null {
		p.ErrorAt(v.At, path, fmt.Sprintf("must be a map, not %s", v.Shape),
			"the keys here are "+strings.Join(keys, ", "))
		return nil, false
	}
	members := make(map[string]*yamldoc.Value, len(v.Entries))
	for _, e := range v.Entries {
		if !slices.Contains(keys, e.Key) {
			p.ErrorAt(e.At, yamldoc.Join(path, relay.Truncate(e.Key, maxQuoted)), "unknown key",
				cmp.Or(yamldoc.DidYouMean(e.Key, keys), "the keys here are "+strings.Join(keys, ", ")))
		} else if e.Value.Shape != yamldoc.Null || e.Value.Invalid {
			members[e.Key] = e.Value
		}
	}
	return members, true
}

// maxQuoted is the maximum number of bytes of a value in a message.
const maxQuoted = 60

func (p *inventoryParser) parseCluster(e yamldoc.Entry, path string) {
	if problem := checkName(e.Key); problem != "" {
		p.ErrorAt(e.At, relay.Truncate(path, maxQuoted), "the name of a cluster "+problem, "")
		return
	}
	members, _ := p.knownMembers(e.Value, path, []string{"servers"})
	for _, s := range p.freeMap(members["servers"], path+".servers") {
		p.parseServer(s, e.Key, path+".servers."+s.Key)
	}
}

func (p *inventoryParser) parseServer(e yamldoc.Entry, cluster, path string) {
	if !p.checkID(e, path, "a server") {
		return
	}
	if first, isDuplicate := p.servers[e.Key]; isDuplicate {
		p.ErrorAt(e.At, path, "is also in cluster "+first.container,
			fmt.Sprintf("the other is in line %d; a server belongs to one cluster", first.line))
		return
	}
	p.servers[e.Key] = firstSeen{container: cluster, line: e.At.Line}
	settings := map[string]any{}
	for _, s := range p.freeMap(e.Value, path) {
		settings[s.Key] = p.freeValue(s.Value, yamldoc.Join(path, s.Key))
	}
	text, err := json.Marshal(settings)
	if err != nil {
		p.ErrorAt(e.At, path, err.Error(), "")
		return
	}
	p.file.Servers = append(p.file.Servers, relay.Server{ID: e.Key, Cluster: cluster, Settings: text})
}

// freeValue converts a setting of a driver, which may be any value.
func (p *inventoryParser) freeValue(v *yamldoc.Value, path string) any {
	switch {
	case !p.countValue(v, path) || v.Shape == yamldoc.Null:
		return nil
	case v.Shape == yamldoc.Map:
		m := make(map[string]any, len(v.Entries))
		for _, e := range v.Entries {
			m[e.Key] = p.freeValue(e.Value, yamldoc.Join(path, e.Key))
		}
		return m
	case v.Shape == yamldoc.List:
		list := make([]any, len(v.Items))
		for i, item := range v.Items {
			list[i] = p.freeValue(item, fmt.Sprintf("%s[%d]", path, i))
		}
		return list
	}
	return v.Scalar()
}

func (p *inventoryParser) parseContainer(e yamldoc.Entry, path string) {
	if !p.checkID(e, path, "a container") {
		return
	}
	members, ok := p.knownMembers(e.Value, path, []string{
		"hub_id", "account_id", "environment_id", "stateful", "instances",
	})
	if !ok {
		return
	}
	c := FileContainer{Container: Container{
		ID: e.Key, Hub: p.textMember(members, "hub_id", path),
		Account: p.textMember(members, "account_id", path), Environment: p.textMember(members, "environment_id", path),
	}}
	if _, found := members["hub_id"]; !found {
		p.ErrorAt(e.At, path, "has no hub_id", "set it to the hub that receives the events of the container")
	}
	if v := members["stateful"]; v != nil && p.countValue(v, path) {
		if v.Shape != yamldoc.Bool {
			p.ErrorAt(v.At, path+".stateful", fmt.Sprintf("must be true or false, not %s", v.Shape),
				"write true or false, without quotes")
		}
		c.Stateful = v.Scalar() == true
	}
	for _, i := range p.freeMap(members["instances"], path+".instances") {
		if server, ok := p.parseInstance(i, e.Key, path+".instances."+i.Key); ok {
			c.Instances = append(c.Instances, FileInstance{ID: i.Key, Server: server})
		}
	}
	slices.SortFunc(c.Instances, func(a, b FileInstance) int { return cmp.Compare(a.ID, b.ID) })
	p.file.Containers = append(p.file.Containers, c)
}

// parseInstance returns the server of an instance.
func (p *inventoryParser) parseInstance(e yamldoc.Entry, container, path string) (string, bool) {
	if !p.checkID(e, path, "an instance") {
		return "", false
	}
	if first, isDuplicate := p.instances[e.Key]; isDuplicate {
		p.ErrorAt(e.At, path, "is also an instance of container "+first.container,
			fmt.Sprintf("the other is in line %d; instance IDs are unique in the inventory", first.line))
		return "", false
	}
	p.instances[e.Key] = firstSeen{container: container, line: e.At.Line}
	members, ok := p.knownMembers(e.Value, path, []string{"server_id"})
	if !ok {
		return "", false
	}
	v, ok := members["server_id"]
	if !ok {
		p.ErrorAt(e.At, path, "has no server_id", "set it to the server of the instance")
		return "", false
	}
	server := p.textMember(members, "server_id", path)
	if _, known := p.servers[server]; !known && server != "" && !p.file.keepServers {
		hint := ""
		if len(p.Problems) < maxHinted {
			hint = yamldoc.DidYouMean(server, slices.Sorted(maps.Keys(p.servers)))
		}
		p.ErrorAt(v.At, path+".server_id",
			fmt.Sprintf("there is no server %q in clusters", relay.Truncate(server, maxQuoted)), hint)
	}
	return server, true
}

// maxHinted is the maximum number of errors with a suggestion for a server.
const maxHinted = 20

// textMember returns a string member of a container or an instance, or "" if it is missing.
func (p *inventoryParser) textMember(members map[string]*yamldoc.Value, key, path string) string {
	v := members[key]
	if v == nil || !p.countValue(v, path) {
		return ""
	}
	if path += "." + key; v.Shape == yamldoc.List || v.Shape == yamldoc.Map {
		p.ErrorAt(v.At, path, fmt.Sprintf("must be a string, not %s", v.Shape), "")
		return ""
	}
	if problem := checkName(v.Text); problem != "" && (v.Text != "" || isRequired(key)) {
		p.ErrorAt(v.At, path, problem, "")
		return ""
	}
	return v.Text
}

func isRequired(key string) bool { return key == "hub_id" || key == "server_id" }

func (p *inventoryParser) checkID(e yamldoc.Entry, path, noun string) bool {
	if isValidID(e.Key) {
		return true
	}
	p.ErrorAt(e.At, relay.Truncate(path, 2*maxQuoted), "is not a valid ID for "+noun,
		fmt.Sprintf("start with a letter or a digit, then up to %d of A-Z, a-z, 0-9, ., _ and -", maxID-1))
	return false
}

// checkName returns the problem of a name that another system defines, or "".
func checkName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxName:
		return fmt.Sprintf("has %d bytes, the limit is %d", len(s), maxName)
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return "contains control characters"
	}
	return ""
}

const maxName = 256
