package lab

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"orrery.dev/orrery/internal/lab"
)

// journal records all changes of the nodes and of the pods of a workload. It watches several
// API servers, so that it misses nothing while one of them restarts.
type journal struct {
	cs  kubernetes.Interface
	end func()

	mu    sync.Mutex
	nodes map[uint64]nodeEntry // by resourceVersion, which orders all writes of a cluster
	pods  map[uint64]podEntry
	seen  map[string]map[string]uint64 // by API server and kind: the last version
}

type nodeEntry struct {
	name             string
	cordoned, exists bool
}

type podEntry struct {
	name, node string
	ready      bool
}

// records starts a journal of the pods of web and of all nodes, from the API servers of these
// hosts.
func (s *testbed) records(hosts ...*lab.Host) *journal {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	var group sync.WaitGroup
	j := &journal{
		cs: s.Client(hosts[0]), nodes: map[uint64]nodeEntry{}, pods: map[uint64]podEntry{}, seen: map[string]map[string]uint64{},
		end: func() { cancel(); group.Wait() },
	}
	s.T.Cleanup(j.end)
	for _, h := range hosts {
		j.seen[h.Name] = map[string]uint64{}
		cfg := s.Config(h)
		cfg.Timeout = 0 // a timeout would end watches
		cs, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			s.T.Fatal(err)
		}
		group.Go(func() {
			j.follow(ctx, h.Name, func(ctx context.Context, o metav1.ListOptions) ([]metav1.Object, string, error) {
				list, err := cs.CoreV1().Nodes().List(ctx, o)
				if err != nil {
					return nil, "", err
				}
				return objects(list.Items), list.ResourceVersion, nil
			}, cs.CoreV1().Nodes().Watch)
		})
		group.Go(func() {
			j.follow(ctx, h.Name, func(ctx context.Context, o metav1.ListOptions) ([]metav1.Object, string, error) {
				o.LabelSelector = webSelector
				list, err := cs.CoreV1().Pods("default").List(ctx, o)
				if err != nil {
					return nil, "", err
				}
				return objects(list.Items), list.ResourceVersion, nil
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = webSelector
				return cs.CoreV1().Pods("default").Watch(ctx, o)
			})
		})
	}
	s.upToDate(j)
	return j
}

const webSelector = "app=web"

func objects[T any, P interface {
	*T
	metav1.Object
}](items []T) []metav1.Object {
	all := make([]metav1.Object, 0, len(items))
	for i := range items {
		all = append(all, P(&items[i]))
	}
	return all
}

// follow lists and watches one kind at one API server, and lists again when that server ends
// the watch.
func (j *journal) follow(ctx context.Context, server string,
	list func(context.Context, metav1.ListOptions) ([]metav1.Object, string, error),
	watches func(context.Context, metav1.ListOptions) (watch.Interface, error),
) {
	for ctx.Err() == nil {
		items, version, err := list(ctx, metav1.ListOptions{})
		if err == nil {
			for _, o := range items {
				j.note(server, o, true)
			}
			var w watch.Interface
			if w, err = watches(ctx, metav1.ListOptions{ResourceVersion: version}); err == nil {
				for e := range w.ResultChan() {
					if o, ok := e.Object.(metav1.Object); ok {
						j.note(server, o, e.Type != watch.Deleted)
					}
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the server may be restarting
		}
	}
}

// note records the state of an object at its version.
func (j *journal) note(server string, o metav1.Object, exists bool) {
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return // the status at the end of a watch
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch o := o.(type) {
	case *corev1.Node:
		j.nodes[version] = nodeEntry{name: o.Name, cordoned: o.Spec.Unschedulable, exists: exists}
		j.seen[server]["nodes"] = max(j.seen[server]["nodes"], version)
	case *corev1.Pod:
		ready := slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		// A pod that is being deleted no longer counts as ready.
		j.pods[version] = podEntry{name: o.Name, node: o.Spec.NodeName, ready: exists && ready && o.DeletionTimestamp == nil}
		j.seen[server]["pods"] = max(j.seen[server]["pods"], version)
	}
}

// upToDate waits until the journal has all earlier writes: it marks a node and a pod, and waits
// until every API server has sent the mark.
func (s *testbed) upToDate(j *journal) {
	s.T.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"lab/seen":%q}}}`, time.Now().Format(time.RFC3339Nano))
	want := map[string]uint64{}
	s.Eventually("a node and a pod are marked", func(ctx context.Context) error {
		nodes, err := j.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		n, err := j.cs.CoreV1().Nodes().Patch(ctx, nodes.Items[0].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		pods, err := j.cs.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: webSelector, Limit: 1})
		if err != nil {
			return err
		}
		p, err := j.cs.CoreV1().Pods("default").Patch(ctx, pods.Items[0].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		for kind, o := range map[string]metav1.Object{"nodes": n, "pods": p} {
			if want[kind], err = strconv.ParseUint(o.GetResourceVersion(), 10, 64); err != nil {
				return err
			}
		}
		return nil
	})
	s.Eventually("all API servers have told of it", func(context.Context) error {
		j.mu.Lock()
		defer j.mu.Unlock()
		for server, seen := range j.seen {
			for kind, version := range want {
				if seen[kind] < version {
					return fmt.Errorf("that of host %s tells of %s up to version %d, and not yet of %d", server, kind, seen[kind], version)
				}
			}
		}
		return nil
	})
}

// moment is a position in a journal.
type moment struct{ nodes, pods uint64 }

// now returns the current end of a journal.
func (s *testbed) now(j *journal) moment {
	s.T.Helper()
	s.upToDate(j)
	j.mu.Lock()
	defer j.mu.Unlock()
	var m moment
	for _, seen := range j.seen {
		m.nodes, m.pods = max(m.nodes, seen["nodes"]), max(m.pods, seen["pods"])
	}
	return m
}

// fewestReady returns the minimum number of ready pods since a moment, on the nodes for which
// on returns true, and when each pod became ready and not ready.
func (j *journal) fewestReady(since moment, on func(node string) bool) (fewest int, story []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ready := map[string]bool{}
	began := false
	for _, version := range slices.Sorted(maps.Keys(j.pods)) {
		p := j.pods[version]
		if !on(p.node) {
			continue
		}
		if version > since.pods && !began {
			began, fewest = true, len(ready)
		}
		if p.ready == ready[p.name] {
			continue
		}
		if p.ready {
			ready[p.name] = true
		} else {
			delete(ready, p.name)
		}
		if began {
			fewest = min(fewest, len(ready))
			story = append(story, fmt.Sprintf("%s on %s ready: %t, %d in all", p.name, p.node, p.ready, len(ready)))
		}
	}
	if !began {
		fewest = len(ready)
	}
	return fewest, story
}

// nodeActs returns the cordons, uncordons and deletions of nodes since a moment, in their
// order.
func (j *journal) nodeActs(since moment) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var acts []string
	last := map[string]nodeEntry{}
	for _, version := range slices.Sorted(maps.Keys(j.nodes)) {
		n := j.nodes[version]
		was := cmp.Or(last[n.name], nodeEntry{name: n.name, exists: true})
		last[n.name] = n
		if version <= since.nodes {
			continue
		}
		switch {
		case was.exists && !n.exists:
			acts = append(acts, "delete "+n.name)
		case !was.cordoned && n.cordoned:
			acts = append(acts, "cordon "+n.name)
		case was.cordoned && !n.cordoned:
			acts = append(acts, "uncordon "+n.name)
		}
	}
	return acts
}
