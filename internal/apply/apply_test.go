package apply

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

func TestApplier(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))

	// Each test has a namespace of its own on the hub.
	run := func(name string, test func(f *fleet, ns string)) {
		t.Run(name, func(t *testing.T) {
			outer := f.t
			f.t = t
			defer func() { f.t = outer }()
			test(f, testenv.Namespace(t, testenv.Config(hubServer)))
		})
	}

	run("PlacesInEveryCluster", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		for _, c := range []client.Client{oak, elm} {
			o := f.data(c, ns, "a", "1")
			if got := o.Labels[workv1alpha2.BindingLabel]; got != string(b.UID) {
				t.Errorf("the copy is marked with %q, want %q", got, b.UID)
			}
			n := &corev1.Namespace{}
			f.must(c.Get(f.t.Context(), client.ObjectKey{Name: ns}, n))
			if got := n.Labels[workv1alpha2.NamespaceLabel]; got != f.hubID {
				t.Errorf("the namespace is marked with %q, want %q", got, f.hubID)
			}
		}
	})

	run("FollowsTheTemplateWithOneCall", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		before := f.calls("")
		f.templates.set(configMap(ns, "a", "2"))
		f.data(oak, ns, "a", "2")
		f.eventually("the mirror has it", func() error { return f.placed(b, "oak", 1) })
		if made := f.calls("") - before; made != 1 {
			t.Errorf("%v calls were made, want 1", made)
		}
	})

	run("RepairsDrift", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		o := f.data(oak, ns, "a", "1")
		f.rewrite(oak, o, func(o *corev1.ConfigMap) { o.Data = map[string]string{"key": "edited", "theirs": "kept"} })
		o = f.data(oak, ns, "a", "1")
		if o.Data["theirs"] != "kept" {
			t.Errorf("a field that is not ours was removed: %v", o.Data)
		}
	})

	run("PlacesAgainWhatIsDeleted", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		first := f.data(oak, ns, "a", "1")
		f.must(oak.Delete(f.t.Context(), first))
		f.eventually("a new copy", func() error {
			if o := f.data(oak, ns, "a", "1"); o.UID == first.UID {
				return errors.New("it is the old one")
			}
			return nil
		})
	})

	run("RefusesForeignObjects", func(f *fleet, ns string) {
		f.must(oak.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}, Data: map[string]string{"key": "theirs"}}
		f.must(oak.Create(f.t.Context(), theirs))
		f.eventually("the mirror has it", func() error { return f.presence("oak", ns, "a", presence.Present) })
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonConflict)
		after := f.data(oak, ns, "a", "theirs")
		if after.ResourceVersion != theirs.ResourceVersion {
			t.Error("the foreign object was written")
		}
		f.must(oak.Delete(f.t.Context(), after))
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied) // the conflicting object is gone
	})

	run("TakesForeignObjectsOverWhenToldTo", func(f *fleet, ns string) {
		f.must(oak.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		f.must(oak.Create(f.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}, Data: map[string]string{"key": "theirs"}}))
		f.eventually("the mirror has it", func() error { return f.presence("oak", ns, "a", presence.Present) })
		overwrite := func(s *workv1alpha2.BindingSpec) { s.ConflictResolution = policyv1alpha1.ConflictOverwrite }
		b := f.bind(configMap(ns, "a", "1"), overwrite, "oak")
		f.result(b, "oak", workv1alpha2.ReasonConflict) // the namespace in oak is not this hub's
		f.data(oak, ns, "a", "theirs")
		n := &corev1.Namespace{}
		f.must(f.hub.Get(f.t.Context(), client.ObjectKey{Name: ns}, n))
		n.Labels = map[string]string{workv1alpha2.AllowTakeOverLabel: "true"}
		f.must(f.hub.Update(f.t.Context(), n))
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.data(oak, ns, "a", "1")
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		f.data(oak, ns, "a", "1") // kept: it was there before this hub
	})

	run("LeavesAnObjectAloneThatAppearsBetweenLookAndApply", func(f *fleet, ns string) {
		f.must(oak.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		for name, value := range map[string]string{"same": "1", "other": "2"} {
			theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"key": value}}
			f.must(oak.Create(f.t.Context(), theirs))
			f.eventually("the mirror has it", func() error { return f.presence("oak", ns, name, presence.Present) })
			f.outdated.hide("oak", ns, name)
			b := f.bind(configMap(ns, name, "1"), nil, "oak")
			f.result(b, "oak", workv1alpha2.ReasonConflict)
			if f.outdated.hides() {
				t.Fatal("the applier did not look at the mirror")
			}
			after := f.data(oak, ns, name, value)
			if len(after.Labels) > 0 || len(after.ManagedFields) != len(theirs.ManagedFields) {
				t.Errorf("%s: our marks are left: %v %v", name, after.Labels, after.ManagedFields)
			}
		}
	})

	run("SaysWhatTheMemberSays", func(f *fleet, ns string) {
		o := configMap(ns, "a", "1")
		o.Object["data"] = map[string]any{"not a key": "1"}
		b := f.bind(o, nil, "oak", "elm")
		r := f.result(b, "oak", workv1alpha2.ReasonRejected)
		err := oak.Create(f.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}, Data: map[string]string{"not a key": "1"}})
		if !apierrors.IsInvalid(err) || r.Message != err.Error() {
			t.Errorf("message is %q, want %q", r.Message, err)
		}
		f.templates.set(configMap(ns, "a", "1")) // a valid manifest is tried at once
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	})

	run("SaysWhichClusterDoesNotServeTheKind", func(f *fleet, ns string) {
		o := configMap(ns, "a", "1")
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Nothing"})
		b := f.bind(o, nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonAPINotServed)
	})

	run("AppliesOverridesAndFollowsThem", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		p := &policyv1alpha1.OverridePolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
			Spec: policyv1alpha1.OverrideSpec{
				ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: "a"}},
				OverrideRules: []policyv1alpha1.RuleWithCluster{{
					TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}},
					Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{
						Path: "/data/key", Operator: policyv1alpha1.OverriderOpReplace, Value: &apiextensionsv1.JSON{Raw: []byte(`"oaken"`)},
					}}},
				}},
			},
		}
		f.policy(ns)
		f.must(f.hub.Create(f.t.Context(), p))
		f.data(oak, ns, "a", "oaken")
		f.data(elm, ns, "a", "1")

		p.Spec.OverrideRules[0].Overriders.Plaintext[0].Path = "/no/such/field"
		f.must(f.hub.Update(f.t.Context(), p))
		f.result(b, "oak", workv1alpha2.ReasonRenderFailed)
		f.must(f.hub.Delete(f.t.Context(), p))
		f.data(oak, ns, "a", "1")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	})

	run("AppliesOverridesThatAreWrittenTheOlderWay", func(f *fleet, ns string) {
		f.must(f.hub.Create(f.t.Context(), &policyv1alpha1.OverridePolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
			Spec: policyv1alpha1.OverrideSpec{
				ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: "a"}},
				TargetCluster:     &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}},
				Overriders:        setKey("oaken"),
			},
		}))
		f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.data(oak, ns, "a", "oaken")
		f.data(elm, ns, "a", "1")
	})

	run("HoldsBackWhatIsSuspended", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		on := func(clusters ...string) func(*workv1alpha2.BindingSpec) {
			return func(s *workv1alpha2.BindingSpec) {
				s.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{
					DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: clusters},
				}}
			}
		}
		f.edit(b, on("oak"))
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied) // nothing is held back yet
		f.templates.set(configMap(ns, "a", "2"))
		f.data(elm, ns, "a", "2")
		f.result(b, "oak", workv1alpha2.ReasonSuspended)
		f.data(oak, ns, "a", "1")
		f.move(b, "elm") // the copy in oak is to go, and stays
		f.eventually("the copy that is to go is held", func() error {
			if r, ok := f.applier.Result(b.UID, "oak"); !ok || r.Reason != workv1alpha2.ReasonSuspended || r.Generation != b.Generation {
				return fmt.Errorf("it is %+v", r)
			}
			return nil
		})
		f.data(oak, ns, "a", "1")
		before := f.calls("")
		f.templates.set(configMap(ns, "a", "3"))
		f.data(elm, ns, "a", "3")
		f.edit(b, func(s *workv1alpha2.BindingSpec) {
			s.Suspension, s.Clusters, s.GracefulEvictionTasks = nil, targets([]string{"elm", "oak"}), nil
		})
		f.data(oak, ns, "a", "3") // version 2 was never applied
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		if made := f.calls("") - before; made != 2 {
			t.Errorf("%v calls were made, want one for each cluster", made)
		}
		// A suspension does not block deletions. The user who deletes an object on the hub
		// intends that, and could not resume the object afterwards.
		f.edit(b, func(s *workv1alpha2.BindingSpec) {
			s.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{Dispatching: new(true)}}
		})
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
		f.gone(elm, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	})

	run("WaitsForTheOverridesThatItNeeds", func(f *fleet, ns string) {
		f.policy(ns)
		b := f.bind(configMap(ns, "a", "1"), func(s *workv1alpha2.BindingSpec) {
			s.DependentOverrides = []workv1alpha2.OverrideReference{{Kind: "OverridePolicy", Name: "p"}, {Kind: "ClusterOverridePolicy", Name: ns}}
		}, "oak")
		f.result(b, "oak", workv1alpha2.ReasonOverrideMissing)
		p := override(ns, "p", "oaken", "a")
		f.must(f.hub.Create(f.t.Context(), p))
		wide := override("", ns, "wide", "other")
		wide.Spec.ResourceSelectors[0].Namespace = ns
		f.eventually("the one that is missing is named", func() error {
			if r := f.result(b, "oak", workv1alpha2.ReasonOverrideMissing); !strings.Contains(r.Message, "ClusterOverridePolicy "+ns) {
				return errors.New(r.Message)
			}
			return nil
		})
		if err := oak.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
			t.Errorf("it did not wait: %v", err)
		}
		c := (*policyv1alpha1.ClusterOverridePolicy)(wide)
		f.must(f.hub.Create(f.t.Context(), c))
		f.data(oak, ns, "a", "oaken")
		f.must(f.hub.Delete(f.t.Context(), p))
		f.result(b, "oak", workv1alpha2.ReasonOverrideMissing)
		f.data(oak, ns, "a", "oaken")
		f.must(f.hub.Delete(f.t.Context(), c))
	})

	run("KeepsTheOverrideOfAPolicyThatWentWithIt", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		o := override(ns, "p", "oaken", "a")
		f.must(f.hub.Create(f.t.Context(), o))
		f.data(oak, ns, "a", "oaken")
		before := f.calls("")
		f.must(f.hub.Delete(f.t.Context(), o)) // the PropagationPolicy p does not exist
		v := f.applier.overrides.index.Get(client.ObjectKeyFromObject(o))
		f.eventually("the hub has no override policy", func() error {
			if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(o), &policyv1alpha1.OverridePolicy{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it has: %w", err)
			}
			return nil
		})
		f.applier.overrides.retire(v)
		if f.applier.overrides.index.Get(client.ObjectKeyFromObject(o)) == nil {
			t.Fatal("the override does not count any more, though its policy is gone and nothing says what stays")
		}
		// Placement writes this once it knows that the override is still a dependency.
		f.edit(b, func(s *workv1alpha2.BindingSpec) {
			s.DependentOverrides = []workv1alpha2.OverrideReference{{Kind: "OverridePolicy", Name: "p"}}
		})
		f.eventually("the override has retired", func() error {
			if f.applier.overrides.index.Get(client.ObjectKeyFromObject(o)) != nil {
				return errors.New("it counts still")
			}
			return nil
		})
		f.result(b, "oak", workv1alpha2.ReasonOverrideMissing)
		f.data(oak, ns, "a", "oaken")
		if made := f.calls("") - before; made != 0 {
			t.Errorf("%v calls were made, want none", made)
		}
	})

	run("WritesOnlyWhatAnOverrideChanges", func(f *fleet, ns string) {
		f.policy(ns)
		var all []*workv1alpha2.ResourceBinding
		for i := range 3 {
			all = append(all, f.bind(configMap(ns, fmt.Sprintf("a%d", i), "1"), nil, "oak", "elm"))
		}
		for _, b := range all {
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		}
		calls := f.calls("")
		o := override(ns, "p", "oaken", "a1")
		o.Spec.OverrideRules[0].TargetCluster = &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}}
		f.must(f.hub.Create(f.t.Context(), o))
		f.data(oak, ns, "a1", "oaken")
		f.result(all[1], "oak", workv1alpha2.ReasonFullyApplied)
		o.Spec.ResourceSelectors[0].Name = ""
		f.must(f.hub.Update(f.t.Context(), o))
		for i, b := range all {
			f.data(oak, ns, fmt.Sprintf("a%d", i), "oaken")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.data(elm, ns, fmt.Sprintf("a%d", i), "1")
		}
		if made := f.calls("") - calls; made != 3 {
			t.Errorf("%v calls were made, want one for each copy that is another", made)
		}
		f.must(f.hub.Delete(f.t.Context(), o))
		for i := range all {
			f.data(oak, ns, fmt.Sprintf("a%d", i), "1")
		}
	})

	run("PrunesWhatIsNotPlacedAnyMore", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.data(oak, ns, "a", "1")
		f.move(b, "elm")
		f.data(elm, ns, "a", "1")
		f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	})

	run("KeepsAHealthyCopyUntilItsReplacementIs", func(f *fleet, ns string) {
		f.must(elm.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}}
		f.must(elm.Create(f.t.Context(), theirs))
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.data(oak, ns, "a", "1")
		f.move(b, "elm")
		f.result(b, "elm", workv1alpha2.ReasonConflict)
		f.data(oak, ns, "a", "1")
		f.must(elm.Delete(f.t.Context(), theirs))
		f.data(elm, ns, "a", "1")
		f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	})

	run("DeletesTheCopiesWithTheBinding", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.data(oak, ns, "a", "1")
		f.data(elm, ns, "a", "1")
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		for _, c := range []client.Client{oak, elm} {
			if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
				t.Errorf("the binding is gone before its copy: %v", err)
			}
		}
	})

	run("LeavesAloneWhatOnlyCopiedItsMark", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		// Labels of a Service are copied to its EndpointSlices in this way.
		theirs := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a-x7k2p", Labels: map[string]string{workv1alpha2.BindingLabel: string(b.UID)}},
			Data:       map[string]string{"key": "theirs"},
		}
		f.must(oak.Create(f.t.Context(), theirs))
		f.eventually("the mirror has it", func() error { return f.presence("oak", ns, theirs.Name, presence.Present) })
		f.templates.set(configMap(ns, "a", "2"))
		f.data(oak, ns, "a", "2")
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		if after := f.data(oak, ns, theirs.Name, "theirs"); after.UID != theirs.UID {
			t.Error("it was deleted and came back")
		}
	})

	run("OrphansTheCopiesWhenTheyAreToBePreserved", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), func(s *workv1alpha2.BindingSpec) { s.PreserveResourcesOnDeletion = true }, "oak")
		f.data(oak, ns, "a", "1")
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		o := f.data(oak, ns, "a", "1")
		if o.Labels[workv1alpha2.BindingLabel] != "" || o.Annotations[workv1alpha2.DigestAnnotation] != "" {
			t.Errorf("the copy still has our marks: %v %v", o.Labels, o.Annotations)
		}
		n := &corev1.Namespace{}
		f.must(oak.Get(f.t.Context(), client.ObjectKey{Name: ns}, n))
		if n.Labels[workv1alpha2.NamespaceLabel] != "" {
			t.Error("the namespace of the copy is deleted with the hub's")
		}
	})

	// The garbage collector of the hub may delete a binding before placement has decided on the
	// changed policy, also while no server runs.
	run("OrphansTheCopiesWhenThePolicyAloneSaysSo", func(f *fleet, ns string) {
		f.policy(ns)
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.data(oak, ns, "a", "1")
		p := &policyv1alpha1.PropagationPolicy{}
		f.must(f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: "p"}, p))
		p.Spec.PreserveResourcesOnDeletion = new(true)
		f.must(f.hub.Update(f.t.Context(), p))
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		if o := f.data(oak, ns, "a", "1"); o.Labels[workv1alpha2.BindingLabel] != "" {
			t.Errorf("the copy still has our mark: %v", o.Labels)
		}
	})

	run("LetsABindingGoThatNamesNoSuchCluster", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "nowhere")
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
	})

	run("PlacesClusterScopedObjects", func(f *fleet, ns string) {
		o := &unstructured.Unstructured{Object: map[string]any{"value": int64(7), "globalDefault": false}}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "scheduling.k8s.io", Version: "v1", Kind: "PriorityClass"})
		o.SetName(ns)
		o.SetUID(types.UID("template-" + ns))
		f.templates.set(o)
		b := &workv1alpha2.ClusterResourceBinding{
			ObjectMeta: metav1.ObjectMeta{Name: ns, Finalizers: []string{workv1alpha2.Finalizer}},
			Spec: workv1alpha2.BindingSpec{
				Resource:  workv1alpha2.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: ns, UID: o.GetUID()},
				PolicyRef: workv1alpha2.PolicyReference{Kind: "ClusterPropagationPolicy", Name: "p"},
				Clusters:  targets([]string{"oak"}),
			},
		}
		f.must(f.hub.Create(f.t.Context(), b))
		f.result(b.Binding(), "oak", workv1alpha2.ReasonFullyApplied)
		found := &unstructured.Unstructured{}
		found.SetGroupVersionKind(o.GroupVersionKind())
		found.SetName(ns)
		f.must(oak.Get(f.t.Context(), client.ObjectKeyFromObject(found), found))
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		f.gone(oak, found)
	})

	run("ARestartMakesNoCall", func(f *fleet, ns string) {
		var all []*workv1alpha2.ResourceBinding
		for i := range 20 {
			all = append(all, f.bind(configMap(ns, fmt.Sprintf("a%d", i), "1"), nil, "oak", "elm"))
		}
		for _, b := range all {
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		}
		f.stop()
		before := f.calls("")
		f.writes.Store(0)
		f.start()
		for _, b := range all {
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		}
		if made := f.calls("") - before; made != 0 {
			t.Errorf("%v calls were made, want none", made)
		}
		if made := f.writes.Load(); made != 0 {
			t.Errorf("%d writes of bindings were made, want none", made)
		}
		f.rewrite(oak, f.data(oak, ns, "a0", "1"), func(o *corev1.ConfigMap) { o.Data["key"] = "edited" })
		f.data(oak, ns, "a0", "1") // drift is found as before
	})

	run("DeletesItsNamespacesWithTheHubs", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		// This hub did not create the namespace in elm.
		f.must(elm.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		f.must(f.hub.Delete(f.t.Context(), b))
		f.gone(f.hub, b)
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
		f.must(f.hub.Delete(f.t.Context(), n))
		f.finalizeNamespace(testenv.Config(hubServer), ns)
		f.eventually("the member's namespace is being deleted", func() error {
			if err := oak.Get(f.t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
				return client.IgnoreNotFound(err)
			}
			if n.DeletionTimestamp.IsZero() {
				return errors.New("it is not")
			}
			return nil
		})
		f.must(elm.Get(f.t.Context(), client.ObjectKeyFromObject(n), n))
		if !n.DeletionTimestamp.IsZero() {
			t.Error("a namespace is deleted that is not ours")
		}
	})

	run("ClustersThatLeaveKeepTheirWorkloadsWithoutOurMarks", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "oak", "elm")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}}
		f.must(f.hub.Delete(f.t.Context(), c))
		f.gone(f.hub, c)
		o := f.data(oak, ns, "a", "1")
		if o.Labels[workv1alpha2.BindingLabel] != "" || o.Annotations[workv1alpha2.DigestAnnotation] != "" {
			t.Errorf("the copy still has our marks: %v %v", o.Labels, o.Annotations)
		}
		n := &corev1.Namespace{}
		f.must(oak.Get(f.t.Context(), client.ObjectKey{Name: ns}, n))
		if n.Labels[workv1alpha2.NamespaceLabel] != "" {
			t.Errorf("the namespace still has our mark: %v", n.Labels)
		}
		f.must(f.hub.Delete(f.t.Context(), b)) // a cluster that has left does not block it
		f.gone(f.hub, b)
		f.data(oak, ns, "a", "1")
	})

	run("ClustersThatLeaveLoseTheirWorkloadsWhenToldTo", func(f *fleet, ns string) {
		b := f.bind(configMap(ns, "a", "1"), nil, "elm")
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		c := &clusterv1alpha1.Cluster{}
		f.eventually("set deletionPolicy", func() error {
			if err := f.hub.Get(f.t.Context(), client.ObjectKey{Name: "elm"}, c); err != nil {
				return err
			}
			c.Spec.DeletionPolicy = clusterv1alpha1.DeletionDelete
			return f.hub.Update(f.t.Context(), c)
		})
		f.must(f.hub.Delete(f.t.Context(), c))
		f.gone(f.hub, c)
		f.gone(elm, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
	})
}

