package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // driver of MariaDB
	_ "github.com/jackc/pgx/v5/stdlib" // driver of PostgreSQL
)

// Database is a kind of database server for tests: PostgreSQL or MariaDB. The first call of Create
// in a test binary starts the server, on a Unix socket and with new data. The programs are from the
// Debian packages that hack/database-packages.sh installs. StopDatabases stops the server.
//
// If the environment variable named Variable has an administrator's DSN of a server, that server is
// used instead.
type Database struct {
	Name     string // name of the product
	Variable string // environment variable with a DSN

	driver  string                                    // name for package sql
	program string                                    // name of the server's program
	setup   func(d *Database) ([]string, error)       // the command that creates the data
	serve   func(d *Database) []string                // the command that starts the server
	dsn     func(d *Database, database string) string // in the format of the driver
	// scheme is what Create puts before the DSN of the driver, so that orrery recognizes the database;
	// "" if that DSN begins with it.
	scheme string

	once   sync.Once
	failed error
	given  string
	dir    string
	cmd    *exec.Cmd
}

// PostgreSQL and MariaDB are the kinds of servers in which a hub can store the mirror, its copy of
// the clusters' objects.
var (
	// PostgreSQL is the PostgreSQL server of the tests.
	PostgreSQL = &Database{
		Name: "PostgreSQL", Variable: "ORRERY_TEST_POSTGRES_DSN", driver: "pgx", program: "postgres",
		setup: func(d *Database) ([]string, error) {
			return []string{"initdb", "-D", d.data(), "-U", "orrery", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync"}, nil
		},
		serve: func(d *Database) []string {
			return []string{"postgres", "-D", d.data(), "-k", d.dir, "-c", "listen_addresses=", "-c", "fsync=off"}
		},
		dsn: func(d *Database, database string) string {
			if d.given != "" {
				u, err := url.Parse(d.given)
				if err != nil {
					return ""
				}
				u.Path = "/" + database
				return u.String()
			}
			return "postgres://orrery@/" + database + "?host=" + url.QueryEscape(d.dir)
		},
	}
	// MariaDB is the MariaDB server of the tests.
	MariaDB = &Database{
		Name: "MariaDB", Variable: "ORRERY_TEST_MYSQL_DSN", driver: "mysql", program: "mariadbd", scheme: "mysql://",
		// A server that starts deletes the temporary tables of others in its tmpdir.
		setup: func(d *Database) ([]string, error) {
			return []string{
				"mariadb-install-db", "--no-defaults", "--datadir=" + d.data(), "--tmpdir=" + d.dir, "--auth-root-authentication-method=normal", "--skip-test-db",
			}, nil
		},
		serve: func(d *Database) []string {
			return []string{
				"mariadbd", "--no-defaults", "--datadir=" + d.data(), "--tmpdir=" + d.dir, "--socket=" + filepath.Join(d.dir, "s"), "--pid-file=" + filepath.Join(d.dir, "pid"),
				"--skip-networking", "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=256M",
			}
		},
		dsn: func(d *Database, database string) string {
			if d.given != "" {
				head, tail, _ := strings.Cut(strings.TrimPrefix(d.given, "mysql://"), ")/")
				_, parameters, found := strings.Cut(tail, "?")
				if found {
					parameters = "?" + parameters
				}
				return head + ")/" + database + parameters
			}
			return "root@unix(" + filepath.Join(d.dir, "s") + ")/" + database
		},
	}
)

// StopDatabases stops the servers that tests of this process have started, and removes their data.
// Main calls it.
func StopDatabases() error {
	var errs []error
	for _, d := range []*Database{PostgreSQL, MariaDB} {
		if d.cmd != nil {
			errs = append(errs, d.kill())
		}
		if d.dir != "" {
			errs = append(errs, os.RemoveAll(d.dir))
		}
	}
	return errors.Join(errs...)
}

// data returns the directory with the data of the server.
func (d *Database) data() string { return filepath.Join(d.dir, "data") }

// Create creates an empty database for one test and returns its DSN. The database is removed at the
// end of the test. If the server is not installed, Create skips the test. If the tests run as root,
// which could install the server, the test fails instead.
func (d *Database) Create(t testing.TB) string {
	t.Helper()
	d.once.Do(func() { d.failed = d.start() })
	if d.failed != nil {
		d.unavailable(t, os.Getuid() == 0)
	}
	var name string
	Eventually(t, "create a database", Patience, func() error {
		// Each attempt has a name of its own, since an earlier attempt may have succeeded without its
		// response.
		name = "orrery_" + strings.ToLower(rand.Text()[:10])
		return d.exec("CREATE DATABASE " + name)
	})
	t.Cleanup(func() {
		statement := "DROP DATABASE IF EXISTS " + name
		if d == PostgreSQL {
			statement += " WITH (FORCE)"
		}
		Eventually(t, "drop a database", Patience, func() error { return d.exec(statement) })
	})
	return d.scheme + d.dsn(d, name)
}

// unavailable ends a test because the server could not be started, which d.failed explains. It
// skips the test if the server is not installed and root is false. Otherwise the test fails. root
// is true if the tests run as root, which could install the server.
func (d *Database) unavailable(t testing.TB, root bool) {
	t.Helper()
	missing := errors.Is(d.failed, exec.ErrNotFound)
	switch {
	case missing && root:
		t.Fatalf("%s is not installed: run make databases, or set %s to an administrator's DSN of a server", d.Name, d.Variable)
	case missing:
		t.Skipf("%s is not installed: run make databases as root, or set %s to an administrator's DSN of a server", d.Name, d.Variable)
	default:
		t.Fatalf("start %s: %v", d.Name, d.failed)
	}
}

// Open connects to a database. dsn is what Create has returned. The connection is closed at the end
// of the test.
func (d *Database) Open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, strings.TrimPrefix(dsn, d.scheme))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// administer connects to the server as its administrator. The caller closes the connection.
func (d *Database) administer() (*sql.DB, error) {
	return sql.Open(d.driver, d.dsn(d, map[string]string{"pgx": "postgres", "mysql": "mysql"}[d.driver]))
}

