package node

import (
	"context"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// System gives the steps access to all parts of a host except its files and systemd units. Linux
// implements it. Tests simulate it.
type System interface {
	Programs
	Kernel
	PackageManager
	Sweeper
	// Label sets the labels of files that SELinux wants. It does nothing on a host without SELinux.
	// paths include the root of the Node.
	Label(ctx context.Context, paths ...string) error
}

// Programs runs programs on a host.
type Programs interface {
	// Run runs a program and returns its standard output, also with an error. If the program cannot be
	// started or fails, the error contains the end of its output.
	Run(ctx context.Context, argv []string, stdin string) (output string, err error)
	// Probe makes one attempt of a probe, and returns an error if the attempt fails.
	Probe(ctx context.Context, probe plan.Probe) error
}

// Kernel gives access to the kernel of a host.
type Kernel interface {
	// Sysctl returns the present value of a kernel parameter, without surrounding spaces. SetSysctl
	// sets it until the next boot.
	Sysctl(key string) (string, error)
	SetSysctl(key, value string) error
	// HasModule reports whether a kernel module is loaded or built in. LoadModule loads it until the
	// next boot.
	HasModule(name string) bool
	LoadModule(ctx context.Context, name string) error
}

// PackageManager gives access to the packages of a host. manager is the name of a package manager
// of the host, such as apt.
type PackageManager interface {
	// Packages lists the names of the installed packages, sorted.
	//
	// Install installs packages with their dependencies. Uninstall removes packages. It keeps those on
	// which other packages depend, and returns their names as needed, also with an error.
	Packages(ctx context.Context, manager string) ([]string, error)
	Install(ctx context.Context, manager string, names []string) error
	Uninstall(ctx context.Context, manager string, names []string) (needed []string, err error)
}

// Sweeper removes traces: what components have left on a host while they ran, such as mounts,
// network interfaces and control groups.
type Sweeper interface {
	// Traces lists what the removal of a sweep would remove now, except for its Paths.
	Traces(ctx context.Context, sweep plan.Sweep) (plan.Traces, error)
	// Clear removes what Traces lists for a sweep, except for what is in keep. It kills the processes
	// of the sweep's containers and control groups. It does not remove the Paths of the sweep. It
	// returns an error if something else is left.
	Clear(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error
	// UnmountBelow unmounts everything below a directory, not the directory itself. The caller can
	// then remove the directory without removing files of a mounted file system.
	UnmountBelow(dir string) error
}