func TestAHungClusterHarmsOnlyItself(t *testing.T) {
	hung := testenv.StartServer(t)
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("ash", testenv.Kubeconfig(oakServer))
	f.join("bog", hung.Kubeconfig())
	ash := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	first := f.bind(configMap(ns, "first", "1"), nil, "ash", "bog")
	f.result(first, "ash", workv1alpha2.ReasonFullyApplied)
	f.result(first, "bog", workv1alpha2.ReasonFullyApplied)

	hung.Signal(t, syscall.SIGSTOP)
	before := time.Now()
	var all []*workv1alpha2.ResourceBinding
	for i := range 3 * workers { // more than the workers of one cluster
		all = append(all, f.bind(configMap(ns, fmt.Sprintf("a%d", i), "1"), nil, "ash", "bog"))
	}
	for _, b := range all {
		f.result(b, "ash", workv1alpha2.ReasonFullyApplied)
	}
	t.Logf("placed %d objects beside a hung cluster in %s", len(all), time.Since(before))
	f.result(all[0], "bog", workv1alpha2.ReasonClusterUnreachable)
	if r, _ := f.applier.Result(first.UID, "bog"); !r.Applied {
		t.Errorf("what was applied before the cluster hung is %+v", r)
	}
	f.must(f.hub.Delete(t.Context(), first))
	f.gone(ash, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "first"}})
	// The other copy is still there.
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(first), first))

	hung.Signal(t, syscall.SIGCONT)
	bog := f.client(hung.Config())
	f.gone(f.hub, first)
	for _, b := range all {
		f.result(b, "bog", workv1alpha2.ReasonFullyApplied)
		f.data(bog, ns, b.Spec.Resource.Name, "1")
	}
	f.gone(bog, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "first"}})
	for _, name := range []string{"ash", "bog"} {
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.must(f.hub.Delete(t.Context(), c))
		f.gone(f.hub, c)
	}
}

