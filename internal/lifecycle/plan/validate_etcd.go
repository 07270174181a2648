package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// etcdElections is how many heartbeat intervals the election timeout of etcd must have at least.
const etcdElections = 5

// maxEtcdMembers is the largest number of etcd members in a valid spec. etcd recommends at most 7.
const maxEtcdMembers = 9

// taken are directories with files of other components. etcd's data directory must not be one of
// them, or above or below one. volatile are directories in which etcd's data must not be, because
// the data would be lost or does not belong there.
var (
	taken    = []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/orrery", "/var/log/pods", "/etc/kubernetes", "/etc/containerd", "/etc/cni", "/opt/orrery", "/opt/cni"}
	volatile = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/tmp", "/var/tmp", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64"}
)

func (v *validator) validateEtcd(root *field.Path) {
	p, e := root.Child("etcd"), v.spec.Etcd
	switch e.Type {
	case EtcdExternal:
		v.validateExternalEtcd(root)
		return
	case EtcdManaged:
	default:
		v.oneOf(p.Child("type"), e.Type, EtcdManaged, EtcdExternal)
		return
	}
	if e.External != nil {
		v.add(field.Forbidden(p.Child("external"), "etcd.type is "+EtcdManaged+": set it to "+EtcdExternal+", or leave external out"))
	}
	v.validateMembers(root.Child("roleGroups").Key(string(clusterv1alpha1.RoleEtcd)))
	v.port(p.Child("port"), e.Port)
	v.port(p.Child("peerPort"), e.PeerPort)
	v.validateDataDir(p.Child("dataDir"), e.DataDir)
	v.bounded(p.Child("heartbeatInterval"), int64(e.HeartbeatInterval), 1, 10_000)
	v.bounded(p.Child("electionTimeout"), int64(e.ElectionTimeout), etcdElections*int64(e.HeartbeatInterval), 50_000)
	for _, setting := range []struct {
		name  string
		value int64
	}{
		{"autoCompactionRetention", int64(e.AutoCompactionRetention)},
		{"snapshotCount", e.SnapshotCount},
		{"quotaBackendBytes", e.QuotaBackendBytes},
		{"maxRequestBytes", e.MaxRequestBytes},
		{"maxSnapshots", int64(e.MaxSnapshots)},
		{"maxWals", int64(e.MaxWALs)},
	} {
		if setting.value < 0 {
			v.invalidf(p.Child(setting.name), setting.value, "must not be negative")
		}
	}
	if e.Metrics != "" {
		v.oneOf(p.Child("metrics"), e.Metrics, "basic", "extensive")
	}
	if e.LogLevel != "" {
		v.oneOf(p.Child("logLevel"), e.LogLevel, "debug", "info", "warn", "error", "panic", "fatal")
	}
	v.validateArgs(p.Child("extraArgs"), fileEtcd, e.ExtraArgs)
}

// validateMembers checks the number of etcd members, at the path p of the role group.
func (v *validator) validateMembers(p *field.Path) {
	switch n := len(v.roles[clusterv1alpha1.RoleEtcd]); {
	case n > maxEtcdMembers:
		v.add(field.TooMany(p, n, maxEtcdMembers))
	case n == 0 && len(v.roles[clusterv1alpha1.RoleControlPlane]) > 0:
		v.add(field.Required(p, "name at least one host, or use etcd.external"))
	case n > 0 && n%2 == 0:
		v.add(field.Invalid(p, n, fmt.Sprintf(
			"%d members survive no more failures than %d: add one or leave one out. Without roleGroups[etcd] the control planes run etcd", n, n-1)).WithOrigin(EvenEtcd))
	}
}

// validateDataDir checks etcd's data directory. It adds an error if removing the directory would
// remove other files, too, or if the data would be lost there.
func (v *validator) validateDataDir(p *field.Path, dir string) {
	switch {
	case !cleanAbsolute(dir):
		v.invalidf(p, dir, "must be an absolute path without spaces, . and ..")
	case strings.Count(dir, "/") < 2:
		v.invalidf(p, dir, "must be a directory of etcd's own, such as %s/etcd", strings.TrimSuffix(dir, "/"))
	case slices.Contains([]string{"/var/lib", "/var/log"}, dir), slices.ContainsFunc(taken, func(t string) bool { return below(t, dir) || below(dir, t) }):
		v.invalidf(p, dir, "holds, or is in, what is not etcd's: use a directory of its own, such as /var/lib/etcd")
	case slices.ContainsFunc(volatile, func(t string) bool { return below(dir, t) }):
		v.invalidf(p, dir, "is no place for data: use a directory such as /var/lib/etcd")
	}
}

// below reports whether path is dir or in dir. Both are clean absolute paths.
func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// validateExternalEtcd checks the endpoints and credentials of an external etcd.
func (v *validator) validateExternalEtcd(root *field.Path) {
	p, e := root.Child("etcd", "external"), v.spec.Etcd.External
	if len(v.spec.RoleGroups[clusterv1alpha1.RoleEtcd]) > 0 {
		v.add(field.Forbidden(root.Child("roleGroups").Key(string(clusterv1alpha1.RoleEtcd)), "etcd.type is "+EtcdExternal+": no host runs etcd"))
	}
	if e == nil || len(e.Endpoints) == 0 {
		v.add(field.Required(p.Child("endpoints"), "name the URLs of the members"))
		return
	}
	secure := false
	for i, endpoint := range e.Endpoints {
		v.validateURL(p.Child("endpoints").Index(i), endpoint, "http", "https")
		if strings.Contains(endpoint, ",") {
			v.invalidf(p.Child("endpoints").Index(i), endpoint, "must be one URL")
		}
		secure = secure || strings.HasPrefix(endpoint, "https://")
	}
	files := map[string]string{"caFile": e.CAFile, "certFile": e.CertFile, "keyFile": e.KeyFile}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case e.SecretRef != nil && files[name] != "":
			v.add(field.Forbidden(p.Child(name), "secretRef has it already: one of both is needed"))
		case secure && e.SecretRef == nil && files[name] == "":
			v.add(field.Required(p.Child(name), "an endpoint is https: give caFile, certFile and keyFile, or secretRef"))
		}
	}
}
