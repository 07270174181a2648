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

// Rollout is the order in which a run changes the hosts: waves of tasks, one wave after another.
// MakeRollout makes it.
type Rollout struct {
	Waves []Wave `json:"waves,omitempty"`
	// PauseBetween is how long the run waits between two waves that disturb something.
	PauseBetween time.Duration `json:"pauseBetween,omitempty"`
	// HaltAfter is the number of failed hosts after which the rollout stops. Until then, later waves
	// skip the hosts that have failed.
	HaltAfter int `json:"haltAfter"`
}

// Wave is a set of tasks on different hosts. All tasks end before the next wave begins.
type Wave struct {
	Name WaveName `json:"name"`
	// AtATime is how many tasks run in parallel. Zero means all.
	AtATime int    `json:"atATime,omitempty"`
	Tasks   []Task `json:"tasks"`
}

// WaveName is the kind of a wave, as it is shown to the user.
type WaveName string

// Values of WaveName, in the order of the waves.
const (
	// WaveTogether is the wave of all work that disturbs nothing: new hosts, changes without a
	// restart, and repairs of components that are down.
	WaveTogether WaveName = "together"
	// WaveJoin is the wave that adds members to an existing etcd cluster, one after another.
	WaveJoin WaveName = "join etcd"
	// WaveJoined is the wave with the remaining stages of hosts whose etcd joined in WaveJoin.
	WaveJoined WaveName = "after joining etcd"
	// WaveEtcd is the wave that restarts etcd members, one after another. It also does the stage
	// system of their hosts.
	WaveEtcd WaveName = "etcd"
	// WaveAPIServers is the wave that restarts API servers, controller managers and schedulers, host
	// by host.
	WaveAPIServers WaveName = "API servers"
	// WaveKubelets is the wave that restarts kubelets of control planes, host by host. It comes after
	// all API servers, because no kubelet may be newer than an API server.
	WaveKubelets WaveName = "kubelets of control planes"
	// WaveWorkers is the wave with all stages of workers whose work disturbs what runs.
	WaveWorkers WaveName = "workers"
)

// Disturbs reports whether the tasks of the wave disturb what runs. It depends only on the name:
// WaveTogether, WaveJoin and WaveJoined do not.
func (w Wave) Disturbs() bool {
	return w.Name == WaveEtcd || w.Name == WaveAPIServers || w.Name == WaveKubelets || w.Name == WaveWorkers
}

// Task is the work of a wave on one host. The run does the steps Before on the cluster, then the
// stages on the host, and then the steps After on the cluster.
type Task struct {
	Host   string        `json:"host"`
	Before []ClusterStep `json:"before,omitempty"`
	// Remove are the IDs of the steps that are undone first.
	Remove []string      `json:"remove,omitempty"`
	Stages []StageID     `json:"stages"`
	After  []ClusterStep `json:"after,omitempty"`
	// Joins is true if the host's etcd member is added to etcd before the stage etcd, and promoted
	// while that stage runs.
	Joins bool `json:"joins,omitempty"`
	// SafetyChecked is true if safety checks of the whole control plane run before and after the
	// task. Etcd and APIServer are true if the task restarts them.
	SafetyChecked bool `json:"gated,omitempty"`
	Etcd          bool `json:"etcd,omitempty"`
	APIServer     bool `json:"apiServer,omitempty"`
	// Last is true for the last task of the host.
	Last bool `json:"last,omitempty"`
}

// RolloutOptions are the settings of a rollout, and what is known of the hosts, for MakeRollout.
type RolloutOptions struct {
	// MaxUnavailable is how many workers are disturbed in parallel. Zero means one.
	MaxUnavailable int
	PauseBetween   time.Duration
	HaltAfter      int // zero means one
	// Repairs has the hosts whose work only repairs components that are down.
	Repairs map[string]bool
	// Mute has the hosts whose kubelets the API server may not reach, because their certificates have
	// expired. Pods cannot be moved from them.
	Mute map[string]bool
	// Joins has the hosts whose etcd joins, or joined, an existing etcd cluster.
	Joins map[string]bool
	// Part has the hosts in the spec that was applied last. It is empty until the cluster is built.
	Part map[string]bool
}

// rolls reports whether the work on a host disturbs what runs, so that it must not be done on all
// hosts at once.
//
// On a host of the built cluster, every restart disturbs. On any other host, restarts disturb once
// all stages of the host have succeeded. Before that, hosts may wait for each other. An etcd member
// and an API server belong to the built cluster as soon as they run. That is also true on a host
// that was added only in part.
func (o RolloutOptions) rolls(w Work) bool {
	if !Worse(w.Restarts.Worst, DisruptionReload) {
		return false
	}
	return o.settled(w) || len(o.Part) > 0 && w.Restarts.ControlPlane()
}

