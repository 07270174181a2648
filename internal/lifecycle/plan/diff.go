package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"orrery.dev/orrery/internal/presence"
)

// Op says what a run does with a step on a host, or with an object of the cluster.
type Op string

// The values of Op.
const (
	// OpAdd: the run does a step on a host for the first time, or creates an object.
	OpAdd Op = "add"
	// OpChange: the run does a step again, because the plan has changed the step, or changes an
	// object.
	OpChange Op = "change"
	// OpRepair: the run does a step again, because the host differs from what was applied, or the step
	// was not finished.
	OpRepair Op = "repair"
	// OpRemove: the run undoes a step, or removes an object.
	OpRemove Op = "remove"
)

// Change is one change that a run would make: a step that is done or undone on a host, or an object
// that changes in the cluster. Kind is KindObject for an object.
type Change struct {
	Host  string  `json:"host"`
	Stage StageID `json:"stage,omitempty"`
	Step  string  `json:"step"`
	// Kind is the kind of the step, such as File. It is "" for a removed step that no plan describes
	// any more.
	Kind string `json:"kind,omitempty"`
	Op   Op     `json:"op"`
	// Target is what changes: a path, the name of a unit, or an object. It is "" for a removed step
	// without a Kind.
	Target     string     `json:"target,omitempty"`
	Disruption Disruption `json:"disruption"`
	// Detail is a unified diff, or how the host differs from what was applied. It contains no secrets.
	Detail string `json:"detail,omitempty"`
}

// Changes is everything that a run would do to reach a plan. Diff makes it for the hosts, and
// SetCluster and Undo add to it.
type Changes struct {
	Cluster string `json:"cluster"`
	// Hash covers everything that the run would do, and the state from which it starts. A user can ask
	// for exactly the plan with this hash.
	Hash  string   `json:"hash"`
	Items []Change `json:"items"`
	// Undone names the hosts on which everything is undone, because they leave the cluster.
	Undone []string `json:"undone,omitempty"`
	// Steps on the cluster as a whole, such as drains.
	Steps []ClusterStep `json:"steps,omitempty"`
	// Rollout is the order in which the hosts change. It is not in the hash, since each run may choose
	// it.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Content is what the plan needs from external sources, whether it changes or not.
	Content Content `json:"content,omitzero"`
	// Outages describes, one text for each host, what does not answer during the changes, because the
	// cluster has only one etcd member or API server.
	Outages []string `json:"outages,omitempty"`
	// OnHosts is the hash of the changes on hosts alone, a part of Hash.
	OnHosts string `json:"-"`
}

// KindObject is the kind of a Change of an object in the cluster. The field Host of such a Change
// does not name a host.
const KindObject = "Object"

// ofCluster reports whether the change is that of an object in the cluster, and not of a host.
func (c Change) ofCluster() bool { return c.Kind == KindObject }

// StartsAPIServer reports whether the changes start an API server on any host, for the first time
// or again.
func (c *Changes) StartsAPIServer() bool {
	return slices.ContainsFunc(c.Items, func(i Change) bool { return i.Step == StepAPIServerUnit && i.Op != OpRemove })
}

// Nothing reports whether the plan changes nothing: no step on a host, no object, and no step on
// the cluster as a whole.
func (c *Changes) Nothing() bool { return len(c.Items)+len(c.Steps) == 0 }

// Undo adds changes that undo all steps that were applied to the named hosts, the latest step
// first. It adds the hosts to Undone, and sets OnHosts and Hash again. facts has the applied steps
// of each host. A host without facts adds no changes.
func (c *Changes) Undo(facts map[string]Facts, hosts ...string) {
	applied := map[string][]AppliedStep{}
	for _, name := range hosts {
		applied[name] = slices.Clone(facts[name].Applied.Steps)
		gone := make(map[string]AppliedStep, len(applied[name]))
		for i := range applied[name] {
			// The drift of a host without an agent is unknown, and drift does not matter for undoing. So the
			// hash does not cover it.
			applied[name][i].Drift = ""
			gone[applied[name][i].ID] = applied[name][i]
		}
		c.Items = append(c.Items, removals(name, applied[name], gone, nil)...)
	}
	c.Undone = append(c.Undone, hosts...)
	c.OnHosts = hash(struct {
		Hosts   string
		Undone  []string
		Applied map[string][]AppliedStep
	}{c.OnHosts, c.Undone, applied})
	c.SetCluster(c.Steps, c.Content)
}

