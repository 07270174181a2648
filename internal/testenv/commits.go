package testenv

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// CommitCut says when Commits cuts a connection during a COMMIT.
type CommitCut int

// Values of CommitCut.
const (
	BeforeCommit CommitCut = iota // the server does not get the COMMIT
	AfterCommit                   // the COMMIT is done, and its response is lost
	WhileCommit                   // the COMMIT is sent, and the connection is closed at once
	CommitCuts   = iota           // number of values
)

// Commits is a TCP proxy in front of a database server. When a test asks for that, it cuts the
// connection at the next COMMIT. The client then does not know whether the COMMIT was done.
type Commits struct {
	listener net.Listener
	backend  func() (net.Conn, error) // connects to the server
	frame    []byte                   // bytes of a COMMIT, as drivers send it

	mu      sync.Mutex
	cut     *CommitCut // for the next COMMIT; nil: none
	refused int        // connections to refuse after the cut
	refuse  int        // connections to refuse from now on
	done    int        // cuts so far
	open    map[net.Conn]bool
	serving sync.WaitGroup
}

// Commits starts a proxy in front of the server of a database. dsn is what Create has returned. at
// is the DSN with the address of the proxy instead. The proxy stops at the end of the test.
func (d *Database) Commits(t testing.TB, dsn string) (c *Commits, at string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = &Commits{listener: listener, open: map[net.Conn]bool{}}
	proxy := listener.Addr().String()
	network, address := "", ""
	if d == PostgreSQL {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		network, address = "tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
		if strings.HasPrefix(cfg.Host, "/") {
			network, address = "unix", filepath.Join(cfg.Host, ".s.PGSQL."+strconv.Itoa(int(cfg.Port)))
		}
		u := url.URL{Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password), Host: proxy, Path: "/" + cfg.Database, RawQuery: "sslmode=disable"}
		at, c.frame = u.String(), []byte("Q\x00\x00\x00\x0bcommit\x00")
	} else {
		cfg, err := mysql.ParseDSN(strings.TrimPrefix(dsn, d.scheme))
		if err != nil {
			t.Fatal(err)
		}
		network, address = cfg.Net, cfg.Addr
		cfg.Net, cfg.Addr, cfg.TLSConfig = "tcp", proxy, "false"
		at, c.frame = d.scheme+cfg.FormatDSN(), []byte("\x07\x00\x00\x00\x03COMMIT")
	}
	c.backend = func() (net.Conn, error) { return net.Dial(network, address) }
	c.serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			c.serving.Go(func() { c.serve(client) })
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		for conn := range c.open {
			_ = conn.Close() // errors do not matter any more
		}
		c.mu.Unlock()
		c.serving.Wait()
	})
	return c, at
}

// Next makes the proxy cut the connection of the next COMMIT, at the moment cut. After that it
// refuses this number of new connections.
func (c *Commits) Next(cut CommitCut, refused int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut, c.refused = &cut, refused
}

// Done returns the number of connections that were cut so far.
func (c *Commits) Done() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// serve forwards the data of one client to the server, and of the server to the client. It returns
// when the connection ends or is cut.
func (c *Commits) serve(client net.Conn) {
	c.mu.Lock()
	refused := c.refuse > 0
	if refused {
		c.refuse--
	}
	c.open[client] = true
	c.mu.Unlock()
	defer c.close(client)
	if refused {
		return
	}
	server, err := c.backend()
	if err != nil {
		return
	}
	defer c.close(server)
	c.mu.Lock()
	c.open[server] = true
	c.mu.Unlock()
	swallow := make(chan struct{})
	answers := make(chan error, 1)
	go func() { answers <- pass(client, server, swallow) }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		cut := c.at(buffer[:n])
		switch {
		case cut == nil:
			if _, writeErr := server.Write(buffer[:n]); err != nil || writeErr != nil {
				c.close(client)
				c.close(server)
				<-answers
				return
			}
			continue
		case *cut == AfterCommit:
			close(swallow)
			_, err = server.Write(buffer[:n])
			if err == nil {
				<-answers // response to the COMMIT, which the client does not get
			}
		case *cut == WhileCommit:
			_, _ = server.Write(buffer[:n]) // the COMMIT may or may not arrive
		}
		return
	}
}

// at returns the moment of the cut if sent, data of a client, has a COMMIT and Next asks for a cut.
// Then it counts the cut and ends the request of Next. Otherwise it returns nil.
func (c *Commits) at(sent []byte) *CommitCut {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut == nil || !bytes.Contains(sent, c.frame) {
		return nil
	}
	cut := c.cut
	c.cut, c.refuse = nil, c.refused
	c.done++
	return cut
}

// close closes a connection.
func (c *Commits) close(conn net.Conn) {
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
	_ = conn.Close() // errors do not matter any more
}

// pass forwards the responses of the server to the client. After swallow is closed, it drops the
// next response and returns.
func pass(client io.Writer, server io.Reader, swallow <-chan struct{}) error {
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		select {
		case <-swallow:
			return errors.Join(err, io.EOF)
		default:
		}
		if n > 0 {
			if _, writeErr := client.Write(buffer[:n]); writeErr != nil {
				return writeErr
			}
		}
		if err != nil {
			return err
		}
	}
}
