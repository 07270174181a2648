package mirror

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// recordingConsumer is a consumer of one type that records its calls: "NAME UID VERSION" for a
// state, and "-NAME UID" for an object that it is to forget.
type recordingConsumer struct {
	of    schema.GroupResource
	calls []string
}

func (r *recordingConsumer) reads(gr schema.GroupResource) bool { return gr == r.of }

func (r *recordingConsumer) observe(events []Event, _ *table, e *entry) []Event {
	r.calls = append(r.calls, fmt.Sprint(e.row.Name, " ", e.row.UID, " ", e.version))
	return events
}

func (r *recordingConsumer) forget(events []Event, _ *table, k key, uid types.UID) []Event {
	r.calls = append(r.calls, fmt.Sprint("-", k.name, " ", uid))
	return events
}

// podAt returns a pending Pod that the binding b placed, with a UID and resource version. It
// requests as many thousandths of a CPU as its version, so each version changes the capacity.
func podAt(name, uid string, version int) *unstructured.Unstructured {
	o := at(name, uid, version, "b")
	o.SetKind("Pod")
	o.Object["spec"] = map[string]any{"containers": []any{map[string]any{
		"resources": map[string]any{"requests": map[string]any{"cpu": fmt.Sprint(version, "m")}},
	}}}
	return o
}

