// Package balancer spreads the connections of a host over the API servers of its cluster. It runs
// on each host, so that no component depends on one API server, and no address must move when one
// fails.
//
// It forwards bytes and does not terminate TLS, so client and server authenticate each other. If
// the health check of a backend fails and another backend is healthy, its open connections are
// closed. Otherwise the watches of a kubelet would hang for minutes on a host that died.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

const (
	// interval is the interval of health checks and of reading the file.
	interval = time.Second
	// acceptPause is the delay after a connection could not be accepted, usually for lack of file
	// descriptors.
	acceptPause = 100 * time.Millisecond
)

// Run forwards connections at listen to the backends in the file, until ctx ends. The file has one
// host:port per line. Changes of the file take effect while Run works. If the file cannot be read
// later, the backends stay. Run logs to the logger of ctx.
func Run(ctx context.Context, listen, backendsFile string) error {
	addresses, err := read(backendsFile)
	if err != nil {
		return fmt.Errorf("balance connections: %w", err)
	}
	listener, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("balance connections: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	log := logr.FromContextOrDiscard(ctx).WithName("balancer")
	p := &pool{log: log}
	p.set(ctx, addresses)

	var group sync.WaitGroup
	defer func() {
		cancel()
		p.set(ctx, nil) // closes all connections
		group.Wait()
	}()
	group.Go(func() { p.watch(ctx, backendsFile) })
	group.Go(func() {
		<-ctx.Done()
		_ = listener.Close() // which ends the loop below
	})
	for {
		client, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = client.Close() // accepted too late
			}
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
			log.Error(err, "Connection not accepted")
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		case err != nil:
			return fmt.Errorf("balance connections: %w", err)
		default:
			group.Go(func() { p.serve(ctx, client) })
		}
	}
}
