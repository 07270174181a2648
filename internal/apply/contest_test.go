package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

func TestPause(t *testing.T) {
	for n, want := range map[int]time.Duration{
		0: 0, 2: 0, 3: time.Second, 4: 2 * time.Second, 10: 128 * time.Second, 11: 150 * time.Second, 1000: 150 * time.Second,
	} {
		k := Known{Now: now, PutBacks: n, PutBack: now}
		if got := k.pause(); got != want {
			t.Errorf("after %d writes the pause is %s, want %s", n, got, want)
		}
		if k.Now = now.Add(PutBackMemory + 1); k.pause() != 0 {
			t.Errorf("after %d writes long ago there is a pause", n)
		}
	}
}

// TestContestOfTwoFields: two fields that others change in turn stay contested at the longest
// pause, also where each write comes some seconds late.
func TestContestOfTwoFields(t *testing.T) {
	var row []putBack
	for i := range 20 {
		at := now.Add(time.Duration(i) * (longestPutBackPause + 5*time.Second))
		row = append(row, putBack{at, []loss{{path: []string{".data.a", ".data.b"}[i%2], manager: "theirs"}}})
		if c := contest(Object{}, row, at); i >= 2*contestedAfter && c.Reason != workv1alpha2.ReasonFieldsChanged {
			t.Errorf("after %d writes it is contested by %+v", i+1, c)
		}
	}
}

// pace delays every write that puts a copy back. It does not delay an edit, a first apply and a
// run that somebody requested.
func TestPace(t *testing.T) {
	k := Known{Now: now, Digest: "new", PutBacks: immediatePutBacks, PutBack: now}
	asked := placeWanted(func(w *Wanted) {
		w.Work = Work{Request: "b/1", Mark: &workv1alpha2.Run{Phase: workv1alpha2.RunComplete}}
	})
	for _, verb := range []Verb{Create, Update, Repair, Judge, Begin} {
		actions := []Action{{Verb: Report}, {Verb: verb}, {Verb: Await}}
		if diff := cmp.Diff([]Action{{Verb: Report}, {Verb: Retry, After: time.Second}}, pace(actions, placeWanted(), k)); diff != "" {
			t.Errorf("%s is not delayed (-want +got):\n%s", verb, diff)
		}
		for name, got := range map[string][]Action{
			"an edit":            pace(actions, placeWanted(func(w *Wanted) { w.Digest = "newer" }), k),
			"a first apply":      pace(actions, placeWanted(), Known{Now: now, PutBacks: immediatePutBacks, PutBack: now}),
			"a run asked for":    pace(actions, asked, k),
			"an early put-back":  pace(actions, placeWanted(), Known{Now: now, Digest: "new", PutBacks: 1, PutBack: now}),
			"one after the wait": pace(actions, placeWanted(), Known{Now: now.Add(time.Second), Digest: "new", PutBacks: immediatePutBacks, PutBack: now}),
		} {
			if diff := cmp.Diff(actions, got); diff != "" {
				t.Errorf("%s by %s is delayed (-want +got):\n%s", name, verb, diff)
			}
		}
	}
	for _, verb := range []Verb{Delete, Unmark, Compare, Ask, Suspect, Recall} {
		if got := pace([]Action{{Verb: verb}}, placeWanted(), k); got[0].Verb != verb {
			t.Errorf("%s is delayed", verb)
		}
	}
}

