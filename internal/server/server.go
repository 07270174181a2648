// Package server assembles `orrery server`: options, start order and shutdown. It is the only
// package that imports all components.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/failover"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/listener"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/provision"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/store"
)

// Options of the server. The zero value of each nested struct is its default.
type Options struct {
	Hub hub.Options
	// Public configures the public listener, for agents of clusters and for the console. Run sets the
	// public address in Hub from it.
	Public listener.Options
	// Probes configures the health checks of clusters.
	Probes member.Probes
	// Failover limits the evictions that taints cause.
	Failover failover.Limits
	// Lifecycle configures how clusters are built.
	Lifecycle provision.Settings
	// MirrorResources are the types that are copied to the mirror from clusters whose Cluster or
	// MirrorPolicy selects none; empty: every type except those that change all the time.
	MirrorResources []string
	// MirrorDSNFile is a file with the DSN (the address and the credentials) of the database of the
	// mirror; empty: SQLite in the data directory.
	MirrorDSNFile string
	// MirrorKeyFile is a file with the keys that encrypt mirrored data of Secrets in the
	// database of the mirror; empty: mirror-encryption.key in the data directory, which is
	// created if missing.
	MirrorKeyFile string
	// MirrorHistory is how much history of mirrored objects is kept; nil: store.DefaultHistory.
	MirrorHistory *MirrorHistory
	// DefaultClusterAccess says which clusters a namespace may use if no ClusterAccess selects the
	// namespace: all or none.
	DefaultClusterAccess access.Default
	// ProfilingAddress is the address that serves Go's profiles, without authentication. Empty:
	// none.
	ProfilingAddress string
	// PodSecurity is the Pod Security level for pods from namespaces of the hub that have no Pod
	// Security label.
	PodSecurity podsecurity.Level
	// Namespaces says in which members the namespaces of the hub are created: where something is
	// placed in them, or in all.
	Namespaces apply.Spread
	// Version is the version of the program.
	Version string
}

// MirrorHistory limits the history of mirrored objects, which is their former states and deleted
// objects. Time is how long and Size how much of it is kept. Except are types without history, such
// as replicasets.apps.
type MirrorHistory struct {
	Time   time.Duration
	Size   resource.QuantityValue
	Except []string
}

// history returns the options for the store. 0 for Time or Size means no history. For a nil o it
// returns store.DefaultHistory. A negative value or an invalid type is an error that names the
// flag.
func (o *MirrorHistory) history() (store.History, error) {
	if o == nil {
		return store.DefaultHistory, nil
	}
	out := store.History{Time: o.Time, Bytes: o.Size.Value()}
	if out.Time < 0 {
		return out, fmt.Errorf("--mirror-history-time: %s is negative; 0 keeps no history", out.Time)
	}
	if out.Bytes < 0 {
		return out, fmt.Errorf("--mirror-history-size: %s is negative; 0 keeps no history", o.Size.String())
	}
	for _, name := range o.Except {
		gr, err := mirror.ParseType(name)
		if err != nil {
			return out, fmt.Errorf("--mirror-history-except: %w", err)
		}
		out.Except = append(out.Except, gr)
	}
	return out, nil
}

