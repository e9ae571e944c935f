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

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/document"
)

// MaxFile is how many bytes an inventory may have.
const MaxFile = document.MaxSize

// ReadFile reads an inventory. What is wrong in the file is returned as [document.Problems], all of it at once.
func ReadFile(path string) (*File, error) {
	p := newParser(path)
	return p.inventory(p.Read(path, "name a YAML file, such as a copy of configs/inventory.yaml"))
}

// ParseFile is [ReadFile] for what was read already; errors call it name.
func ParseFile(name string, data []byte) (*File, error) {
	p := newParser(name)
	return p.inventory(p.Parse(data, document.Position{Line: 1, Column: 1}))
}

// ParseImport is [ParseFile] for an import, which may leave out the clusters to keep the servers as they are.
func ParseImport(name string, data []byte) (*File, error) {
	p := newParser(name)
	p.optionalServers = true
	return p.inventory(p.Parse(data, document.Position{Line: 1, Column: 1}))
}

// parser turns the values of a document into a File.
type parser struct {
	*document.Reporter
	file            *File
	count           int
	optionalServers bool
	// By id: where each stands for the first time, and what it is in.
	servers   map[string]given
	instances map[string]given
}

type given struct {
	in   string
	line int
}

func newParser(name string) *parser {
	return &parser{
		Reporter: &document.Reporter{File: name},
		file:     &File{}, servers: map[string]given{}, instances: map[string]given{},
	}
}

func (p *parser) inventory(root *document.Value) (*File, error) {
	if root != nil && p.top(root) {
		slices.SortFunc(p.file.Servers, func(a, b relay.Server) int { return cmp.Compare(a.ID, b.ID) })
		slices.SortFunc(p.file.Containers, func(a, b FileContainer) int { return cmp.Compare(a.ID, b.ID) })
	}
	if len(p.Problems) > 0 {
		return nil, document.Problems(document.Sorted(p.Problems))
	}
	return p.file, nil
}

// top reads the clusters first, wherever they stand, since instances name their servers.
func (p *parser) top(root *document.Value) bool {
	if root.Shape == document.Null && !root.Broken || root.Shape == document.Map && len(root.Entries) == 0 {
		p.BadAt(root.At, "", "there is nothing in it", "an inventory of nothing is written clusters: {}")
		return false
	}
	members, ok := p.members(root, "", []string{"clusters", "containers"})
	if !ok {
		return false
	}
	p.file.keepServers = p.optionalServers && members["clusters"] == nil
	for _, e := range p.entries(members["clusters"], "clusters") {
		p.cluster(e, document.Join("clusters", e.Key))
	}
	for _, e := range p.entries(members["containers"], "containers") {
		p.container(e, document.Join("containers", e.Key))
	}
	return true
}

// visit counts a value, since aliases can make many of few, and tells whether it may be read.
func (p *parser) visit(v *document.Value, path string) bool {
	if p.count++; p.count == document.MaxValues+1 {
		p.BadAt(v.At, path, fmt.Sprintf("is too much: %d values are the limit", document.MaxValues), "")
	}
	return p.count <= document.MaxValues && !v.Broken
}

// entries are those of a map with free keys; none is as good as an empty one.
func (p *parser) entries(v *document.Value, path string) []document.Entry {
	if v == nil || !p.visit(v, path) || v.Shape == document.Null {
		return nil
	}
	if v.Shape != document.Map {
		p.BadAt(v.At, path, fmt.Sprintf("must be a map, not %s", v.Shape), "")
		return nil
	}
	return v.Entries
}

// members are those of a map with known keys, those without a value left out. It is false for what is no map.
func (p *parser) members(v *document.Value, path string, keys []string) (map[string]*document.Value, bool) {
	if !p.visit(v, path) {
		return nil, false
	}
	if v.Shape != document.Map && v.Shape != document.Null {
		p.BadAt(v.At, path, fmt.Sprintf("must be a map, not %s", v.Shape), "the keys here are "+strings.Join(keys, ", "))
		return nil, false
	}
	members := make(map[string]*document.Value, len(v.Entries))
	for _, e := range v.Entries {
		if !slices.Contains(keys, e.Key) {
			p.BadAt(e.At, document.Join(path, relay.Clip(e.Key, clipAt)), "unknown key",
				cmp.Or(document.DidYouMean(e.Key, keys), "the keys here are "+strings.Join(keys, ", ")))
		} else if e.Value.Shape != document.Null || e.Value.Broken {
			members[e.Key] = e.Value
		}
	}
	return members, true
}

// clipAt is how much of a value a message repeats, in bytes.
const clipAt = 60

func (p *parser) cluster(e document.Entry, path string) {
	if problem := checkName(e.Key); problem != "" {
		p.BadAt(e.At, relay.Clip(path, clipAt), "the name of a cluster "+problem, "")
		return
	}
	members, _ := p.members(e.Value, path, []string{"servers"})
	for _, s := range p.entries(members["servers"], path+".servers") {
		p.server(s, e.Key, path+".servers."+s.Key)
	}
}