func TestContest(t *testing.T) {
	field := func(path, manager string) loss { return loss{path: path, manager: manager} }
	row := func(losses ...[]loss) []putBack {
		var all []putBack
		for i, l := range losses {
			all = append(all, putBack{now.Add(time.Duration(i-len(losses)) * time.Minute), l})
		}
		return all
	}
	a, b, other := []loss{field("data.a", "x")}, []loss{field("data.b", "")}, []loss{{hub: true}}
	both := slices.Concat(a, b)
	for name, tc := range map[string]struct {
		row             []putBack
		reason, message string
	}{
		"Nothing":             {nil, "", ""},
		"Twice":               {row(a, a), "", ""},
		"ThreeTimes":          {row(a, a, a), workv1alpha2.ReasonFieldsChanged, `"x" changes data.a of configmaps ns/a each time the hub puts it back`},
		"EachAnother":         {row(a, b, []loss{field("data.c", "x")}), "", ""},
		"InTurns":             {row(a, b, a, b, a), workv1alpha2.ReasonFieldsChanged, `"x" changes data.a of`},
		"BothFields":          {row(both, both, both), workv1alpha2.ReasonFieldsChanged, `"x" changes data.a, a client that managedFields does not name removes data.b of`},
		"AnotherManagerLast":  {row(a, a, []loss{field("data.a", "y")}), workv1alpha2.ReasonFieldsChanged, `"y" changes data.a`},
		"Replicas":            {row([]loss{field("spec.replicas", "hpa")}, []loss{field("spec.replicas", "hpa")}, []loss{field("spec.replicas", "hpa")}), workv1alpha2.ReasonFieldsChanged, "retain-replicas=true on the template"},
		"Unread":              {row(nil, nil, nil), "", ""},
		"LongAgo":             {[]putBack{{now.Add(-time.Hour), a}, {now, a}, {now, a}}, "", ""},
		"Deleted":             {row([]loss{{}}, []loss{{}}, []loss{{}}), workv1alpha2.ReasonCopyDeleted, "something in the cluster deletes configmaps ns/a each time"},
		"DeletedAndChanged":   {row([]loss{{}}, a, []loss{{}}, a, []loss{{}}, a), workv1alpha2.ReasonCopyDeleted, "deletes"},
		"ByAnotherHub":        {row(other, other, other), workv1alpha2.ReasonOtherHub, "another hub of Orrery applies configmaps ns/a as well"},
		"ByAnotherHubAndMore": {row(other, a, other, a, other, a), workv1alpha2.ReasonOtherHub, "another hub"},
	} {
		t.Run(name, func(t *testing.T) {
			got := contest(Object{Resource: configMaps, Namespace: "ns", Name: "a"}, tc.row, now)
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("it is %+v, want %s with %q", got, tc.reason, tc.message)
			}
		})
	}
	left := afterEdit(row(both, a, []loss{{}}), fieldSet{"f:data": map[string]any{"f:b": map[string]any{}}})
	if len(left) != 2 || !cmp.Equal(left[0].losses, b, cmp.AllowUnexported(loss{})) || left[1].losses[0] != (loss{}) {
		t.Errorf("after an edit that leaves data.a out there is %+v", left)
	}
}

