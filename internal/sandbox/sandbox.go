// Package sandbox defines Kubernetes clusters on one machine, for the demonstration and for
// tests: real API servers on a shared etcd, real controllers and schedulers, and nodes whose
// pods KWOK simulates. Its result is a list of processes for package process to run.
package sandbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"orrery.dev/orrery/internal/process"
)

// Tier says which components a cluster of this package has.
type Tier int

const (
	// APIOnly is an API server alone. It stores objects, and no controller acts on them.
	APIOnly Tier = iota
	// Simulated adds the controllers, the scheduler and KWOK, which simulates kubelets. Pods become
	// ready on nodes that do not exist. Each container has a log of one line. No program runs in the
	// containers. KWOK would run the commands of an exec on this machine, so it answers no exec.
	Simulated
)

// Options for Prepare.
type Options struct {
	// Dir is the directory for all data of the clusters.
	Dir string
	// KubeBinary is the path of the multicall binary of etcd, the Kubernetes components and KWOK.
	KubeBinary string
	Tier       Tier
	// GOGC is the environment variable of each process. 0 means 50, which halves the memory of a
	// mostly idle API server. With 400 an API server starts in two thirds of the time and takes 140
	// MiB more.
	GOGC int
}

// frugalGOGC is the GOGC of processes if Options.GOGC is 0.
const frugalGOGC = 50

// Clusters is a set of clusters on this machine that share one etcd. All their data are in one
// directory. If Prepare is called again with that directory, the clusters have the same
// credentials. They also have the same addresses, unless other processes use their ports. The ports
// are reserved until Close.
type Clusters struct {
	options  Options
	clusters []*Cluster
}

// Cluster is one cluster of a Clusters.
type Cluster struct {
	// Name of the cluster.
	Name string
	dir  string        // of its files
	port *process.Port // of the API server
	// kubelets is the port at which KWOK serves the logs of containers; nil without KWOK.
	kubelets *process.Port
}

