package store

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// server describes a database on a database server: its address, its dialect, and how to connect to
// it.
type server struct {
	address string // for messages, without credentials
	dialect dialect
	connect func() (*sql.DB, error)
}

// errUnfit means that the database cannot be used for the mirror until an administrator changes it.
// Retries do not help.
var errUnfit = errors.New("database is not fit for the mirror")

// unfit returns an errUnfit whose text gives the reason why.
func unfit(why string) error { return fmt.Errorf("%w: %s", errUnfit, why) }

// writePatience limits a write, and connectPatience the time to connect. Both are retried after
// that.
const (
	writePatience   = time.Minute
	connectPatience = 10 * time.Second
)

var errDSN = errors.New("the mirror's DSN must be postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS " +
	"or mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE?PARAMETERS; in the first, write other characters than letters and digits of the password as %XX")

// CheckDSN returns an error if the DSN of a database is invalid, for the check of a flag. It does
// not connect to the server, but may read the files that the DSN names. The error does not contain
// the DSN.
func CheckDSN(dsn string) error {
	_, err := parseDSN(dsn)
	return err
}

// parseDSN parses the DSN of a PostgreSQL, MySQL or MariaDB database. It does not connect. The
// error is an errDSN. Errors of the drivers may contain the password, and are not returned.
func parseDSN(dsn string) (*server, error) {
	dsn = strings.TrimSpace(dsn)
	switch scheme, rest, _ := strings.Cut(dsn, "://"); scheme {
	case "postgres", "postgresql":
		return parsePostgres(dsn)
	case "mysql", "mariadb":
		return parseMySQL(rest)
	default:
		return nil, errDSN
	}
}

func parsePostgres(dsn string) (*server, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("%w; parameters such as sslmode and sslrootcert must be those of PostgreSQL, and their files readable", errDSN)
	}
	if cfg.Database == "" {
		return nil, fmt.Errorf("%w: it names no database", errDSN)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectPatience
	}
	cfg.RuntimeParams["application_name"] = "orrery"
	return &server{
		address: "postgres://" + net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))) + "/" + cfg.Database,
		dialect: postgresDialect{},
		connect: func() (*sql.DB, error) { return stdlib.OpenDB(*cfg), nil },
	}, nil
}

func parseMySQL(dsn string) (*server, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("%w; parameters such as tls and timeout must be those of github.com/go-sql-driver/mysql", errDSN)
	}
	if cfg.DBName == "" {
		return nil, fmt.Errorf("%w: it names no database", errDSN)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = connectPatience
	}
	if cfg.TLS != nil {
		cfg.TLS.MinVersion = max(cfg.TLS.MinVersion, tls.VersionTLS12)
	}
	cfg.MultiStatements, cfg.InterpolateParams, cfg.ParseTime, cfg.MaxAllowedPacket = false, false, false, 0
	cfg.Collation = "utf8mb4_bin"
	cfg.Logger = &mysql.NopLogger{} // errors contain the same
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	cfg.Params["sql_mode"] = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES'"
	return &server{
		address: "mysql://" + cfg.Addr + "/" + cfg.DBName,
		dialect: mysqlDialect{},
		connect: func() (*sql.DB, error) {
			c, err := mysql.NewConnector(cfg)
			if err != nil {
				return nil, errDSN
			}
			return sql.OpenDB(c), nil
		},
	}, nil
}

// open connects to the server, updates the schema of the database, and claims it for the store that
// c describes. An error is classified, as by classify.
func (s *server) open(ctx context.Context, c claimant) (*database, error) {
	write, err := s.connect()
	if err != nil {
		return nil, err
	}
	read, err := s.connect()
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	write.SetMaxOpenConns(1)
	db, err := openDatabase(ctx, s.dialect, write, read, c)
	if err != nil {
		return nil, classify(s.dialect, err)
	}
	db.patience = writePatience
	return db, nil
}

// connectionLost reports whether an error is one of the network connection, or the end of a
// deadline. The database may then work later.
func connectionLost(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}
