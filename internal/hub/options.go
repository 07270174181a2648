package hub

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options of the hub. The zero value is a hub that starts its own API server, on free ports of the
// loopback interface.
type Options struct {
	// DataDir has everything that the hub stores. Unset, it is DefaultDataDir.
	DataDir string
	// Kubeconfig is the path of a kubeconfig. The hub then uses the API server of its current context,
	// and starts none.
	Kubeconfig string
	// KubeBinary is the binary that contains etcd, kube-apiserver and kube-controller-manager. Unset,
	// it is orrery-kube beside the running executable, else in PATH.
	KubeBinary string
	// BindAddress is the IP address on which the API server listens. With Kubeconfig, the fleet API
	// listens on it. Unset, it is 127.0.0.1.
	BindAddress string
	// SecurePort is the port of the API server. With 0, a free port is chosen at the first start
	// and kept.
	SecurePort int
	// FleetPort is the port of the aggregated fleet API. With 0, a free port is chosen at the
	// first start and kept.
	FleetPort int
	// FleetAdvertiseHost is the host name by which the API server in Kubeconfig reaches the
	// fleet API. Unset, it is localhost.
	FleetAdvertiseHost string
	// PublicAddress is the IP address that the public listener listens on. Unset, it is
	// BindAddress.
	PublicAddress string
	// PublicPort is the port of the public listener. With 0, a free port is chosen at the first
	// start and kept.
	PublicPort int
	// PublicHost is a host, besides the address, for which the hub's certificate of the public
	// listener is valid. It may be unset.
	PublicHost string
	// AdmissionWebhooks makes the hub's own API server call the webhooks of
	// ValidatingWebhookConfigurations and MutatingWebhookConfigurations. Unset, it calls none: these
	// objects are templates on the hub, and their servers run in the members.
	AdmissionWebhooks bool
	// Lease has the times of the Lease that excludes a second server with the same Kubeconfig.
	// An embedded hub has no Lease.
	Lease LeaseTimes
	// UnsafeNoFsync makes etcd not wait for the disk. This is faster, and a crash of the machine
	// (not of a process) loses data. It is for demos and tests.
	UnsafeNoFsync bool

	// now is the clock for certificates: time.Now, except in tests.
	now             func() time.Time
	renewalInterval time.Duration // the interval between checks of certificates
}

// The loopback interface, which is the default of all addresses.
const (
	loopbackAddress = "127.0.0.1"
	loopbackName    = "localhost"
)

// DefaultSecurePort is the default of --secure-port, the port of the hub's own API server.
const DefaultSecurePort = 6443

// DefaultDataDir returns the default of --data-dir: the directory orrery in $XDG_DATA_HOME, or in
// ~/.local/share. It is "" if the user has no home directory.
func DefaultDataDir() string {
	base := os.Getenv("XDG_DATA_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "" // complete returns an error for it
		}
		base = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(base, "orrery")
}

// AddFlags adds the flags of the hub, and sets the options that have flags to their defaults.
// The options of the public listener have no flags here.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", DefaultDataDir(), "directory of everything that the hub stores")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of an existing API server to use instead of starting one")
	fs.StringVar(&o.KubeBinary, "kube-binary", "", "multicall binary of Kubernetes components (default: orrery-kube beside this executable, then in PATH)")
	fs.StringVar(&o.BindAddress, "bind-address", loopbackAddress, "IP address that the API server listens on; with --kubeconfig, the one that the fleet API listens on")
	fs.IntVar(&o.SecurePort, "secure-port", DefaultSecurePort, "port of the API server; 0 picks a free one at the first start and keeps it")
	fs.IntVar(&o.FleetPort, "fleet-port", 0, "port of the fleet API, which the API server passes requests to; 0 picks a free one at the first start and keeps it")
	fs.StringVar(&o.FleetAdvertiseHost, "fleet-advertise-host", loopbackName, "with --kubeconfig, the host name by which that API server reaches the fleet API")
	fs.BoolVar(&o.AdmissionWebhooks, "admission-webhooks", false, "have the hub's API server call the admission webhooks that are configured on the hub; without it they are templates only")
	o.Lease.addFlags(fs)
	fs.BoolVar(&o.UnsafeNoFsync, "unsafe-no-fsync", false, "do not wait for the disk when storing: faster, but a crash of the machine loses data")
}

