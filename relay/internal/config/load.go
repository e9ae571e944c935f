package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/maps"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// Kinds is what the sections of a configuration may lead to that belongs to no room.
type Kinds struct {
	Sinks []relay.SinkKind
	// Driver may be nil, where no driver can be configured.
	Driver *relay.DriverKind
}

// Load reads the effective configuration: defaults, the YAML file at path, then the variables of environ (each
// NAME=value, as os.Environ returns them). An empty path means that there is no file.
//
// What the user got wrong is returned as [Problems], all of it at once; any other error is a mistake in kinds.
func Load(path string, environ []string, kinds Kinds) (*Config, error) {
	l, err := newLoader(path, environ, kinds)
	if err != nil {
		return nil, err
	}
	cfg, err := l.load(path, environ)
	if err != nil {
		return nil, err
	}
	if len(l.Problems) > 0 {
		return nil, Problems(yamldoc.Sorted(l.Problems))
	}
	cfg.Warnings = yamldoc.Sorted(l.Warnings)
	cfg.file, cfg.origins, cfg.schema = path, l.Origins, l.root
	return cfg, nil
}

// AdminEndpoint says where a running daemon serves its admin API.
type AdminEndpoint struct {
	Listen string // host:port, or empty for a unix socket
	TLS    bool
	// DataDir and HealthListen decide where the unix socket is.
	DataDir, HealthListen string
}

// LoadAdminEndpoint reads only what a command needs to find the running daemon. It ignores mistakes elsewhere, and secrets and
// certificates that only the daemon can read. Its errors are those of [Load]. An empty path means the defaults.
func LoadAdminEndpoint(path string, environ []string) (AdminEndpoint, error) {
	l, err := newLoader(path, environ, Kinds{})
	if err != nil {
		return AdminEndpoint{}, err
	}
	cfg, err := l.load(path, environ)
	if err != nil {
		return AdminEndpoint{}, err
	}
	unreadableTLS := l.HasErrors("admin.tls")
	needed := []string{"admin", "admin.listen", "health", "health.listen", "redis", "redis.data_dir"}
	problems := slices.DeleteFunc(l.Problems, func(p yamldoc.Problem) bool {
		return cfg != nil && !slices.Contains(needed, p.Path)
	})
	if len(problems) > 0 {
		return AdminEndpoint{}, Problems(yamldoc.Sorted(problems))
	}
	return AdminEndpoint{
		Listen: cfg.Admin.Listen, TLS: cfg.Admin.TLS.Enabled() || unreadableTLS, DataDir: cfg.Redis.DataDir, HealthListen: cfg.Health.Listen,
	}, nil
}

func newLoader(path string, environ []string, kinds Kinds) (*loader, error) {
	root, err := newSchema(kinds)
	if err != nil {
		return nil, err
	}
	l := &loader{
		converter: &converter{
			Reporter:  &yamldoc.Reporter{File: path, Origins: yamldoc.Origins{}},
			root:      root,
			folder:    filepath.Dir(path),
			environ:   parseEnviron(environ),
			types:     map[string]string{},
			upstreams: map[string]string{},
		},
		kinds:  make(map[string]relay.SinkKind, len(kinds.Sinks)),
		driver: kinds.Driver,
	}
	for _, k := range kinds.Sinks {
		l.kinds[k.Type] = k
	}
	return l, nil
}

func parseEnviron(environ []string) map[string]string {
	m := make(map[string]string, len(environ))
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			m[name] = value
		}
	}
	return m
}

type loader struct {
	*converter
	kinds        map[string]relay.SinkKind
	driver       *relay.DriverKind
	sampleBudget sampleBudget
}

func (l *loader) load(path string, environ []string) (*Config, error) {
	file := &yamldoc.Value{Shape: yamldoc.Null}
	if path != "" {
		if file = l.Read(path, "name a configuration file with -c, or write one by hubrelay init"); file == nil {
			return nil, nil
		}
	}
	l.findTypes(file)
	k := koanf.New(delim)
	if err := k.Load(confmap.Provider(fieldLayer(l.root.fields), ""), nil); err != nil {
		return nil, fmt.Errorf("load the defaults: %w", err)
	}
	if m, ok := l.convert(l.root, nil, file, ""); ok {
		given, _ := m.(map[string]any)
		if err := k.Load(confmap.Provider(given, ""), nil); err != nil {
			return nil, fmt.Errorf("load %s: %w", path, err)
		}
	} else if file.Shape != yamldoc.Null {
		return nil, nil
	}
	if err := k.Load(l.envProvider(environ), nil); err != nil {
		return nil, fmt.Errorf("load the environment: %w", err)
	}
	raw := k.Raw() // a copy
	sinks, _ := raw["sinks"].(map[string]any)
	delete(raw, "sinks")
	cfg := &Config{}
	if err := decode(raw, cfg); err != nil {
		return nil, err
	}
	if err := l.loadSinks(cfg, sinks); err != nil {
		return nil, err
	}
	migration, _ := raw["migration"].(map[string]any)
	if err := l.loadDriver(cfg, migration); err != nil {
		return nil, err
	}
	l.validate(cfg)
	return cfg, nil
}

