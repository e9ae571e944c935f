package brokers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hubrelay/hubrelay/relay"
)

// pgConnections is how many rows are written at once; PostgreSQL commits them together.
const pgConnections = 10

var tablePattern = regexp.MustCompile(`^([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*$`)

var tableName = nameRule{
	maxBytes: 63,
	lower:    true,
	allowed:  func(r rune) bool { return plainLetter(r) && r != '-' },
	check: func(text string) error {
		if !tablePattern.MatchString(text) {
			return errors.New("a table is written in lower case, digits and '_', and may have its schema and a dot before it")
		}
		return nil
	},
}

// pgConnection makes new connections by itself.
type pgConnection struct {
	*sql.Publisher
	endlessLifetime
	pool   *pgxpool.Pool
	schema uniqueRows
	create bool

	mu   sync.Mutex
	made map[string]bool // tables that are there
}

func openPostgres(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		config, err := s.pgConfig()
		if err != nil {
			return nil, err
		}
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		if err := pool.Ping(ctx); err != nil {
			pool.Close()
			return nil, err
		}
		c := &pgConnection{pool: pool, create: s.config.CreateTable == nil || *s.config.CreateTable, made: map[string]bool{}}
		c.schema.GenerateMessagesTableName = quoteTable
		if c.Publisher, err = sql.NewPublisher(sql.BeginnerFromPgx(pool), sql.PublisherConfig{SchemaAdapter: c.schema}, watermill.NopLogger{}); err != nil {
			pool.Close()
			return nil, err
		}
		return c, nil
	}
}

func (s *Sink) pgConfig() (*pgxpool.Config, error) {
	var hosts, ports []string
	for _, a := range s.config.hostPorts() {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, err
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	escape := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	text := fmt.Sprintf("host='%s' port='%s' user='%s' dbname='%s' sslmode=disable connect_timeout=5 application_name=hubrelay",
		strings.Join(hosts, ","), strings.Join(ports, ","), escape.Replace(s.config.User), escape.Replace(s.config.Database))
	if len(hosts) > 1 {
		text += " target_session_attrs=read-write" // of several one is the primary
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	own := config.ConnConfig
	if own.TLSConfig, err = s.tlsConfig(own.Host); err != nil {
		return nil, err
	}
	for _, f := range own.Fallbacks {
		if f.TLSConfig, err = s.tlsConfig(f.Host); err != nil {
			return nil, err
		}
	}
	config.MaxConns = pgConnections
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) (err error) {
		c.Password, err = s.readPassword()
		return err
	}
	return config, nil
}

// Publish commits a row for each message; a repeat adds none.
func (c *pgConnection) Publish(table string, messages ...*message.Message) error {
	if err := c.ensureTable(messages[0].Context(), table); err != nil {
		return err
	}
	return c.Publisher.Publish(table, messages...)
}

// ensureTable makes a table that is not there, once: Watermill would ask for it with every message until the first has come through.
func (c *pgConnection) ensureTable(ctx context.Context, table string) error {
	if !c.create {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[table] {
		return nil
	}
	queries, err := c.schema.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: table})
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.Query, q.Args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	c.made[table] = true
	return nil
}

// Close waits for what is being written.
func (c *pgConnection) Close() error {
	err := c.Publisher.Close()
	c.pool.Close()
	return err
}

// quoteTable is a table's name in a query. It was checked.
func quoteTable(table string) string { return pgx.Identifier(strings.Split(table, ".")).Sanitize() }

// uniqueRows is Watermill's table, which its subscriber can read, with one row for each id.
type uniqueRows struct{ sql.DefaultPostgreSQLSchema }

// SchemaInitializingQueries adds an index over the ids.
func (s uniqueRows) SchemaInitializingQueries(p sql.SchemaInitializingQueriesParams) ([]sql.Query, error) {
	queries, err := s.DefaultPostgreSQLSchema.SchemaInitializingQueries(p)
	if err != nil {
		return nil, err
	}
	_, table, found := strings.Cut(p.Topic, ".")
	if !found {
		table = p.Topic
	}
	const suffix = "_uuid"
	index := pgx.Identifier{table[:min(len(table), tableName.maxBytes-len(suffix))] + suffix}.Sanitize()
	return append(queries, sql.Query{Query: "CREATE UNIQUE INDEX IF NOT EXISTS " + index + " ON " + quoteTable(p.Topic) + ` ("uuid")`}), nil
}

// InsertQuery passes over rows that are there.
func (s uniqueRows) InsertQuery(p sql.InsertQueryParams) (sql.Query, error) {
	q, err := s.DefaultPostgreSQLSchema.InsertQuery(p)
	q.Query += " ON CONFLICT DO NOTHING"
	return q, err
}

// showPostgres shows the columns but the payload's as headers.
func showPostgres(_ *Sink, table string, m *message.Message) (relay.Explanation, error) {
	schema := uniqueRows{}
	schema.GenerateMessagesTableName = quoteTable
	q, err := schema.InsertQuery(sql.InsertQueryParams{Topic: table, Msgs: message.Messages{m}})
	if err != nil {
		return relay.Explanation{}, err
	}
	if len(q.Args) != 3 {
		return relay.Explanation{}, fmt.Errorf("the row has %d columns", len(q.Args))
	}
	payload, _ := q.Args[1].([]byte)
	return relay.Explanation{Headers: []relay.Header{
		{Name: "table", Value: table}, {Name: "uuid", Value: fmt.Sprint(q.Args[0])}, {Name: "metadata", Value: fmt.Sprintf("%s", q.Args[2])},
	}, Payload: payload}, nil
}

func judgePostgres(s *Sink, where string, err error) error {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return err
	}
	switch said.Code {
	case "28P01", "28000":
		return fmt.Errorf("postgres: the server refuses %s, with this password or at all: correct user, password or pg_hba.conf", s.userName())
	case "3D000":
		return fmt.Errorf("postgres: there is no database %q: create it, or change database", s.config.Database)
	case "42P01", "3F000":
		return fmt.Errorf("postgres: there is no table %s: create it and its schema, or leave create_table out", where)
	case "42501":
		return fmt.Errorf("postgres: %s may not use table %s (%s): grant INSERT, and CREATE where the table is not there", s.userName(), where, said.Message)
	case "42703", "42804":
		return fmt.Errorf("postgres: table %s is there already and has other columns (%s): change table", where, said.Message)
	}
	if strings.HasPrefix(said.Code, "22") || strings.HasPrefix(said.Code, "54") {
		return relay.Permanent(fmt.Errorf("postgres: table %s does not take this notification: %s", where, said.Message))
	}
	return fmt.Errorf("postgres: %s (%s)", said.Message, said.Code)
}
