// Package config reads the configuration of the daemon: defaults, then a YAML file, then environment variables.
//
// One schema, derived by reflection from the structs in config.go and in the sink kinds, drives the check of the
// file, the environment, the JSON Schema and the printed configuration, so they cannot disagree. Every error is
// reported with its position, the problem and the nearest valid name. Nothing is ignored silently.
//
// The package starts nothing and opens no socket. The meaning of a value for Redis, HTTP or a sink belongs to
// other packages; none of them imports this one, and the daemon passes the values on. This is the only package
// that uses koanf.
package config

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
)

// Struct tags of a configuration, here and in the Config of a sink kind:
//
//	koanf:"name"     the key; "-" omits the field, ",squash" inlines the keys of an embedded struct
//	doc:"…"          a description for people, shown in the JSON Schema; see also details.go
//	enum:"a,b"       the allowed values of a string
//	secret:"true"    never printed; ${NAME} is replaced from the environment
//	secret:"url"     like "true", but printed without credentials
//	secret:"false"   not a secret, regardless of its name
//
// Some fields need no tag. A string with a sibling NAME_file (or a list NAMEs with a sibling NAME_files) is a
// secret. A string named url is secret:"url". A string whose key ends in _file, or a list whose key ends in
// _files, names existing files, relative to the directory of the configuration file. A key that ends in template
// or template_file is a template and not a secret.

// Problem is one error or warning about the configuration.
type Problem = yamldoc.Problem

// Problems is the error of [Load]: all errors, sorted by position, one line each.
type Problems = yamldoc.Problems

// Config is the complete effective configuration. It is read-only after [Load].
type Config struct {
	Server        Server            `koanf:"server" doc:"Public listener: tokens, websockets and publishing."`
	Health        Health            `koanf:"health" doc:"Listener for probes and Prometheus."`
	Admin         Admin             `koanf:"admin" doc:"Listener for operators: the admin API and profiles."`
	Redis         Redis             `koanf:"redis" doc:"Storage of all state."`
	Websocket     Websocket         `koanf:"websocket" doc:"Limits for clients of the stream."`
	Notifications Notifications     `koanf:"notifications" doc:"Accepted topics."`
	Auth          Auth              `koanf:"auth" doc:"API keys and tokens of clients."`
	Quotas        Quotas            `koanf:"quotas" doc:"Limits for publishing."`
	Audit         Audit             `koanf:"audit" doc:"Record of security-relevant actions."`
	History       History           `koanf:"history" doc:"Record of what happened to events."`
	Sinks         map[string]Sink   `koanf:"sinks" doc:"Destinations outside the relay, by name."`
	Sources       map[string]Source `koanf:"sources" doc:"Upstreams whose events the relay copies, by name."`
	Migration     Migration         `koanf:"migration" doc:"Migration of container instances between servers."`
	Log           Log               `koanf:"log" doc:"Log of the relay, on standard error."`

	// Warnings are problems that do not prevent the start.
	Warnings []Problem `koanf:"-"`

	file    string
	origins yamldoc.Origins
	// inlineSecrets are the paths of secrets that are written in the file.
	inlineSecrets []string
	schema        *node
}

// Dir returns the directory of the configuration file, for relative paths.
func (c *Config) Dir() string { return filepath.Dir(c.file) }

// Server is the public listener.
type Server struct {
	Listen               string        `koanf:"listen" doc:"Address host:port to listen on; :8080 means all interfaces."`
	PublicURL            string        `koanf:"public_url" doc:"URL of the relay for clients outside."`
	BodyMemory           Size          `koanf:"body_memory" doc:"Maximum memory for all request bodies together, and again for their decoded events, 1MiB to 64GiB."`
	BodyMinRate          Size          `koanf:"body_min_rate" doc:"Minimum rate of a request body, in bytes per second, 256B to 1GiB."`
	MaxBody              Size          `koanf:"max_body" doc:"Maximum size of a request body, 1KiB to 64MiB."`
	TLS                  TLS           `koanf:"tls" doc:"Certificate of the listener; without it, plain HTTP."`
	AllowedOrigins       []string      `koanf:"allowed_origins" doc:"Origins of web pages that may open a websocket."`
	MaxConnections       int           `koanf:"max_connections" doc:"Maximum number of connections, streams among them."`
	MaxConnectionsPerIP  int           `koanf:"max_connections_per_ip" doc:"Maximum connections per client address."`
	TrustedProxies       []string      `koanf:"trusted_proxies" doc:"Proxies whose header names the client."`
	TrustedProxiesHeader string        `koanf:"trusted_proxies_header" doc:"The header in which these proxies name the client."`
	ShutdownGrace        time.Duration `koanf:"shutdown_grace" doc:"Time limit for running work after SIGTERM."`
}

