package gateway_test

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// network relays TCP connections to a server and has faults when it is told to.
type network struct {
	listener net.Listener
	to       string
	came     atomic.Int64

	mu    sync.Mutex
	links map[*link]bool
	dead  bool // new connections come, and nothing passes on them
}

// link is one connection through the network.
type link struct {
	client, server net.Conn
	lost           chan struct{} // closed when nothing passes any more
	once           sync.Once
}

func newNetwork(t testing.TB, to string) *network {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: l, to: to, links: map[*link]bool{}}
	go n.serve()
	t.Cleanup(func() {
		_ = l.Close()
		n.reset()
	})
	return n
}

func (n *network) address() string { return n.listener.Addr().String() }

// count is how many connections came.
func (n *network) count() int64 { return n.came.Load() }

func (n *network) serve() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		n.came.Add(1)
		server, err := net.Dial("tcp", n.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server, lost: make(chan struct{})}
		n.mu.Lock()
		n.links[l] = true
		if n.dead {
			l.once.Do(func() { close(l.lost) })
		}
		n.mu.Unlock()
		go n.half(l, client, server)
		go n.half(l, server, client)
	}
}

// half passes bytes one way. What is lost is read and told to nobody.
func (n *network) half(l *link, to, from net.Conn) {
	p := make([]byte, 32<<10)
	for {
		k, err := from.Read(p)
		select {
		case <-l.lost:
			_, _ = io.Copy(io.Discard, from)
			return
		default:
		}
		if err == nil {
			_, err = to.Write(p[:k])
		}
		if err != nil {
			n.end(l)
			return
		}
	}
}

func (n *network) end(l *link) {
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
	_ = l.client.Close()
	_ = l.server.Close()
}

// swallow loses everything on the connections that are there, without telling anybody. New ones work.
func (n *network) swallow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		l.once.Do(func() { close(l.lost) })
	}
}

// dark loses everything on the connections that come from now on, until it is called with false.
func (n *network) dark(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = yes
}

// reset ends all connections at once.
func (n *network) reset() {
	n.mu.Lock()
	links := n.links
	n.links = map[*link]bool{}
	n.mu.Unlock()
	for l := range links {
		if tcp, ok := l.client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		n.end(l)
	}
}
