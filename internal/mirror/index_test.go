package mirror

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
)

// fed lets a test deliver lists and events to a table in place of a cluster.
type fed struct {
	*watcher
	pages   []*unstructured.UnstructuredList // of the next list
	options []metav1.ListOptions             // of the requested lists
}

func (f *fed) list(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.options = append(f.options, o)
	page := f.pages[0]
	f.pages = f.pages[1:]
	return page, nil
}

func (f *fed) watch(context.Context, metav1.ListOptions) (events, error) {
	return nil, errors.ErrUnsupported
}

func (f *fed) newest(context.Context) (string, error) { return "", errors.ErrUnsupported }

// Replace delivers a list in pages of two objects.
func (f *fed) Replace(list []*unstructured.Unstructured, resourceVersion string) error {
	f.pages, f.options = nil, nil
	for {
		page := &unstructured.UnstructuredList{Object: map[string]any{"kind": "ConfigMapList", "apiVersion": "v1"}}
		page.SetResourceVersion(resourceVersion)
		n := min(2, len(list))
		for _, o := range list[:n] {
			page.Items = append(page.Items, *o)
		}
		list = list[n:]
		f.pages = append(f.pages, page)
		if len(list) == 0 {
			return f.watcher.list(f.ctx)
		}
		page.SetContinue(list[0].GetName())
	}
}

func (f *fed) event(kind watch.EventType, o *unstructured.Unstructured) error {
	return f.take(watch.Event{Type: kind, Object: o}, o.GetResourceVersion())
}

// fakeTable returns the table of the ConfigMaps of cluster east. The test delivers its lists
// and events.
func fakeTable(t *testing.T) (*Mirror, *fed, *recorder) {
	t.Helper()
	return fakeTableOf(t, member.API{GroupVersionKind: configmaps.GroupVersion().WithKind("ConfigMap"), Resource: "configmaps"})
}

// fakeTableOf is fakeTable for another type.
func fakeTableOf(t *testing.T, api member.API) (*Mirror, *fed, *recorder) {
	t.Helper()
	m := newMirror(nil, newFleet(), logr.Discard())
	c := newCluster(m, "east", newSource(t, "east", nil))
	m.replace("east", c)
	tab := newTable(c, api)
	tab.wanted = true
	c.tables[resourceOf(api)] = tab
	r := &recorder{}
	m.Subscribe(r.record)
	f := &fed{watcher: newWatcher(t.Context(), tab, nil)}
	f.api = f
	return m, f, r
}

// at returns a ConfigMap with a UID and resource version. If binding is empty, it is an
// unmanaged object.
func at(name, uid string, version int, binding string) *unstructured.Unstructured {
	o := placedMap("ns", name, binding, fmt.Sprint(version), nil)
	if binding == "" {
		o.SetLabels(nil)
	}
	o.SetUID(types.UID(uid))
	o.SetResourceVersion(fmt.Sprint(version))
	return o
}

// TestPlacedObjectIsAlwaysFound: an object can be found by its binding at any time while it
// changes or is created again.
func TestPlacedObjectIsAlwaysFound(t *testing.T) {
	m, f, _ := fakeTable(t)
	if err := f.Replace([]*unstructured.Unstructured{at("a", "u-0", 1, "b1")}, "1"); err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		for version := 2; version < 20_000; version++ {
			uid := fmt.Sprint("u-", version/100)
			if err := f.event(watch.Modified, at("a", uid, version, "b1")); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		if n, all := len(m.PlacedOf("b1", "east")), len(m.Placed("b1")); n != 1 || all != 1 {
			t.Fatalf("the binding has %d objects in the cluster, and %d in all, want 1", n, all)
		}
		select {
		case <-changed:
			return
		default:
		}
	}
}