// TLS names the certificate and its key: both or none. Changed files are reloaded.
type TLS struct {
	CertFile string `koanf:"cert_file" doc:"PEM file with the certificate chain."`
	KeyFile  string `koanf:"key_file" doc:"PEM file with the private key of the certificate."`
}

// Enabled reports whether the listener uses TLS.
func (t TLS) Enabled() bool { return t.CertFile != "" }

// Health is the listener for probes and Prometheus. It serves no data of accounts.
type Health struct {
	Listen string `koanf:"listen" doc:"Address host:port of /healthz, /readyz and /metrics, without a login."`
}

// Admin is the listener for operators.
type Admin struct {
	Listen string       `koanf:"listen" doc:"Address host:port."`
	Tokens []AdminToken `koanf:"tokens" doc:"Credentials for the admin API over TCP."`
	TLS    TLS          `koanf:"tls" doc:"Certificate of the listener; without it, plain HTTP."`
}

// AdminToken is a credential for the admin listener. Exactly one of Token, TokenFile and TokenSHA256 is set.
type AdminToken struct {
	Name        string `koanf:"name" doc:"Name of the token in logs."`
	Role        string `koanf:"role" enum:"viewer,operator,admin" doc:"What the token may do."`
	Token       string `koanf:"token" secret:"true" doc:"The token, at least 16 characters; may be ${NAME}."`
	TokenFile   string `koanf:"token_file" doc:"File with the token, read again after a change."`
	TokenSHA256 string `koanf:"token_sha256" secret:"true" doc:"SHA-256 of the token, 64 hexadecimal digits."`
}

// Redis configures the storage.
type Redis struct {
	URL         string    `koanf:"url" secret:"url" doc:"Address of Redis."`
	URLFile     string    `koanf:"url_file" doc:"File with the url, read when the relay starts."`
	DataDir     string    `koanf:"data_dir" doc:"Directory of the embedded redis-server and of the admin socket."`
	Prefix      string    `koanf:"prefix" doc:"Prefix of all Redis keys, so relays can share one Redis."`
	Partitions  int       `koanf:"partitions" doc:"Number of partitions of the log, 1 to 1024."`
	MinReplicas int       `koanf:"min_replicas" doc:"Minimum number of replicas, 0 to 16."`
	MaxMemory   Size      `koanf:"max_memory" doc:"Memory limit of the embedded redis-server; 0 or at least 16MiB."`
	FullAt      int       `koanf:"full_at" doc:"Used memory at which publishing stops, in percent, 50 to 100."`
	Retention   Retention `koanf:"retention" doc:"How long the log is kept for clients."`
}

// Retention limits the log. All limits apply.
type Retention struct {
	History  time.Duration `koanf:"history" doc:"Maximum age of an event in the log."`
	MaxLen   int64         `koanf:"max_len" doc:"Maximum number of events in a partition."`
	MaxBytes Size          `koanf:"max_bytes" doc:"Maximum memory of the log in Redis, in total; 0: half of the memory of Redis."`
}

// Websocket limits the cost of the clients of the stream.
type Websocket struct {
	Queue          Size          `koanf:"queue" doc:"Maximum size of unsent data per client, 64KiB to 1GiB."`
	Gather         time.Duration `koanf:"gather" doc:"Minimum time between writes, 0 to 50ms."`
	Compression    Compression   `koanf:"compression" doc:"Compression of websocket messages."`
	Recent         Size          `koanf:"recent" doc:"Memory for recent events on each node, 64KiB to 4GiB."`
	PingInterval   time.Duration `koanf:"ping_interval" doc:"Time between pings to a client, 1s to 1h."`
	PongTimeout    time.Duration `koanf:"pong_timeout" doc:"Time without a pong until a client is closed, 1s to 1h."`
	MaxConnections int           `koanf:"max_connections" doc:"Maximum number of clients of this node."`
	MaxPerHub      int           `koanf:"max_per_hub" doc:"Maximum number of clients per hub and node; 0: no limit."`
	MaxPerKey      int           `koanf:"max_per_key" doc:"Maximum number of clients per key and node; 0: no limit."`
	MaxPerAccount  int           `koanf:"max_per_account" doc:"Maximum number of clients per account and node; 0: no limit."`
}

