package node

import (
	"context"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// System is what is not a file on a host.
type System interface {
	Programs
	Kernel
	PackageManager
	Sweeper
	// Label gives files the labels that the host's security policy wants, if it has one.
	Label(ctx context.Context, paths ...string) error
}

// Programs that run on a host.
type Programs interface {
	// Run runs a program and returns what it printed to its standard output. An error has the tail of what it printed.
	Run(ctx context.Context, argv []string, stdin string) (output string, err error)
	// Probe asks once.
	Probe(ctx context.Context, probe plan.Probe) error
}

// Kernel of a host.
type Kernel interface {
	// Sysctl and SetSysctl read and set a value of the kernel.
	Sysctl(key string) (string, error)
	SetSysctl(key, value string) error
	// HasModule says whether a module is loaded or built in; LoadModule loads it.
	HasModule(name string) bool
	LoadModule(ctx context.Context, name string) error
}

// PackageManager of a host. There may be several; manager is the name of one.
type PackageManager interface {
	// Packages lists what is installed. Install and Uninstall change that. Those that other packages need are not uninstalled,
	// but returned.
	Packages(ctx context.Context, manager string) ([]string, error)
	Install(ctx context.Context, manager string, names []string) error
	Uninstall(ctx context.Context, manager string, names []string) (needed []string, err error)
}

// Sweeper removes what programs leave behind while they run.
type Sweeper interface {
	// Traces lists what a sweep would remove now.
	Traces(ctx context.Context, sweep plan.Sweep) (plan.Traces, error)
	// Clear removes what a sweep finds and is not in keep.
	Clear(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error
	// UnmountBelow unmounts everything below a directory, so that it can be removed without what is mounted there.
	UnmountBelow(dir string) error
}
