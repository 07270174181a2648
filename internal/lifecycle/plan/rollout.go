package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

// Rollout is the order in which hosts change: waves, one after the other.
type Rollout struct {
	Waves []Wave `json:"waves,omitempty"`
	// PauseBetween is the pause between waves that disturb something.
	PauseBetween time.Duration `json:"pauseBetween,omitempty"`
	// HaltAfter is the number of failed hosts after which the rollout stops. Later waves skip hosts
	// that have failed.
	HaltAfter int `json:"haltAfter"`
}

// Wave is a set of tasks that ends before the next wave begins.
type Wave struct {
	Name WaveName `json:"name"`
	// AtATime is how many tasks run in parallel. Zero means all.
	AtATime int    `json:"atATime,omitempty"`
	Tasks   []Task `json:"tasks"`
}

// WaveName is the kind of a wave.
type WaveName string

// The waves, in their order.
const (
	// WaveTogether disturbs nothing: new hosts, changes without a restart, and repairs of components
	// that are down.
	WaveTogether WaveName = "together"
	// WaveJoin adds members to an existing etcd cluster, one after the other.
	WaveJoin WaveName = "join etcd"
	// WaveJoined has the remaining stages of hosts that joined.
	WaveJoined WaveName = "after joining etcd"
	// WaveEtcd restarts etcd members and what is below them.
	WaveEtcd WaveName = "etcd"
	// WaveAPIServers restarts API servers, controller managers and schedulers.
	WaveAPIServers WaveName = "API servers"
	// WaveKubelets restarts kubelets of control planes. It comes after all API servers, because no
	// kubelet may be newer than one of them.
	WaveKubelets WaveName = "kubelets of control planes"
	// WaveWorkers has all stages of the workers.
	WaveWorkers WaveName = "workers"
)

// Disturbs reports whether the wave disturbs what runs.
func (w Wave) Disturbs() bool {
	return w.Name == WaveEtcd || w.Name == WaveAPIServers || w.Name == WaveKubelets || w.Name == WaveWorkers
}

// Task is the work of a wave on one host: steps in the cluster, stages of the host, steps in the
// cluster.
type Task struct {
	Host   string        `json:"host"`
	Before []ClusterStep `json:"before,omitempty"`
	// Remove are the steps that are undone first.
	Remove []string      `json:"remove,omitempty"`
	Stages []StageID     `json:"stages"`
	After  []ClusterStep `json:"after,omitempty"`
	// Joins is true if the etcd member is added before its stage, and promoted while it starts.
	Joins bool `json:"joins,omitempty"`
	// Gated is true if safety checks of the whole control plane run before and after the task. Etcd
	// and APIServer are true if the task restarts them.
	Gated     bool `json:"gated,omitempty"`
	Etcd      bool `json:"etcd,omitempty"`
	APIServer bool `json:"apiServer,omitempty"`
	// Last is true for the last task of the host.
	Last bool `json:"last,omitempty"`
}

// RolloutOptions are the settings of a rollout, and what is known of the hosts.
type RolloutOptions struct {
	// MaxUnavailable is how many workers are disturbed in parallel. Zero means one.
	MaxUnavailable int
	PauseBetween   time.Duration
	HaltAfter      int
	// Mends has the hosts whose work only repairs components that are down.
	Mends map[string]bool
	// Mute has the hosts whose kubelets cannot be reached, so that pods cannot be moved from them.
	Mute map[string]bool
	// Joins has the hosts whose etcd joins, or joined, an existing etcd cluster.
	Joins map[string]bool
	// Part has the hosts of the cluster as it was applied last. It is empty until the cluster is
	// built.
	Part map[string]bool
}

// rolls reports whether the work disturbs what runs, so that it must not run on all hosts at once.
//
// On a host of the built cluster, every restart disturbs. On any other host, restarts disturb once
// all stages of the host have succeeded. Before that, hosts may wait for each other. A member of
// etcd and an API server belong to the built cluster as soon as they run, also on a host that was
// added only in part.
func (o RolloutOptions) rolls(w Work) bool {
	if !Worse(w.Restarts.Worst, DisruptionReload) {
		return false
	}
	return o.settled(w) || len(o.Part) > 0 && w.Restarts.ControlPlane()
}