func TestLosses(t *testing.T) {
	entry := func(manager, operation, fields string) string {
		return fmt.Sprintf("{manager: %s, operation: %s, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: %s}", manager, operation, fields)
	}
	object := func(text string, entries ...string) *unstructured.Unstructured {
		t.Helper()
		o := parsed(t, "apiVersion: v1\nkind: Any\n"+text)
		o.Object["metadata"] = parsed(t, "apiVersion: v1\nkind: Any\nmetadata: {managedFields: ["+strings.Join(entries, ", ")+"]}").Object["metadata"]
		return o
	}
	const orrery = workv1alpha2.FieldManager
	for name, tc := range map[string]struct {
		manifest, now string
		before        string
		entries       []string
		want          []loss
	}{
		"Nothing": {`data: {a: x}`, `{"f:data":{"f:a":{}}}`, `data: {a: x}`, []string{entry(orrery, "Apply", `{"f:data":{"f:a":{}}}`)}, nil},
		"Changed": {
			`data: {a: x, b: y}`, `{"f:data":{"f:a":{},"f:b":{}}}`, `data: {a: z, b: y}`,
			[]string{entry(orrery, "Apply", `{"f:data":{"f:b":{}}}`), entry("x", "Update", `{"f:data":{"f:a":{}}}`)},
			[]loss{{path: "data.a", manager: "x"}},
		},
		"Removed": {`data: {a: x, b: y}`, `{"f:data":{"f:a":{},"f:b":{}}}`, `data: {b: y}`, []string{entry(orrery, "Apply", `{"f:data":{"f:b":{}}}`)}, []loss{{path: "data.a"}}},
		"SharedWithTheSameValue": {
			`data: {a: x}`, `{"f:data":{"f:a":{}}}`, `data: {a: x}`, []string{entry("x", "Update", `{"f:data":{"f:a":{}}}`)}, nil,
		},
		"NotOursAfterwards": { // the API does not have the field
			`data: {a: x, unknown: y}`, `{"f:data":{"f:a":{}}}`, `data: {a: x}`, []string{entry(orrery, "Apply", `{"f:data":{"f:a":{}}}`)}, nil,
		},
		"AnAtomicList": {
			`spec: {tolerations: [{key: a}]}`, `{"f:spec":{"f:tolerations":{}}}`, `spec: {tolerations: [{key: a}, {key: injected}]}`,
			[]string{entry("injector", "Update", `{"f:spec":{"f:tolerations":{}}}`)},
			nil, // each of our elements is still there
		},
		"AnAtomicListOfOthers": {
			`spec: {tolerations: [{key: a}]}`, `{"f:spec":{"f:tolerations":{}}}`, `spec: {tolerations: [{key: injected}]}`,
			[]string{entry("injector", "Update", `{"f:spec":{"f:tolerations":{}}}`)},
			[]loss{{path: "spec.tolerations", manager: "injector"}},
		},
		"AFieldOfAnElement": {
			`spec: {containers: [{name: a, image: x}]}`, `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`spec: {containers: [{name: sidecar}, {name: a, image: y}]}`,
			[]string{
				entry(orrery, "Apply", `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}}}}}`),
				entry("x", "Update", `{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}}}}}`),
			},
			[]loss{{path: "spec.containers[a].image", manager: "x"}},
		},
		"AnElementThatIsGone": {
			`finalizers: [a, b]`, `{"f:finalizers":{"v:\"a\"":{},"v:\"b\"":{}}}`, `finalizers: [b]`,
			[]string{entry(orrery, "Apply", `{"f:finalizers":{"v:\"b\"":{}}}`)},
			[]loss{{path: "finalizers[a]"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := losses(object(tc.manifest), object(tc.before, tc.entries...), object(tc.manifest, entry(orrery, "Apply", tc.now)))
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(loss{})); diff != "" {
				t.Errorf("losses (-want +got):\n%s", diff)
			}
		})
	}
}

// Labels of a namespace that somebody keeps changing are put back at the pace of copies. Other
// labels are written at once. The contest is reported once.
func TestLabelsAreWrittenAtAPace(t *testing.T) {
	l := labelWrites{written: map[string]labelWrite{}}
	one, other := map[string]string{"team": "a"}, map[string]string{"team": "b"}
	at := now
	var pauses []time.Duration
	var said []int
	for n := range 7 {
		pause := l.pause("ns", one, at)
		pauses = append(pauses, pause)
		if at = at.Add(pause); l.wrote("ns", one, at) {
			said = append(said, n)
		}
	}
	want := []time.Duration{0, 0, 0, 0, time.Second, 2 * time.Second, 4 * time.Second}
	if diff := cmp.Diff(want, pauses); diff != "" || !slices.Equal(said, []int{3}) {
		t.Errorf("pauses (-want +got):\n%s\nit is said after %v", diff, said)
	}
	if l.pause("ns", other, at) != 0 || l.pause("another", one, at) != 0 || l.pause("ns", one, at.Add(PutBackMemory+1)) != 0 {
		t.Error("other labels, another namespace, or labels of long ago wait")
	}
	// The labels on the hub change: the put-backs of the former labels do not count.
	for n := range immediatePutBacks {
		if l.wrote("ns", other, at); l.pause("ns", other, at) != 0 {
			t.Errorf("other labels wait after %d put-backs", n)
		}
	}
	l.wrote("ns", other, at)
	if l.pause("ns", other, at) == 0 {
		t.Error("other labels are put back without end")
	}
	if l.forget("ns"); len(l.written) != 0 {
		t.Errorf("of a namespace that is gone stays %v", l.written)
	}
}

// TestLabelContest: the message has the longest pause that there is.
func TestLabelContest(t *testing.T) {
	message := labelContest("oak", &unstructured.Unstructured{Object: map[string]any{}}, map[string]any{"team": "a"})
	var minutes float64
	_, pace, _ := strings.Cut(message, "up to ")
	_, err := fmt.Sscanf(pace, "%g minutes;", &minutes)
	if longest := pauseAfter(64, now, now).Minutes(); err != nil || minutes != longest {
		t.Errorf("%q: %g minutes, want %g: %v", message, minutes, longest, err)
	}
}

// manualClock is a clock that a test sets.
type manualClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *manualClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// opponent changes or deletes a ConfigMap in a cluster each time the hub has applied it.
type opponent struct {
	done   chan string // the resourceVersion after each change; "" after a deletion
	ended  chan error
	cancel context.CancelFunc
}

// oppose starts an opponent. undo gets the object of each event. It returns the object after
// its change, an empty object after a deletion, or nil if there is nothing to change.
func (f *fleet) oppose(ns, name string, undo func(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error)) *opponent {
	f.t.Helper()
	c, err := dynamic.NewForConfig(testenv.Config(oakServer))
	f.must(err)
	maps := c.Resource(configMaps).Namespace(ns)
	ctx, cancel := context.WithCancel(context.Background())
	watch, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	f.must(err)
	o := &opponent{done: make(chan string, 100), ended: make(chan error, 1), cancel: cancel}
	go func() {
		last := "-"
		for e := range watch.ResultChan() {
			object, ok := e.Object.(*unstructured.Unstructured)
			if !ok || e.Type == "DELETED" {
				continue
			}
			left, err := undo(ctx, maps, object)
			switch {
			// The event is outdated.
			case apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil:
			case err != nil:
				o.ended <- err
				return
			// Otherwise the object is as this opponent left it.
			case left != nil && (left.GetResourceVersion() == "" || left.GetResourceVersion() != last):
				last = left.GetResourceVersion()
				o.done <- last
			}
		}
		o.ended <- nil
	}()
	f.t.Cleanup(cancel)
	return o
}

// undone waits for the next change of an opponent, and until the mirror has seen it.
func (f *fleet) undone(o *opponent, ns, name string) {
	f.t.Helper()
	var version string
	select {
	case version = <-o.done:
	case err := <-o.ended:
		f.t.Fatalf("the opponent ended: %v", err)
	case <-time.After(deadline):
		f.t.Fatal("the opponent has nothing to change")
	}
	f.eventually("the mirror has it", func() error {
		is, found := f.mirror.Lookup("oak", configMaps.GroupResource(), ns, name)
		if version == "" && is == presence.Absent || version != "" && number(f.t, found.ResourceVersion) >= number(f.t, version) {
			return nil
		}
		return fmt.Errorf("it is at %q, want %q", found.ResourceVersion, version)
	})
}

func number(t *testing.T, version string) (n uint64) {
	t.Helper()
	if version == "" {
		return 0
	}
	if err := json.Unmarshal([]byte(version), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// stop ends an opponent, and fails the test if the opponent had an error.
func (o *opponent) stop(t *testing.T) {
	t.Helper()
	o.cancel()
	if err := <-o.ended; err != nil {
		t.Fatal(err)
	}
}

// A copy that something in its cluster keeps changing or deleting is put back at once at first,
// then after growing pauses. The hub reports who does it. An edit of the template is applied at
// once. When nothing changes the copy any more, the report ends.
func TestACopyThatIsChangedAgainAndAgain(t *testing.T) {
	f := newFleet(t)
	clock := &manualClock{at: now}
	f.now = clock.now
	f.start()
	recorder, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(recorder.Close()) })
	f.join("oak", recorder.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))

	patch := func(body string) func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return func(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			left, err := c.Patch(ctx, o.GetName(), types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "opponent"})
			if err == nil && left.GetResourceVersion() == o.GetResourceVersion() {
				return nil, nil // nothing to change
			}
			return left, err
		}
	}
	other := mark.Key(strings.Repeat("k", mark.KeySize))
	for name, tc := range map[string]struct {
		undo            func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) (*unstructured.Unstructured, error)
		reason, message string
	}{
		"AField": {patch(`{"data":{"key":"theirs"}}`), workv1alpha2.ReasonFieldsChanged, `"opponent" changes data.key of configmaps `},
		"ALabel": {
			patch(`{"metadata":{"labels":{"team":null}}}`), workv1alpha2.ReasonFieldsChanged,
			"a client that managedFields does not name removes metadata.labels.team of configmaps ",
		},
		"OurMark": {
			patch(`{"metadata":{"labels":{"work.orrery.dev/binding":null}}}`), workv1alpha2.ReasonFieldsChanged,
			`removes metadata.labels."work.orrery.dev/binding" of configmaps `,
		},
		"TheCopy": {func(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			uid := o.GetUID()
			err := c.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			return &unstructured.Unstructured{Object: map[string]any{}}, err
		}, workv1alpha2.ReasonCopyDeleted, "something in the cluster deletes configmaps "},
		"AnotherHub": {func(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			if o.GetLabels()[workv1alpha2.BindingLabel] == "another" {
				return nil, nil
			}
			theirs := configMap(o.GetNamespace(), o.GetName(), "theirs")
			theirs.SetUID("")
			theirs.SetLabels(map[string]string{workv1alpha2.BindingLabel: "another"})
			theirs.SetAnnotations(map[string]string{
				workv1alpha2.SourceAnnotation: other.Sign(mark.Source{Template: "t", Cluster: "c", Generation: 1}), workv1alpha2.DigestAnnotation: "d",
			})
			return c.Apply(ctx, o.GetName(), theirs, metav1.ApplyOptions{FieldManager: workv1alpha2.FieldManager, Force: true})
		}, workv1alpha2.ReasonOtherHub, "another hub of Orrery applies configmaps "},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			version := func(value string) *unstructured.Unstructured {
				o := configMap(ns, "a", value)
				o.SetLabels(map[string]string{"team": "ours"})
				return o
			}
			var mu sync.Mutex
			var at []time.Duration // times of the applies, since began
			began := clock.now()
			recorder.OnWriteIn(ns, func(w testenv.Write) {
				if w.Verb == "apply" && w.Resource == "configmaps" && !w.DryRun {
					mu.Lock()
					at = append(at, clock.now().Sub(began))
					mu.Unlock()
				}
			})
			defer recorder.OnWriteIn(ns, nil)
			applies := func(n int) []time.Duration {
				t.Helper()
				f.eventually(fmt.Sprintf("there are %d applies", n), func() error {
					mu.Lock()
					defer mu.Unlock()
					if len(at) < n {
						return fmt.Errorf("there are %d", len(at))
					}
					return nil
				})
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(at)
			}
			overwrite := func(s *workv1alpha2.BindingSpec) { s.ConflictResolution = policyv1alpha1.ConflictOverwrite }
			b := f.bind(version("1"), overwrite, "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			if c := f.applier.Contest(b.UID, "oak"); c != (Contest{}) {
				t.Fatalf("it is contested before anybody changed it: %+v", c)
			}
			q, _ := f.applier.queue("oak")
			// settled waits until n writes that put the copy back are answered.
			settled := func(n int) {
				t.Helper()
				f.eventually(fmt.Sprintf("%d writes put it back", n), func() error {
					if s, _ := f.applier.results.get(b.UID, "oak"); s.acts.PutBacks != n || s.busy {
						return fmt.Errorf("%d did (busy: %t)", s.acts.PutBacks, s.busy)
					}
					return nil
				})
			}
			look := func() { q.reconcile(t.Context(), binding.Name(b)) }
			puts, begun := testutil.ToFloat64(putBacks.WithLabelValues("oak")), testutil.ToFloat64(contests.WithLabelValues("oak"))

			// The copy is put back at once, three times.
			o := f.oppose(ns, "a", tc.undo)
			for range 1 + immediatePutBacks {
				f.undone(o, ns, "a")
			}
			settled(immediatePutBacks)
			// The first apply and the put-backs are made at once.
			want := slices.Repeat([]time.Duration{0}, 1+immediatePutBacks)
			c := f.applier.Contest(b.UID, "oak")
			if c.Reason != tc.reason || !strings.Contains(c.Message, tc.message) {
				t.Errorf("it is contested by %+v, want %s with %q", c, tc.reason, tc.message)
			}
			// Then there is a pause before each write, twice as long each time.
			var since time.Duration
			for i, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				look()
				clock.advance(pause - time.Millisecond)
				look()
				clock.advance(time.Millisecond)
				since += pause
				want = append(want, since)
				q.items.Add(item{binding: binding.Name(b)})
				f.undone(o, ns, "a")
				settled(immediatePutBacks + i + 1)
				if again := f.applier.Contest(b.UID, "oak"); again != c {
					t.Errorf("what is said changes from one round to the next: %+v, then %+v", c, again)
				}
			}
			// An edit is applied at once.
			f.templates.set(version("2"))
			want = append(want, since)
			f.undone(o, ns, "a")
			o.stop(t)
			if diff := cmp.Diff(want, applies(len(want))); diff != "" {
				t.Errorf("the applies were made at (-want +got):\n%s", diff)
			}
			// When nothing changes the copy any more, the contest ends.
			clock.advance(longestPutBackPause)
			q.items.Add(item{binding: binding.Name(b)})
			want = append(want, since+longestPutBackPause)
			applies(len(want))
			f.eventually("it is as wanted", func() error {
				if again := f.applier.Contest(b.UID, "oak"); again != c {
					return fmt.Errorf("it is contested by %+v, want %+v still", again, c)
				}
				is, found := q.find(Object{Resource: configMaps, Namespace: ns, Name: "a"})
				s, _ := f.applier.results.get(b.UID, "oak")
				if is != presence.Present || found.Digest != s.acts.Digest || found.Fields != s.acts.Fields || s.acts.Unsure {
					return errors.New("it is not")
				}
				return nil
			})
			f.data(oak, ns, "a", "2")
			clock.advance(PutBackMemory + time.Second)
			look()
			if c := f.applier.Contest(b.UID, "oak"); c != (Contest{}) {
				t.Errorf("it is contested still: %+v", c)
			}
			if diff := cmp.Diff(want, applies(len(want))); diff != "" {
				t.Errorf("the applies were made at (-want +got):\n%s", diff)
			}
			if n := testutil.ToFloat64(contests.WithLabelValues("oak")) - begun; n != 1 {
				t.Errorf("it became contested %v times", n)
			}
			// All applies put the copy back, except the first one and that of the edit.
			if n := testutil.ToFloat64(putBacks.WithLabelValues("oak")) - puts; n != float64(len(want)-2) {
				t.Errorf("%v writes are counted to have put it back, want %d", n, len(want)-2)
			}
		})
	}

	t.Run("AFieldThatTheTemplateLeavesOut", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		ns := testenv.Namespace(t, testenv.Config(hubServer))
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		o := f.oppose(ns, "a", patch(`{"data":{"key":"theirs"}}`))
		for range 1 + immediatePutBacks {
			f.undone(o, ns, "a")
		}
		f.eventually("it is contested", func() error {
			if c := f.applier.Contest(b.UID, "oak"); c.Reason != workv1alpha2.ReasonFieldsChanged {
				return fmt.Errorf("by %+v", c)
			}
			return nil
		})
		less := configMap(ns, "a", "")
		less.Object["data"] = map[string]any{"another": "2"}
		f.templates.set(less)
		f.eventually("it is contested no longer", func() error {
			if c := f.applier.Contest(b.UID, "oak"); c != (Contest{}) {
				return fmt.Errorf("it is contested by %+v", c)
			}
			return nil
		})
		f.data(oak, ns, "a", "theirs")
		o.stop(t)
	})
	f.unjoin("oak")
}
