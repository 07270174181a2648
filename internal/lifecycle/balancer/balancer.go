// Package balancer spreads the connections of a host over the API servers of its cluster.
package balancer

import "context"

// Run forwards each connection to listen to one of the backends in the file, until ctx ends. The file has a host:port in
// each line and is read again when it changes.
func Run(ctx context.Context, listen, backendsFile string) error { panic("not yet") }
