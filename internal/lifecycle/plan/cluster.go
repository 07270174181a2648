package plan

import (
	"fmt"
	"slices"
	"strings"
)

// ClusterStep is one thing that is done to the cluster as a whole and not on a host: exactly one of the pointers is set. Who
// does it finds out from the cluster whether it is done, so a run that ended anywhere does all of them again.
type ClusterStep struct {
	// ID is the kind and what it is about, such as drain/h-2. It is unique in a plan.
	ID string `json:"id"`

	Cordon   *Cordon   `json:"cordon,omitempty"`
	Drain    *Drain    `json:"drain,omitempty"`
	Uncordon *Uncordon `json:"uncordon,omitempty"`

	EtcdMemberAdd     *EtcdMember `json:"etcdMemberAdd,omitempty"`
	EtcdMemberPromote *EtcdMember `json:"etcdMemberPromote,omitempty"`
	EtcdMemberRemove  *EtcdMember `json:"etcdMemberRemove,omitempty"`

	Objects         *Objects         `json:"objects,omitempty"`
	NodeObject      *NodeObject      `json:"nodeObject,omitempty"`
	KubeconfigWrite *KubeconfigWrite `json:"kubeconfigWrite,omitempty"`
}

// EtcdMember is the member of etcd that a host runs: it is added as a learner, promoted once it has caught up, or removed.
type EtcdMember struct {
	Host string `json:"host"`
}

// NodeObject must have these labels, and the taint of a dedicated control plane or not; or it must not be there.
type NodeObject struct {
	Name string `json:"name"`
	Node
	Delete bool `json:"delete,omitempty"`
}

// KubeconfigWrite hands the administrator's kubeconfig out.
type KubeconfigWrite struct {
	// Endpoint is the URL of the API server in it.
	Endpoint string `json:"endpoint"`
}

// AddEtcdMember is the step that adds the member of a host.
func AddEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/add-" + name, EtcdMemberAdd: &EtcdMember{Host: name}}
}

// PromoteEtcdMember is the step that gives the member of a host its vote.
func PromoteEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/promote-" + name, EtcdMemberPromote: &EtcdMember{Host: name}}
}

// RemoveEtcdMember is the step that removes the member of a host.
func RemoveEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/remove-" + name, EtcdMemberRemove: &EtcdMember{Host: name}}
}

// SettleNode is the step that gives a Node what its kubelet may not give it.
func SettleNode(name string, n Node) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Node: n}}
}

// DeleteNode is the step that deletes a Node.
func DeleteNode(name string) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Delete: true}}
}

// WriteKubeconfig is the step that hands the administrator's kubeconfig out.
func WriteKubeconfig(endpoint string) ClusterStep {
	return ClusterStep{ID: "kubeconfig", KubeconfigWrite: &KubeconfigWrite{Endpoint: endpoint}}
}

// Cordon keeps new pods from a node, and notes on the Node that the cordon is ours. A node that was cordoned already is left as
// it is: that cordon is an administrator's.
type Cordon struct {
	Node string `json:"node"`
}

// Drain moves the pods of a node away, within their disruption budgets.
type Drain struct {
	Node string `json:"node"`
}

// Uncordon takes a cordon of ours back, and no other.
type Uncordon struct {
	Node string `json:"node"`
}

// CordonNode is the step that cordons a node.
func CordonNode(name string) ClusterStep {
	return ClusterStep{ID: "cordon/" + name, Cordon: &Cordon{Node: name}}
}

// DrainNode is the step that drains a node.
func DrainNode(name string) ClusterStep {
	return ClusterStep{ID: "drain/" + name, Drain: &Drain{Node: name}}
}

// UncordonNode is the step that uncordons a node.
func UncordonNode(name string) ClusterStep {
	return ClusterStep{ID: "uncordon/" + name, Uncordon: &Uncordon{Node: name}}
}

// Kind of a step, such as Drain.
func (s ClusterStep) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target of a step: what it is about.
func (s ClusterStep) Target() string {
	_, target := s.describe()
	return target
}

func (s ClusterStep) describe() (kind, target string) {
	switch {
	case s.Cordon != nil:
		return "Cordon", s.Cordon.Node
	case s.Drain != nil:
		return "Drain", s.Drain.Node
	case s.Uncordon != nil:
		return "Uncordon", s.Uncordon.Node
	case s.EtcdMemberAdd != nil:
		return "EtcdMemberAdd", s.EtcdMemberAdd.Host
	case s.EtcdMemberPromote != nil:
		return "EtcdMemberPromote", s.EtcdMemberPromote.Host
	case s.EtcdMemberRemove != nil:
		return "EtcdMemberRemove", s.EtcdMemberRemove.Host
	case s.Objects != nil:
		return "Objects", s.Objects.Group
	case s.NodeObject != nil && s.NodeObject.Delete:
		return "NodeObject (deleted)", s.NodeObject.Name
	case s.NodeObject != nil:
		return "NodeObject", s.NodeObject.Name
	case s.KubeconfigWrite != nil:
		return "KubeconfigWrite", s.KubeconfigWrite.Endpoint
	default:
		return "", ""
	}
}