// findTypes notes the type of each sink first, because it decides which keys the sink has; and the names of the sources,
// which variables may mean.
func (l *loader) findTypes(file *yamldoc.Value) {
	l.findNames(file, "sinks", l.types)
	l.findNames(file, "sources", l.upstreams)
}

// findNames notes the names below a section with their types.
func (l *loader) findNames(file *yamldoc.Value, section string, types map[string]string) {
	if named, ok := file.Entry(section); ok {
		for _, s := range named.Value.Entries {
			types[s.Key] = ""
			if t, ok := s.Value.Entry("type"); ok {
				types[s.Key] = t.Value.Text
			}
		}
	}
	for name, text := range l.environ {
		rest, ok := strings.CutPrefix(name, envPrefix+strings.ToUpper(section)+envLevel)
		if one, _, found := strings.Cut(rest, envLevel); ok && found {
			meant := matchEnvName(strings.ToLower(one), types)
			switch {
			case meant == "": // reported when the variable is read
			case strings.EqualFold(rest, one+envLevel+"type"):
				types[meant] = text
			case types[meant] == "":
				types[meant] = ""
			}
		}
	}
}

// loadSinks gives each sink the defaults of its type and decodes it twice: what all sinks have, and its own settings.
func (l *loader) loadSinks(cfg *Config, sinks map[string]any) error {
	schema := l.root.field("sinks").node
	cfg.Sinks = make(map[string]Sink)
	for name, given := range sinks {
		kind, known := l.kinds[l.types[name]]
		if !known {
			l.unknownType(schema, name)
			continue
		}
		one := fieldLayer(schema.types[kind.Type].fields)
		m, _ := given.(map[string]any)
		maps.Merge(m, one)
		s := Sink{Settings: kind.Config()}
		if err := decode(one, &s); err != nil {
			return err
		}
		if err := decode(one, s.Settings); err != nil {
			return err
		}
		if c, ok := s.Settings.(relay.BaseDirSetter); ok {
			c.SetBaseDir(l.folder)
		}
		cfg.Sinks[name] = s
	}
	return nil
}

// loadDriver fills the settings of the driver.
func (l *loader) loadDriver(cfg *Config, migration map[string]any) error {
	if l.driver == nil {
		return nil
	}
	settings := l.driver.Config()
	given, _ := migration["driver"].(map[string]any)
	if err := decode(given, settings); err != nil {
		return err
	}
	if c, ok := settings.(relay.BaseDirSetter); ok {
		c.SetBaseDir(l.folder)
	}
	cfg.Migration.Driver.Settings = settings
	return nil
}

func (l *loader) unknownType(schema *node, name string) {
	path := "sinks." + name + ".type"
	t := l.types[name]
	switch {
	case t == "":
		l.Error(path, "is missing", "choose one of "+strings.Join(schema.sinkTypes(), ", "))
	case yamldoc.DidYouMean(t, schema.sinkTypes()) != "":
		l.Error(path, fmt.Sprintf("there is no sink type %q", relay.Truncate(t, maxQuoted)), yamldoc.DidYouMean(t, schema.sinkTypes()))
	default:
		l.Error(path, fmt.Sprintf("there is no sink type %q", relay.Truncate(t, maxQuoted)), "choose one of "+strings.Join(schema.sinkTypes(), ", "))
	}
}

// decode fills a struct from values that were converted by its schema, so that a failure is a mistake of ours.
func decode(values map[string]any, into any) error {
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		ZeroFields: true, DecodeHook: mapstructure.TextUnmarshallerHookFunc(), TagName: "koanf", Result: into,
	})
	if err == nil {
		err = d.Decode(values)
	}
	if err != nil {
		return fmt.Errorf("fill %T: %w", into, err)
	}
	return nil
}