// AddFlags adds the flags of orrery server, and sets the options that have flags to their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Hub.AddFlags(fs)
	o.Public.AddFlags(fs)
	o.Probes.AddFlags(fs)
	o.Failover.AddFlags(fs)
	o.Lifecycle.AddFlags(fs)
	fs.StringSliceVar(&o.MirrorResources, "mirror-resources", nil,
		"types, such as deployments.apps and pods, that are mirrored of clusters of which neither spec.mirror nor a MirrorPolicy selects any; placed kinds, nodes, pods and what else the hub needs always are (default: every type but leases and their like)")
	fs.StringVar(&o.MirrorDSNFile, "mirror-dsn-file", "",
		"file of mode 0600 with the DSN, postgres://... or mysql://..., of the database that the mirror is kept in (default: SQLite in the data directory)")
	fs.StringVar(&o.MirrorKeyFile, "mirror-encryption-key-file", "",
		"file of mode 0600 with the keys that encrypt the data of Secrets in the mirror, where it is mirrored: 32 bytes in base64 a line, the newest first (default: mirror-encryption.key in the data directory, made if there is none)")
	h := &MirrorHistory{Time: store.DefaultHistory.Time, Size: resource.QuantityValue{Quantity: *resource.NewQuantity(store.DefaultHistory.Bytes, resource.BinarySI)}}
	o.MirrorHistory = h
	fs.DurationVar(&h.Time, "mirror-history-time", h.Time, "how long former states and deleted objects of the mirror are kept; 0: none")
	fs.Var(&h.Size, "mirror-history-size", "how much room these may take, about; the oldest go first; 0: none")
	fs.StringSliceVar(&h.Except, "mirror-history-except", nil, "types, such as replicasets.apps, of which none are kept, besides leases and events")
	fs.Var(&o.DefaultClusterAccess, "default-cluster-access",
		"which clusters the hub's namespaces may use that no ClusterAccess selects: all of them, or none")
	fs.Var(&o.PodSecurity, "default-pod-security",
		"which Pod Security Standard pods are held to in namespaces of the hub that do not say so by label: privileged, baseline or restricted")
	fs.Var(&o.Namespaces, "namespaces",
		"in which members the hub's namespaces are made: Needed, where something is placed in them, or All, in every member that they may use")
	fs.StringVar(&o.ProfilingAddress, "profiling-address", "", "serve Go's profiles at this address, such as 127.0.0.1:6060, to everyone who can reach it")
}

// Run starts the hub and every controller, and calls ready when all of them are ready; an error of
// ready stops the server. It returns when ctx has ended and everything has stopped. The error is
// nil if that was without a failure, also if ctx ends before the hub is ready.
func Run(ctx context.Context, o Options, log logr.Logger, ready func(*hub.Hub) error) error {
	mirrored, err := mirror.Select(o.MirrorResources)
	if err != nil {
		return fmt.Errorf("--mirror-resources: %w", err)
	}
	history, err := o.MirrorHistory.history()
	if err != nil {
		return err
	}
	if o.MirrorDSNFile != "" {
		if _, err := readDSN(o.MirrorDSNFile); err != nil {
			return err
		}
	}
	if o.MirrorKeyFile != "" {
		if _, err := readKeys(o.MirrorKeyFile); err != nil {
			return err
		}
	}
	if err := errors.Join(o.Public.Validate(), o.Probes.Validate(), o.Failover.Validate()); err != nil {
		return err
	}
	o.Hub = withPublic(o.Hub, o.Public)
	s := &server{options: o, mirrored: mirrored, history: history, log: log, onReady: ready}
	list, err := ordered(s.components())
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	return run(logr.NewContext(ctx, log), list)
}

// withPublic returns the options of the hub with the address, port and host of the public listener
// in o. The hub chooses a missing port, and creates a certificate for the listener.
func withPublic(h hub.Options, o listener.Options) hub.Options {
	h.PublicHost = o.Host()
	// If o.Address is empty, the hub chooses the address and the port.
	if host, port, err := net.SplitHostPort(o.Address); err == nil {
		h.PublicAddress = host
		h.PublicPort, _ = strconv.Atoi(port) // Validate has checked it
	}
	return h
}

// openStore opens the database of the mirror. It uses the DSN in dsnFile, or SQLite in the
// directory mirror of the data directory if dsnFile is "".
func openStore(ctx context.Context, dsnFile, dataDir string, options ...store.Option) (*store.Store, error) {
	if dsnFile != "" {
		dsn, err := readDSN(dsnFile)
		if err != nil {
			return nil, err
		}
		db, err := store.OpenDSN(ctx, dsn, options...)
		if err != nil {
			return nil, fmt.Errorf("--mirror-dsn-file %s: %w", dsnFile, err)
		}
		return db, nil
	}
	dir := filepath.Join(dataDir, "mirror")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the mirror's directory: %w", err)
	}
	db, err := store.Open(ctx, dir, options...)
	if err != nil {
		return nil, fmt.Errorf("open mirror store: %w", err)
	}
	return db, nil
}

