// Package balancer spreads the connections of a host over the API servers of its cluster, the
// backends. It runs on each host, so that no component depends on one API server, and no address
// must move when one fails.
//
// It forwards bytes and does not terminate TLS, so client and server authenticate each other. The
// open connections of a backend are closed if its health check fails and another backend is
// healthy. Otherwise the watches of a kubelet would hang for minutes on a host that died.
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
	// interval is the time between two health checks, and between two reads of the backends file.
	interval = time.Second
	// acceptPause is the delay before Run accepts again, after it could not accept a connection. The
	// usual cause is a lack of file descriptors.
	acceptPause = 100 * time.Millisecond
)

// Run forwards connections at the address listen to the API servers in backendsFile, until ctx
// ends. Then it closes all connections and returns nil. The file has one host:port per line.
// Changes of the file take effect within about a second, and an empty file removes all backends. If
// the file cannot be read or parsed at the start, Run returns an error. Later it logs the error and
// keeps the backends. It logs to the logger of ctx.
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
		p.set(ctx, nil) // without backends, all connections are closed
		group.Wait()
	}()
	group.Go(func() { p.watch(ctx, backendsFile) })
	group.Go(func() {
		<-ctx.Done()
		_ = listener.Close() // ends the loop over Accept
	})
	for {
		client, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = client.Close() // accepted after the end of ctx
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