func (p *parser) server(e document.Entry, cluster, path string) {
	if !p.id(e, path, "a server") {
		return
	}
	if first, twice := p.servers[e.Key]; twice {
		p.BadAt(e.At, path, "is in cluster "+first.in+" too", fmt.Sprintf("the other is in line %d; a server is in one cluster", first.line))
		return
	}
	p.servers[e.Key] = given{in: cluster, line: e.At.Line}
	settings := map[string]any{}
	for _, s := range p.entries(e.Value, path) {
		settings[s.Key] = p.plain(s.Value, document.Join(path, s.Key))
	}
	text, err := json.Marshal(settings)
	if err != nil {
		p.BadAt(e.At, path, err.Error(), "")
		return
	}
	p.file.Servers = append(p.file.Servers, relay.Server{ID: e.Key, Cluster: cluster, Settings: text})
}

// plain is a setting of a driver, which may be anything.
func (p *parser) plain(v *document.Value, path string) any {
	switch {
	case !p.visit(v, path) || v.Shape == document.Null:
		return nil
	case v.Shape == document.Map:
		m := make(map[string]any, len(v.Entries))
		for _, e := range v.Entries {
			m[e.Key] = p.plain(e.Value, document.Join(path, e.Key))
		}
		return m
	case v.Shape == document.List:
		list := make([]any, len(v.Items))
		for i, item := range v.Items {
			list[i] = p.plain(item, fmt.Sprintf("%s[%d]", path, i))
		}
		return list
	}
	return v.Scalar()
}

func (p *parser) container(e document.Entry, path string) {
	if !p.id(e, path, "a container") {
		return
	}
	members, ok := p.members(e.Value, path, []string{"hub_id", "account_id", "environment_id", "stateful", "instances"})
	if !ok {
		return
	}
	c := FileContainer{Container: Container{
		ID: e.Key, Hub: p.name(members, "hub_id", path),
		Account: p.name(members, "account_id", path), Environment: p.name(members, "environment_id", path),
	}}
	if _, given := members["hub_id"]; !given {
		p.BadAt(e.At, path, "has no hub_id", "name the hub whose notifications tell of the container")
	}
	if v := members["stateful"]; v != nil && p.visit(v, path) {
		if v.Shape != document.Bool {
			p.BadAt(v.At, path+".stateful", fmt.Sprintf("must be true or false, not %s", v.Shape), "write true or false, without quotes")
		}
		c.Stateful = v.Scalar() == true
	}
	for _, i := range p.entries(members["instances"], path+".instances") {
		if at, ok := p.instance(i, e.Key, path+".instances."+i.Key); ok {
			c.Instances = append(c.Instances, FileInstance{ID: i.Key, Server: at})
		}
	}
	slices.SortFunc(c.Instances, func(a, b FileInstance) int { return cmp.Compare(a.ID, b.ID) })
	p.file.Containers = append(p.file.Containers, c)
}

// instance returns the server of an instance.
func (p *parser) instance(e document.Entry, container, path string) (string, bool) {
	if !p.id(e, path, "an instance") {
		return "", false
	}
	if first, twice := p.instances[e.Key]; twice {
		p.BadAt(e.At, path, "is an instance of container "+first.in+" too",
			fmt.Sprintf("the other is in line %d; the id of an instance is its own in the whole inventory", first.line))
		return "", false
	}
	p.instances[e.Key] = given{in: container, line: e.At.Line}
	members, ok := p.members(e.Value, path, []string{"server_id"})
	if !ok {
		return "", false
	}
	v, ok := members["server_id"]
	if !ok {
		p.BadAt(e.At, path, "has no server_id", "name the server that the instance is on")
		return "", false
	}
	server := p.name(members, "server_id", path)
	if _, known := p.servers[server]; !known && server != "" && !p.file.keepServers {
		hint := ""
		if len(p.Problems) < hinted {
			hint = document.DidYouMean(server, slices.Sorted(maps.Keys(p.servers)))
		}
		p.BadAt(v.At, path+".server_id", fmt.Sprintf("there is no server %q in clusters", relay.Clip(server, clipAt)), hint)
	}
	return server, true
}

// hinted is for how many mistakes all servers are compared with what was written.
const hinted = 20

// name returns a text of a container or an instance, empty where there is none.
func (p *parser) name(members map[string]*document.Value, key, path string) string {
	v := members[key]
	if v == nil || !p.visit(v, path) {
		return ""
	}
	if path += "." + key; v.Shape == document.List || v.Shape == document.Map {
		p.BadAt(v.At, path, fmt.Sprintf("must be a string, not %s", v.Shape), "")
		return ""
	}
	if problem := checkName(v.Text); problem != "" && (v.Text != "" || required(key)) {
		p.BadAt(v.At, path, problem, "")
		return ""
	}
	return v.Text
}

func required(key string) bool { return key == "hub_id" || key == "server_id" }

func (p *parser) id(e document.Entry, path, what string) bool {
	if validID(e.Key) {
		return true
	}
	p.BadAt(e.At, relay.Clip(path, 2*clipAt), "is no id for "+what,
		fmt.Sprintf("begin with a letter or a digit, then up to %d of A-Z, a-z, 0-9, ., _ and -", maxID-1))
	return false
}

// checkName says what is wrong with a name whose form others decide.
func checkName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxName:
		return fmt.Sprintf("has %d bytes: %d are the limit", len(s), maxName)
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return "holds control characters"
	}
	return ""
}

const maxName = 256