// settled reports whether the host may run pods: it is part of the built cluster, or all its stages
// have succeeded.
func (o RolloutOptions) settled(w Work) bool { return o.Part[w.Host.Name] || !w.Unbuilt }

// MakeRollout orders the work on hosts. It is pure.
func MakeRollout(p *Plan, works []Work, o RolloutOptions) *Rollout {
	m := rolloutMaker{plan: p, options: o}
	var controlPlanes, workers []Work
	for _, w := range works {
		switch {
		case o.Mends[w.Host.Name] || !o.rolls(w):
			m.together(w)
		case slices.Contains(w.Host.Roles, clusterv1alpha1.RoleControlPlane), slices.Contains(w.Host.Roles, clusterv1alpha1.RoleEtcd):
			controlPlanes = append(controlPlanes, w)
		default:
			workers = append(workers, w)
		}
	}
	for _, w := range controlPlanes {
		m.controlPlane(w)
	}
	for _, w := range workers {
		m.add(WaveWorkers, m.task(w, w.stages(Stages...)))
	}
	return m.rollout()
}

type rolloutMaker struct {
	plan    *Plan
	options RolloutOptions
	tasks   map[WaveName][]Task
}

func (m *rolloutMaker) add(wave WaveName, t Task) {
	if m.tasks == nil {
		m.tasks = map[WaveName][]Task{}
	}
	if len(t.Stages) > 0 {
		m.tasks[wave] = append(m.tasks[wave], t)
	}
}

// together adds a host that waits for no other, except for joining etcd one by one.
func (m *rolloutMaker) together(w Work) {
	name := w.Host.Name
	task := func(stages []StageID) Task { return Task{Host: name, Stages: stages, Remove: w.removeIn(stages)} }
	joining := m.options.Joins[name] && len(w.stages(StageEtcd)) > 0
	if !joining || m.options.Mends[name] || w.Member {
		// Its etcd was started, so it is a member already. The others may need it for a quorum, although
		// it may still be a learner.
		t := task(w.stages(Stages...))
		t.Joins = joining
		m.add(WaveTogether, t)
		return
	}
	m.add(WaveTogether, task(w.stages(StageSystem)))
	joins := task(w.stages(StageEtcd))
	joins.Joins = true
	m.add(WaveJoin, joins)
	m.add(WaveJoined, task(w.stages(StageControlPlane, StageNode)))
}

// controlPlane adds a host that is changed component by component. The API servers of all control
// planes change before the first of their kubelets.
func (m *rolloutMaker) controlPlane(w Work) {
	for _, wave := range []struct {
		name   WaveName
		stages []StageID
	}{
		{WaveEtcd, []StageID{StageSystem, StageEtcd}},
		{WaveAPIServers, []StageID{StageControlPlane}},
		{WaveKubelets, []StageID{StageNode}},
	} {
		t := m.task(w, w.stages(wave.stages...))
		t.Gated = true
		restarts := w.restartsIn(t)
		t.Etcd, t.APIServer = restarts.Etcd, restarts.APIServer
		t.Joins = m.options.Joins[w.Host.Name] && slices.Contains(t.Stages, StageEtcd)
		m.add(wave.name, t)
	}
}

// task returns a task for some stages of a host. It drains the node if the stages disturb its pods.
func (m *rolloutMaker) task(w Work, stages []StageID) Task {
	t := Task{Host: w.Host.Name, Stages: stages, Remove: w.removeIn(stages)}
	if w.Node && !m.options.Mute[w.Host.Name] && m.options.settled(w) && Worse(w.restartsIn(t).Worst, DisruptionRestart) {
		t.Before, t.After = w.around(m.plan)
	}
	return t
}