// Compression configures the compression of websocket messages.
type Compression struct {
	Enabled bool          `koanf:"enabled" doc:"Compress messages for websocket clients that support it."`
	MinSize Size          `koanf:"min_size" doc:"Minimum size of a compressed message, 64 to 1MiB."`
	CPU     time.Duration `koanf:"cpu" doc:"CPU time for compression per second, 1ms to 16s."`
}

// Quotas limit requests over HTTP. All nodes share them. A publish request must fit into the first three.
type Quotas struct {
	Key     Quota `koanf:"key" doc:"Limit of each API key."`
	Account Quota `koanf:"account" doc:"Limit of all keys of an account together."`
	IP      Quota `koanf:"ip" doc:"Limit of each client address."`

	Requests RequestQuota `koanf:"requests" doc:"Limit of requests other than publishing."`
}

// RequestQuota limits the requests of each key and of each account that issue tokens, migrate instances or list tasks.
type RequestQuota struct {
	PerSecond int           `koanf:"per_second" doc:"Requests per second of a key, and of an account; 0: no limit."`
	Burst     time.Duration `koanf:"burst" doc:"Time whose requests may be sent at once, 100ms to 1h."`
}

// Quota limits notifications and bytes per second.
type Quota struct {
	Notifications int           `koanf:"notifications" doc:"Events per second; 0: no limit."`
	Bytes         Size          `koanf:"bytes" doc:"Bytes of request bodies per second; 0: no limit."`
	Burst         time.Duration `koanf:"burst" doc:"Time whose events may be sent at once, 100ms to 1h."`
}

// Notifications configures the accepted topics.
type Notifications struct {
	ExtraTopics []string `koanf:"extra_topics" doc:"Topics in addition to the built-in ones."`
}

// Auth configures credentials of the public API.
type Auth struct {
	TokenTTL  time.Duration `koanf:"token_ttl" doc:"Lifetime of a stream token, 1s to 1h."`
	StreamTTL time.Duration `koanf:"stream_ttl" doc:"Maximum age of a token that event streams keep alive, 1m to 720h."`
	Keys      []Key         `koanf:"keys" doc:"API keys; create one with 'hubrelay keys new'."`
	JWT       JWT           `koanf:"jwt" doc:"JSON Web Tokens that are accepted like API keys."`
	Forward   Forward       `koanf:"forward" doc:"Endpoint that verifies other credentials."`
	MTLS      MTLS          `koanf:"mtls" doc:"Client certificates."`
}

// Forward configures the endpoint that verifies credentials other than keys and JWTs.
type Forward struct {
	URL      string        `koanf:"url" doc:"URL that verifies credentials; empty: none."`
	Timeout  time.Duration `koanf:"timeout" doc:"Time limit of a request to the URL, 100ms to 30s."`
	CacheTTL time.Duration `koanf:"cache_ttl" doc:"Time for which a decision is used without asking again, 1s to 1h."`
	StaleTTL time.Duration `koanf:"stale_ttl" doc:"Additional time while the URL does not respond, 0 to 1h."`
}

// MTLS configures client certificates on the public listener.
type MTLS struct {
	CAFile string `koanf:"ca_file" doc:"PEM file with the CAs of client certificates; empty: none are requested."`
}

// JWT configures which JSON Web Tokens are accepted. JWKSURL or JWKSFile is set.
type JWT struct {
	Issuer            string   `koanf:"issuer" doc:"Required claim iss of the tokens; empty: no tokens are accepted."`
	Audience          string   `koanf:"audience" doc:"Required claim aud of the tokens."`
	JWKSURL           string   `koanf:"jwks_url" secret:"url" doc:"URL of the public keys of the issuer."`
	JWKSFile          string   `koanf:"jwks_file" doc:"File with the keys of the issuer, read again when it changes."`
	Algorithms        []string `koanf:"algorithms" doc:"Accepted signature algorithms."`
	AccountClaim      string   `koanf:"account_claim" doc:"Claim with the account of the bearer."`
	HubsClaim         string   `koanf:"hubs_claim" doc:"Claim with the hubs of the bearer."`
	CapabilitiesClaim string   `koanf:"capabilities_claim" doc:"Claim with the capabilities of the bearer."`
}

