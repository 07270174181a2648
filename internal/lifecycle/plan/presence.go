package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/presence"
)

// Presence is what the cluster shows of a host. What was not observed is Unknown. Only Absent
// refuses a plan or adds a repair to it.
type Presence struct {
	// Node is the Node of the host.
	Node presence.Presence `json:"node,omitempty"`
	// Member is the host's member in the list of etcd that a majority of the members has confirmed.
	// Started is true if that member has started before, and so has had data.
	Member  presence.Presence `json:"member,omitempty"`
	Started bool              `json:"started,omitempty"`
	// Data are the data of this cluster behind the API server of the host. If they are Absent, Found
	// describes what the API server reads instead.
	Data  presence.Presence `json:"data,omitempty"`
	Found string            `json:"found,omitempty"`
}

// missingNode describes a Node that must be registered again.
const missingNode = "there is no Node of this host; its kubelet creates the Node when it starts"

// EtcdLog returns the directory with the write-ahead log of etcd. Without a file in it, etcd starts
// as if it never had data. It is empty for an external etcd.
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

// has reports whether a step was begun on the host.
func (a Applied) has(id string) bool {
	return slices.ContainsFunc(a.Steps, func(s AppliedStep) bool { return s.ID == id })
}

// lostLog reports whether etcd has had data on a host and has lost its write-ahead log since. The
// host's record shows that. For a host that was installed again, etcd shows it. If etcd has no
// quorum to show anything, the first members of a cluster with data count: started without a log,
// they would begin an empty cluster.
func (s *survey) lostLog(name string) bool {
	f := s.facts[name]
	if f.EtcdLog != presence.Absent {
		return false
	}
	hadQuorum := slices.ContainsFunc(f.Applied.Steps, func(s AppliedStep) bool { return s.ID == stepEtcdProbe && s.Complete })
	first, known := s.bootstrap[name]
	return hadQuorum || f.Presence.Started || s.hasData && known && !first.Join && f.Presence.Member == presence.Unknown
}

// data refuses hosts whose etcd has lost its data, or has those of another cluster.
func (s *survey) data() {
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

// withoutData returns what to do when the data of the host are lost for good.
func (s *survey) withoutData() string {
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

func (s *survey) lostCluster() string {
	return fmt.Sprintf("if they are lost for good, the cluster is lost: undo it with %q, and build it anew", "orrery cluster delete "+s.name)
}

// addAgain is the command that adds a host which was taken out.
const addAgain = "orrery cluster add-node -f FILE"

// etcdMember refuses hosts whose member was taken out of etcd. It does not refuse a host that has
// not joined yet: no etcd was started on that host, and it is not a member of the first etcd.
func (s *survey) etcdMember() {
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
