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

// Op is what is done with a step.
type Op string

// The operations.
const (
	// OpAdd does a step for the first time.
	OpAdd Op = "add"
	// OpChange does a step again, because the plan has changed it.
	OpChange Op = "change"
	// OpRepair does a step again, because the host differs from what was applied, or the step was not
	// finished.
	OpRepair Op = "repair"
	// OpRemove undoes a step.
	OpRemove Op = "remove"
)

// Change is a step that is done or undone on a host.
type Change struct {
	Host  string  `json:"host"`
	Stage StageID `json:"stage,omitempty"`
	Step  string  `json:"step"`
	// Kind of the step, such as File. It is empty for a removed step that is not known any more.
	Kind string `json:"kind,omitempty"`
	Op   Op     `json:"op"`
	// Target is what changes: a path, or the name of a unit.
	Target     string     `json:"target,omitempty"`
	Disruption Disruption `json:"disruption"`
	// Detail is a unified diff, or how the host differs from what was applied. It contains no secrets.
	Detail string `json:"detail,omitempty"`
}

// Changes are what a run would do.
type Changes struct {
	Cluster string `json:"cluster"`
	// Hash covers everything that the run would do, and the state that it starts from.
	Hash  string   `json:"hash"`
	Items []Change `json:"items"`
	// Undone names the hosts on which all steps are undone.
	Undone []string `json:"undone,omitempty"`
	// Steps in the cluster as a whole.
	Steps []ClusterStep `json:"steps,omitempty"`
	// Rollout is the order in which the hosts change. It is not in the hash, since each run may choose
	// it.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Content is what the plan needs from external sources, whether it changes or not.
	Content Content `json:"content,omitzero"`
	// Outages describes what does not answer during the changes, because the cluster has no spare.
	Outages []string `json:"outages,omitempty"`
	// OnHosts is the hash of the changes on hosts.
	OnHosts string `json:"-"`
}

// KindObject is the kind of a Change of an object in the cluster. Its Host is no host.
const KindObject = "Object"

// ofCluster reports whether the change is one of the cluster, not of a host.
func (c Change) ofCluster() bool { return c.Kind == KindObject }

// StartsAPIServer reports whether an API server is started, for the first time or again.
func (c *Changes) StartsAPIServer() bool {
	return slices.ContainsFunc(c.Items, func(i Change) bool { return i.Step == StepAPIServerUnit && i.Op != OpRemove })
}

// Nothing reports whether there is nothing to do.
func (c *Changes) Nothing() bool { return len(c.Items)+len(c.Steps) == 0 }

// Undo adds the removal of all applied steps on hosts.
func (c *Changes) Undo(facts map[string]Facts, hosts ...string) {
	applied := map[string][]AppliedStep{}
	for _, name := range hosts {
		applied[name] = slices.Clone(facts[name].Applied.Steps)
		gone := make(map[string]AppliedStep, len(applied[name]))
		for i := range applied[name] {
			// A host without agent has no known drift, and drift does not matter for undoing.
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

// SetCluster sets the steps in the cluster and the content. The hash covers both, except for
// images: those of charts are known only by rendering.
func (c *Changes) SetCluster(steps []ClusterStep, content Content) {
	c.Steps, c.Content = steps, content
	c.Hash = hash(struct {
		Hosts   string
		Steps   []ClusterStep
		Objects []Objects
	}{c.OnHosts, c.Steps, content.Objects})
}

// Diff compares a plan with what was applied to its hosts. Hosts that are not in the plan stay as
// they are. With the old plan, the changes have diffs of contents. old may be nil.
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

// place is a step with its stage.
type place struct {
	Step

	stage StageID
}

// placesOf returns the steps of a plan, by host and step ID. p may be nil.
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

// removals returns the applied steps that are not planned any more, in the order of undoing: the
// latest first.
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

// removal returns what undoing a step disturbs, by its ID, since the step may not be known any
// more.
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

// Kind returns the kind of a step, such as File.
func (s Step) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target returns what a step is about: a path, the name of a unit, or similar.
func (s Step) Target() string {
	_, target := s.describe()
	return target
}

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

// content returns the content of a step as lines. It is empty if it is secret, or says no more than
// the target.
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
		// The files that the unit reads have changes of their own.
		return strings.Join(u.Command, "\n") + "\n" + assignments(u.Env)
	default:
		return ""
	}
}

func assignments(values map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s=%s\n", key, values[key])
	}
	return b.String()
}

// contentDiff returns a unified diff of the contents of two steps. It is empty for secret contents.
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