// Prepare creates the keys, certificates and addresses of the named clusters in o.Dir, or loads
// those of an earlier call. It reserves the ports of the clusters, which Close releases. It starts
// no process: the caller runs Processes. After an error nothing is reserved.
func Prepare(o Options, names ...string) (_ *Clusters, err error) {
	if o.GOGC == 0 {
		o.GOGC = frugalGOGC
	}
	m := &Clusters{options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	// A process that can enter the directory can use etcd's socket without authentication.
	if err := os.MkdirAll(m.etcdDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(m.etcdDir(), 0o700); err != nil { //nolint:gosec // a directory
		return nil, err
	}
	for _, name := range names {
		one := &Cluster{Name: name, dir: filepath.Join(o.Dir, name)}
		if one.port, err = keepPort(filepath.Join(one.dir, "port")); err != nil {
			return nil, err
		}
		m.clusters = append(m.clusters, one)
		if o.Tier == Simulated {
			if one.kubelets, err = keepPort(filepath.Join(one.dir, "kubelet-port")); err != nil {
				return nil, err
			}
			if err := os.WriteFile(one.file("container.log"), []byte(containerLog), 0o600); err != nil {
				return nil, err
			}
		}
		if err := one.prepare(); err != nil {
			return nil, fmt.Errorf("prepare cluster %s: %w", name, err)
		}
	}
	return m, nil
}

// Close releases the ports of the clusters, whose processes must have ended. It does not remove
// files. After Close, List is empty.
func (m *Clusters) Close() error {
	var errs []error
	for _, one := range m.clusters {
		errs = append(errs, one.port.Release())
		if one.kubelets != nil {
			errs = append(errs, one.kubelets.Release())
		}
	}
	m.clusters = nil
	return errors.Join(errs...)
}

// loopback is the address at which the API servers listen.
const loopback = "127.0.0.1"

// keepPort reserves the port whose number is in the file at path. If the file is missing or
// invalid, or the port is in use, it reserves another port and writes the number to the file. The
// caller releases the port.
func keepPort(path string) (*process.Port, error) {
	if text, err := os.ReadFile(path); err == nil {
		if number, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			if port, err := process.ReservePort(loopback, number); err == nil {
				return port, nil
			}
		}
	}
	port, err := process.ReservePort(loopback, 0)
	if err != nil {
		return nil, err
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = os.WriteFile(path, []byte(strconv.Itoa(port.Number)), 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, port.Release())
	}
	return port, nil
}

// containerLog is the content of the log of every simulated container, in the format of container
// runtimes: time, stream, F for a full line, text.
const containerLog = "2026-01-01T00:00:00Z stdout F This container is simulated: no program runs in it.\n"

// file returns the path of a file of the cluster.
func (m *Cluster) file(name string) string { return filepath.Join(m.dir, name) }

// prepare creates the files of the API server: certificate, keys, token and kubeconfig. It writes
// the kubeconfig last, so all files exist if the kubeconfig exists. In that case it only replaces
// the address in the kubeconfig, if the port has changed.
func (m *Cluster) prepare() error {
	if old, err := clientcmd.LoadFromFile(m.file("kubeconfig")); err == nil && old.Clusters[m.Name] != nil {
		if old.Clusters[m.Name].Server == m.url() {
			return nil
		}
		old.Clusters[m.Name].Server = m.url() // another process uses the former port
		return clientcmd.WriteToFile(*old, m.file("kubeconfig"))
	}
	crt, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return err
	}
	signing, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	signingPEM, err := keyutil.MarshalPrivateKeyToPEM(signing)
	if err != nil {
		return err
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	token := hex.EncodeToString(secret)
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: m.Name,
		Clusters:       map[string]*clientcmdapi.Cluster{m.Name: {Server: m.url(), CertificateAuthorityData: crt}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{m.Name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{m.Name: {Cluster: m.Name, AuthInfo: m.Name}},
	})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{"tls.crt", crt},
		{"tls.key", key},
		{"service-accounts.key", signingPEM},
		{"tokens.csv", []byte(token + ",admin,admin,system:masters\n")},
		{"kubeconfig", kubeconfig},
	} {
		if err := os.WriteFile(m.file(f.name), f.content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// url returns the URL of the API server.
func (m *Cluster) url() string {
	return "https://" + net.JoinHostPort(loopback, strconv.Itoa(m.port.Number))
}

// Kubeconfig returns the path of an administrator's kubeconfig for the cluster. Prepare has
// written the file.
func (m *Cluster) Kubeconfig() string { return m.file("kubeconfig") }

// Config returns a client configuration of an administrator for the cluster, without a client-side
// rate limit.
func (m *Cluster) Config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", m.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}

// List returns the clusters, in the order in which Prepare got their names.
func (m *Clusters) List() []*Cluster { return m.clusters }

// etcdSocket is the name of etcd's socket in its directory.
const etcdSocket = "client.sock"

// etcdDir returns the directory of the shared etcd.
func (m *Clusters) etcdDir() string { return filepath.Join(m.options.Dir, "etcd") }

// env returns the environment variables of each process. GOMEMLIMIT is not set. With a few large
// CRDs a cluster needs more memory than an idle one, and at the limit a process only collects
// garbage.
func (m *Clusters) env() map[string]string {
	return map[string]string{"GOGC": strconv.Itoa(m.options.GOGC)}
}

// Processes returns the processes that the caller must run, with package process: the shared etcd,
// named members-etcd, and the components of each cluster, named CLUSTER-COMPONENT.
func (m *Clusters) Processes() []process.Process {
	const (
		client = "unix://" + etcdSocket
		// A single etcd has no peers, but must advertise a TCP address.
		notDialed = "http://localhost:2380"
	)
	plan := []process.Process{{
		Name: "members-etcd",
		Command: []string{
			m.options.KubeBinary, "etcd",
			"--name=members", "--data-dir=.",
			// Sockets have relative paths, because the path of a socket has at most 107 bytes.
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client + ":0",
			"--listen-peer-urls=unix://peer.sock:0",
			"--initial-advertise-peer-urls=" + notDialed, "--initial-cluster=members=" + notDialed,
			"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m",
			// The data of a demonstration may be lost with the machine.
			"--unsafe-no-fsync", "--log-level=warn",
		},
		Dir:   m.etcdDir(),
		Env:   m.env(),
		Ready: &process.Probe{File: &process.FileProbe{Path: filepath.Join(m.etcdDir(), etcdSocket)}},
	}}
	for _, c := range m.clusters {
		plan = append(plan, c.processes(m, client)...)
	}
	return plan
}

// processes returns the processes of one cluster: the API server and, in the tier Simulated, the
// other components, which start after it. etcd is the URL of the socket of etcd, relative to etcd's
// directory.
func (m *Cluster) processes(all *Clusters, etcd string) []process.Process {
	apiserver := m.Name + "-apiserver"
	// Each cluster has its own prefix in the shared etcd. No API server may compact etcd, which does
	// so itself.
	plan := []process.Process{{
		Name: apiserver, Dir: all.etcdDir(), // etcd's socket
		Command: []string{
			all.options.KubeBinary, "kube-apiserver",
			"--bind-address=" + loopback, "--advertise-address=" + loopback, "--secure-port=" + strconv.Itoa(m.port.Number),
			"--tls-cert-file=" + m.file("tls.crt"), "--tls-private-key-file=" + m.file("tls.key"),
			"--token-auth-file=" + m.file("tokens.csv"), "--authorization-mode=RBAC",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + m.file("service-accounts.key"),
			"--service-account-signing-key-file=" + m.file("service-accounts.key"),
			"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
			"--etcd-servers=" + etcd, "--etcd-prefix=/" + m.Name,
			"--etcd-compaction-interval=0", "--etcd-count-metric-poll-period=0", "--etcd-db-metric-poll-interval=0",
			"--kubelet-preferred-address-types=InternalIP",
			"--endpoint-reconciler-type=none", "--enable-priority-and-fairness=false",
			"--event-ttl=10m", "--profiling=false",
			"--disable-admission-plugins=" + m.unwanted(all.options.Tier),
		},
		Env:   all.env(),
		Ready: &process.Probe{HTTP: &process.HTTPProbe{URL: m.url() + "/readyz", CAFile: m.file("tls.crt")}, Timeout: metav1.Duration{Duration: 2 * time.Minute}},
		After: []string{"members-etcd"},
	}}
	if all.options.Tier == APIOnly {
		return plan
	}
	component := func(name string, args ...string) process.Process {
		return process.Process{
			Name:    m.Name + "-" + name,
			Command: append([]string{all.options.KubeBinary}, args...),
			Env:     all.env(),
			After:   []string{apiserver},
		}
	}
	kwok := component(
		"kwok", "kwok",
		"--kubeconfig="+m.file("kubeconfig"), "--manage-all-nodes", "--node-lease-duration-seconds=200",
		"--node-ip="+loopback, "--node-port="+strconv.Itoa(m.kubelets.Number),
		"--server-address="+net.JoinHostPort(loopback, strconv.Itoa(m.kubelets.Number)),
		"--tls-cert-file="+m.file("tls.crt"), "--tls-private-key-file="+m.file("tls.key"),
	)
	kwok.Env = maps.Clone(kwok.Env)
	kwok.Env["KWOK_CONTAINER_LOG"] = m.file("container.log")
	return append(
		plan,
		component(
			"controller-manager", "kube-controller-manager",
			"--kubeconfig="+m.file("kubeconfig"), "--leader-elect=false", "--secure-port=0",
			"--service-account-private-key-file="+m.file("service-accounts.key"), "--root-ca-file="+m.file("tls.crt"),
			"--controllers="+strings.Join([]string{
				"clusterrole-aggregation-controller", "cronjob-controller", "daemonset-controller", "deployment-controller",
				"disruption-controller", "endpointslice-controller", "garbage-collector-controller",
				"horizontal-pod-autoscaler-controller", "job-controller", "namespace-controller",
				"persistentvolume-binder-controller", "pod-garbage-collector-controller", "replicaset-controller",
				"replicationcontroller-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller", "serviceaccount-token-controller",
				"statefulset-controller", "ttl-after-finished-controller",
			}, ","),
		),
		component(
			"scheduler", "kube-scheduler",
			"--kubeconfig="+m.file("kubeconfig"), "--leader-elect=false", "--secure-port=0",
		),
		kwok,
	)
}

// unwanted returns the admission plugins that the API server disables in a tier, separated by
// commas.
func (m *Cluster) unwanted(t Tier) string {
	plugins := []string{"StorageObjectInUseProtection", "PersistentVolumeClaimResize", "TaintNodesByCondition"}
	if t == APIOnly {
		// No controller creates default service accounts there.
		plugins = append(plugins, "ServiceAccount")
	}
	return strings.Join(plugins, ",")
}