// Enabled reports whether tokens are accepted.
func (j *JWT) Enabled() bool { return j.Issuer != "" }

// The values of [History].Deliveries.
const (
	HistoryAll      = "all"
	HistoryFailures = "failures"
	HistoryNone     = "none"
)

// History configures the history of events.
type History struct {
	Deliveries string        `koanf:"deliveries" enum:"all,failures,none" doc:"Attempts to record; all also counts the clients that received an event."`
	MaxAge     time.Duration `koanf:"max_age" doc:"Maximum age of a record, 1m to 90d."`
	MaxBytes   Size          `koanf:"max_bytes" doc:"Maximum memory for the history in Redis, 1MiB to 64GiB."`
	Clients    bool          `koanf:"clients" doc:"Show the keys of the connected clients that received an event."`
}

// Audit configures the audit log.
type Audit struct {
	File      string `koanf:"file" doc:"File for the audit log, or stdout; empty: none."`
	HashChain bool   `koanf:"hash_chain" doc:"Add the SHA-256 of the previous line to each line of the file."`
	MaxLen    int64  `koanf:"max_len" doc:"Number of entries that are kept in Redis, 0 to 100 million."`
}

// Key is one API key. Exactly one of Key, KeyFile, KeySHA256 and SAN is set.
type Key struct {
	Name         string    `koanf:"name" doc:"Name of the key in logs and metrics."`
	Key          string    `koanf:"key" secret:"true" doc:"The key, at least 16 characters; may be ${NAME}."`
	KeyFile      string    `koanf:"key_file" doc:"File with the key, read again after a change."`
	KeySHA256    string    `koanf:"key_sha256" secret:"true" doc:"SHA-256 of the key, 64 hexadecimal digits."`
	SAN          string    `koanf:"san" doc:"Name in the client certificates of the key."`
	AccountID    string    `koanf:"account_id" doc:"Account whose events the key sees."`
	Hubs         []string  `koanf:"hubs" doc:"Hubs that the key may access."`
	Capabilities []string  `koanf:"capabilities" doc:"Further permissions of the key."`
	Topics       []string  `koanf:"topics" doc:"Patterns of the topics that the key may publish; empty: all."`
	Networks     []string  `koanf:"networks" doc:"Networks from which the key may be used; empty: all."`
	Expires      time.Time `koanf:"expires" doc:"Time at which the key expires."`
}

// Sink is one destination: the keys that all kinds share, and Settings.
type Sink struct {
	Type         string        `koanf:"type" doc:"Kind of the sink."`
	Topics       []string      `koanf:"topics" doc:"Patterns of topics."`
	Hubs         []string      `koanf:"hubs" doc:"Hubs whose events the sink receives; empty: all."`
	Accounts     []string      `koanf:"accounts" doc:"Accounts whose events the sink receives; empty: all."`
	Environments []string      `koanf:"environments" doc:"Environments that an event must concern; empty: all."`
	Clusters     []string      `koanf:"clusters" doc:"Names of clusters that an event must concern; empty: all."`
	Containers   []string      `koanf:"containers" doc:"Containers that an event must concern; empty: all."`
	When         string        `koanf:"when" doc:"Expression that must be true."`
	From         string        `koanf:"from" enum:"end,start" doc:"Where a new sink starts in the log."`
	Timeout      time.Duration `koanf:"timeout" doc:"Time limit of one attempt."`
	Concurrency  int           `koanf:"concurrency" doc:"Maximum number of concurrent attempts on each node, 1 to 1024."`
	Retry        Retry         `koanf:"retry" doc:"Schedule of retries."`
	DisableAfter time.Duration `koanf:"disable_after" doc:"Time without a successful attempt until a sink is disabled."`
	Backlog      int64         `koanf:"backlog" doc:"Maximum number of waiting events, of scheduled deliveries with open digests, and of dead letters."`
	AccountShare int           `koanf:"account_share" doc:"Maximum share of an account in percent, 1 to 100."`
	BacklogBytes Size          `koanf:"backlog_bytes" doc:"Maximum memory of the queue in Redis, up to 1TiB."`
	Ordering     string        `koanf:"ordering" enum:"none,hub,container" doc:"Order of deliveries."`
	Rate         relay.Rate    `koanf:"rate" doc:"Maximum rate of attempts."`
	Burst        int           `koanf:"burst" doc:"Maximum number of attempts at once after a pause."`
	Digest       Digest        `koanf:"digest" doc:"Combine many events into a summary."`
	Batch        Batch         `koanf:"batch" doc:"Deliver many complete events at once."`

	// Settings contains the keys of the kind, filled and valid.
	Settings relay.Config `koanf:"-"`
	// Probes is taken from the kind; see [relay.SinkKind].
	Probes bool `koanf:"-"`
}

