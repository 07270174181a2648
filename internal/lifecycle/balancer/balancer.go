// Package balancer spreads the connections of a host over the API servers of its cluster. It runs on each host, so that
// no component depends on one API server, and no address has to move when one is lost.
//
// It forwards bytes and terminates nothing: client and server authenticate each other as if it were not there. A backend
// whose health check fails loses its open connections too, as soon as another one is healthy: the watches of a kubelet
// would otherwise hang on a host that died without a word for minutes.
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
	// interval is how often backends are checked, and the file is looked at.
	interval = time.Second
	// acceptPause is waited after a connection could not be accepted, as a rule because files are exhausted.
	acceptPause = 100 * time.Millisecond
)

// Run forwards each connection to listen to one of the backends in the file, until ctx ends. The file has a host:port in
// each line and is read again when it changes; one that cannot be read later changes nothing. The log is that of ctx.
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
				_ = client.Close() // it came too late
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
