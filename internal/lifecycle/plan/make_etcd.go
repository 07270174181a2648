package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// quorumTimeout is how long the etcd on a host may take to reach a quorum. The hosts of other
// members may start later.
const quorumTimeout = 2 * time.Minute

// etcdFlags has the flags that differ between minor versions of etcd, the newest version first. The
// first entry that is not newer than the installed etcd applies. The flags check the data at the
// start of etcd, and send progress notifications to the watch cache of API servers.
var etcdFlags = []struct {
	since string
	flags flags
}{
	{"v3.6", flags{"feature-gates": "InitialCorruptCheck=true", "watch-progress-notify-interval": "5s"}},
	{"v3.5", flags{"experimental-initial-corrupt-check": "true", "experimental-watch-progress-notify-interval": "5s"}},
}

// etcd returns the steps for the etcd member on the host. It is nil for an external etcd and
// for a host without the role.
func (h *hostMaker) etcd() []Step {
	if !h.managed() || !h.has(clusterv1alpha1.RoleEtcd) {
		return nil
	}
	program := h.artifact(fileEtcd, binDir, DisruptionRestart)
	ca := file("etcd/ca.crt", etcdPKIDir+"/ca.crt", h.pair(AuthorityEtcd).Cert, DisruptionRestart)
	var steps []Step
	if !h.isNode() {
		steps = append(steps, directory("directory/kubernetes", configDir), directory("directory/pki", pkiDir))
	}
	return slices.Concat(steps,
		[]Step{
			directory("directory/etcd-pki", etcdPKIDir),
			dataDirectory(stepEtcdData, h.spec.Etcd.DataDir, "0700"),
			program, ca,
		},
		// etcd reads its certificates for each connection, so a new one needs no restart.
		certificate("etcd/server", etcdPKIDir+"/server", h.leaf(leafEtcdServer), DisruptionReload),
		certificate("etcd/peer", etcdPKIDir+"/peer", h.leaf(leafEtcdPeer), DisruptionReload),
		[]Step{
			unit("etcd", Unit{
				Name: unitEtcd, Description: h.describe("etcd"), Command: h.etcdCommand(), LimitNOFILE: 65536,
				Env:    map[string]string{etcdInitialState: h.etcdState()},
				Mounts: h.etcdMounts(), Data: EtcdLog(h.spec) + "/*.wal", Established: establishedFile,
			}, program, ca),
			{ID: stepEtcdProbe, Probe: &Probe{
				URL:    httpsURL("127.0.0.1", h.spec.Etcd.Port) + "/health",
				CAFile: etcdPKIDir + "/ca.crt", CertFile: etcdPKIDir + "/server.crt", KeyFile: etcdPKIDir + "/server.key",
				Contains: `"health":"true"`, Timeout: quorumTimeout, Unit: unitEtcd,
			}},
			file(stepEtcdEstablished, establishedFile, etcdEstablished, DisruptionNone),
		})
}

// etcdInitialState is the environment variable that corresponds to etcd's flag
// --initial-cluster-state. With the value "new", an etcd without data begins an empty cluster. etcd
// does not start if both the variable and the flag are set.
const etcdInitialState = "ETCD_INITIAL_CLUSTER_STATE"

// etcdEstablished is the content of the file Unit.Established of etcd, which a step writes once
// etcd has a quorum. The file makes sure that etcd never begins an empty cluster later. etcd reads
// it at its next start, so writing it restarts nothing.
const etcdEstablished = "# Written by Orrery when etcd first had a quorum. While this file is here, etcd does not start without its data.\n" +
	etcdInitialState + "=existing\n"

// etcdState returns the value of etcdInitialState for the first start of etcd on the host:
// "existing" if the member joins an existing etcd, else "new".
func (h *hostMaker) etcdState() string {
	if h.bootstrap().Join {
		return "existing"
	}
	return "new"
}

