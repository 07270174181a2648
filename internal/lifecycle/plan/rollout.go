package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Rollout is the order in which hosts are brought to a plan: waves, one after the other. Who runs it decides nothing.
type Rollout struct {
	Waves []Wave `json:"waves,omitempty"`
	// PauseBetween waves that disturb something.
	PauseBetween time.Duration `json:"pauseBetween,omitempty"`
	// HaltAfter so many hosts have failed, nothing more is begun; those that have failed are left out of later waves.
	HaltAfter int `json:"haltAfter"`
}

// Wave is what is done on some hosts before anything of the next wave is.
type Wave struct {
	Name WaveName `json:"name"`
	// AtATime is how many of the tasks go at the same time; zero is all.
	AtATime int    `json:"atATime,omitempty"`
	Tasks   []Task `json:"tasks"`
}

// WaveName says what a wave is about.
type WaveName string

// The waves, in their order.
const (
	// WaveTogether disturbs nobody: new hosts, what is taken up without a restart, and what only mends.
	WaveTogether WaveName = "together"
	// WaveJoin has members join an etcd that is there, each told those before it.
	WaveJoin WaveName = "join etcd"
	// WaveJoined is what comes after on these hosts.
	WaveJoined WaveName = "after joining etcd"
	// WaveEtcd restarts members of etcd, and what is below them.
	WaveEtcd WaveName = "etcd"
	// WaveAPIServers restarts API servers, controller managers and schedulers.
	WaveAPIServers WaveName = "API servers"
	// WaveKubelets restarts what is on the nodes of control planes, after all API servers: no kubelet is newer than one of them.
	WaveKubelets WaveName = "kubelets of control planes"
	// WaveWorkers is all of the workers.
	WaveWorkers WaveName = "workers"
)

// Disturbs reports whether what runs notices the wave.
func (w Wave) Disturbs() bool {
	return w.Name == WaveEtcd || w.Name == WaveAPIServers || w.Name == WaveKubelets || w.Name == WaveWorkers
}

// Task is what a wave does on one host: steps of the cluster, stages of the host, steps of the cluster.
type Task struct {
	Host   string        `json:"host"`
	Before []ClusterStep `json:"before,omitempty"`
	// Remove are the steps that are undone first.
	Remove []string      `json:"remove,omitempty"`
	Stages []StageID     `json:"stages"`
	After  []ClusterStep `json:"after,omitempty"`
	// Joins: the member of etcd is added before its stage, and promoted while it starts.
	Joins bool `json:"joins,omitempty"`
	// Gated: all of the control plane must allow it, and be well again after it. Etcd and APIServer are what restarts of it.
	Gated     bool `json:"gated,omitempty"`
	Etcd      bool `json:"etcd,omitempty"`
	APIServer bool `json:"apiServer,omitempty"`
	// Last: the host is given up after it.
	Last bool `json:"last,omitempty"`
}

// RolloutOptions are what an order depends on beside the work.
type RolloutOptions struct {
	// MaxUnavailable is how many workers are disturbed at a time.
	MaxUnavailable int
	PauseBetween   time.Duration
	HaltAfter      int
	// Mends names the hosts of which all that the work disturbs is down already.
	Mends map[string]bool
	// Mute names the hosts whose kubelets can be told nothing: nothing can be moved away from them.
	Mute map[string]bool
	// Joins names the hosts whose etcd joins, or joined, one that is there.
	Joins map[string]bool
}

// MakeRollout orders the work on hosts. It is pure.
func MakeRollout(p *Plan, works []Work, o RolloutOptions) *Rollout {
	m := rolloutMaker{plan: p, options: o}
	var controlPlanes, workers []Work
	for _, w := range works {
		switch {
		case o.Mends[w.Host.Name] || !w.Rolls():
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

// together is a host that waits for no other, but for its turn to join etcd.
func (m *rolloutMaker) together(w Work) {
	name := w.Host.Name
	task := func(stages []StageID) Task { return Task{Host: name, Stages: stages, Remove: w.removeIn(stages)} }
	joining := m.options.Joins[name] && len(w.stages(StageEtcd)) > 0
	if !joining || m.options.Mends[name] || w.Member {
		// One whose etcd was started is a member already, which the others may need for a quorum, but may have no vote yet.
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

// controlPlane is a host that is disturbed component by component: what another control plane must have before its kubelet changes
// comes first on all of them.
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
		t.Etcd, t.APIServer = w.restarts(t, StepEtcdUnit), w.restarts(t, StepAPIServerUnit)
		t.Joins = m.options.Joins[w.Host.Name] && slices.Contains(t.Stages, StageEtcd)
		m.add(wave.name, t)
	}
}

// task is some stages of a host, between a drain and its end if pods would notice them.
func (m *rolloutMaker) task(w Work, stages []StageID) Task {
	t := Task{Host: w.Host.Name, Stages: stages, Remove: w.removeIn(stages)}
	if w.Node && !m.options.Mute[w.Host.Name] && Worse(w.worstOf(t), DisruptionRestart) {
		t.Before, t.After = w.around(m.plan)
	}
	return t
}

// rollout puts the waves in their order. With a pause, a wave that disturbs is as many waves as there are tasks that go at a time.
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

// stages of the work, of those that are asked for.
func (w Work) stages(among ...StageID) []StageID {
	var ids []StageID
	for _, s := range w.Stages {
		if slices.Contains(among, s.ID) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// removeIn are the steps that are undone with some stages: all with the first one of the work.
func (w Work) removeIn(stages []StageID) []string {
	if len(stages) == 0 || stages[0] != w.Stages[0].ID {
		return nil
	}
	return w.Remove
}

// worstOf is the most that a task disturbs.
func (w Work) worstOf(t Task) Disruption {
	worst := DisruptionNone
	for _, i := range w.Changes {
		if i.Op != OpAdd && w.does(t, i) && Worse(i.Disruption, worst) {
			worst = i.Disruption
		}
	}
	return worst
}

// restarts reports whether a task restarts a unit that was there before.
func (w Work) restarts(t Task, unit string) bool {
	return slices.ContainsFunc(w.Changes, func(i Change) bool { return i.Step == unit && i.Op != OpAdd && w.does(t, i) })
}

// does reports whether a change is one of those that a task makes.
func (w Work) does(t Task, i Change) bool {
	if i.Op == OpRemove {
		return slices.Contains(t.Remove, i.Step)
	}
	return slices.Contains(t.Stages, i.Stage)
}

// Steps are the steps of the cluster that the tasks take, each once, in the order of the waves.
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

// Print writes the order for people to read: by wave, how many at a time, and what is done on each host.
func (r *Rollout) Print(w io.Writer) {
	var b strings.Builder
	for i, wave := range r.Waves {
		at := "all at once"
		if wave.AtATime > 0 {
			at = fmt.Sprintf("%d at a time", wave.AtATime)
		}
		if i > 0 && r.PauseBetween > 0 && wave.Disturbs() && r.Waves[i-1].Disturbs() {
			fmt.Fprintf(&b, "  pause %s\n", r.PauseBetween)
		}
		fmt.Fprintf(&b, "  wave %d: %s, %s\n", i+1, wave.Name, at)
		for _, t := range wave.Tasks {
			fmt.Fprintf(&b, "    %s\n", t)
		}
	}
	_, _ = io.WriteString(w, b.String()) // as with fmt.Println, nobody could say so
}

// String says what a task does in a line.
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
