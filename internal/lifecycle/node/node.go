// Package node is the agent: it makes a host what a plan says, remembers what it did and what was there before, and can
// undo all of it.
//
// Every kind of step knows how to observe, apply and revert itself. Before a step changes anything, what it is about to
// change is captured and the step is recorded as begun, on disk; so the agent can be killed, or the power can fail, at any
// point, and the same request brings the host where it would have been, or a removal back to what it was. Nothing is
// written in place: a file is written beside, synced and renamed.
package node

import (
	"context"
	"path/filepath"
	"time"

	"orrery.dev/orrery/internal/lifecycle/unit"
)

const (
	// AgentPath is where the agent is on a host.
	AgentPath = "/opt/orrery/bin/orrery"
	// Dir is where the agent keeps what it knows.
	Dir = "/var/lib/orrery/node"
)

// Node is a host, seen from itself.
type Node struct {
	// Root is put before every path; empty on a real host.
	Root string
	// Units keeps processes running.
	Units unit.Manager
	// System is what is not a file: the kernel, packages, programs.
	System System
	// Fault, unless nil, is called at named points, so that tests can break off there.
	Fault func(point string) error
	// Now is the host's clock.
	Now func() time.Time
	// NoSync leaves out what is only needed to survive a loss of power.
	NoSync bool
}

// New returns the host that this process runs on. Root is empty but for tests.
func New(root string) *Node {
	system := &Linux{Root: root}
	units := unit.NewSystemd(root, func(ctx context.Context, argv []string) (string, error) { return system.Run(ctx, argv, "") })
	return &Node{Root: root, System: system, Units: units, Now: time.Now}
}

// path is where a path of the host is for this process. It never leads above Root.
func (n *Node) path(path string) string { return filepath.Join(n.Root, filepath.Clean("/"+path)) }

// dir is where something that the agent keeps is.
func (n *Node) dir(elem ...string) string {
	return filepath.Join(append([]string{n.path(Dir)}, elem...)...)
}

func (n *Node) fault(point string) error {
	if n.Fault == nil {
		return nil
	}
	return n.Fault(point)
}
