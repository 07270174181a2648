// Package node is the agent on a host. It applies the steps of a plan, records what it did and what
// was there before, and can undo all of it.
//
// Each kind of step can observe, apply and revert itself. Before a step changes something, the
// agent captures the former state and records on disk that the step has begun. The agent may be
// killed, or the power may fail, at any point. The same request then completes the change or the
// removal. No file is written in place: the agent writes a new file beside it, syncs and renames
// it.
package node

import (
	"context"
	"path/filepath"
	"time"

	"orrery.dev/orrery/internal/lifecycle/unit"
)

const (
	// AgentPath is the path of the agent on a host.
	AgentPath = "/opt/orrery/bin/orrery"
	// Dir is the directory of the agent's records.
	Dir = "/var/lib/orrery/node"
)

// Node is the host that the agent works on. New returns the Node of this process. Its fields do not
// change while it is used. Lock files on the host, and not this value, keep two agents from
// changing the host at once.
type Node struct {
	// Root is put before every path. It is empty except in tests.
	Root string
	// Units manages systemd units.
	Units unit.Manager
	// System gives access to the kernel, packages and programs.
	System System
	// Fault, if not nil, is called with the name of each fault point, such as "step/begun". An error
	// that it returns ends the request there, as a crash of the agent would. Only tests set it.
	Fault func(point string) error
	// Now returns the time of the host.
	Now func() time.Time
	// NoSync skips syncs, which only matter for a loss of power.
	NoSync bool
}

// New returns the Node of the host on which this process runs. Paths of the host are below root,
// which is "" except in tests. Programs, such as systemctl, are those of the real host in any case.
func New(root string) *Node {
	system := &Linux{Root: root}
	units := unit.NewSystemd(root, func(ctx context.Context, argv []string) (string, error) { return system.Run(ctx, argv, "") })
	return &Node{Root: root, System: system, Units: units, Now: time.Now}
}

// path returns a path of the host with Root before it. The result is never above Root.
func (n *Node) path(path string) string { return filepath.Join(n.Root, filepath.Clean("/"+path)) }

// dir returns a path in the directory of the agent's records, with Root before it. Without
// elements it is the directory itself.
func (n *Node) dir(elem ...string) string {
	return filepath.Join(append([]string{n.path(Dir)}, elem...)...)
}

// fault calls n.Fault with the name of a fault point and returns its error, which simulates a crash
// of the agent there. It returns nil if n.Fault is nil.
func (n *Node) fault(point string) error {
	if n.Fault == nil {
		return nil
	}
	return n.Fault(point)
}