// TestOrder delivers lists, watch events and responses to writes in different orders. It checks
// the state in the index, the change for the store, and the events for subscribers.
func TestOrder(t *testing.T) {
	type world struct {
		*Mirror
		*fed
	}
	observe := func(o *unstructured.Unstructured) func(world) error {
		return func(w world) error { w.Observe("east", configmaps, o); return nil }
	}
	observeDeleted := func(uid string) func(world) error {
		return func(w world) error {
			w.ObserveDeleted("east", configmaps.GroupResource(), "ns", "a", types.UID(uid))
			return nil
		}
	}
	replace := func(version int, list ...*unstructured.Unstructured) func(world) error {
		return func(w world) error { return w.Replace(list, fmt.Sprint(version)) }
	}
	passed := func(version int) func(world) error {
		return func(w world) error { return w.event(watch.Bookmark, at("", "", version, "")) }
	}
	watched := func(o *unstructured.Unstructured) func(world) error {
		return func(w world) error { return w.event(watch.Modified, o) }
	}
	watchedDeleted := func(o *unstructured.Unstructured) func(world) error {
		return func(w world) error { return w.event(watch.Deleted, o) }
	}
	deleting := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		if err := unstructured.SetNestedField(o.Object, "2026-01-01T00:00:00Z", "metadata", "deletionTimestamp"); err != nil {
			panic(err)
		}
		return o
	}
	type verdict struct {
		Presence presence.Presence
		Digest   string // version in the index
		Stored   string // version of the last change for the store; "-": a deletion
	}
	cases := map[string]struct {
		steps  []func(world) error
		want   verdict
		events []EventType
	}{
		"NotListed":               {steps: nil, want: verdict{presence.Unknown, "", ""}},
		"ObservedBeforeTheList":   {[]func(world) error{observe(at("a", "u", 5, "b"))}, verdict{presence.Unknown, "5", ""}, []EventType{Changed}},
		"ListedAfterObserved":     {[]func(world) error{observe(at("a", "u", 5, "b")), replace(4)}, verdict{presence.Present, "5", ""}, []EventType{Changed, Synced}},
		"Listed":                  {[]func(world) error{replace(9, at("a", "u", 5, "b"))}, verdict{presence.Present, "5", "5"}, []EventType{Changed, Synced}},
		"ListedForeign":           {[]func(world) error{replace(9, at("a", "u", 5, ""))}, verdict{presence.Present, "", "5"}, []EventType{Synced}},
		"EmptyList":               {[]func(world) error{replace(9)}, verdict{presence.Absent, "", ""}, []EventType{Synced}},
		"ObservedThenOlderEvent":  {[]func(world) error{replace(9), observe(at("a", "u", 12, "b")), watched(at("a", "u", 10, "b"))}, verdict{presence.Present, "12", "10"}, []EventType{Synced, Changed}},
		"ObservedThenSameEvent":   {[]func(world) error{replace(9), observe(at("a", "u", 12, "b")), watched(at("a", "u", 12, "b"))}, verdict{presence.Present, "12", "12"}, []EventType{Synced, Changed}},
		"ObservedThenNewerEvent":  {[]func(world) error{replace(9), observe(at("a", "u", 12, "b")), watched(at("a", "u", 13, "b"))}, verdict{presence.Present, "13", "13"}, []EventType{Synced, Changed, Changed}},
		"EventThenOlderObserved":  {[]func(world) error{replace(9), watched(at("a", "u", 13, "b")), observe(at("a", "u", 12, "b"))}, verdict{presence.Present, "13", "13"}, []EventType{Synced, Changed}},
		"DeletedThenLateObserved": {[]func(world) error{replace(9, at("a", "u", 5, "b")), watchedDeleted(at("a", "u", 14, "b")), observe(at("a", "u", 12, "b"))}, verdict{presence.Absent, "", "-"}, []EventType{Changed, Synced, Deleted}},
		"BookmarkThenLateObserved": {
			[]func(world) error{replace(9), passed(20), observe(at("a", "u", 12, "b"))}, verdict{presence.Absent, "", ""}, []EventType{Synced},
		},
		"ObservedDeleted": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), observeDeleted("u")}, verdict{presence.Absent, "", "5"}, []EventType{Changed, Synced, Deleted},
		},
		"ObservedDeletedThenOlderEvent": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), observeDeleted("u"), watched(at("a", "u", 10, "b"))},
			verdict{presence.Absent, "", "10"},
			[]EventType{Changed, Synced, Deleted},
		},
		"ObservedDeletedTwice": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), observeDeleted("u"), observeDeleted("u"), watchedDeleted(at("a", "u", 11, "b"))},
			verdict{presence.Absent, "", "-"},
			[]EventType{Changed, Synced, Deleted},
		},
		"ObservedDeletedButWaiting": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), observeDeleted("u"), watched(deleting(at("a", "u", 10, "b")))},
			verdict{presence.Present, "10", "10"},
			[]EventType{Changed, Synced, Deleted, Changed},
		},
		"ObservedDeletedOfAnother": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), observeDeleted("other")}, verdict{presence.Present, "5", "5"}, []EventType{Changed, Synced},
		},
		"RecreatedByUs": {
			[]func(world) error{
				replace(9, at("a", "u", 5, "b")), observeDeleted("u"), observe(at("a", "v", 12, "b")),
				watchedDeleted(at("a", "u", 11, "b")), watched(at("a", "v", 12, "b")),
			},
			verdict{presence.Present, "12", "12"},
			[]EventType{Changed, Synced, Deleted, Changed},
		},
		"RecreatedByOthers": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), replace(20, at("a", "v", 15, "b"))},
			verdict{presence.Present, "15", "15"},
			[]EventType{Changed, Synced, Deleted, Changed},
		},
		"MissingInAList": {
			[]func(world) error{replace(9, at("a", "u", 5, "b")), replace(20)}, verdict{presence.Absent, "", "-"}, []EventType{Changed, Synced, Deleted},
		},
		"MissingInAnOlderList": {
			[]func(world) error{replace(9), observe(at("a", "u", 15, "b")), replace(12)}, verdict{presence.Present, "15", ""}, []EventType{Synced, Changed},
		},
		"RestoredFromBackup": {
			[]func(world) error{replace(90, at("a", "u", 80, "b")), replace(50, at("a", "u", 40, "b"))},
			verdict{presence.Present, "40", "40"},
			[]EventType{Changed, Synced, Changed},
		},
		"RestoredFromBackupWithout": {
			[]func(world) error{replace(90, at("a", "u", 80, "b")), replace(50)}, verdict{presence.Absent, "", "-"}, []EventType{Changed, Synced, Deleted},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, f, events := fakeTable(t)
			for i, step := range tc.steps {
				if err := step(world{m, f}); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			var got verdict
			var o Object
			got.Presence, o = m.Lookup("east", configmaps.GroupResource(), "ns", "a")
			got.Digest = o.Digest
			if r := m.writer.pending[rowKey{"east", configmaps.GroupResource(), "ns", "a"}]; r != nil {
				got.Stored = r.change.ResourceVersion
				if r.change.Delete {
					got.Stored = "-"
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			types := make([]EventType, 0, len(events.events))
			for _, e := range events.events {
				types = append(types, e.Type)
			}
			if diff := cmp.Diff(tc.events, types, cmpopts.EquateEmpty()); diff != "" {
				t.Error("events:", diff)
			}
			indexed := 0
			if got.Digest != "" {
				indexed = 1
			}
			if len(m.Placed("b")) != indexed || len(m.PlacedIn("east")) != indexed {
				t.Errorf("placed: %v, %v", m.Placed("b"), m.PlacedIn("east"))
			}
		})
	}
}

