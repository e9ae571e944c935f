package config

import (
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// The struct tags of a configuration, here and in the Config of a sink kind:
//
//	koanf:"name"     the key; "-" leaves the field out, ",squash" takes the keys of an embedded struct
//	doc:"…"          one sentence for people, shown in the JSON Schema
//	enum:"a,b"       the allowed values of a string
//	secret:"true"    never printed, and ${NAME} in it is replaced from the environment
//	secret:"url"     the same, but printed without its password only
//	secret:"false"   no secret, whatever its name is
//
// Some need no tag: a string beside NAME_file (or a list NAMEs beside NAME_files) is a secret, a string named url is
// secret:"url", and a string whose key ends in _file or a list whose key ends in _files names existing files,
// relative to the folder of the configuration file. What ends in template or template_file is a template and no secret.

// Problem is one mistake in the configuration, or one warning about it.
type Problem = yamldoc.Problem

// Problems is the error of [Load]: everything that is wrong, by place, one line each.
type Problems = yamldoc.Problems

// Config is the whole effective configuration. It is read-only once loaded.
type Config struct {
	Server        Server            `koanf:"server" doc:"The public listener: tokens, websockets and publishing."`
	Health        Health            `koanf:"health" doc:"The listener for probes and Prometheus."`
	Admin         Admin             `koanf:"admin" doc:"The listener for operators: the API of the hubrelay commands, and profiles."`
	Redis         Redis             `koanf:"redis" doc:"Where all state lives."`
	Websocket     Websocket         `koanf:"websocket" doc:"Clients of the stream: what one may cost, and how many there may be."`
	Notifications Notifications     `koanf:"notifications" doc:"What may be published."`
	Auth          Auth              `koanf:"auth" doc:"Who may connect and publish."`
	Sinks         map[string]Sink   `koanf:"sinks" doc:"Destinations outside the relay, by name."`
	Sources       map[string]Source `koanf:"sources" doc:"Upstreams whose notifications this relay takes over, by name."`
	Migration     Migration         `koanf:"migration" doc:"Moving container instances between servers."`
	Log           Log               `koanf:"log" doc:"The daemon's own log, on standard error."`

	// Warnings are worth telling an operator and stop nothing.
	Warnings []Problem `koanf:"-"`

	file    string
	origins yamldoc.Origins
	schema  *node
}

// Server is the public listener.
type Server struct {
	Listen         string        `koanf:"listen" doc:"Address host:port to listen on; :8080 is every address of the machine."`
	PublicURL      string        `koanf:"public_url" doc:"How clients reach the relay from outside, http(s)://host[:port][/path]; empty takes what the request says."`
	MaxBody        Size          `koanf:"max_body" doc:"Largest body of a request, from 1KiB to 64MiB."`
	TLS            TLS           `koanf:"tls" doc:"Certificate of the public listener; without it the listener speaks plain HTTP."`
	AllowedOrigins []string      `koanf:"allowed_origins" doc:"Origins of browser pages that may open a websocket besides the same host: https://host[:port], or * for all."`
	ShutdownGrace  time.Duration `koanf:"shutdown_grace" doc:"How long running work may take to end after SIGTERM."`
}

// TLS names the certificate and its key, both or none. The files are read again when they change.
type TLS struct {
	CertFile string `koanf:"cert_file" doc:"PEM file with the certificate chain."`
	KeyFile  string `koanf:"key_file" doc:"PEM file with the private key of the certificate."`
}

// Enabled says whether the listener speaks TLS.
func (t TLS) Enabled() bool { return t.CertFile != "" }

// Health is the listener for probes and Prometheus. It serves no data of tenants.
type Health struct {
	Listen string `koanf:"listen" doc:"Address host:port that serves /healthz, /readyz and /metrics without a login."`
}

// Admin is the listener for operators.
type Admin struct {
	Listen string       `koanf:"listen" doc:"Address host:port, which requires tokens; empty for the unix socket admin.sock in redis.data_dir."`
	Tokens []AdminToken `koanf:"tokens" doc:"Who may use the admin API over TCP; make a token with hubrelay keys new --admin."`
	TLS    TLS          `koanf:"tls" doc:"Certificate of the admin listener; without it the listener speaks plain HTTP."`
}

// AdminToken is one login of the admin listener. Exactly one of Token, TokenFile and TokenSHA256 is set.
type AdminToken struct {
	Name        string `koanf:"name" doc:"Name of the token in logs."`
	Role        string `koanf:"role" enum:"viewer,operator,admin" doc:"What the token may do: viewer reads; operator also steers sinks and dead letters; admin does everything."`
	Token       string `koanf:"token" secret:"true" doc:"The token itself, at least 16 characters; ${NAME} takes it from the environment."`
	TokenFile   string `koanf:"token_file" doc:"File that holds the token, read again when it changes."`
	TokenSHA256 string `koanf:"token_sha256" secret:"true" doc:"SHA-256 of the token as 64 hexadecimal digits."`
}

// Redis says where the state lives.
type Redis struct {
	URL         string    `koanf:"url" secret:"url" doc:"redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or memory:; empty starts a redis-server of our own."`
	URLFile     string    `koanf:"url_file" doc:"File that holds the url, read when the daemon starts."`
	DataDir     string    `koanf:"data_dir" doc:"Directory of our own redis-server and of the admin socket, relative to the working directory."`
	Prefix      string    `koanf:"prefix" doc:"Beginning of every Redis key, so that several relays can share one Redis."`
	Partitions  int       `koanf:"partitions" doc:"Number of partitions of the log, 1 to 1024; fixed once there is data."`
	MinReplicas int       `koanf:"min_replicas" doc:"How many replicas of Redis must have what is published before it is accepted, 0 to 16; with fewer after a second, publishing answers 503."`
	Retention   Retention `koanf:"retention" doc:"How much of the log is kept for clients that come back; what a sink has not got is kept in its own queue."`
}

// Retention bounds the log; the first bound that is reached counts.
type Retention struct {
	History time.Duration `koanf:"history" doc:"Keep a notification for this long."`
	MaxLen  int64         `koanf:"max_len" doc:"Keep at most this many notifications in a partition."`
}

// Websocket bounds what clients of the stream cost.
type Websocket struct {
	Queue          Size          `koanf:"queue" doc:"How much may wait for one client before it is closed as too slow, 64KiB to 1GiB."`
	Gather         time.Duration `koanf:"gather" doc:"Least time between two writes to the clients, 0 to 50ms: what comes meanwhile waits and leaves together, which costs less CPU where much comes; 0 for no waiting."`
	Compression    Compression   `koanf:"compression" doc:"Compressed messages (permessage-deflate, RFC 7692) for clients that ask for them."`
	History        Size          `koanf:"history" doc:"How much of the newest notifications of all partitions each node keeps in memory for clients that come back, so that they need not be read from Redis, 64KiB to 4GiB; half as much again of what it had to read, and once more for account pipelines over several partitions."`
	PingInterval   time.Duration `koanf:"ping_interval" doc:"Time between two pings to a client, 1s to 1h; below what proxies in between allow a connection to be idle."`
	PongTimeout    time.Duration `koanf:"pong_timeout" doc:"How long a client may stay silent after a ping before it is taken for dead, 1s to 1h; looked at with each ping."`
	MaxConnections int           `koanf:"max_connections" doc:"How many clients this node serves at once; 0 for as many as the limit of open files allows, less a reserve."`
	MaxPerHub      int           `koanf:"max_per_hub" doc:"How many clients one hub may have on this node; 0 for no limit."`
	MaxPerKey      int           `koanf:"max_per_key" doc:"How many clients one key may have on this node; 0 for no limit."`
}

// Compression says whether messages to websockets are compressed, and what that may cost.
type Compression struct {
	Enabled bool          `koanf:"enabled" doc:"Lets clients of the websocket get compressed messages where they ask for it; event streams stay as they are."`
	MinSize Size          `koanf:"min_size" doc:"How long a message must be to be compressed, 64 to 1MiB."`
	CPU     time.Duration `koanf:"cpu" doc:"Time of a core that compressing may take in each second, 1ms to 16s; what comes beyond that is sent as it is."`
}

// Notifications says what may be published.
type Notifications struct {
	ExtraTopics []string `koanf:"extra_topics" doc:"Topics of your own besides the built-in ones; hubrelay topics lists those."`
}

// Auth says who may connect and publish.
type Auth struct {
	TokenTTL time.Duration `koanf:"token_ttl" doc:"How long a token may wait for its stream, 1s to 1h; that of an event stream is good for as long after its end."`
	Keys     []Key         `koanf:"keys" doc:"The API keys; make one with hubrelay keys new."`
}

// Key is one API key. Exactly one of Key, KeyFile and KeySHA256 is set.
type Key struct {
	Name         string    `koanf:"name" doc:"Name of the key in logs and metrics."`
	Key          string    `koanf:"key" secret:"true" doc:"The key itself, at least 16 characters; ${NAME} takes it from the environment."`
	KeyFile      string    `koanf:"key_file" doc:"File that holds the key, read again when it changes."`
	KeySHA256    string    `koanf:"key_sha256" secret:"true" doc:"SHA-256 of the key as 64 hexadecimal digits, so that the key itself stands nowhere."`
	AccountID    string    `koanf:"account_id" doc:"Account whose notifications the key sees; * sees all that its hubs hold, empty only what belongs to no account."`
	Hubs         []string  `koanf:"hubs" doc:"Hubs that the key opens; * for all."`
	Capabilities []string  `koanf:"capabilities" doc:"What else the key may do: notifications-publish, containers-instances-migrate."`
	Expires      time.Time `koanf:"expires" doc:"When the key stops working: 2027-01-31 or 2027-01-31T12:00:00Z; empty for never."`
}

// Sink is one destination: what all kinds have in common, and the kind's own settings.
type Sink struct {
	Type         string        `koanf:"type" doc:"Kind of the sink."`
	Topics       []string      `koanf:"topics" doc:"Patterns of the topics it wants, * for any run of characters, a leading ! excludes; empty for all."`
	Hubs         []string      `koanf:"hubs" doc:"Hubs whose notifications it wants; empty for all."`
	Accounts     []string      `koanf:"accounts" doc:"Accounts whose notifications it wants; empty for all."`
	Environments []string      `koanf:"environments" doc:"Environments of which a notification must concern one; empty for all."`
	Clusters     []string      `koanf:"clusters" doc:"Clusters of which a notification must concern one, by name; empty for all."`
	Containers   []string      `koanf:"containers" doc:"Containers of which a notification must concern one; empty for all."`
	When         string        `koanf:"when" doc:"Expression over topic, object and context that must be true, such as object.state == \"unhealthy\"; empty for all."`
	From         string        `koanf:"from" enum:"end,start" doc:"Where a new sink begins: at the end of the log or at its start."`
	Timeout      time.Duration `koanf:"timeout" doc:"How long one attempt may take."`
	Concurrency  int           `koanf:"concurrency" doc:"How many attempts may run at once, 1 to 1024."`
	Retry        Retry         `koanf:"retry" doc:"When a failed delivery is tried again."`
	DisableAfter time.Duration `koanf:"disable_after" doc:"A sink whose every attempt has failed for this long is disabled and keeps its backlog; 0 for never."`
	Backlog      int64         `koanf:"backlog" doc:"How many notifications wait for a slow sink before the oldest are dropped and counted; how many deliveries may be parked before fresh ones wait; and how many dead letters are kept."`
	Ordering     string        `koanf:"ordering" enum:"none,hub,container" doc:"What is delivered one after the other, in order: nothing, what concerns one hub, or what concerns one container."`
	Rate         relay.Rate    `koanf:"rate" doc:"How many attempts may be made, by all nodes together: 10/s, 90/m or 1000/h; empty for no limit."`
	Burst        int           `koanf:"burst" doc:"How many attempts may be made at once after a pause, where there is a rate; 0 for as many as the rate allows in a second."`
	Digest       Digest        `koanf:"digest" doc:"Gathers notifications and delivers many at once."`
	Batch        Batch         `koanf:"batch" doc:"Delivers many notifications at once, none of them left out."`

	// Settings is what the kind's Config returned, filled and validated.
	Settings relay.SinkConfig `koanf:"-"`
}

// Retry is the schedule of a sink's attempts after the first.
type Retry struct {
	Schedule    []time.Duration `koanf:"schedule" doc:"Time to wait before each further attempt, with jitter; empty for no retry."`
	MaxAge      time.Duration   `koanf:"max_age" doc:"A delivery older than this becomes a dead letter."`
	MaxAttempts int             `koanf:"max_attempts" doc:"How many attempts a delivery gets, the first included, up to 100; where the schedule has fewer its last wait repeats; 0 for as many as the schedule makes."`
}

// Digest gathers notifications. A zero Wait is no digest, but for kinds of sinks that gather what waits for their rate.
type Digest struct {
	Wait time.Duration `koanf:"wait" doc:"How long to gather before a delivery, 100ms to 24h; 0 for no digest."`
	Max  int           `koanf:"max" doc:"How many notifications a delivery holds, 1 to 1000; what comes beyond that is counted."`
	By   []string      `koanf:"by" enum:"topic,hub,cluster" doc:"What the notifications of one delivery have in common; empty for nothing."`
}

// Batch gathers notifications into deliveries that hold all of them. A zero Wait is no batch.
type Batch struct {
	Wait time.Duration `koanf:"wait" doc:"How long a batch that is not full gathers, 10ms to 10m; 0 for no batch."`
	Max  int           `koanf:"max" doc:"How many notifications a batch holds, 1 to 1000; it holds 4 MiB at most."`
}

// Source is an upstream: another relay, or a platform that speaks its token endpoint and websocket. Exactly one of Key and
// KeyFile is set.
type Source struct {
	Type    string   `koanf:"type" enum:"hub" doc:"Kind of the source: hub, the websocket stream of a hub or an account."`
	URL     string   `koanf:"url" secret:"false" doc:"Address of the upstream, http(s)://host[:port][/path] without /v1."`
	Key     string   `koanf:"key" secret:"true" doc:"The upstream's API key; ${NAME} takes it from the environment."`
	KeyFile string   `koanf:"key_file" doc:"File that holds the upstream's API key, read again when it changes."`
	HubID   string   `koanf:"hub_id" doc:"Hub whose notifications are asked for; empty for all that the key's account may see."`
	Topics  []string `koanf:"topics" doc:"Patterns of the topics that the upstream is asked for, * for any run of characters, a leading ! excludes; empty for all."`
	CAFile  string   `koanf:"ca_file" doc:"The authorities that may vouch for the upstream, PEM, instead of the system's; read again for each connection."`
}

// ReadKey returns the key. It reads KeyFile anew each time, so that a changed file takes effect.
func (s Source) ReadKey() (string, error) {
	if s.KeyFile == "" {
		return s.Key, nil
	}
	key, err := readSecret(s.KeyFile)
	if err == nil {
		err = checkHeaderSafe(key)
	}
	if err != nil {
		return "", fmt.Errorf("key_file: %w", err)
	}
	return key, nil
}

// Migration says which instances there are, and what moves them.
type Migration struct {
	Driver            Driver        `koanf:"driver" doc:"The plugin that moves instances; without it the relay does not migrate."`
	InventoryFile     string        `koanf:"inventory_file" doc:"YAML file with the servers, containers and instances; imported at the start and after each change. Servers are defined here and nowhere else."`
	ServerConcurrency int           `koanf:"server_concurrency" doc:"How many migrations may run at once from or to one server, on all nodes together, 1 to 1024."`
	ExpireAfter       time.Duration `koanf:"expire_after" doc:"A migration that could not begin within this time expires, 1s to 8760h."`
	StallTimeout      time.Duration `koanf:"stall_timeout" doc:"A driver that reports nothing new of a migration for this long is stopped and called again, 10s to 8760h. It must be above the longest time in which the driver has nothing to tell, such as a health check's."`
}

// Driver is what moves instances.
type Driver struct {
	// Settings is what the kind's Config returned, filled and validated; nil where there is no kind.
	Settings relay.DriverConfig `koanf:"-"`
}

// IsSet is false where there is no driver.
func (d Driver) IsSet() bool { return d.Settings != nil && d.Settings.IsSet() }

// Log is the daemon's own log.
type Log struct {
	Level  string `koanf:"level" enum:"debug,info,warn,error" doc:"Least severity that is written."`
	Format string `koanf:"format" enum:"auto,text,json" doc:"auto writes text to a terminal and JSON elsewhere."`
}

func defaultConfig() Config {
	return Config{
		Server: Server{Listen: "127.0.0.1:8080", MaxBody: 1 << 20, ShutdownGrace: 15 * time.Second},
		Health: Health{Listen: "127.0.0.1:9090"},
		Redis: Redis{
			DataDir: "./hubrelay-data", Prefix: "hubrelay", Partitions: 1,
			Retention: Retention{History: 24 * time.Hour, MaxLen: 1_000_000},
		},
		Websocket: Websocket{Queue: 1 << 20, History: 16 << 20, PingInterval: 25 * time.Second, PongTimeout: 50 * time.Second, Compression: Compression{MinSize: 256, CPU: 100 * time.Millisecond}},
		Auth:      Auth{TokenTTL: time.Minute},
		Migration: Migration{ServerConcurrency: 2, ExpireAfter: 24 * time.Hour, StallTimeout: 30 * time.Minute},
		Log:       Log{Level: "info", Format: "auto"},
	}
}

// defaultSink has the schedule of Standard Webhooks 1.0.
func defaultSink() Sink {
	return Sink{
		From: "end", Timeout: 15 * time.Second, Concurrency: 16, Backlog: 1_000_000, Ordering: "none",
		DisableAfter: 120 * time.Hour, Digest: Digest{Max: 20}, Batch: Batch{Max: 100},
		Retry: Retry{
			Schedule: []time.Duration{
				5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
				10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
			},
			MaxAge: 96 * time.Hour,
		},
	}
}