// complete returns o with defaults for unset options and an absolute DataDir. The error has all
// mistakes in the options, joined. Without a Kubeconfig it also looks up the binary of the
// Kubernetes components; it is an error if that does not exist.
func complete(o Options) (Options, error) {
	var errs []error
	o.DataDir = cmp.Or(o.DataDir, DefaultDataDir())
	o.BindAddress = cmp.Or(o.BindAddress, loopbackAddress)
	o.PublicAddress = cmp.Or(o.PublicAddress, o.BindAddress)
	o.renewalInterval = cmp.Or(o.renewalInterval, time.Hour)
	if o.now == nil {
		o.now = time.Now
	}
	if o.DataDir == "" {
		errs = append(errs, errors.New("--data-dir: is required, for this user has no home directory"))
	} else if dir, err := filepath.Abs(o.DataDir); err != nil {
		errs = append(errs, fmt.Errorf("--data-dir %q: %w", o.DataDir, err))
	} else {
		o.DataDir = dir
	}
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address %q: is not an IP address", o.BindAddress))
	}
	for flag, port := range map[string]int{"--secure-port": o.SecurePort, "--fleet-port": o.FleetPort, "--public-address": o.PublicPort} {
		if port < 0 || port > 65535 {
			errs = append(errs, fmt.Errorf("%s %d: want 1 to 65535, or 0 for a free one", flag, port))
		}
	}
	for flag, port := range map[string]int{"--secure-port": o.SecurePort, "--fleet-port": o.FleetPort} {
		if port != 0 && port == o.PublicPort && (flag != "--secure-port" || !o.external()) {
			errs = append(errs, fmt.Errorf("--public-address: port %d is also the %s", port, flag))
		}
	}
	errs = append(errs, o.Lease.validate(o.external()))
	o.Lease = o.Lease.orDefault()
	if o.external() {
		o.FleetAdvertiseHost = cmp.Or(o.FleetAdvertiseHost, loopbackName)
		// FleetAdvertiseHost becomes the externalName of a Service, which must be a DNS name.
		for _, msg := range validation.IsDNS1123Subdomain(o.FleetAdvertiseHost) {
			errs = append(errs, fmt.Errorf("--fleet-advertise-host %q: %s", o.FleetAdvertiseHost, msg))
		}
		if o.AdmissionWebhooks {
			errs = append(errs, errors.New("--admission-webhooks: has no effect with --kubeconfig; that API server's own flags decide whether it calls them"))
		}
		return o, errors.Join(errs...)
	}
	if o.FleetAdvertiseHost != "" && o.FleetAdvertiseHost != loopbackName {
		errs = append(errs, errors.New("--fleet-advertise-host: works only with --kubeconfig; the hub's own API server is on the same machine"))
	}
	o.FleetAdvertiseHost = loopbackName
	if o.SecurePort != 0 && o.SecurePort == o.FleetPort {
		errs = append(errs, fmt.Errorf("--fleet-port %d: is also the --secure-port", o.FleetPort))
	}
	binary, err := findKubeBinary(o.KubeBinary)
	if err != nil {
		errs = append(errs, err)
	}
	o.KubeBinary = binary
	return o, errors.Join(errs...)
}

// external reports whether the hub uses an existing API server (Kubeconfig) and starts none.
func (o *Options) external() bool { return o.Kubeconfig != "" }

// kubeBinaryName is the name of the binary that contains the Kubernetes components.
const kubeBinaryName = "orrery-kube"

// findKubeBinary does the work of FindKubeBinary, for this package.
func findKubeBinary(given string) (string, error) {
	if given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("--kube-binary: %w", err)
		}
		return filepath.Abs(path)
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), kubeBinaryName)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(kubeBinaryName)
	if err != nil {
		return "", fmt.Errorf("find the Kubernetes components: no %s beside this executable or in PATH; `make build` makes it, --kube-binary names it", kubeBinaryName)
	}
	return filepath.Abs(path)
}