// exec executes a SQL statement as administrator.
func (d *Database) exec(statement string) error {
	db, err := d.administer()
	if err == nil {
		_, err = db.ExecContext(context.Background(), statement)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// start creates new data and starts the server. If the environment variable names a server, it
// starts none. The error wraps exec.ErrNotFound if the server is not installed.
func (d *Database) start() (err error) {
	if d.given = os.Getenv(d.Variable); d.given != "" {
		return nil
	}
	if _, err := d.find(d.program); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "orrery-db-"); err != nil {
		return err
	}
	if err := os.Mkdir(d.data(), 0o700); err != nil {
		return err
	}
	if id, err := unprivileged(); err != nil {
		return err
	} else if id != nil {
		for _, path := range []string{d.dir, d.data()} {
			if err := os.Chown(path, int(id.Uid), int(id.Gid)); err != nil {
				return err
			}
		}
	}
	args, err := d.setup(d)
	if err != nil {
		return err
	}
	cmd, err := d.command(args)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return d.run()
}

// run starts the server with the existing data and returns when it accepts connections. If the
// server ends, run starts it again, for at most Patience.
func (d *Database) run() error {
	var said bytes.Buffer
	for deadline := time.Now().Add(Patience); ; {
		cmd, err := d.command(d.serve(d))
		if err != nil {
			return err
		}
		said.Reset()
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := StartFromLastingThread(cmd); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for {
			if d.answers() {
				d.cmd = cmd
				return nil
			}
			select {
			case err = <-ended: // try again: processes of a killed server may still use the data
			case <-time.After(20 * time.Millisecond):
				continue
			}
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s ended: %w: %s", d.program, err, said.String())
		}
	}
}

// answers reports whether the server accepts connections.
func (d *Database) answers() bool {
	db, err := d.administer()
	if err != nil {
		return false
	}
	defer db.Close()
	return db.PingContext(context.Background()) == nil
}

// command returns the command for a program of the server. It runs as a user that the program
// accepts, and is killed with this process.
func (d *Database) command(args []string) (*exec.Cmd, error) {
	path, err := d.find(args[0])
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = d.dir
	id, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// find returns the path of a program of the server, first in the directories of Debian's packages.
// The error wraps exec.ErrNotFound if it is not installed.
func (d *Database) find(program string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err != nil {
		return "", err
	}
	slices.Sort(found)
	if len(found) > 0 {
		return found[len(found)-1], nil
	}
	for _, path := range []string{"/usr/sbin/" + program, program} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
}

// unprivileged returns the user as which the servers run if the tests run as root, since the
// servers refuse root. nil means the user of the tests.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
}

// Kill ends the server with SIGKILL, as a loss of power would. Restart starts it again. If the
// tests have not started the server, Kill skips the test.
func (d *Database) Kill(t testing.TB) {
	t.Helper()
	if d.given != "" {
		t.Skipf("the server of %s was not started by the tests, and is not killed", d.Variable)
	}
	if err := d.kill(); err != nil {
		t.Fatal(err)
	}
}

// kill ends the server that this process has started, and waits until the process is gone.
func (d *Database) kill() error {
	cmd := d.cmd
	d.cmd = nil
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	for syscall.Kill(cmd.Process.Pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// Restart starts the server again after Kill, with the same data.
func (d *Database) Restart(t testing.TB) {
	t.Helper()
	if err := d.run(); err != nil {
		t.Fatal(err)
	}
}