// settled reports whether the host may already run pods: it is part of the built cluster, or all
// its stages have succeeded.
func (o RolloutOptions) settled(w Work) bool { return o.Part[w.Host.Name] || !w.Unbuilt }

// MakeRollout orders the work on the hosts of a plan in waves. Waves without tasks are left out.
// The last task of each host has Last. works comes from Works. It is a pure function.
func MakeRollout(p *Plan, works []Work, o RolloutOptions) *Rollout {
	m := rolloutMaker{plan: p, options: o}
	var controlPlanes, workers []Work
	for _, w := range works {
		switch {
		case o.Repairs[w.Host.Name] || !o.rolls(w):
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

// rolloutMaker collects the tasks of a rollout, by wave, for MakeRollout.
type rolloutMaker struct {
	plan    *Plan
	options RolloutOptions
	tasks   map[WaveName][]Task
}

// add adds a task to a wave, unless the task has no stages.
func (m *rolloutMaker) add(wave WaveName, t Task) {
	if m.tasks == nil {
		m.tasks = map[WaveName][]Task{}
	}
	if len(t.Stages) > 0 {
		m.tasks[wave] = append(m.tasks[wave], t)
	}
}

// together adds the tasks of a host whose work disturbs nothing: one task in WaveTogether. If the
// host's etcd joins an existing one, its stages are divided between WaveTogether, WaveJoin and
// WaveJoined.
func (m *rolloutMaker) together(w Work) {
	name := w.Host.Name
	task := func(stages []StageID) Task { return Task{Host: name, Stages: stages, Remove: w.removeIn(stages)} }
	joining := m.options.Joins[name] && len(w.stages(StageEtcd)) > 0
	if !joining || m.options.Repairs[name] || w.Member {
		// The etcd of the host was started, so the host has a member already. Other members may need this
		// member for a quorum, although it may still be a learner.
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

// controlPlane adds the tasks of a control plane or etcd host whose work disturbs what runs: one
// for etcd, one for the API server and one for the kubelet, each with safety checks. The API
// servers of all hosts change before the first of their kubelets.
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
		t.SafetyChecked = true
		restarts := w.restartsIn(t)
		t.Etcd, t.APIServer = restarts.Etcd, restarts.APIServer
		t.Joins = m.options.Joins[w.Host.Name] && slices.Contains(t.Stages, StageEtcd)
		m.add(wave.name, t)
	}
}

// task returns a task for some stages of a host. If the stages disturb pods of the host, the task
// drains the node before them. It does not drain if the kubelet cannot be reached, or if the host
// cannot run pods yet.
func (m *rolloutMaker) task(w Work, stages []StageID) Task {
	t := Task{Host: w.Host.Name, Stages: stages, Remove: w.removeIn(stages)}
	if w.Node && !m.options.Mute[w.Host.Name] && m.options.settled(w) && Worse(w.restartsIn(t).Worst, DisruptionRestart) {
		t.Before, t.After = w.around(m.plan)
	}
	return t
}

// rollout returns the collected tasks as waves in their order, without empty ones. If there is a
// pause between waves, a wave that disturbs is split into waves of AtATime tasks.
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

// stages returns the IDs of those stages of the work that are among the given ones, in the order of
// the work.
func (w Work) stages(among ...StageID) []StageID {
	var ids []StageID
	for _, s := range w.Stages {
		if slices.Contains(among, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// removeIn returns the IDs of the steps that a task with these stages must undo first. A task with
// the first stage of the work undoes all of w.Remove, and other tasks undo none. So each step is
// undone only once.
func (w Work) removeIn(stages []StageID) []string {
	if len(stages) == 0 || stages[0] != w.Stages[0].ID {
		return nil
	}
	return w.Remove
}

// restartsIn returns what a task with a part of the work restarts or stops on the host.
func (w Work) restartsIn(t Task) Restarts {
	return RestartsOf(slices.DeleteFunc(slices.Clone(w.Changes), func(i Change) bool { return !w.does(t, i) }))
}

// does reports whether a task makes a change: it undoes the step of the change, or runs its stage.
func (w Work) does(t Task, i Change) bool {
	if i.Op == OpRemove {
		return slices.Contains(t.Remove, i.Step)
	}
	return slices.Contains(t.Stages, i.Stage)
}

// Steps returns the steps on the cluster of all tasks, such as drains, in the order of the waves. A
// step that several tasks have is listed once.
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

// Print writes the rollout as text for the user: each wave, how many tasks run in parallel, and the
// work on each host. Control characters are replaced, and errors of w are ignored.
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

// String describes the task in one line: the host, and in order what is done with it.
func (t Task) String() string {
	var parts []string
	if t.SafetyChecked {
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
	if t.SafetyChecked {
		parts = append(parts, "gate")
	}
	return t.Host + ": " + strings.Join(parts, ", ")
}