// Retry configures the attempts after the first.
type Retry struct {
	Schedule    []time.Duration `koanf:"schedule" doc:"Delays between attempts, with jitter; empty: no retries."`
	MaxAge      time.Duration   `koanf:"max_age" doc:"Age after which a delivery becomes a dead letter."`
	MaxAttempts int             `koanf:"max_attempts" doc:"Maximum number of attempts per delivery."`
}

// Digest combines notifications. A zero Wait disables it, except for kinds of sinks that combine what exceeds
// their rate.
type Digest struct {
	Wait time.Duration `koanf:"wait" doc:"Time to collect events, 100ms to 24h; 0 disables digests."`
	Max  int           `koanf:"max" doc:"Maximum number of events in a digest, 1 to 1000."`
	By   []string      `koanf:"by" enum:"topic,hub,cluster,account" doc:"What the events of a digest share."`
}

// Batch groups notifications into deliveries that contain all of them. A zero Wait disables it.
type Batch struct {
	Wait time.Duration `koanf:"wait" doc:"Maximum time to fill a batch, 10ms to 10m; 0 disables batches."`
	Max  int           `koanf:"max" doc:"Maximum number of events in a batch, 1 to 1000, up to 4 MiB."`
	By   string        `koanf:"by" enum:"none,account" doc:"account keeps the events of different accounts in separate batches."`
}

// Source is an upstream: another relay, or a platform with the same token endpoint and websocket. Exactly one of
// Key and KeyFile is set.
type Source struct {
	Type    string   `koanf:"type" enum:"hub" doc:"Kind of the source: hub, the stream of a hub or an account."`
	URL     string   `koanf:"url" secret:"false" doc:"Address of the upstream without /v1."`
	Key     string   `koanf:"key" secret:"true" doc:"API key of the upstream; may be ${NAME}."`
	KeyFile string   `koanf:"key_file" doc:"File with the API key, read again after a change."`
	HubID   string   `koanf:"hub_id" doc:"Hub whose events are copied."`
	Topics  []string `koanf:"topics" doc:"Patterns of topics."`
	CAFile  string   `koanf:"ca_file" doc:"PEM file with the authorities of the upstream."`
}

// ReadKey returns the key. It reads KeyFile on each call, so a changed file takes effect.
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

// Migration configures the inventory and the driver.
type Migration struct {
	Driver            Driver        `koanf:"driver" doc:"Plugin that moves instances."`
	InventoryFile     string        `koanf:"inventory_file" doc:"YAML file with servers, containers and instances."`
	ServerConcurrency int           `koanf:"server_concurrency" doc:"Maximum number of migrations per server."`
	ExpireAfter       time.Duration `koanf:"expire_after" doc:"Maximum time in the queue, 1s to 8760h."`
	StallTimeout      time.Duration `koanf:"stall_timeout" doc:"Maximum time without progress, 10s to 8760h."`
}

// Driver configures the plugin that moves instances.
type Driver struct {
	// Settings contains the keys of the driver, filled and valid. It is nil without a driver kind.
	Settings relay.Config `koanf:"-"`
	// IsSet reports whether a driver is configured.
	IsSet bool `koanf:"-"`
}

// Log configures the log of the daemon.
type Log struct {
	Level  string `koanf:"level" enum:"debug,info,warn,error" doc:"Minimum severity of log records."`
	Format string `koanf:"format" enum:"auto,text,json" doc:"auto writes text to a terminal, otherwise JSON."`
}
