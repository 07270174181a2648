package node

import (
	"context"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// System gives access to all parts of a host but files.
type System interface {
	Programs
	Kernel
	PackageManager
	Sweeper
	// Label sets the labels of files that the host's security policy wants, if there is one.
	Label(ctx context.Context, paths ...string) error
}

// Programs runs programs on a host.
type Programs interface {
	// Run runs a program and returns its standard output. An error has the end of the output.
	Run(ctx context.Context, argv []string, stdin string) (output string, err error)
	// Probe makes one attempt.
	Probe(ctx context.Context, probe plan.Probe) error
}

// Kernel gives access to the kernel of a host.
type Kernel interface {
	// Sysctl and SetSysctl read and set a kernel parameter.
	Sysctl(key string) (string, error)
	SetSysctl(key, value string) error
	// HasModule reports whether a module is loaded or built in. LoadModule loads it.
	HasModule(name string) bool
	LoadModule(ctx context.Context, name string) error
}

// PackageManager gives access to the packages of a host. manager names one of its package managers.
type PackageManager interface {
	// Packages lists the installed packages. Install and Uninstall change them. Uninstall keeps
	// packages that others need, and returns their names.
	Packages(ctx context.Context, manager string) ([]string, error)
	Install(ctx context.Context, manager string, names []string) error
	Uninstall(ctx context.Context, manager string, names []string) (needed []string, err error)
}

// Sweeper removes what programs leave behind while they run.
type Sweeper interface {
	// Traces lists what a sweep would remove now.
	Traces(ctx context.Context, sweep plan.Sweep) (plan.Traces, error)
	// Clear removes what a sweep finds, except for what is in keep.
	Clear(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error
	// UnmountBelow unmounts everything below a directory. Removing the directory then removes no
	// mounted files.
	UnmountBelow(dir string) error
}
