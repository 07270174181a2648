package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/presence"
)

// Presence is what the cluster shows of a host, apart from the facts that the host itself reports.
// A part that was not observed is Unknown. Only an Absent part refuses a plan or adds a repair to
// it.
type Presence struct {
	// Node says whether the cluster has a Node of the host.
	Node presence.Presence `json:"node,omitempty"`
	// Member says whether etcd has a member on the host, in a list that a majority of the members has
	// confirmed. Started is true if that member has started before, and so has had data.
	Member  presence.Presence `json:"member,omitempty"`
	Started bool              `json:"started,omitempty"`
	// Data says whether the API server of the host reads the data of this cluster. If it is Absent,
	// Found describes what the API server reads instead.
	Data  presence.Presence `json:"data,omitempty"`
	Found string            `json:"found,omitempty"`
}

// missingNode is Change.Detail of the repair that restarts a kubelet so that it registers its Node
// again.
const missingNode = "there is no Node of this host; its kubelet creates the Node when it starts"

// EtcdLog returns the directory on a host with the write-ahead log of etcd: wal-dir in the user's
// arguments, or member/wal in the data directory. Without a file in it, etcd starts as if it never
// had data. The result is "" for an external etcd.
func EtcdLog(spec *clusterv1alpha1.Provision) string {
	if spec.Etcd.Type == EtcdExternal {
		return ""
	}
	dir := spec.Etcd.DataDir + "/member/wal"
	for _, arg := range spec.Etcd.ExtraArgs {
		if name, value, _ := strings.Cut(arg, "="); strings.ReplaceAll(name, "_", "-") == "wal-dir" && path.IsAbs(value) {
			dir = path.Clean(value)
		}
	}
	return dir
}

// has reports whether the step with this ID was applied to the host, completely or in part.
func (a Applied) has(id string) bool {
	return slices.ContainsFunc(a.Steps, func(s AppliedStep) bool { return s.ID == id })
}

// lostLog reports whether etcd has had data on a host and has lost its write-ahead log since. It is
// false unless the host has reported that the log is absent.
//
// etcd has had data if the host's record shows a quorum. For a host that was installed again, it
// has if etcd lists the host's member as started. If etcd has no quorum to list members, the first
// members of a cluster with data count, too. Started without a log, they would begin an empty
// cluster.
func (s *inspection) lostLog(name string) bool {
	f := s.facts[name]
	if f.EtcdLog != presence.Absent {
		return false
	}
	hadQuorum := slices.ContainsFunc(f.Applied.Steps, func(s AppliedStep) bool { return s.ID == stepEtcdProbe && s.Complete })
	first, known := s.bootstrap[name]
	return hadQuorum || f.Presence.Started || s.hasData && known && !first.Join && f.Presence.Member == presence.Unknown
}

// data adds an error for a host whose etcd has lost its data, or whose API server reads the data of
// another cluster.
func (s *inspection) data() {
	switch {
	case s.managed() && s.has(clusterv1alpha1.RoleEtcd) && s.lostLog(s.Name):
		log := EtcdLog(s.spec)
		s.error(CheckData, "the data of its etcd are gone: there is no write-ahead log in "+log,
			"mount the file system that has it, or put the files back; "+s.withoutData())
	case s.Presence.Data == presence.Absent:
		s.error(CheckData, "its API server does not read the data of cluster "+s.name+": "+s.Presence.Found,
			"give its etcd the data of the cluster back: mount their file system, or restore them; "+s.lostCluster())
	}
}

// withoutData returns the part of a fix that says what to do if the host's etcd data cannot be
// restored. It depends on how many members have lost their data.
func (s *inspection) withoutData() string {
	members := s.topology.roles[clusterv1alpha1.RoleEtcd]
	var lost []string
	for _, name := range members {
		if s.lostLog(name) {
			lost = append(lost, name)
		}
	}
	switch {
	case len(lost) == len(members):
		return s.lostCluster()
	case 2*len(lost) >= len(members):
		return "if they are lost for good, etcd has no quorum any more: one of the other members can go on alone, see Recover in docs/clusters.md"
	}
	return fmt.Sprintf("if they are lost for good, take the host out with %q, and add it again with %q",
		"orrery cluster delete-node "+s.name+" "+strings.Join(lost, " "), addAgain)
}

// lostCluster returns the part of a fix that says what to do if the etcd data of all members cannot
// be restored.
func (s *inspection) lostCluster() string {
	return fmt.Sprintf("if they are lost for good, the cluster is lost: undo it with %q, and build it anew", "orrery cluster delete "+s.name)
}

// addAgain is the command in fixes that adds a host again after it was removed.
const addAgain = "orrery cluster add-node -f FILE"

// etcdMember adds an error for a host whose member was removed from etcd. It adds none for a host
// that has not joined yet: no etcd was started there, and the host is not one of the first members.
func (s *inspection) etcdMember() {
	if !s.managed() || !s.has(clusterv1alpha1.RoleEtcd) || s.Presence.Member != presence.Absent {
		return
	}
	first, fixed := s.bootstrap[s.Name]
	started := s.Applied.has(StepEtcdUnit) || s.EtcdLog == presence.Present && s.Applied.has(stepEtcdData)
	if started || fixed && !first.Join {
		s.error(CheckMember, "it is not a member of etcd any more: a run that takes the host out has not finished, or somebody has removed the member",
			fmt.Sprintf("take the host out with %q, and add it again with %q", "orrery cluster delete-node "+s.name+" "+s.Name, addAgain))
	}
}
