package plan

import (
	"fmt"
	"slices"
	"strings"
)

// ClusterStep is a step in the cluster as a whole, not on a host. Exactly one of the pointers is
// set. The engine asks the cluster whether a step is done, so a resumed run goes through all of
// them again.
type ClusterStep struct {
	// ID is the kind and the target, such as drain/h-2. It is unique in a plan.
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

// EtcdMember is the etcd member on a host: added as a learner, promoted once it has caught up, or
// removed.
type EtcdMember struct {
	Host string `json:"host"`
}

// NodeObject sets the labels of a Node and the taint of a dedicated control plane, or deletes the
// Node.
type NodeObject struct {
	Name string `json:"name"`
	Node
	Delete bool `json:"delete,omitempty"`
}

// KubeconfigWrite hands out the administrator's kubeconfig.
type KubeconfigWrite struct {
	// Endpoint is the URL of the API server in the kubeconfig.
	Endpoint string `json:"endpoint"`
}

// AddEtcdMember returns the step that adds the etcd member of a host.
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

// SettleNode returns the step that sets labels and taints which a kubelet must not set itself.
func SettleNode(name string, n Node) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Node: n}}
}

// DeleteNode returns the step that deletes a Node.
func DeleteNode(name string) ClusterStep {
	return ClusterStep{ID: "node/" + name, NodeObject: &NodeObject{Name: name, Delete: true}}
}

// WriteKubeconfig returns the step that hands out the administrator's kubeconfig.
func WriteKubeconfig(endpoint string) ClusterStep {
	return ClusterStep{ID: "kubeconfig", KubeconfigWrite: &KubeconfigWrite{Endpoint: endpoint}}
}

// Cordon marks a node unschedulable and annotates the Node. A node that is cordoned already stays
// as it is: that cordon is an administrator's.
type Cordon struct {
	Node string `json:"node"`
}

// Drain evicts the pods of a node, within their disruption budgets.
type Drain struct {
	Node string `json:"node"`
}

// Uncordon removes a cordon that a run has set, and no other.
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

// Kind returns the kind of a step, such as Drain.
func (s ClusterStep) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target returns the name of the node, host or group, or the endpoint, that the step is about.
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

// Disruption returns what a step disturbs.
func (s ClusterStep) Disruption() Disruption {
	if s.Drain != nil {
		return DisruptionDrain
	}
	return DisruptionNone
}

// ClusterFacts is the state of the cluster that a plan depends on.
type ClusterFacts struct {
	// Built is true if the cluster is built. Its object changes are then compared one by one.
	Built bool
	// Cordoned names the nodes that a run has cordoned and not uncordoned.
	Cordoned []string
	// Unsettled names the nodes whose labels or taints must change.
	Unsettled []string
	// Joining names the hosts whose etcd will join an existing etcd cluster.
	Joining []string
	// Kubeconfig is true if the administrator's kubeconfig must be handed out again.
	Kubeconfig bool
}

// ClusterSteps returns the steps in the cluster for a plan. Members join etcd one after another.
// Hosts are drained as the rollout says. Nodes that an earlier run left cordoned are uncordoned. A
// new cluster gets its objects.
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

// AfterCordon returns the step that ends a cordon: it uncordons the node, or deletes it if the plan
// does not make its host a node any more.
func (p *Plan) AfterCordon(name string) ClusterStep {
	if slices.ContainsFunc(p.Hosts, func(h Host) bool { return h.Name == name && !isNode(h, Applied{}) }) {
		return DeleteNode(name)
	}
	return UncordonNode(name)
}

// around returns the steps before and after work on a host that disturbs its pods.
func (w Work) around(p *Plan) (before, after []ClusterStep) {
	name := w.Host.Name
	return []ClusterStep{CordonNode(name), DrainNode(name)}, []ClusterStep{p.AfterCordon(name)}
}

// LeaveSteps returns the steps in the cluster for removing hosts: before the other hosts change,
// and after the removed hosts are undone. Pods of an unreachable host cannot be moved, so its Node
// is deleted.
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

// stepLines describes the steps, one line for each kind.
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
