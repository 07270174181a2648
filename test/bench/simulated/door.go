package main

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// door is the listener of a cluster. While the cluster is offline, door resets every
// connection, as a host does when nothing listens on the port.
type door struct {
	net.Listener
	cluster *cluster

	mu   sync.Mutex
	open map[*guest]bool
}

// guest is a connection to a cluster.
type guest struct {
	*net.TCPConn
	door *door
}

func newDoor(c *cluster) (*door, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", c.name, err)
	}
	c.door = &door{Listener: l, cluster: c, open: map[*guest]bool{}}
	return c.door, nil
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // the server of net/http judges it
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return nil, fmt.Errorf("accept: unexpected %T", conn)
		}
		g := &guest{TCPConn: tcp, door: d}
		d.mu.Lock()
		welcome := !d.cluster.offline.Load()
		if welcome {
			d.open[g] = true
		}
		d.mu.Unlock()
		if welcome {
			return g, nil
		}
		g.reset()
	}
}

// shut resets every open connection.
func (d *door) shut() {
	d.mu.Lock()
	guests := make([]*guest, 0, len(d.open))
	for g := range d.open {
		guests = append(guests, g)
	}
	d.mu.Unlock()
	for _, g := range guests {
		g.reset()
	}
}

func (g *guest) reset() {
	_ = g.SetLinger(0) // the connection may be gone already
	_ = g.Close()
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.door.mu.Lock()
	delete(g.door.open, g)
	g.door.mu.Unlock()
	return g.TCPConn.Close() //nolint:wrapcheck // the server of net/http judges it
}
