package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// component is a part of the server. run starts a list of components one after the other, runs all
// of them at the same time, and then stops them. These invariants hold at the end:
//
//  1. Writes end first. The contexts of all runs end at the same moment, so no component writes
//     longer because another one is slow. If the server has lost the Lease, the fence of the hub
//     refuses all writes to the hub and to members before that moment.
//  2. The store is stopped last. No component is stopped while one runs. Each is then stopped
//     before those that it requires, so the store and the records get all that the runs write.
//  3. Only the hub, which holds the Lease, is stopped after the store. It closes the fence and then
//     releases the Lease. Another server can then write to the hub, to members and to a database
//     that both servers use.
type component struct {
	// name is unique in a list. It is part of every error of the component.
	name string
	// requires are the components that start before this one, and that are stopped after it.
	requires []string
	// calls are the components that this one uses only while it runs, such as in callbacks. They may
	// start after it, so two components can use each other.
	calls []string

	// The functions may be nil. start creates the component. run is called when all components have
	// started, and works until ctx ends. An error of run ends the runs of all components, nil ends
	// only this run. stop releases what start has created. It is called after a start without an
	// error.
	start, run func(ctx context.Context) error
	stop       func() error
}

// ordered returns the components in start order. That is the order of list, but each component
// comes after those that it requires. Errors are a name that two components have, a name in
// requires or calls that no component has, and components that require each other.
func ordered(list []component) ([]component, error) {
	named := map[string]component{}
	for _, c := range list {
		if _, ok := named[c.name]; ok {
			return nil, fmt.Errorf("component %s is twice in the list: give each its own name", c.name)
		}
		named[c.name] = c
	}
	out, placed := make([]component, 0, len(list)), map[string]bool{}
	var place func(c component, path []string) error // path has those that require c, directly or not
	place = func(c component, path []string) error {
		if placed[c.name] {
			return nil
		}
		path = append(path, c.name)
		if begin := slices.Index(path, c.name); begin < len(path)-1 {
			return fmt.Errorf("components require each other: %s: move one name from requires to calls", strings.Join(path[begin:], " requires "))
		}
		for i, name := range slices.Concat(c.requires, c.calls) {
			other, ok := named[name]
			if !ok {
				return fmt.Errorf("component %s depends on %s, which is not in the list: add it there, or remove the name from %s", c.name, name, c.name)
			}
			if i < len(c.requires) {
				if err := place(other, path); err != nil {
					return err
				}
			}
		}
		placed[c.name] = true
		out = append(out, c)
		return nil
	}
	for _, c := range list {
		if err := place(c, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// run starts the components of list, which is in start order. It runs them until ctx ends or one
// of them fails, and returns when all that have started are stopped. Each error names its
// component. If ctx has ended, errors of start and run are left out, because the end can cause
// them.
func run(ctx context.Context, list []component) (err error) {
	started := 0
	defer func() {
		if ctx.Err() != nil {
			err = nil
		}
		for _, c := range slices.Backward(list[:started]) {
			if c.stop != nil {
				err = errors.Join(err, c.named(c.stop()))
			}
		}
	}()
	for _, c := range list {
		if c.start != nil {
			if err := c.start(ctx); err != nil {
				return fmt.Errorf("start %s: %w", c.name, err)
			}
		}
		started++
	}
	g, running := errgroup.WithContext(ctx)
	for _, c := range list {
		if c.run != nil {
			g.Go(func() error { return c.named(c.run(running)) })
		}
	}
	return g.Wait()
}

// named returns err with the name of the component, or nil for nil.
func (c *component) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", c.name, err)
}