// A cluster that answers and cannot list a type leaves all the same. The objects that it can
// list lose our marks, and an event names the types that it cannot list.
func TestAClusterThatCannotListATypeLeaves(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("fir", f.ill(oakServer, func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "etcd: damaged", http.StatusInternalServerError)
		return true
	}))
	fir := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	account := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"namespace": ns, "name": "a"},
	}}
	b := f.bind(account, nil, "fir")
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	f.bind(configMap(ns, "b", "1"), nil, "fir")

	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "fir"}}
	f.must(f.hub.Delete(t.Context(), c))
	f.gone(f.hub, c)
	got := &corev1.ServiceAccount{}
	f.must(fir.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, got))
	if got.Labels[workv1alpha2.BindingLabel] != "" || !got.DeletionTimestamp.IsZero() {
		t.Errorf("labels %v, want what could be listed to stay without our marks", got.Labels)
	}
	f.eventually("an event says what was not listed", func() error {
		list := &eventsv1.EventList{}
		if err := f.hub.List(t.Context(), list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "MarksLeft" && e.Regarding.Name == "fir" && strings.Contains(e.Note, "ConfigMap")
		}) {
			return fmt.Errorf("%d events, and none does", len(list.Items))
		}
		return nil
	})
}

// A cluster that is being deleted is taken out of bindings before its member knows of the
// deletion. It keeps its copies.
func TestAClusterThatBeginsToLeaveKeepsWhatItHas(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("fir", testenv.Kubeconfig(oakServer))
	f.join("yew", testenv.Kubeconfig(elmServer))
	fir, yew := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "fir")
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	before := f.data(fir, ns, "a", "1")

	entered, release := make(chan struct{}), make(chan struct{})
	enter := sync.OnceFunc(func() { close(entered) })
	f.observe.Store(new(func(cluster string) {
		if cluster == "fir" {
			enter()
			<-release
		}
	}))
	f.registry.Refresh("fir")
	<-entered
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "fir"}}
	f.must(f.hub.Delete(t.Context(), c))
	f.eventually("it is known that fir leaves", func() error {
		if err := f.applier.hub.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil || c.DeletionTimestamp.IsZero() {
			return errors.Join(err, errors.New("it is not"))
		}
		return nil
	})
	f.move(b, "yew")
	f.data(yew, ns, "a", "1")
	f.eventually("the copy in yew is seen", func() error { return f.placed(b, "yew", 1) })
	// A wrong deletion of a in fir would happen before b is applied.
	other := f.bind(configMap(ns, "b", "1"), nil, "fir")
	f.result(other, "fir", workv1alpha2.ReasonFullyApplied)
	close(release)
	f.gone(f.hub, c)
	if after := f.data(fir, ns, "a", "1"); after.UID != before.UID || !after.DeletionTimestamp.IsZero() {
		t.Error("what the cluster had was deleted")
	}
	c = &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "yew"}}
	f.must(f.hub.Delete(t.Context(), c))
	f.gone(f.hub, c)
}

func TestADeletedBindingGoesWithTheLostClusterThatHeldItBack(t *testing.T) {
	lost := testenv.StartServer(t)
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("fen", lost.Kubeconfig())
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "fen")
	f.result(b, "fen", workv1alpha2.ReasonFullyApplied)
	lost.Signal(t, syscall.SIGSTOP)
	f.eventually("fen is lost", func() error {
		if f.reachable("fen") == nil {
			return errors.New("it is not")
		}
		return nil
	})
	before := f.calls("")
	f.must(f.hub.Delete(t.Context(), b))
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "fen"}}
	f.must(f.hub.Delete(t.Context(), c))
	f.gone(f.hub, c)
	f.gone(f.hub, b)
	if made := f.calls("") - before; made != 0 {
		t.Errorf("%v calls were made to a cluster that is known not to answer", made)
	}
	lost.Signal(t, syscall.SIGCONT)
}