// SetCluster sets the steps on the cluster as a whole and the content, and computes Hash again. The
// hash covers OnHosts, the steps, and the sources of objects. It does not cover images, because the
// images of charts are known only after rendering.
func (c *Changes) SetCluster(steps []ClusterStep, content Content) {
	c.Steps, c.Content = steps, content
	c.Hash = hash(struct {
		Hosts   string
		Steps   []ClusterStep
		Objects []Objects
	}{c.OnHosts, c.Steps, content.Objects})
}

// Diff compares a plan with the steps that were applied to its hosts, and returns the changes on
// the hosts. SetCluster later adds the steps on the cluster. Hosts that are not in the plan stay as
// they are. A host without facts gets all steps. old is the plan that was applied before, or nil.
// If it is set, the changes show diffs of contents, and what removed steps were.
func Diff(p *Plan, facts map[string]Facts, old *Plan) *Changes {
	c := &Changes{Cluster: p.Cluster, Items: []Change{}}
	before := placesOf(old)
	applied := map[string][]AppliedStep{}
	for _, h := range p.Hosts {
		applied[h.Name] = facts[h.Name].Applied.Steps
		c.Items = append(c.Items, diffHost(h, facts[h.Name], before[h.Name])...)
	}
	c.OnHosts = hash(struct {
		Plan    string
		Applied map[string][]AppliedStep
		Items   []Change
	}{p.Hash(), applied, c.Items})
	c.SetCluster(nil, Content{})
	return c
}

// place is a step of a plan with the ID of its stage.
type place struct {
	Step

	stage StageID
}

// placesOf returns the steps of a plan, each with its stage, by host and step ID. It returns an
// empty map for nil.
func placesOf(p *Plan) map[string]map[string]place {
	all := map[string]map[string]place{}
	if p == nil {
		return all
	}
	for _, h := range p.Hosts {
		all[h.Name] = map[string]place{}
		for _, stage := range h.Stages {
			for _, s := range stage.Steps {
				all[h.Name][s.ID] = place{Step: s, stage: stage.ID}
			}
		}
	}
	return all
}

// diffHost returns the changes of one host: first the removals, then the other changes in the order
// of the plan h. before has the steps of the plan that was applied before, by ID. It may be nil.
func diffHost(h Host, facts Facts, before map[string]place) []Change {
	applied := facts.Applied.Steps
	gone := make(map[string]AppliedStep, len(applied))
	for _, a := range applied {
		gone[a.ID] = a
	}
	var changes []Change
	for _, stage := range h.Stages {
		for _, s := range stage.Steps {
			a, ok := gone[s.ID]
			delete(gone, s.ID)
			change := Change{Host: h.Name, Stage: stage.ID, Step: s.ID, Kind: s.Kind(), Target: s.Target(), Disruption: cmp.Or(s.Disruption, DisruptionNone)}
			switch {
			case !ok:
				change.Op, change.Disruption = OpAdd, DisruptionNone
			case a.Hash != s.Hash():
				change.Op = OpChange
				if b, ok := before[s.ID]; ok && b.Hash() == a.Hash {
					change.Detail = contentDiff(b.Step, s)
				}
			case !a.Complete:
				change.Op, change.Detail = OpRepair, "was begun and not finished"
			case a.Drift != "":
				change.Op, change.Detail = OpRepair, a.Drift
			case s.ID == stepKubeletUnit && facts.Presence.Node == presence.Absent:
				change.Op, change.Detail = OpRepair, missingNode
			default:
				continue
			}
			changes = append(changes, change)
		}
	}
	return append(removals(h.Name, applied, gone, before), changes...)
}