// TestConsumers: each consumer is passed each change and each removal of its types exactly once, in
// order: after lists that repeat objects or lack them, watch events, responses to writes, a
// checkpoint, a change of the settings, and when the type is dropped or the cluster leaves. A
// recording consumer, the events of the index and the notifications about the capacity show that.
func TestConsumers(t *testing.T) {
	m := newMirror(openStore(t), newFleet(), testLogger(t))
	c := newCluster(m, "east", newSource(t, "east", nil))
	close(c.stopped) // nothing runs
	m.replace("east", c)
	ofPods, ofSecrets := &recordingConsumer{of: pods}, &recordingConsumer{of: secrets}
	c.consumers = append(c.consumers, ofPods, ofSecrets)

	gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	var f *fed
	mirrors := func() *table {
		tab := newTable(c, member.API{GroupVersionKind: gvr.GroupVersion().WithKind("Pod"), Resource: "pods", Namespaced: true})
		tab.wanted = true
		c.tables[pods] = tab
		f = &fed{watcher: newWatcher(t.Context(), tab, nil)}
		f.api = f
		return tab
	}
	tab := mirrors()
	list := func(version int, objects ...*unstructured.Unstructured) func() error {
		return func() error { return f.Replace(objects, fmt.Sprint(version)) }
	}
	watched := func(kind watch.EventType, o *unstructured.Unstructured) func() error {
		return func() error { return f.event(kind, o) }
	}
	recall := func() error { // a checkpoint at version 8 with a
		body, err := json.Marshal(podAt("a", "u", 5).Object)
		if err != nil {
			return err
		}
		e, err := tab.recalledEntry(store.Row{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "5", Note: "1", Body: body})
		if err != nil {
			return err
		}
		tab.recalled, tab.resumable = true, &resumable{identity: c.identity(), resourceVersion: "8", entries: []*entry{e}}
		if !f.resume() {
			return errors.New("the checkpoint is not usable")
		}
		return nil
	}

	type calls struct {
		Consumer []string
		Events   []string
		Capacity int // number of notifications
	}
	events, capacity := &recorder{}, 0
	m.Subscribe(events.record)
	m.SubscribeFreeCapacity(func(string) { capacity++ })
	for _, step := range []struct {
		name string
		do   func() error
		want calls
	}{
		{"Checkpoint", recall, calls{Consumer: []string{"a u 5"}, Events: []string{"changed a"}}},
		{"List", list(10, podAt("a", "u", 5), podAt("b", "v", 6), podAt("c", "w", 7)), calls{
			Consumer: []string{"b v 6", "c w 7"}, Events: []string{"changed b", "changed c", "synced "},
		}},
		{"SameList", list(11, podAt("a", "u", 5), podAt("b", "v", 6), podAt("c", "w", 7)), calls{}},
		{"Changed", watched(watch.Modified, podAt("a", "u", 12)), calls{[]string{"a u 12"}, []string{"changed a"}, 1}},
		{"OlderState", watched(watch.Modified, podAt("a", "u", 11)), calls{}},
		{"Deleted", watched(watch.Deleted, podAt("b", "v", 13)), calls{[]string{"-b v"}, []string{"deleted b"}, 1}},
		{"DeletedAgain", watched(watch.Deleted, podAt("b", "v", 13)), calls{}},
		{"Response", func() error { m.Observe("east", gvr, podAt("c", "w", 14)); return nil }, calls{Events: []string{"changed c"}}},
		{"WatchConfirms", watched(watch.Modified, podAt("c", "w", 14)), calls{[]string{"c w 14"}, nil, 1}},
		{"ListAfterThat", list(15, podAt("a", "u", 12), podAt("c", "w", 14)), calls{}},
		{"StoreLost", func() error { tab.forgetStored(); return list(16, podAt("a", "u", 12), podAt("c", "w", 14))() }, calls{}},
		{"OneRecreatedOneMissing", list(20, podAt("a", "x", 18)), calls{
			[]string{"a x 18", "-c w"}, []string{"deleted a", "changed a", "deleted c"}, 2,
		}},
		{"DeletedByUs", func() error { m.ObserveDeleted("east", pods, "ns", "a", "x"); return nil }, calls{Events: []string{"deleted a"}}},
		{"WatchConfirmsDeletion", watched(watch.Deleted, podAt("a", "x", 21)), calls{[]string{"-a x"}, []string{"deleted a"}, 1}},
		{"RestoredFromBackup", list(3, podAt("d", "y", 2)), calls{[]string{"d y 2"}, []string{"changed d"}, 1}},
		{"OtherSettings", func() error {
			d := decision{api: tab.api}
			d.api.Namespaced = false
			tab.next = &d
			tab.start(t.Context(), nil)
			tab.stop()
			return list(4, podAt("d", "y", 2))()
		}, calls{Consumer: []string{"d y 2"}, Events: []string{"synced "}}},
		{"TypeDropped", func() error { c.drop(t.Context(), tab); return nil }, calls{[]string{"-d y"}, []string{"deleted d"}, 1}},
		{"MirroredAgain", func() error { tab = mirrors(); return list(5, podAt("d", "y", 2))() }, calls{
			Consumer: []string{"d y 2"}, Events: []string{"changed d", "synced "},
		}},
		{"Leaves", func() error { return m.Drop("east") }, calls{Consumer: []string{"-d y"}}},
		{"LateResponse", func() error { m.Observe("east", gvr, podAt("d", "y", 30)); return nil }, calls{}},
	} {
		ofPods.calls, events.events, capacity = nil, nil, 0
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got := calls{Consumer: ofPods.calls, Capacity: capacity}
		for _, e := range events.events {
			got.Events = append(got.Events, map[EventType]string{Changed: "changed ", Deleted: "deleted ", Synced: "synced "}[e.Type]+e.Name)
		}
		if diff := cmp.Diff(step.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if len(ofSecrets.calls) > 0 {
		t.Errorf("a consumer of Secrets was passed pods: %s", strings.Join(ofSecrets.calls, ", "))
	}
	if len(c.capacity.pods)+len(c.capacity.allocating)+len(c.capacity.waiting)+len(c.index.placed)+len(m.bindings.placed) > 0 {
		t.Errorf("left of the cluster: %v, %v", c.capacity, c.index)
	}
}

// BenchmarkConsume measures what the mirror does with one placed pod: that a list repeats, and that
// a watch reports with a new version.
func BenchmarkConsume(b *testing.B) {
	for name, changes := range map[string]bool{"Repeated": false, "Changed": true} {
		b.Run(name, func(b *testing.B) {
			m := newMirror(nil, newFleet(), testLogger(b))
			c := newCluster(m, "east", newSource(b, "east", nil))
			m.replace("east", c)
			tab := newTable(c, member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods"})
			tab.synced = true
			c.tables[pods] = tab
			o := podAt("a", "u", 1)
			b.ReportAllocs()
			for version := 1; b.Loop(); version++ {
				if changes {
					o.SetResourceVersion(fmt.Sprint(version))
				}
				e, err := tab.entry(o)
				if err != nil {
					b.Fatal(err)
				}
				c.mu.Lock()
				tab.observe(e)
				c.mu.Unlock()
			}
		})
	}
}