// rollout puts the waves in their order. With a pause, a wave that disturbs is split into waves of
// AtATime tasks.
func (m *rolloutMaker) rollout() *Rollout {
	r := &Rollout{PauseBetween: m.options.PauseBetween, HaltAfter: max(1, m.options.HaltAfter)}
	for _, wave := range []Wave{
		{Name: WaveTogether},
		{Name: WaveJoin, AtATime: 1},
		{Name: WaveJoined},
		{Name: WaveEtcd, AtATime: 1},
		{Name: WaveAPIServers, AtATime: 1},
		{Name: WaveKubelets, AtATime: 1},
		{Name: WaveWorkers, AtATime: max(1, m.options.MaxUnavailable)},
	} {
		wave.Tasks = m.tasks[wave.Name]
		switch {
		case len(wave.Tasks) == 0:
		case r.PauseBetween > 0 && wave.Disturbs():
			for tasks := range slices.Chunk(wave.Tasks, wave.AtATime) {
				r.Waves = append(r.Waves, Wave{Name: wave.Name, AtATime: wave.AtATime, Tasks: tasks})
			}
		default:
			r.Waves = append(r.Waves, wave)
		}
	}
	done := map[string]bool{}
	for _, wave := range slices.Backward(r.Waves) {
		for i := range wave.Tasks {
			t := &wave.Tasks[i]
			t.Last, done[t.Host] = !done[t.Host], true
		}
	}
	return r
}

// stages returns those stages of the work that are among the given ones.
func (w Work) stages(among ...StageID) []StageID {
	var ids []StageID
	for _, s := range w.Stages {
		if slices.Contains(among, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// removeIn returns the steps to undo before stages: all of them if stages begins with the first
// stage of the work, else none.
func (w Work) removeIn(stages []StageID) []string {
	if len(stages) == 0 || stages[0] != w.Stages[0].ID {
		return nil
	}
	return w.Remove
}

// restartsIn returns what a task restarts.
func (w Work) restartsIn(t Task) Restarts {
	return RestartsOf(slices.DeleteFunc(slices.Clone(w.Changes), func(i Change) bool { return !w.does(t, i) }))
}

// does reports whether a task makes a change.
func (w Work) does(t Task, i Change) bool {
	if i.Op == OpRemove {
		return slices.Contains(t.Remove, i.Step)
	}
	return slices.Contains(t.Stages, i.Stage)
}

// Steps returns the steps in the cluster of all tasks, each once, in the order of the waves.
func (r *Rollout) Steps() []ClusterStep {
	var steps []ClusterStep
	for _, wave := range r.Waves {
		for _, t := range wave.Tasks {
			for _, s := range slices.Concat(t.Before, t.After) {
				if !slices.ContainsFunc(steps, func(had ClusterStep) bool { return had.ID == s.ID }) {
					steps = append(steps, s)
				}
			}
		}
	}
	return steps
}

// Print writes the order as text: by wave, how many tasks in parallel, and the work on each host.
func (r *Rollout) Print(w io.Writer) {
	var b strings.Builder
	for i, wave := range r.Waves {
		at := "all at once"
		if wave.AtATime > 0 {
			at = fmt.Sprintf("%d at a time", wave.AtATime)
		}
		if i > 0 && r.PauseBetween > 0 && wave.Disturbs() && r.Waves[i-1].Disturbs() {
			_ = neutral.Fprintf(&b, "  pause %s\n", r.PauseBetween)
		}
		_ = neutral.Fprintf(&b, "  wave %d: %s, %s\n", i+1, wave.Name, at)
		for _, t := range wave.Tasks {
			_ = neutral.Fprintf(&b, "    %s\n", t)
		}
	}
	_, _ = io.WriteString(w, b.String()) // ignored as fmt.Println does
}

// String describes a task in one line.
func (t Task) String() string {
	var parts []string
	if t.Gated {
		parts = append(parts, "gate")
	}
	for _, s := range t.Before {
		parts = append(parts, s.Kind())
	}
	if len(t.Remove) > 0 {
		parts = append(parts, fmt.Sprintf("undo %d", len(t.Remove)))
	}
	for _, s := range t.Stages {
		if t.Joins && s == StageEtcd {
			parts = append(parts, "EtcdMemberAdd", string(s), "EtcdMemberPromote")
			continue
		}
		parts = append(parts, string(s))
	}
	for _, s := range t.After {
		parts = append(parts, s.Kind())
	}
	if t.Gated {
		parts = append(parts, "gate")
	}
	return t.Host + ": " + strings.Join(parts, ", ")
}