// Disruption is what a step disturbs.
func (s ClusterStep) Disruption() Disruption {
	if s.Drain != nil {
		return DisruptionDrain
	}
	return DisruptionNone
}

// ClusterFacts are what a plan depends on of the cluster itself.
type ClusterFacts struct {
	// Built is true of a cluster that is built: what changes in it is seen object by object.
	Built bool
	// Cordoned names the nodes that bear our mark: a run has cordoned them and did not come to uncordon them.
	Cordoned []string
	// Unsettled names the Nodes that are not as they must be.
	Unsettled []string
	// Joining names the hosts whose etcd is to join one that is there.
	Joining []string
	// Kubeconfig is true if the administrator's kubeconfig has to be written again.
	Kubeconfig bool
}

// ClusterSteps are the steps of the cluster that bringing hosts to a plan takes: members join etcd one after another, hosts are
// drained as the rollout says, nodes that an earlier run has left cordoned are uncordoned, and a new cluster gets its objects.
func ClusterSteps(p *Plan, works []Work, rollout *Rollout, cluster ClusterFacts, objects []Objects) []ClusterStep {
	var steps, after []ClusterStep
	for _, name := range cluster.Joining {
		steps = append(steps, AddEtcdMember(name), PromoteEtcdMember(name))
	}
	drained, fresh := map[string]bool{}, map[string]bool{}
	for _, w := range works {
		fresh[w.Host.Name] = w.Unregistered
	}
	for _, s := range rollout.Steps() {
		steps = append(steps, s)
		drained[s.Target()] = true
	}
	for _, name := range slices.Sorted(slices.Values(cluster.Cordoned)) {
		if !drained[name] {
			steps = append(steps, p.AfterCordon(name))
		}
	}
	for _, h := range p.Hosts {
		if isNode(h, Applied{}) && (fresh[h.Name] || slices.Contains(cluster.Unsettled, h.Name)) {
			after = append(after, SettleNode(h.Name, h.Node))
		}
	}
	if !cluster.Built {
		for _, o := range objects {
			after = append(after, ApplyObjects(o))
		}
	}
	if !cluster.Built || cluster.Kubeconfig {
		after = append(after, WriteKubeconfig(p.Endpoint))
	}
	return append(steps, after...)
}

// AfterCordon is what ends a cordon of ours: the node takes pods again, or goes, if its host is to be no node any more.
func (p *Plan) AfterCordon(name string) ClusterStep {
	if slices.ContainsFunc(p.Hosts, func(h Host) bool { return h.Name == name && !isNode(h, Applied{}) }) {
		return DeleteNode(name)
	}
	return UncordonNode(name)
}

// around are the steps of the cluster before and after work on a host that pods would notice.
func (w Work) around(p *Plan) (before, after []ClusterStep) {
	name := w.Host.Name
	return []ClusterStep{CordonNode(name), DrainNode(name)}, []ClusterStep{p.AfterCordon(name)}
}

// LeaveSteps are the steps of the cluster that taking hosts out of it takes before the others are told, and after all that was done on
// the hosts is undone. Pods of a host that does not answer cannot be moved, and its Node goes.
func LeaveSteps(leaving, members []string, facts map[string]Facts) (before, after []ClusterStep) {
	for _, name := range leaving {
		if f, reached := facts[name]; reached && isNode(Host{}, f.Applied) {
			before = append(before, CordonNode(name), DrainNode(name))
		}
	}
	for _, name := range members {
		before = append(before, RemoveEtcdMember(name))
	}
	for _, name := range leaving {
		if f, reached := facts[name]; !reached || isNode(Host{}, f.Applied) {
			after = append(after, DeleteNode(name))
		}
	}
	return before, after
}

// stepLines says what the steps are, those of one kind that follow each other in one line.
func stepLines(steps []ClusterStep) []string {
	var kinds []string
	targets := map[string][]string{}
	for _, s := range steps {
		kind, target := s.describe()
		if targets[kind] == nil {
			kinds = append(kinds, kind)
		}
		targets[kind] = append(targets[kind], target)
	}
	lines := make([]string, 0, len(kinds))
	for _, kind := range kinds {
		line := fmt.Sprintf("%s %s", kind, strings.Join(targets[kind], ", "))
		if i := slices.IndexFunc(steps, func(s ClusterStep) bool { return s.Kind() == kind }); steps[i].Disruption() != DisruptionNone {
			line += " [" + string(steps[i].Disruption()) + "]"
		}
		lines = append(lines, line)
	}
	return lines
}