func TestFirstListAfterARestart(t *testing.T) {
	_, f, _ := fakeTable(t)
	f.table.records[key{"ns", "a"}] = record{uid: "u", stored: 5} // as read from the store
	f.table.records[key{"ns", "gone"}] = record{uid: "w", stored: 6}
	if err := f.Replace([]*unstructured.Unstructured{at("a", "u", 5, "b")}, "9"); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for k, r := range f.table.cluster.mirror.writer.pending {
		if r.checkpoint == nil {
			got[k.name] = r.change.Delete
		}
	}
	if diff := cmp.Diff(map[string]bool{"gone": true}, got); diff != "" {
		t.Error("only the deletion is to be written:", diff)
	}
}

func TestSameTimeline(t *testing.T) {
	for name, tc := range map[string]struct {
		seen, newest string
		refused      bool
	}{
		"Newer": {"5", "7", false}, "Same": {"7", "7", false}, "Older": {"7", "5", true}, "ManyDigits": {"99", "100", false},
		"NoNumber": {"x", "y", false}, "NotSaid": {"7", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := sameTimeline(tc.seen, tc.newest); (err != nil) != tc.refused {
				t.Error(err)
			}
		})
	}
}

// TestAMarkThatWasCopiedDoesNotCount: an object with Orrery's label is not placed if its
// managedFields do not name Orrery. Kubernetes copies the labels of a Service, with Orrery's,
// to its EndpointSlices.
func TestAMarkThatWasCopiedDoesNotCount(t *testing.T) {
	managed := func(managers ...string) *unstructured.Unstructured {
		o := at("a", "u", 5, "b")
		var entries []metav1.ManagedFieldsEntry
		for _, m := range managers {
			entries = append(entries, metav1.ManagedFieldsEntry{
				Manager: m, Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`),
			})
		}
		o.SetManagedFields(entries)
		return o
	}
	for name, tc := range map[string]struct {
		object *unstructured.Unstructured
		placed bool
	}{
		"Copied":          {managed("kube-controller-manager"), false},
		"Ours":            {managed("kube-controller-manager", workv1alpha2.FieldManager), true},
		"NobodyIsWitness": {managed(), true},
	} {
		t.Run(name, func(t *testing.T) {
			m, f, _ := fakeTable(t)
			if err := f.Replace([]*unstructured.Unstructured{tc.object}, "9"); err != nil {
				t.Fatal(err)
			}
			if got, o := m.Lookup("east", configmaps.GroupResource(), "ns", "a"); got != presence.Present || o.Placed() != tc.placed || o.UID != "u" {
				t.Errorf("presence is %v, object %+v, want it present and placed %t", got, o, tc.placed)
			}
			if placed := len(m.Placed("b")) == 1; placed != tc.placed {
				t.Errorf("placed by the binding: %t", placed)
			}
		})
	}
}

func TestOwnedFields(t *testing.T) {
	fields := func(manager, operation, subresource, path string) map[string]any {
		f := map[string]any{"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": map[string]any{path: map[string]any{}}}
		if subresource != "" {
			f["subresource"] = subresource
		}
		return f
	}
	hash := func(managers ...any) uint64 {
		o := at("a", "u", 1, "b")
		if err := unstructured.SetNestedSlice(o.Object, managers, "metadata", "managedFields"); err != nil {
			t.Fatal(err)
		}
		return OwnedFields(o)
	}
	ours := fields(workv1alpha2.FieldManager, "Apply", "", "f:data")
	want := hash(ours)
	if want == 0 {
		t.Error("our fields have no hash")
	}
	if got := hash(fields("other", "Update", "", "f:x"), ours); got != want {
		t.Error("fields of others change the hash")
	}
	if got := hash(fields(workv1alpha2.FieldManager, "Apply", "", "f:spec")); got == want {
		t.Error("other fields have the same hash")
	}
	for name, f := range map[string]any{
		"Update":      fields(workv1alpha2.FieldManager, "Update", "", "f:data"),
		"Subresource": fields(workv1alpha2.FieldManager, "Apply", "status", "f:data"),
		"Other":       fields("other", "Apply", "", "f:data"),
	} {
		if got := hash(f); got != 0 {
			t.Errorf("%s: %d, want 0", name, got)
		}
	}
}

// TestHowAnObjectEndedIsReportedThoughItsDeletionWasNoticedFirst: if a write notices a deletion
// before the watch does, the event of the watch still leads to an event with the final state of
// the object, whether or not the object has a successor by then.
func TestHowAnObjectEndedIsReportedThoughItsDeletionWasNoticedFirst(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	pod := func(uid string, version int, phase string) *unstructured.Unstructured {
		o := at("a", uid, version, "b")
		o.SetKind("Pod")
		o.Object["status"] = map[string]any{"phase": phase}
		return o
	}
	deleted := func(m *Mirror, _ *fed) { m.ObserveDeleted("east", pods.GroupResource(), "ns", "a", "u") }
	for name, tc := range map[string]struct {
		before func(*Mirror, *fed)
		last   *unstructured.Unstructured
		want   []string // UID and final state of each Deleted event
	}{
		"TheWatchAlone":    {func(*Mirror, *fed) {}, pod("u", 11, "Succeeded"), []string{"u Complete"}},
		"NoticedFirst":     {deleted, pod("u", 11, "Succeeded"), []string{"u -", "u Complete"}},
		"NotEnded":         {deleted, pod("u", 11, "Running"), []string{"u -", "u "}},
		"WithASuccessor":   {func(m *Mirror, f *fed) { deleted(m, f); m.Observe("east", pods, pod("v", 12, "Pending")) }, pod("u", 11, "Failed"), []string{"u -", "u Failed"}},
		"OnlyASuccessor":   {func(m *Mirror, _ *fed) { m.Observe("east", pods, pod("v", 12, "Pending")) }, pod("u", 11, "Failed"), []string{"u -", "u Failed"}},
		"AnotherOfTheName": {deleted, pod("w", 11, "Failed"), []string{"u -"}},
		"TheMarkWasTaken": {deleted, func() *unstructured.Unstructured {
			o := pod("u", 11, "Failed")
			o.SetLabels(nil)
			return o
		}(), []string{"u -"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, f, events := fakeTableOf(t, member.API{GroupVersionKind: pods.GroupVersion().WithKind("Pod"), Resource: "pods"})
			if err := f.Replace([]*unstructured.Unstructured{pod("u", 5, "Running")}, "9"); err != nil {
				t.Fatal(err)
			}
			tc.before(m, f)
			if err := f.event(watch.Deleted, tc.last); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range events.events {
				switch {
				case e.Type != Deleted:
				case e.Final == nil:
					got = append(got, string(e.UID)+" -")
				default:
					got = append(got, string(e.UID)+" "+string(e.Final.Ended))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("deletions (-want +got):\n%s", diff)
			}
			if n := len(f.table.ending); n != 0 {
				t.Errorf("%d ends are waited for still", n)
			}
		})
	}
}
