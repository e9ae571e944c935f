package brokers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// Values of the setting broker.
const (
	Kafka    = "kafka"
	NATS     = "nats"
	AMQP     = "amqp"
	MQTT     = "mqtt"
	Redis    = "redis"
	Postgres = "postgres"
)

// Config is the setting `config` of the sink. The tag `of` lists the brokers that have a key; without it, all have it.
type Config struct {
	Broker string `json:"broker"`
	// Addresses are host:port, or host for the default port.
	Addresses []string `json:"addresses"`
	User      string   `json:"user"`
	// Password and PasswordFile exclude each other. The file is read for each connection.
	Password     string `json:"password"`
	PasswordFile string `json:"password_file"`
	// TLS is nil for unencrypted connections. An empty TLS trusts the system's authorities.
	TLS *TLS `json:"tls"`

	Topic           string `json:"topic" of:"kafka,mqtt"`
	Key             string `json:"key" of:"kafka"`
	SASL            string `json:"sasl" of:"kafka"`
	Compression     string `json:"compression" of:"kafka"`
	MaxMessageBytes int    `json:"max_message_bytes" of:"kafka"`

	Subject   string `json:"subject" of:"nats"`
	TokenFile string `json:"token_file" of:"nats"`
	CredsFile string `json:"creds_file" of:"nats"`

	// Exchange is a pointer because "" is the default exchange.
	Exchange   *string `json:"exchange" of:"amqp"`
	RoutingKey string  `json:"routing_key" of:"amqp"`
	VHost      string  `json:"vhost" of:"amqp"`

	ClientID string `json:"client_id" of:"mqtt"`

	Stream         string `json:"stream" of:"redis"`
	MaxLen         int64  `json:"maxlen" of:"redis"`
	DB             int    `json:"db" of:"redis"`
	Cluster        bool   `json:"cluster" of:"redis"`
	SentinelMaster string `json:"sentinel_master" of:"redis"`

	Database    string `json:"database" of:"postgres"`
	Table       string `json:"table" of:"postgres"`
	CreateTable *bool  `json:"create_table" of:"postgres"`
}

// TLS configures encrypted connections.
type TLS struct {
	// CAFile has the authorities that are trusted instead of the system's.
	CAFile string `json:"ca_file"`
	// CertFile and KeyFile are the client's certificate.
	CertFile string `json:"cert_file"`
	KeyFile  string `json:"key_file"`
	// ServerName is the name in the server's certificate, if it is not the host of the address.
	ServerName string `json:"server_name"`
}

// brokerSpec describes one kind of broker.
type brokerSpec struct {
	port int // default
	// nameSetting is the setting with the topic, subject, routing key, stream or table.
	nameSetting, defaultName string
	rule                     nameRule
	open                     func(*Sink) opener
	classify                 errorClassifier
	explain                  messageExplainer
}

func brokerSpecs() map[string]brokerSpec {
	return map[string]brokerSpec{
		Kafka:    {9092, "topic", "hubrelay", kafkaTopic, openKafka, classifyKafka, explainKafka},
		NATS:     {4222, "subject", "hubrelay.{topic}", natsSubject, openNATS, classifyNATS, explainNATS},
		AMQP:     {5672, "routing_key", "hubrelay.{topic}", routingKey, openAMQP, classifyAMQP, explainAMQP},
		MQTT:     {1883, "topic", "hubrelay/{hub}/{topic_path}", mqttTopic, openMQTT, classifyMQTT, explainMQTT},
		Redis:    {6379, "stream", "notifications", redisKey, openRedis, classifyRedis, explainRedis},
		Postgres: {5432, "table", "notifications", tableName, openPostgres, classifyPostgres, explainPostgres},
	}
}

func brokerNames() []string { return []string{Kafka, NATS, AMQP, MQTT, Redis, Postgres} }

// Validate reports all problems, joined. It reads no files and does not dial.
func (c *Config) Validate() error {
	k, ok := brokerSpecs()[c.Broker]
	if !ok {
		return c.unknownBroker()
	}
	errs := []error{c.checkForeignKeys(), c.checkAddresses(k.port), c.checkLogin()}
	if _, err := parseName(k.nameSetting, c.nameText(k), k.rule); err != nil {
		errs = append(errs, err)
	}
	switch c.Broker {
	case Kafka:
		errs = append(errs, c.checkKafka())
	case Redis:
		errs = append(errs, c.checkRedis())
	case Postgres:
		errs = append(errs, c.checkPostgres())
	}
	return errors.Join(errs...)
}

// fieldError reports a problem with a key.
func fieldError(key, format string, args ...any) error {
	return &relay.FieldError{Field: key, Problem: fmt.Sprintf(format, args...)}
}

func (c *Config) unknownBroker() error {
	list := strings.Join(brokerNames(), ", ")
	switch nearest := suggest.ClosestName(c.Broker, brokerNames()); {
	case c.Broker == "":
		return fieldError("broker", "is missing: choose one of %s", list)
	case nearest != "":
		return fieldError("broker", "%q is not known; did you mean %s?", relay.Truncate(c.Broker, 40), nearest)
	default:
		return fieldError("broker", "%q is not known: choose one of %s", relay.Truncate(c.Broker, 40), list)
	}
}

