package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

// Op is what is done with a step.
type Op string

// The operations.
const (
	// OpAdd does a step that was not there.
	OpAdd Op = "add"
	// OpChange does a step again, because it is to be otherwise.
	OpChange Op = "change"
	// OpRepair does a step again, because the host is not as it was left, or because it was not finished.
	OpRepair Op = "repair"
	// OpRemove undoes a step.
	OpRemove Op = "remove"
)

// Change is one step that is done or undone on a host.
type Change struct {
	Host  string  `json:"host"`
	Stage StageID `json:"stage,omitempty"`
	Step  string  `json:"step"`
	// Kind of the step, such as File. It is empty for a step that is removed and not known any more.
	Kind string `json:"kind,omitempty"`
	Op   Op     `json:"op"`
	// Target is what is changed: a path, or the name of a unit.
	Target     string     `json:"target,omitempty"`
	Disruption Disruption `json:"disruption"`
	// Detail is a unified diff, or how the host differs from what was applied. It never has secrets.
	Detail string `json:"detail,omitempty"`
}

// Changes are what a run would do.
type Changes struct {
	Cluster string `json:"cluster"`
	// Hash changes when anything does that the run would do, or what it starts from.
	Hash  string   `json:"hash"`
	Items []Change `json:"items"`
	// Undone names the hosts on which all that was done is undone.
	Undone []string `json:"undone,omitempty"`
	// Steps are done to the cluster as a whole.
	Steps []ClusterStep `json:"steps,omitempty"`
	// Rollout is the order in which the hosts are changed. It is no part of the hash: whoever runs it says how careful it is.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Content is what the plan needs from elsewhere, whether something of it changes or not.
	Content Content `json:"content,omitzero"`
	// Outages say what of the cluster does not answer meanwhile, because there is no spare of it.
	Outages []string `json:"outages,omitempty"`
	// OnHosts is the hash of what is done on hosts.
	OnHosts string `json:"-"`
}

// Nothing reports whether there is nothing to do.
func (c *Changes) Nothing() bool { return len(c.Items)+len(c.Steps) == 0 }

// Undo adds hosts on which all that was done is undone.
func (c *Changes) Undo(facts map[string]Facts, hosts ...string) {
	applied := map[string][]AppliedStep{}
	for _, name := range hosts {
		applied[name] = slices.Clone(facts[name].Applied.Steps)
		gone := make(map[string]AppliedStep, len(applied[name]))
		for i := range applied[name] {
			// How a step drifted is not known of a host that lost its agent, and says nothing of how it is undone.
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

// SetCluster sets what is done to the cluster as a whole, and what comes from elsewhere. The hash covers both, but the images: those
// of charts are known by rendering only.
func (c *Changes) SetCluster(steps []ClusterStep, content Content) {
	c.Steps, c.Content = steps, content
	c.Hash = hash(struct {
		Hosts   string
		Steps   []ClusterStep
		Objects []Objects
	}{c.OnHosts, c.Steps, content.Objects})
}

// Diff compares a plan with what was applied to its hosts. The old plan, which may be nil, is used to show how contents
// differ. Hosts that are not in the plan are left as they are.
func Diff(p *Plan, facts map[string]Facts, old *Plan) *Changes {
	c := &Changes{Cluster: p.Cluster, Items: []Change{}}
	before := placesOf(old)
	applied := map[string][]AppliedStep{}
	for _, h := range p.Hosts {
		applied[h.Name] = facts[h.Name].Applied.Steps
		c.Items = append(c.Items, diffHost(h, applied[h.Name], before[h.Name])...)
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

// placesOf are the steps of a plan, by host and by ID.
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

func diffHost(h Host, applied []AppliedStep, before map[string]place) []Change {
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
			default:
				continue
			}
			changes = append(changes, change)
		}
	}
	return append(removals(h.Name, applied, gone, before), changes...)
}

// removals are the steps that are applied and no longer planned, latest first: so they are undone.
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

// removal is what undoing a step disturbs. Its ID says so, for the step may not be known any more.
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

// Kind of a step, such as File.
func (s Step) Kind() string {
	kind, _ := s.describe()
	return kind
}

// Target of a step: a path, the name of a unit, or what else it is about.
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

// content of a step as lines of text, empty if it is secret or has none that says more than its target.
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
		// Of what the unit reads there is a change of its own.
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

// contentDiff is a unified diff of what two steps with one ID put on a host, empty if that is secret.
func contentDiff(from, to Step) string {
	a, b := from.content(), to.content()
	if a == b || (from.File != nil && from.File.Secret) || (to.File != nil && to.File.Secret) {
		return ""
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: slices.Collect(strings.Lines(a)), B: slices.Collect(strings.Lines(b)), FromFile: from.Target(), ToFile: to.Target(), Context: 3,
	})
	if err != nil { // it is written to memory
		return ""
	}
	return text
}
