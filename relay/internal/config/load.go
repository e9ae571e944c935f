package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/maps"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// Kinds lists the sinks and the driver that a configuration may contain.
type Kinds struct {
	Sinks []relay.SinkKind
	// Driver is nil if migrations are not supported.
	Driver *relay.DriverKind
}

// Load returns the effective configuration: defaults, the YAML file at path, then the variables in environ
// (NAME=value, as returned by os.Environ). An empty path means no file.
//
// All errors of the user are returned at once as [Problems]. Any other error is a mistake in kinds.
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
	cfg.file, cfg.origins, cfg.schema, cfg.inlineSecrets = path, l.Origins, l.root, l.inlineSecrets
	return cfg, nil
}

// AdminEndpoint is the address of the admin API of a running daemon.
type AdminEndpoint struct {
	Listen string // host:port, or empty for a unix socket
	TLS    bool
	// DataDir and HealthListen determine the path of the unix socket.
	DataDir, HealthListen string
	// Relay is the [Redis.Identity] of the configuration. It is empty without a file, or if only the daemon knows it.
	Relay string
}

// LoadAdminEndpoint loads only the settings that a command needs to find the running daemon. It ignores errors in
// other settings, and secrets or certificates that only the daemon can read. Its errors are like the errors of
// [Load]. An empty path means the defaults.
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
	isRedisUnknown := l.HasErrors("redis")
	needed := []string{"admin", "admin.listen", "health", "health.listen", "redis", "redis.data_dir"}
	problems := slices.DeleteFunc(l.Problems, func(p yamldoc.Problem) bool {
		return cfg != nil && !slices.Contains(needed, p.Path)
	})
	if len(problems) > 0 {
		return AdminEndpoint{}, Problems(yamldoc.Sorted(problems))
	}
	e := AdminEndpoint{
		Listen: cfg.Admin.Listen, TLS: cfg.Admin.TLS.Enabled() || unreadableTLS,
		DataDir: cfg.Redis.DataDir, HealthListen: cfg.Health.Listen,
	}
	if path != "" && !isRedisUnknown {
		e.Relay = cfg.Redis.Identity()
	}
	return e, nil
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
			dir:       filepath.Dir(path),
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
		if file = l.Read(path, "name a configuration file with -c, or write one with 'hubrelay init'"); file == nil {
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
	raw := k.Raw() // Raw returns a copy.
	sinks, _ := raw["sinks"].(map[string]any)
	delete(raw, "sinks")
	cfg := &Config{}
	if l.driver != nil {
		cfg.Migration.Driver.Settings = l.driver.Config()
	}
	if err := l.root.fromLayer(raw, reflect.ValueOf(cfg).Elem()); err != nil {
		return nil, err
	}
	if l.driver != nil {
		cfg.Migration.Driver.IsSet = l.driver.Given(cfg.Migration.Driver.Settings)
	}
	if err := l.loadSinks(cfg, sinks); err != nil {
		return nil, err
	}
	if path != "" {
		l.resolveDataDir(&cfg.Redis)
	}
	l.validate(cfg)
	return cfg, nil
}

// findTypes collects the types of the sinks, because the type decides which keys a sink has, and the names of the
// sources, because environment variables may refer to them.
func (l *loader) findTypes(file *yamldoc.Value) {
	l.findNames(file, "sinks", l.types)
	l.findNames(file, "sources", l.upstreams)
}

// findNames collects the names in a section with their types.
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
			case meant == "": // reported when the variable is parsed
			case strings.EqualFold(rest, one+envLevel+"type"):
				types[meant] = text
			case types[meant] == "":
				types[meant] = ""
			}
		}
	}
}

// loadSinks applies the defaults of each sink's type. It fills the shared keys and the keys of the kind.
func (l *loader) loadSinks(cfg *Config, sinks map[string]any) error {
	schema := l.root.field("sinks").node
	cfg.Sinks = make(map[string]Sink)
	for name, given := range sinks {
		kind, known := l.kinds[l.types[name]]
		if !known {
			l.unknownType(schema, name)
			continue
		}
		fields := schema.types[kind.Type].fields
		values := fieldLayer(fields)
		m, _ := given.(map[string]any)
		maps.Merge(m, values)
		s := Sink{Settings: kind.Config()}
		shared := len(schema.fields)
		if err := setFields(fields[:shared], values, reflect.ValueOf(&s).Elem()); err != nil {
			return err
		}
		if err := setFields(fields[shared:], values, reflect.ValueOf(s.Settings).Elem()); err != nil {
			return err
		}
		s.Probes = kind.Probes
		cfg.Sinks[name] = s
	}
	return nil
}

func (l *loader) unknownType(schema *node, name string) {
	path := "sinks." + name + ".type"
	t := l.types[name]
	switch {
	case t == "":
		l.Error(path, "is missing", "choose one of "+strings.Join(schema.sinkTypes(), ", "))
	case yamldoc.DidYouMean(t, schema.sinkTypes()) != "":
		l.Error(path, fmt.Sprintf("there is no sink type %q", relay.Truncate(t, maxQuoted)),
			yamldoc.DidYouMean(t, schema.sinkTypes()))
	default:
		l.Error(path, fmt.Sprintf("there is no sink type %q", relay.Truncate(t, maxQuoted)),
			"choose one of "+strings.Join(schema.sinkTypes(), ", "))
	}
}

// brokerNames are the brokers of hubrelay-brokers, and rabbitmq. People write them as the type of a sink.
var brokerNames = []string{"kafka", "nats", "amqp", "rabbitmq", "mqtt", "redis", "postgres"}
