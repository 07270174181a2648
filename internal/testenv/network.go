package testenv

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Network is a TCP proxy in front of a server. It simulates faults of networks on the connections
// through it.
type Network struct {
	listener net.Listener
	to       string        // address of the server
	idle     time.Duration // see NewNetwork
	dropped  atomic.Int64
	came     atomic.Int64

	mu    sync.Mutex
	links map[*networkLink]bool
	dark  bool
}

// networkLink is one connection through a Network.
type networkLink struct {
	client, server net.Conn
	lost           chan struct{} // closed when the link loses all data
	once           sync.Once
	used           atomic.Int64 // when data last passed, in nanoseconds since 1970
}

// NewNetwork starts a proxy in front of the server at the address to. It stops at the end of the
// test. It drops connections that were idle for the given time, as load balancers do; 0 means that
// it drops none.
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

// Address returns the address at which clients reach the server through the proxy.
func (n *Network) Address() string { return n.listener.Addr().String() }

// Dropped returns the number of connections that the proxy has dropped because they were idle.
func (n *Network) Dropped() int64 { return n.dropped.Load() }

// Count returns the number of connections that the proxy has accepted.
func (n *Network) Count() int64 { return n.came.Load() }

// serve accepts connections and connects each of them to the server.
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

// watch drops a connection if it has been idle for n.idle. Otherwise it calls itself again when
// that may be so.
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
		case <-l.lost: // idle because of a fault: not counted as dropped
		default:
			n.dropped.Add(1)
		}
		n.end(l)
	}
}

// lose makes the connection lose all further data.
func (l *networkLink) lose() { l.once.Do(func() { close(l.lost) }) }

// half forwards bytes in one direction until the connection ends. Once the connection is to lose
// its data, half drops all bytes and does not close the other side.
func (n *Network) half(l *networkLink, to, from net.Conn) {
	p := make([]byte, 32<<10)
	for {
		k, err := from.Read(p)
		select {
		case <-l.lost:
			_, _ = io.Copy(io.Discard, from)
			_ = from.Close() // the other side stays open
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

// end closes both sides of a connection.
func (n *Network) end(l *networkLink) {
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
	_ = l.client.Close()
	_ = l.server.Close()
}

// all returns the open connections.
func (n *Network) all() []*networkLink {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := make([]*networkLink, 0, len(n.links))
	for l := range n.links {
		links = append(links, l)
	}
	return links
}

// Reset ends all open connections with a TCP reset on both sides.
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

// Swallow silently drops all further data of the open connections, which stay open. New connections
// work.
func (n *Network) Swallow() {
	for _, l := range n.all() {
		l.lose()
	}
}

// HalfOpen closes the open connections on one side only, and drops all their data: the other side
// does not notice it. client selects the side that is closed: the client's, or else the server's.
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

// Dark with true silently drops all data of open and new connections. With false, new connections
// work again.
func (n *Network) Dark(yes bool) {
	n.mu.Lock()
	n.dark = yes
	n.mu.Unlock()
	if yes {
		n.Swallow()
	}
}
