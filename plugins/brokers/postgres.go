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

// maxPgConns is the number of rows that are written concurrently. PostgreSQL commits them together.
const maxPgConns = 10

var tablePattern = regexp.MustCompile(`^([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*$`)

var tableName = nameRule{
	maxBytes: 63,
	lower:    true,
	allowed:  func(r rune) bool { return isPlainLetter(r) && r != '-' },
	check: func(text string) error {
		if !tablePattern.MatchString(text) {
			return errors.New("a table may contain only lower-case letters, digits and '_', " +
				"after an optional schema and a dot")
		}
		return nil
	},
}

// pgConnection is a pool of connections that reconnects by itself.
type pgConnection struct {
	*sql.Publisher
	endlessLifetime
	pool   *pgxpool.Pool
	schema uniqueIDSchema
	create bool
	tables sync.Map // names of tables that exist, with their index: at most accounts × topics
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
		c := &pgConnection{pool: pool, create: s.config.createsTables()}
		c.schema.GenerateMessagesTableName = quoteTable
		publisherConfig := sql.PublisherConfig{SchemaAdapter: c.schema}
		c.Publisher, err = sql.NewPublisher(sql.BeginnerFromPgx(pool), publisherConfig, watermill.NopLogger{})
		if err != nil {
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
	text := fmt.Sprintf("host='%s' port='%s' user='%s' dbname='%s' "+
		"sslmode=disable connect_timeout=5 application_name=hubrelay",
		strings.Join(hosts, ","), strings.Join(ports, ","),
		escape.Replace(s.config.User), escape.Replace(s.config.Database))
	if len(hosts) > 1 {
		text += " target_session_attrs=read-write" // select the primary
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	first := config.ConnConfig
	if first.TLSConfig, err = s.tlsConfig(first.Host); err != nil {
		return nil, err
	}
	for _, f := range first.Fallbacks {
		if f.TLSConfig, err = s.tlsConfig(f.Host); err != nil {
			return nil, err
		}
	}
	first.DialFunc = dialLimited
	first.MaxProtocolMessageBodyLen = maxReplyBytes
	config.MaxConns = maxPgConns
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) (err error) {
		c.Password, err = s.readPassword()
		return err
	}
	return config, nil
}

// Codes of PostgreSQL (SQLSTATE).
const (
	pgReadOnly    = "25006"
	pgNoTable     = "42P01"
	pgNoSchema    = "3F000"
	pgNoPrivilege = "42501"
)

// Publish commits a row per message. A repeated ID adds no row.
func (c *pgConnection) Publish(table string, messages ...*message.Message) error {
	err := c.ensureTable(messages[0].Context(), table)
	if err == nil {
		err = c.Publisher.Publish(table, messages...)
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case pgReadOnly:
		c.pool.Reset() // the server is no longer the primary, and its sessions would stay read-only
	case pgNoTable:
		c.tables.Delete(table) // the next attempt creates it
	}
	return err
}

// ensureTable creates the table with its unique index if it does not exist. Watermill would try it for every message
// until the first one succeeds.
func (c *pgConnection) ensureTable(ctx context.Context, table string) error {
	if !c.create {
		return nil
	}
	if _, found := c.tables.Load(table); found {
		return nil
	}
	found, err := hasUniqueID(ctx, c.pool, table)
	if err == nil && !found {
		err = c.createTable(ctx, table)
	}
	if err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	c.tables.Store(table, nil)
	return nil
}

// createTable waits for other connections that create a table: the first query takes a lock of the database.
func (c *pgConnection) createTable(ctx context.Context, table string) error {
	queries, err := c.schema.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: table})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.Query, q.Args...); err != nil {
				return err
			}
		}
		found, err := hasUniqueID(ctx, tx, table)
		if err != nil || found {
			return err
		}
		// The server chooses a name that no table and no other index has.
		_, err = tx.Exec(ctx, "CREATE UNIQUE INDEX ON "+quoteTable(table)+` ("uuid")`)
		return err
	})
}