// mirrorKeys returns the keys that encrypt the data of mirrored Secrets in the database. It reads
// file. If file is "", it reads mirror-encryption.key in the data directory, and creates that file
// if it does not exist.
func mirrorKeys(file, dataDir string, log logr.Logger) (*seal.Keys, error) {
	if file != "" {
		return readKeys(file)
	}
	file = filepath.Join(dataDir, "mirror-encryption.key")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := disk.WriteFile(file, 0o600, []byte(seal.New()+"\n")); err != nil {
			return nil, fmt.Errorf("make the key of the mirror's Secrets: %w", err)
		}
		log.Info("Made the key that encrypts data of Secrets in the mirror, where it is mirrored. Without it the data is read again from the clusters", "file", file)
	}
	return readKeys(file)
}

// readKeys reads the keys that encrypt the data of mirrored Secrets. It is an error if users other
// than the owner may access the file.
func readKeys(file string) (*seal.Keys, error) {
	text, err := readPrivate("--mirror-encryption-key-file", file, "keys")
	if err != nil {
		return nil, err
	}
	keys, err := seal.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--mirror-encryption-key-file %s: %w", file, err)
	}
	return keys, nil
}

// readPrivate reads a file that a flag names. It is an error if users other than the owner may
// access the file. what is what the file contains, for the error.
func readPrivate(flag, file, what string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s %s: it has %s, and its mode is %s: it must be a file that only its owner can read; run: chmod 600 %s",
			flag, file, what, info.Mode(), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}

// readDSN reads the DSN of the mirror's database from a file. It contains a password, so it is an
// error if users other than the owner may access the file. An invalid DSN is an error, too.
func readDSN(file string) (string, error) {
	dsn, err := readPrivate("--mirror-dsn-file", file, "a password")
	if err != nil {
		return "", err
	}
	if err := store.CheckDSN(string(dsn)); err != nil {
		return "", fmt.Errorf("--mirror-dsn-file %s: %w", file, err)
	}
	return string(dsn), nil
}

// addressed returns the names, sorted, of the clusters on the hub that have an API server address
// and are not being deleted.
func addressed(ctx context.Context, hubClient client.Reader) ([]string, error) {
	var clusters clusterv1alpha1.ClusterList
	// the objects are only read
	if err := hubClient.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(clusters.Items))
	for i := range clusters.Items {
		if c := &clusters.Items[i]; c.DeletionTimestamp.IsZero() && c.Spec.APIEndpoint != "" {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// kubeconfigRetry is the pause after which a failed update of the hub's kubeconfig is repeated.
const kubeconfigRetry = 10 * time.Second

// keepKubeconfig keeps a context for each member in the hub's kubeconfig, until ctx ends. write
// writes the kubeconfig with these members. came has a value when a cluster joined or left.
// keepKubeconfig lists the members on the hub, because the registry gets them one by one after a
// start. After each update it pauses for ten times the duration of the update, so that a thousand
// clusters that join do not cause constant updates. It repeats a failed update after
// kubeconfigRetry.
func keepKubeconfig(ctx context.Context, write func(members []string) error, hubClient client.Reader, came <-chan struct{}, log logr.Logger) {
	var written []string
	failed := false
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		if !failed {
			select {
			case <-ctx.Done():
				return
			case <-came:
			}
		}
		start := time.Now()
		names, err := addressed(ctx, hubClient)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error(err, "list clusters for the kubeconfig")
		case written == nil || !slices.Equal(names, written):
			if err = write(names); err != nil {
				log.Error(err, "write kubeconfig")
				names = nil // the file may have other members
			}
			written = names
		}
		if failed = err != nil; failed {
			rest.Reset(kubeconfigRetry)
		} else {
			rest.Reset(10 * time.Since(start))
		}
	}
}