// etcdMounts returns the paths whose file systems must be mounted before etcd starts: its data
// directory, and the directory of the write-ahead log if that is elsewhere.
func (h *hostMaker) etcdMounts() []string {
	dirs := []string{h.spec.Etcd.DataDir}
	if log := EtcdLog(h.spec); !below(log, h.spec.Etcd.DataDir) {
		dirs = append(dirs, log)
	}
	return dirs
}

// etcdCommand returns the command line of etcd on the host.
func (h *hostMaker) etcdCommand() []string {
	e := h.spec.Etcd
	client, peer := httpsURL(h.ip(), e.Port), httpsURL(h.ip(), e.PeerPort)
	bootstrap := h.bootstrap()
	members := make([]string, 0, len(bootstrap.Members))
	for _, name := range slices.Sorted(maps.Keys(bootstrap.Members)) {
		members = append(members, name+"="+bootstrap.Members[name])
	}
	f := flags{
		"name": h.Name, "data-dir": e.DataDir,
		"listen-client-urls": client + "," + httpsURL("127.0.0.1", e.Port), "advertise-client-urls": client,
		"listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
		"initial-cluster": strings.Join(members, ","), "initial-cluster-token": h.name,
		"cert-file": etcdPKIDir + "/server.crt", "key-file": etcdPKIDir + "/server.key",
		"trusted-ca-file": etcdPKIDir + "/ca.crt", "client-cert-auth": "true",
		"peer-cert-file": etcdPKIDir + "/peer.crt", "peer-key-file": etcdPKIDir + "/peer.key",
		"peer-trusted-ca-file": etcdPKIDir + "/ca.crt", "peer-client-cert-auth": "true",
		"listen-metrics-urls":  fmt.Sprintf("http://127.0.0.1:%d", portEtcdMetrics),
		"auto-compaction-mode": "periodic", "auto-compaction-retention": fmt.Sprintf("%dh", e.AutoCompactionRetention),
	}
	for name, value := range map[string]int64{
		"heartbeat-interval": int64(e.HeartbeatInterval), "election-timeout": int64(e.ElectionTimeout), "snapshot-count": e.SnapshotCount,
		"quota-backend-bytes": e.QuotaBackendBytes, "max-request-bytes": e.MaxRequestBytes,
		"max-snapshots": int64(e.MaxSnapshots), "max-wals": int64(e.MaxWALs),
	} {
		if value != 0 {
			f[name] = strconv.FormatInt(value, 10)
		}
	}
	for name, value := range map[string]string{"metrics": e.Metrics, "log-level": e.LogLevel} {
		if value != "" {
			f[name] = value
		}
	}
	program, _ := h.file(fileEtcd)
	for _, v := range etcdFlags {
		if atLeast(program.Version, v.since) {
			maps.Copy(f, v.flags)
			break
		}
	}
	return command(fileEtcd, f, e.ExtraArgs)
}

// bootstrap returns how the etcd member of the host first starts or has started, from
// Input.EtcdBootstrap. If that has no entry for the host, the member joins the existing etcd. If it
// has no entries at all, the host starts a new etcd together with the others.
func (h *hostMaker) bootstrap() EtcdBootstrap {
	if fixed, ok := h.in.EtcdBootstrap[h.Name]; ok {
		return fixed
	}
	return EtcdBootstrap{Members: h.etcdPeers(h.topology.roles[clusterv1alpha1.RoleEtcd]), Join: len(h.in.EtcdBootstrap) > 0}
}

// etcdServers returns the URLs of etcd for the API server of the host: the member on the same host,
// or all members if the host has none. For an external etcd they are its endpoints.
func (h *hostMaker) etcdServers() []string {
	if !h.managed() {
		return h.spec.Etcd.External.Endpoints
	}
	if h.has(clusterv1alpha1.RoleEtcd) {
		return []string{httpsURL("127.0.0.1", h.spec.Etcd.Port)}
	}
	var urls []string
	for _, m := range h.with(clusterv1alpha1.RoleEtcd) {
		urls = append(urls, httpsURL(m.ip(), h.spec.Etcd.Port))
	}
	return urls
}
