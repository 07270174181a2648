package plan

import (
	"fmt"
	"slices"
	"strings"
)

// ClusterStep is a step that a run performs on the cluster as a whole, through its API server or
// etcd, and not on a host. Exactly one of the pointers is set. A run that resumes starts with the
// first of these steps again, and asks the cluster which ones are done.
type ClusterStep struct {
	// ID is the kind and the target, such as drain/h-2. It is unique in a plan, and identifies the
	// step in the record of a run.
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

// EtcdMember names the host whose etcd member a step changes. The field of ClusterStep that holds
// it says how: add the member as a learner, promote the learner once it has caught up, or remove
// the member.
type EtcdMember struct {
	Host string `json:"host"`
}

// NodeObject is a step on a Node. It sets the labels and the taint of a dedicated control plane, or
// deletes the Node.
type NodeObject struct {
	Name string `json:"name"`
	Node
	Delete bool `json:"delete,omitempty"`
}

// KubeconfigWrite is the step that hands out the administrator's kubeconfig: to the user's machine,
// or to the hub, which joins the cluster with it.
type KubeconfigWrite struct {
	// Endpoint is the URL of the API server in the kubeconfig.
	Endpoint string `json:"endpoint"`
}

// AddEtcdMember returns the step that adds the named host to etcd, as a learner, which does not
// vote.
func AddEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/add-" + name, EtcdMemberAdd: &EtcdMember{Host: name}}
}

// PromoteEtcdMember returns the step that makes the learner on a host a voting member.
func PromoteEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/promote-" + name, EtcdMemberPromote: &EtcdMember{Host: name}}
}

// RemoveEtcdMember returns the step that removes the etcd member of a host.
func RemoveEtcdMember(name string) ClusterStep {
	return ClusterStep{ID: "etcd/remove-" + name, EtcdMemberRemove: &EtcdMember{Host: name}}
}

// SettleNode returns the step that gives the named Node the labels and the taint in n. A kubelet
// must not set them itself. The step has the same ID as that of DeleteNode.
func SettleNode(name string, n Node) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Node: n}}
}

// DeleteNode returns the step that deletes the named Node. The step has the same ID as that of
// SettleNode.
func DeleteNode(name string) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Delete: true}}
}

// WriteKubeconfig returns the step that hands out the administrator's kubeconfig. endpoint is the
// URL of the API server in it.
func WriteKubeconfig(endpoint string) ClusterStep {
	return ClusterStep{ID: "kubeconfig", KubeconfigWrite: &KubeconfigWrite{Endpoint: endpoint}}
}

// Cordon is the step that makes a node unschedulable and annotates the Node, so that a later run
// can end the cordon. If the node is cordoned already, the step changes nothing, since that cordon
// is an administrator's.
type Cordon struct {
	Node string `json:"node"`
}

// Drain is the step that evicts the pods of a node, within their disruption budgets. Pods of
// DaemonSets stay. Pods without a controller, and pods with an emptyDir, are evicted too. The step
// does not cordon the node.
type Drain struct {
	Node string `json:"node"`
}

// Uncordon is the step that removes the cordon of a node if a run has set it. The cordon of an
// administrator stays.
type Uncordon struct {
	Node string `json:"node"`
}

// CordonNode returns the step that cordons a node.
func CordonNode(name string) ClusterStep {
	return ClusterStep{ID: "cordon/" + name, Cordon: &Cordon{Node: name}}
}

// DrainNode returns the step that drains a node.
func DrainNode(name string) ClusterStep {
	return ClusterStep{ID: "drain/" + name, Drain: &Drain{Node: name}}
}

// UncordonNode returns the step that uncordons a node.
func UncordonNode(name string) ClusterStep {
	return ClusterStep{ID: "uncordon/" + name, Uncordon: &Uncordon{Node: name}}
}

// Kind returns the kind of the step, such as Drain. It is "" if no pointer is set.
func (s ClusterStep) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target returns what the step is about: the name of a node, a host or a group of objects, or the
// endpoint of a KubeconfigWrite. It is "" if no pointer is set.
func (s ClusterStep) Target() string {
	_, target := s.describe()
	return target
}

// describe returns the results of Kind and Target.
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

// Disruption returns what the step disturbs: DisruptionDrain for a Drain, and DisruptionNone for
// all other steps.
func (s ClusterStep) Disruption() Disruption {
	if s.Drain != nil {
		return DisruptionDrain
	}
	return DisruptionNone
}

// ClusterFacts is the state of the cluster that the steps in a plan depend on. Package lifecycle
// reads it from the API server, etcd and its own state.
type ClusterFacts struct {
	// Built is true if the cluster was built completely before. The plan then lists each object that
	// changes, instead of a step for each group of objects.
	Built bool
	// Cordoned names the nodes that a run has cordoned and not uncordoned.
	Cordoned []string
	// Unsettled names the nodes whose labels or control plane taint must change.
	Unsettled []string
	// Joining names the hosts whose etcd will join an existing etcd cluster.
	Joining []string
	// Kubeconfig is true if the administrator's kubeconfig must be handed out again.
	Kubeconfig bool
}

// ClusterSteps returns the steps on the cluster as a whole that a plan contains, in their order.
// Members join etcd one after another. Nodes are drained and uncordoned as the rollout says. Nodes
// that an earlier run left cordoned are uncordoned, or deleted if their hosts are no longer nodes.
// New nodes and those in cluster.Unsettled get their labels and taints. For a cluster that is not
// built, all objects are applied and the kubeconfig is handed out. works is the work on the hosts,
// and objects are the groups of objects. rollout must not be nil.
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

// AfterCordon returns the step that ends the cordon of the named node. It uncordons the node. If
// the plan has the host and the host is no longer a node, the step deletes the Node instead.
func (p *Plan) AfterCordon(name string) ClusterStep {
	if slices.ContainsFunc(p.Hosts, func(h Host) bool { return h.Name == name && !isNode(h, Applied{}) }) {
		return DeleteNode(name)
	}
	return UncordonNode(name)
}

// around returns the steps for work on a host that disturbs its pods. before cordons and drains the
// node, and after ends the cordon.
func (w Work) around(p *Plan) (before, after []ClusterStep) {
	name := w.Host.Name
	return []ClusterStep{CordonNode(name), DrainNode(name)}, []ClusterStep{p.AfterCordon(name)}
}

// LeaveSteps returns the steps on the cluster as a whole for removing the hosts in leaving. before
// is done before other hosts change, and after is done when the removed hosts are undone. members
// are those of the hosts that have an etcd member. A host without facts was not reached. Its node
// is not drained, and the deletion of its Node is always part of after.
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

// stepLines describes steps as lines for Print: one line for each kind, with all targets of that
// kind. The kinds are in the order in which they first occur.
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