// checkForeignKeys rejects keys of other brokers, which would have no effect.
func (c *Config) checkForeignKeys() error {
	var errs []error
	var own []string
	v := reflect.ValueOf(*c)
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if of := tag.Get("of"); of != "" && slices.Contains(strings.Split(of, ","), c.Broker) {
			own = append(own, tag.Get("json"))
		}
	}
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		of := strings.Split(tag.Get("of"), ",")
		if tag.Get("of") != "" && !slices.Contains(of, c.Broker) && !v.Field(i).IsZero() {
			errs = append(errs, fieldError(tag.Get("json"), "is a key of %s, not of %s, which has %s",
				strings.Join(of, " and "), c.Broker, strings.Join(own, ", ")))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) checkAddresses(port int) error {
	if len(c.Addresses) == 0 {
		return fieldError("addresses", "is missing: name the broker, such as [%s.example.com:%d]", c.Broker, port)
	}
	var errs []error
	for i, a := range c.Addresses {
		if _, _, err := splitAddress(a, port); err != nil {
			errs = append(errs, fieldError(fmt.Sprintf("addresses.%d", i), "%v", err))
		}
	}
	return errors.Join(errs...)
}

// splitAddress parses host:port. Its errors do not quote the text, because it may be a URL with a password.
func splitAddress(text string, port int) (host string, _ int, err error) {
	if strings.Contains(text, "://") || strings.ContainsAny(text, "@/ \t\r\n") {
		return "", 0, errors.New("is not host:port: remove scheme, user and path; " +
			"user, password and tls are separate keys")
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		host, number = strings.Trim(text, "[]"), strconv.Itoa(port)
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", 0, errors.New("is not host:port")
		}
	}
	port, err = strconv.Atoi(number)
	if host == "" || err != nil || port < 1 || port > 65535 {
		return "", 0, errors.New("is not host:port with a port from 1 to 65535")
	}
	return host, port, nil
}

// hostPorts returns the checked addresses with their ports.
func (c *Config) hostPorts() []string {
	port := brokerSpecs()[c.Broker].port
	list := make([]string, 0, len(c.Addresses))
	for _, a := range c.Addresses {
		if host, port, err := splitAddress(a, port); err == nil {
			list = append(list, net.JoinHostPort(host, strconv.Itoa(port)))
		}
	}
	return list
}

func (c *Config) checkLogin() error {
	var errs []error
	given := c.Password != "" || c.PasswordFile != ""
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, fieldError("password_file", "cannot be combined with password: remove one of them"))
	}
	// Redis allows a password without a user.
	if given && c.User == "" && c.Broker != Redis {
		errs = append(errs, fieldError("user", "is missing: a password needs a user"))
	}
	if c.Broker == NATS && countTrue(c.User != "", c.TokenFile != "", c.CredsFile != "") > 1 {
		errs = append(errs, errors.New("user, token_file and creds_file exclude each other: keep one of them"))
	}
	if t := c.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		errs = append(errs, fieldError("tls", "has only one of cert_file and key_file: set both or none"))
	}
	return errors.Join(errs...)
}

func countTrue(list ...bool) (n int) {
	for _, b := range list {
		if b {
			n++
		}
	}
	return n
}

func (c *Config) checkRedis() error {
	var errs []error
	if c.MaxLen < 0 {
		errs = append(errs, fieldError("maxlen", "is %d: set the number of entries to keep, or 0 for all", c.MaxLen))
	}
	if c.DB < 0 || c.DB > 0 && c.Cluster {
		errs = append(errs, fieldError("db", "is %d: choose 0 or more, and 0 with cluster", c.DB))
	}
	switch {
	case c.Cluster && c.SentinelMaster != "":
		errs = append(errs, fieldError("sentinel_master", "cannot be combined with cluster: remove one of them"))
	case len(c.Addresses) > 1 && !c.Cluster && c.SentinelMaster == "":
		errs = append(errs, fieldError("addresses", "names several: set cluster: true, "+
			"or set sentinel_master to the master that they watch"))
	}
	return errors.Join(errs...)
}

func (c *Config) checkPostgres() error {
	var errs []error
	if c.Database == "" {
		errs = append(errs, fieldError("database", "is missing: name the database that has the table"))
	}
	// A publisher may name any number of hubs.
	if c.createsTables() && strings.Contains(c.Table, "{hub}") {
		errs = append(errs, fieldError("table", "has {hub}, so each new name of a hub would create a table: "+
			"use {account} and the column metadata, or create the tables and set create_table: false"))
	}
	return errors.Join(errs...)
}

func (c *Config) createsTables() bool { return c.CreateTable == nil || *c.CreateTable }

// nameText returns the configured name, or the default.
func (c *Config) nameText(k brokerSpec) string {
	text := map[string]string{
		"topic": c.Topic, "subject": c.Subject, "routing_key": c.RoutingKey, "stream": c.Stream, "table": c.Table,
	}[k.nameSetting]
	if text == "" {
		return k.defaultName
	}
	return text
}

// tlsConfig reads the TLS files and returns the configuration of a connection to host. It returns nil if the connection
// is not encrypted.
func (s *Sink) tlsConfig(host string) (*tls.Config, error) {
	c := s.config.TLS
	if c == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.ServerName != "" {
		out.ServerName = c.ServerName
	}
	if c.CAFile != "" {
		text, err := filewatch.ReadFile(c.CAFile)
		if err != nil {
			return nil, fieldError("tls.ca_file", "%v", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fieldError("tls.ca_file", "names %s, which contains no certificate in PEM format", c.CAFile)
		}
	}
	if c.CertFile != "" {
		certificate, err := filewatch.ReadFile(c.CertFile)
		if err != nil {
			return nil, fieldError("tls.cert_file", "%v", err)
		}
		key, err := filewatch.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fieldError("tls.key_file", "%v", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fieldError("tls.cert_file", "and key_file cannot be used: %v", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