// removals returns the changes that undo steps on a host, the latest applied step first. applied
// are the host's applied steps in their order, and gone has those to undo, by ID. before has steps
// of the earlier plan, by ID. A step that before lacks has a change without stage, kind and target.
func removals(host string, applied []AppliedStep, gone map[string]AppliedStep, before map[string]place) []Change {
	var changes []Change
	for _, a := range slices.Backward(applied) {
		if _, ok := gone[a.ID]; !ok {
			continue
		}
		change := Change{Host: host, Step: a.ID, Op: OpRemove, Disruption: removal(a.ID)}
		if b, ok := before[a.ID]; ok {
			change.Stage, change.Kind, change.Target = b.stage, b.Kind(), b.Target()
		}
		changes = append(changes, change)
	}
	return changes
}

// removal returns what undoing the step with this ID disturbs. It knows only the ID, because no
// plan may describe the step any more.
func removal(id string) Disruption {
	switch {
	case id == stepEtcdData:
		return DisruptionData
	case id == stepSweep, id == stepKubeletData, id == stepContainerdData:
		return DisruptionDrain
	case strings.HasSuffix(id, suffixUnit):
		return DisruptionRestart
	default:
		return DisruptionNone
	}
}

// Kind returns the kind of the step, such as File. It is "" if no pointer is set.
func (s Step) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target returns what the step is about: paths, the name of a unit, names of packages, or what a
// probe asks. It is "" for a Sweep, and if no pointer is set.
func (s Step) Target() string {
	_, target := s.describe()
	return target
}

// describe returns the results of Kind and Target.
func (s Step) describe() (kind, target string) {
	switch {
	case s.Directory != nil:
		return "Directory", s.Directory.Path
	case s.File != nil:
		return "File", s.File.Path
	case s.Artifact != nil:
		return "Artifact", strings.Join(slices.Sorted(maps.Values(s.Artifact.Files)), " ")
	case s.Sysctls != nil:
		return "Sysctls", s.Sysctls.Path
	case s.Modules != nil:
		return "Modules", s.Modules.Path
	case s.Packages != nil:
		return "Packages", strings.Join(s.Packages.Names, " ")
	case s.Script != nil:
		return "Script", strings.TrimPrefix(s.ID, "script/")
	case s.Unit != nil:
		return "Unit", s.Unit.Name
	case s.Sweep != nil:
		return "Sweep", ""
	case s.Probe != nil:
		return "Probe", s.Probe.target()
	default:
		return "", ""
	}
}

// target returns what the probe asks: a URL, a TCP address, or a command line.
func (p Probe) target() string {
	switch {
	case p.URL != "":
		return p.URL
	case p.TCP != "":
		return p.TCP
	default:
		return strings.Join(p.Exec, " ")
	}
}

// content returns what the step puts on a host as lines of text, for a diff. It is "" for a secret
// File, and for kinds of steps without lines to compare, such as Directory and Script.
func (s Step) content() string {
	switch {
	case s.File != nil && !s.File.Secret:
		return s.File.Content
	case s.Artifact != nil:
		return s.Artifact.Blob + "\n"
	case s.Sysctls != nil:
		return assignments(s.Sysctls.Values)
	case s.Modules != nil:
		return strings.Join(s.Modules.Names, "\n") + "\n"
	case s.Unit != nil:
		u := *s.Unit
		// InputHash is left out, because the files that the unit reads have changes of their own.
		return strings.Join(u.Command, "\n") + "\n" + assignments(u.Env)
	default:
		return ""
	}
}

// assignments formats a map as lines KEY=VALUE, sorted by key.
func assignments(values map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s=%s\n", key, values[key])
	}
	return b.String()
}

// contentDiff returns a unified diff of the contents of two versions of a step. It is "" if the
// contents are equal, or if one of the steps is a secret File.
func contentDiff(from, to Step) string {
	a, b := from.content(), to.content()
	if a == b || (from.File != nil && from.File.Secret) || (to.File != nil && to.File.Secret) {
		return ""
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: slices.Collect(strings.Lines(a)), B: slices.Collect(strings.Lines(b)), FromFile: from.Target(), ToFile: to.Target(), Context: 3,
	})
	if err != nil { // writing to memory does not fail
		return ""
	}
	return text
}
