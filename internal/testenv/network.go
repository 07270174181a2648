package testenv

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Network relays TCP connections to a server, and has the faults of networks when it is told to.
type Network struct {
	listener net.Listener
	to       string
	idle     time.Duration
	dropped  atomic.Int64
	came     atomic.Int64

	mu    sync.Mutex
	links map[*networkLink]bool
	dark  bool
}

// networkLink is one connection through a Network.
type networkLink struct {
	client, server net.Conn
	lost           chan struct{} // closed when nothing passes any more
	once           sync.Once
	used           atomic.Int64
}

// NewNetwork starts a network in front of an address, which ends with the test. It drops connections on which nothing has passed for a time, as
// balancers do; zero: none.
func NewNetwork(t testing.TB, to string, idle time.Duration) *Network {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &Network{listener: l, to: to, idle: idle, links: map[*networkLink]bool{}}
	go n.serve()
	t.Cleanup(func() {
		_ = l.Close()
		n.Reset()
	})
	return n
}

// Address at which the server is reached through the network.
func (n *Network) Address() string { return n.listener.Addr().String() }

// Dropped is how many connections were dropped because they were idle.
func (n *Network) Dropped() int64 { return n.dropped.Load() }

// Count is how many connections came.
func (n *Network) Count() int64 { return n.came.Load() }

func (n *Network) serve() {
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
		l := &networkLink{client: client, server: server, lost: make(chan struct{})}
		n.mu.Lock()
		n.links[l] = true
		if n.dark {
			l.lose()
		}
		n.mu.Unlock()
		go n.half(l, client, server)
		go n.half(l, server, client)
		if n.idle > 0 {
			l.used.Store(time.Now().UnixNano())
			time.AfterFunc(n.idle, func() { n.watch(l) })
		}
	}
}

// watch drops a connection that is idle.
func (n *Network) watch(l *networkLink) {
	n.mu.Lock()
	open := n.links[l]
	n.mu.Unlock()
	left := n.idle - time.Since(time.Unix(0, l.used.Load()))
	switch {
	case !open:
	case left > 0:
		time.AfterFunc(left, func() { n.watch(l) })
	default:
		select {
		case <-l.lost: // it is another fault that nothing passes
		default:
			n.dropped.Add(1)
		}
		n.end(l)
	}
}

func (l *networkLink) lose() { l.once.Do(func() { close(l.lost) }) }

// half passes bytes one way. What is lost is read and told to nobody.
func (n *Network) half(l *networkLink, to, from net.Conn) {
	p := make([]byte, 32<<10)
	for {
		k, err := from.Read(p)
		select {
		case <-l.lost:
			_, _ = io.Copy(io.Discard, from)
			_ = from.Close() // the other side is not told
			return
		default:
		}
		l.used.Store(time.Now().UnixNano())
		if err == nil {
			_, err = to.Write(p[:k])
		}
		if err != nil {
			n.end(l)
			return
		}
	}
}

func (n *Network) end(l *networkLink) {
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
	_ = l.client.Close()
	_ = l.server.Close()
}

// all are the connections that are there.
func (n *Network) all() []*networkLink {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := make([]*networkLink, 0, len(n.links))
	for l := range n.links {
		links = append(links, l)
	}
	return links
}

// Reset ends all connections at once.
func (n *Network) Reset() {
	for _, l := range n.all() {
		for _, c := range []net.Conn{l.client, l.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}
		n.end(l)
	}
}

// Swallow loses everything on the connections that are there, and tells nobody. New ones work.
func (n *Network) Swallow() {
	for _, l := range n.all() {
		l.lose()
	}
}

// HalfOpen ends the connections that are there for one side, and the other is not told.
func (n *Network) HalfOpen(client bool) {
	for _, l := range n.all() {
		l.lose()
		if client {
			_ = l.client.Close()
		} else {
			_ = l.server.Close()
		}
	}
}

// Dark loses everything, on new connections as well, until it is called with false: those that came meanwhile stay lost.
func (n *Network) Dark(yes bool) {
	n.mu.Lock()
	n.dark = yes
	n.mu.Unlock()
	if yes {
		n.Swallow()
	}
}
