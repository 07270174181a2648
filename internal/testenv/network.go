package testenv

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Network is a TCP proxy in front of a server that can simulate faults of networks.
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
	lost           chan struct{} // closed when the link loses all data
	once           sync.Once
	used           atomic.Int64
}

// NewNetwork starts a proxy in front of an address. It ends with the test. It drops connections
// that were idle for the given time, as load balancers do; zero: none.
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

// Dropped returns the number of connections that were dropped because they were idle.
func (n *Network) Dropped() int64 { return n.dropped.Load() }

// Count returns the number of accepted connections.
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

// watch drops a connection when it is idle.
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
		case <-l.lost: // another fault is the reason why it is idle
		default:
			n.dropped.Add(1)
		}
		n.end(l)
	}
}

func (l *networkLink) lose() { l.once.Do(func() { close(l.lost) }) }

// half forwards bytes in one direction. Once the link is lost, it discards all bytes and does
// not close the other side.
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

func (n *Network) end(l *networkLink) {
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
	_ = l.client.Close()
	_ = l.server.Close()
}

// all returns the present connections.
func (n *Network) all() []*networkLink {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := make([]*networkLink, 0, len(n.links))
	for l := range n.links {
		links = append(links, l)
	}
	return links
}

// Reset resets all connections at once.
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

// Swallow silently loses all data of the present connections. New connections work.
func (n *Network) Swallow() {
	for _, l := range n.all() {
		l.lose()
	}
}

// HalfOpen closes the present connections for one side only, and loses all their data.
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

// Dark with true silently loses all data, also on new connections. With false it ends that for
// new connections only.
func (n *Network) Dark(yes bool) {
	n.mu.Lock()
	n.dark = yes
	n.mu.Unlock()
	if yes {
		n.Swallow()
	}
}