// rowQuerier is a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// hasUniqueID reports whether a table exists and has a unique index on uuid.
func hasUniqueID(ctx context.Context, db rowQuerier, table string) (found bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = to_regclass($1) AND a.attname = 'uuid'
		AND i.indisunique AND i.indisvalid AND i.indnatts = 1 AND i.indpred IS NULL)`, quoteTable(table)).Scan(&found)
	return found, err
}

// Close waits for writes in progress.
func (c *pgConnection) Close() error {
	err := c.Publisher.Close()
	c.pool.Close()
	return err
}

// quoteTable quotes a checked table name for a query.
func quoteTable(table string) string { return pgx.Identifier(strings.Split(table, ".")).Sanitize() }

// uniqueIDSchema is the table of Watermill, which its subscriber can read. The table has a unique index on the ID.
type uniqueIDSchema struct{ sql.DefaultPostgreSQLSchema }

// InsertQuery implements sql.SchemaAdapter and ignores IDs that exist.
func (s uniqueIDSchema) InsertQuery(p sql.InsertQueryParams) (sql.Query, error) {
	q, err := s.DefaultPostgreSQLSchema.InsertQuery(p)
	q.Query += " ON CONFLICT DO NOTHING"
	return q, err
}

// explainPostgres shows all columns except the payload as headers.
func explainPostgres(_ *Sink, table string, m *message.Message) (relay.Preview, error) {
	schema := uniqueIDSchema{}
	schema.GenerateMessagesTableName = quoteTable
	q, err := schema.InsertQuery(sql.InsertQueryParams{Topic: table, Msgs: message.Messages{m}})
	if err != nil {
		return relay.Preview{}, err
	}
	if len(q.Args) != 3 {
		return relay.Preview{}, fmt.Errorf("the row has %d columns", len(q.Args))
	}
	payload, _ := q.Args[1].([]byte)
	return relay.Preview{Headers: []relay.Header{
		{Name: "table", Value: table},
		{Name: "uuid", Value: fmt.Sprint(q.Args[0])},
		{Name: "metadata", Value: fmt.Sprintf("%s", q.Args[2])},
	}, Payload: payload}, nil
}

func classifyPostgres(s *Sink, table string, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "28P01", "28000":
		return fmt.Errorf("postgres: the server rejects %s or the password: correct user, password or pg_hba.conf",
			s.userName())
	case "3D000":
		return fmt.Errorf("postgres: there is no database %q: create it, or change database", s.config.Database)
	case pgReadOnly:
		return fmt.Errorf("postgres: the server accepts no writes (%s): the next attempt connects again; "+
			"if the error stays, list the primary in addresses", pgErr.Message)
	case pgNoTable:
		if s.config.createsTables() {
			return fmt.Errorf("postgres: table %s was dropped: the next attempt creates it", table)
		}
		return fmt.Errorf("postgres: there is no table %s, and create_table is false: "+
			"create the table, or change table or create_table", table)
	case pgNoSchema:
		return fmt.Errorf("postgres: there is no schema for table %s: create the schema, or change table", table)
	case pgNoPrivilege:
		return fmt.Errorf("postgres: %s may not use table %s (%s): "+
			"grant INSERT, and CREATE if the table does not exist, or create its unique index on uuid",
			s.userName(), table, pgErr.Message)
	case "42703", "42804", "42809":
		return fmt.Errorf("postgres: %s exists and is not a table with the required columns (%s): change table",
			table, pgErr.Message)
	}
	if strings.HasPrefix(pgErr.Code, "22") || strings.HasPrefix(pgErr.Code, "54") {
		return relay.Permanent(fmt.Errorf("postgres: table %s rejects this event: %s", table, pgErr.Message))
	}
	return fmt.Errorf("postgres: %s (%s)", pgErr.Message, pgErr.Code)
}
