package apply

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/render"
)

// snapshotOf returns the snapshot of a Deployment shop/web that is placed in oak with 2 of 6
// replicas, and in elm with 4, with changes.
func snapshotOf(change ...func(*Snapshot)) *Snapshot {
	template := deployment("shop", "web", 6, "example.org/web:1")
	template.SetGeneration(3)
	gvk := template.GroupVersionKind()
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", UID: "b", Generation: 7}}
	b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Generation: 3}
	b.Spec.PolicyRef = workv1alpha2.PolicyReference{Kind: "ClusterPropagationPolicy", Name: "p"}
	b.Spec.ReplicaSchedulingType = policyv1alpha1.Divided
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "elm", Replicas: new(int32(4))}, {Name: "oak", Replicas: new(int32(2))}}
	s := &Snapshot{
		Revision: Revision{Binding: b, State: presence.Present, Template: template},
		Cluster:  &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}}, Reachable: true,
		API: member.API{GroupVersionKind: gvk, Resource: "deployments"}, Served: presence.Present, Confirmed: true,
		Source: mark.Source{Template: "t"}, Namespace: &metav1.PartialObjectMetadata{},
	}
	for _, f := range change {
		f(s)
	}
	s.Version = versionOf(s.Template)
	return s
}

// The changes of a snapshot that several tests make.
var (
	unplaced = func(s *Snapshot) { s.Binding.Spec.Clusters = s.Binding.Spec.Clusters[:1] }
	evicted  = func(s *Snapshot) { evict(s, "oak") }
	deleted  = func(s *Snapshot) {
		s.Binding.DeletionTimestamp, s.Preserved = &metav1.Time{Time: now}, presence.Absent
	}
	undecided   = func(s *Snapshot) { s.Confirmed = false }
	preview     = func(s *Snapshot) { s.Preview = true }
	unreachable = func(s *Snapshot) { s.Reachable = false }
	noTemplate  = func(s *Snapshot) { s.State, s.Template = presence.Unknown, nil }
	gone        = func(s *Snapshot) { s.State, s.Template = presence.Absent, nil }
	namespaced  = func(s *Snapshot) { s.Binding.Spec.PolicyRef.Kind = "PropagationPolicy" }
	suspend     = func(s *Snapshot) {
		s.Binding.Spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{Dispatching: new(true)}}
	}
	missing = func(s *Snapshot) { s.Missing = []types.NamespacedName{{Namespace: "shop", Name: "o"}} }
)

func evict(s *Snapshot, from string) {
	s.Binding.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: from}}
}

// served sets whether the cluster serves Deployments.
func served(p presence.Presence) func(*Snapshot) { return func(s *Snapshot) { s.Served = p } }

// has gives the cluster a copy with a number of replicas. As many as stay have to stay.
func has(replicas, stay int32) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Copy = mirror.Object{UID: "u", Name: "web", Replicas: replicas, Available: replicas}
		wanted, _ := s.share()
		s.Placements = []Placement{
			{Cluster: "elm", Wanted: 4, Available: 4 - stay, Current: true},
			{Cluster: "oak", Wanted: wanted, Moving: replicas - wanted, Available: replicas, Current: true},
		}
		s.Asked = 4 + wanted
	}
}

// labelled sets a label of the hub's namespace.
func labelled(key, value string) func(*Snapshot) {
	return func(s *Snapshot) { s.Namespace.Labels = map[string]string{key: value} }
}

// overridden changes the template in oak by an override of one field.
func overridden(path, value string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Overrides = []*render.Override{render.Compile(&policyv1alpha1.OverridePolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "o", UID: types.UID(path)},
			Spec: policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{
				Path: path, Operator: policyv1alpha1.OverriderOpReplace, Value: &apiextensionsv1.JSON{Raw: []byte(value)},
			}}}}}},
		})}
	}
}

// privilegedPod replaces the template by its next generation, whose pods are privileged.
func privilegedPod(s *Snapshot) {
	s.Template = privileged("shop", "web")
	s.Template.SetGeneration(4)
	s.Binding.Spec.Resource.Generation = 4
}

// agent gives the cluster an agent that places only in some namespaces.
func agent(namespaces ...string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Cluster.Spec.SyncMode = clusterv1alpha1.Pull
		s.Cluster.Spec.Agent = &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: namespaces}
	}
}

// TestWant: a snapshot decides alone what a cluster gets, or why it gets nothing.
func TestWant(t *testing.T) {
	type changes []func(*Snapshot)
	const none = -1 // there is no manifest
	standard, err := podsecurity.New("")
	if err != nil {
		t.Fatal(err)
	}
	renders := render.NewCache()
	for name, tc := range map[string]struct {
		changes  changes
		intent   Intent
		decided  bool
		replicas int64 // of the manifest; none: there is no manifest
		reason   string
		message  string // a part of it
		check    func(Wanted) bool
	}{
		"Placed": {changes{}, Place, true, 2, "", "", func(w Wanted) bool {
			return w.Object == (Object{Resource: w.Object.Resource, Namespace: "shop", Name: "web"}) && w.Object.Resource.Resource == "deployments" &&
				w.Foreign == Adopt && w.Digest != "" && w.Source.Template == "t" && !w.Keeps && !w.Held && w.Suspended == ""
		}},
		"NotDivided":                {changes{func(s *Snapshot) { s.Binding.Spec.ReplicaSchedulingType = policyv1alpha1.Duplicated }}, Place, true, 6, "", "", nil},
		"NotDecided":                {changes{undecided}, Place, false, none, "", "", func(w Wanted) bool { return !w.Work.Ends && w.Object.Name == "web" }},
		"NotDecidedPreview":         {changes{undecided, preview}, Place, false, 2, "", "", nil},
		"TemplateEdited":            {changes{func(s *Snapshot) { s.Template.SetGeneration(4) }}, Place, false, none, "", "", nil},
		"TemplateUnknown":           {changes{noTemplate, has(5, 3)}, Place, false, none, "", "", nil},
		"TemplateAbsent":            {changes{gone, has(5, 3)}, Place, false, none, "", "", nil},
		"UnknownPreview":            {changes{noTemplate, preview, has(5, 3)}, Place, false, none, "", "", nil},
		"KindNotServed":             {changes{served(presence.Absent)}, Place, true, none, workv1alpha2.ReasonAPINotServed, "oak does not serve apps/v1 Deployment", nil},
		"KindUnknown":               {changes{served(presence.Unknown)}, Place, true, none, workv1alpha2.ReasonClusterUnreachable, "oak cannot say", nil},
		"KindNotServedWhenLastSeen": {changes{served(presence.Absent), unreachable}, Place, true, 2, "", "", nil},
		"Preview":                   {changes{served(presence.Absent), preview}, Place, true, none, workv1alpha2.ReasonAPINotServed, "oak does not serve", nil},
		"OverrideDoesNotFit":        {changes{overridden("/spec/nothing/at", "1")}, Place, true, none, workv1alpha2.ReasonRenderFailed, "shop/o", nil},
		"Overridden":                {changes{overridden("/spec/replicas", "9")}, Place, true, 9, "", "", nil},
		"AgentElsewhere":            {changes{agent("other")}, Place, true, none, workv1alpha2.ReasonRejected, "Placement", nil},
		"AgentHere":                 {changes{agent("shop")}, Place, true, 2, "", "", nil},
		"PodSecurity": {
			changes{privilegedPod, labelled(enforce, "baseline")},
			Place, true, none, workv1alpha2.ReasonPodSecurity, "baseline",
			func(w Wanted) bool { return w.Digest == "" },
		},
		"PodSecurityAllows": {changes{labelled(enforce, "baseline")}, Place, true, 2, "", "", func(w Wanted) bool { return w.Security[enforce] == "baseline" }},
		"NamespaceUnknown":  {changes{func(s *Snapshot) { s.Namespace = nil }}, Place, false, none, "", "namespace shop of the hub", nil},
		// A reason that was found without the namespace is shown even then.
		"NamespaceUnknownAndNotServed": {
			changes{served(presence.Absent), func(s *Snapshot) { s.Namespace = nil }}, Place, true, none, workv1alpha2.ReasonAPINotServed, "", nil,
		},
		"NamespacedPolicy":          {changes{namespaced}, Place, true, 2, "", "", func(w Wanted) bool { return w.Foreign == Refuse }},
		"NamespaceOfThisHub":        {changes{namespaced, func(s *Snapshot) { s.OurNamespace = true }}, Place, true, 2, "", "", func(w Wanted) bool { return w.Foreign == Adopt }},
		"TakeOverAllowed":           {changes{namespaced, labelled(workv1alpha2.AllowTakeOverLabel, "true")}, Place, true, 2, "", "", func(w Wanted) bool { return w.Foreign == Adopt }},
		"TakeOver":                  {changes{func(s *Snapshot) { s.Binding.Spec.ConflictResolution = policyv1alpha1.ConflictOverwrite }}, Place, true, 2, "", "", func(w Wanted) bool { return w.Foreign == TakeOver }},
		"Suspended":                 {changes{suspend}, Place, true, 2, "", "", func(w Wanted) bool { return w.Suspended == workv1alpha2.ReasonSuspended }},
		"OverrideMissing":           {changes{missing}, Place, true, 2, "", "", func(w Wanted) bool { return strings.HasSuffix(w.SuspendedMessage, ": OverridePolicy shop/o") }},
		"ReplicasStay":              {changes{evicted, has(5, 3)}, Place, true, 5, "", "", nil},
		"ReplicasStayWhereNotAsked": {changes{evicted, has(5, 3), unreachable}, Place, true, 5, "", "", nil},
		"Vacated":                   {changes{unplaced}, Vacate, true, none, "", "", func(w Wanted) bool { return !w.Held && w.Object.Name == "web" }},
		"VacatedUndecided":          {changes{unplaced, undecided}, Vacate, false, none, "", "", nil},
		"VacatedPreview":            {changes{unplaced, preview}, Vacate, true, none, "", "", nil},
		"VacatedClusterLeaves":      {changes{unplaced, func(s *Snapshot) { s.Leaving = true }}, Vacate, false, none, "", "", nil},
		"VacatedNotServed":          {changes{unplaced, served(presence.Absent)}, Vacate, true, none, "", "", nil},
		"Stay":                      {changes{unplaced, evicted, has(2, 2)}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Held }},
		"StayWithoutTemplate":       {changes{unplaced, evicted, noTemplate, has(2, 2)}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Held && !w.Keeps }},
		"StayForAWorkload":          {changes{unplaced, evicted, has(2, 0), func(s *Snapshot) { s.Needed = true }}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Held }},
		"StayWithoutTarget": {
			changes{evicted, func(s *Snapshot) { s.Binding.Spec.Clusters = nil }}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Held },
		},
		"ReadyElsewhere":         {changes{unplaced, evicted, has(2, 0)}, Vacate, true, none, "", "", func(w Wanted) bool { return !w.Held }},
		"VacatedSuspended":       {changes{unplaced, evicted, suspend, has(2, 2)}, Vacate, true, none, "", "", func(w Wanted) bool { return !w.Held && w.Suspended != "" }},
		"Deleted":                {changes{deleted}, Remove, true, none, "", "", nil},
		"DeletedPreview":         {changes{deleted, preview}, Remove, true, none, "", "", nil},
		"DeletedWithoutTemplate": {changes{deleted, gone, has(5, 3)}, Remove, true, none, "", "", nil},
		"PreservedByThePolicy":   {changes{deleted, func(s *Snapshot) { s.Preserved = presence.Present }}, Leave, true, none, "", "", nil},
		"Preserved":              {changes{deleted, func(s *Snapshot) { s.Binding.Spec.PreserveResourcesOnDeletion = true }}, Leave, true, none, "", "", nil},
		"KeptForOrphans":         {changes{unplaced, orphansIn("oak")}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Keeps }},
		// Unknown is not absent: while the template may exist, its dependencies stay.
		"KeptForOrphansUnknown": {changes{unplaced, noTemplate, orphansIn("oak")}, Vacate, true, none, "", "", func(w Wanted) bool { return w.Keeps }},
		"KeptForOrphansGone":    {changes{unplaced, gone, orphansIn("oak")}, Vacate, true, none, "", "", func(w Wanted) bool { return !w.Keeps }},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf(tc.changes...)
			b, template := s.Binding.DeepCopy(), s.Template.DeepCopy()
			w := Want(s, renders, standard)
			replicas := int64(none)
			if w.Manifest != nil {
				replicas = int64(*interpreter.Replicas(w.Manifest))
			}
			if w.Intent != tc.intent || w.Decided != tc.decided || replicas != tc.replicas || w.Reason != tc.reason || !strings.Contains(w.Message, tc.message) {
				t.Errorf("intent %d, decided %t, %d replicas, %s: %q", w.Intent, w.Decided, replicas, w.Reason, w.Message)
			}
			if tc.check != nil && !tc.check(w) {
				t.Errorf("%+v", w)
			}
			if (w.Message == "") != (tc.message == "" && tc.reason == "") {
				t.Errorf("the message is %q", w.Message)
			}
			if diff := cmp.Diff(w, Want(s, render.NewCache(), standard)); diff != "" {
				t.Errorf("without earlier results it is another one:\n%s", diff)
			}
			if diff := cmp.Diff(b, s.Binding) + cmp.Diff(template, s.Template); diff != "" {
				t.Errorf("the snapshot was changed:\n%s", diff)
			}
		})
	}
}

// orphansIn makes the copy a dependency of objects that stayed in a cluster.
func orphansIn(cluster string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Binding.Spec.RequiredByOrphans = []workv1alpha2.OrphaningTemplate{{Clusters: []string{cluster}}}
	}
}

// TestWantAnOlderRevision: the caller chooses the revision. Two revisions of one binding have their
// own manifests in one cache.
func TestWantAnOlderRevision(t *testing.T) {
	standard, err := podsecurity.New("")
	if err != nil {
		t.Fatal(err)
	}
	renders := render.NewCache()
	image := func(w Wanted) string {
		list, _, _ := unstructured.NestedSlice(w.Manifest.Object, "spec", "template", "spec", "containers")
		container, _ := list[0].(map[string]any)
		image, _ := container["image"].(string)
		return image
	}
	older := snapshotOf()
	newer := snapshotOf(func(s *Snapshot) {
		s.Template = deployment("shop", "web", 6, "example.org/web:2")
		s.Template.SetGeneration(4)
		s.Binding.Spec.Resource.Generation = 4
	})
	for range 2 {
		first, second := Want(older, renders, standard), Want(newer, renders, standard)
		if image(first) != "example.org/web:1" || image(second) != "example.org/web:2" || first.Digest == second.Digest {
			t.Errorf("%s %s, %s %s", image(first), first.Digest, image(second), second.Digest)
		}
	}
}

// TestWantUsesTheVersionOfTheRevision: Want does not compute the version of the template again,
// which encodes the whole template for some kinds.
func TestWantUsesTheVersionOfTheRevision(t *testing.T) {
	standard, err := podsecurity.New("")
	if err != nil {
		t.Fatal(err)
	}
	renders := render.NewCache()
	first := Want(snapshotOf(), renders, standard)
	s := snapshotOf(func(s *Snapshot) { s.Template.SetLabels(map[string]string{"a": "b"}) })
	if w := Want(s, renders, standard); w.Digest == first.Digest {
		t.Error("another version of the template has the same manifest")
	}
	s.Version = versionOf(snapshotOf().Template)
	if w := Want(s, renders, standard); w.Digest != first.Digest {
		t.Error("the manifest is not that of the revision's version")
	}
}

// TestReplicas: a snapshot decides how many replicas stay in its cluster. The manifest has the
// number that the results record.
func TestReplicas(t *testing.T) {
	standard, err := podsecurity.New("")
	if err != nil {
		t.Fatal(err)
	}
	type changes []func(*Snapshot)
	unclaimed := func(s *Snapshot) { s.Unclaimed = 3 }
	elsewhere := func(s *Snapshot) { evict(s, "ash") }
	duplicated := func(s *Snapshot) { s.Binding.Spec.ReplicaSchedulingType = policyv1alpha1.Duplicated }
	for name, tc := range map[string]struct {
		changes changes
		want    *Replicas // nil: not decided
	}{
		"NoCopy":               {changes{}, &Replicas{Keeps: 2, Counted: true}},
		"ScaledDown":           {changes{has(5, 3)}, &Replicas{Has: 5, Keeps: 2, Counted: true}},
		"Moves":                {changes{evicted, has(5, 3)}, &Replicas{Has: 5, Keeps: 5, Counted: true}},
		"MovesInPart":          {changes{evicted, has(5, 2)}, &Replicas{Has: 5, Keeps: 4, Counted: true}},
		"MovesElsewhere":       {changes{elsewhere, has(5, 3)}, &Replicas{Has: 5, Keeps: 5, Counted: true}},
		"Moved":                {changes{evicted, has(5, 0)}, &Replicas{Has: 5, Keeps: 2, Counted: true}},
		"Waits":                {changes{unclaimed, has(5, 3)}, &Replicas{Has: 5, Keeps: 5, Counted: true, Waits: true}},
		"Waited":               {changes{unclaimed, has(5, 0)}, &Replicas{Has: 5, Keeps: 2, Counted: true}},
		"NeverScalesUp":        {changes{elsewhere, has(1, 3)}, &Replicas{Has: 1, Keeps: 2, Counted: true}},
		"Undecided":            {changes{undecided, evicted, has(5, 3)}, nil},
		"UndecidedPreview":     {changes{undecided, preview, evicted, has(5, 3)}, &Replicas{Has: 5, Keeps: 5, Counted: true}},
		"NotServed":            {changes{served(presence.Absent), evicted, has(5, 3)}, nil},
		"NotServedUnreachable": {changes{served(presence.Absent), unreachable, evicted, has(5, 3)}, &Replicas{Has: 5, Keeps: 5, Counted: true}},
		"Suspended":            {changes{suspend, evicted, has(5, 3)}, &Replicas{}},
		"OverrideMissing":      {changes{missing, evicted, has(5, 3)}, &Replicas{}},
		"NotDivided":           {changes{duplicated, evicted, has(5, 3)}, &Replicas{}},
		"NotDividedNotServed":  {changes{duplicated, served(presence.Absent)}, &Replicas{}},
		"Vacates":              {changes{unplaced, evicted, has(5, 4)}, &Replicas{Has: 5, Keeps: 5, Held: true, Counted: true}},
		"VacatesUndecided":     {changes{unplaced, evicted, undecided, has(5, 4)}, &Replicas{Has: 5, Keeps: 5, Held: true, Counted: true}},
		"VacatesUnclaimed":     {changes{unplaced, unclaimed, has(5, 4)}, &Replicas{Has: 5, Keeps: 5, Held: true, Counted: true, Waits: true}},
		"VacatesWithoutAMove":  {changes{unplaced, has(5, 4)}, &Replicas{Has: 5, Counted: true}},
		"VacatesNotServed":     {changes{unplaced, evicted, served(presence.Absent), has(5, 4)}, &Replicas{Has: 5, Keeps: 5, Held: true, Counted: true}},
		"Vacated":              {changes{unplaced, evicted, has(5, 0)}, &Replicas{Has: 5, Counted: true}},
		"VacatesSuspended":     {changes{unplaced, evicted, suspend, has(5, 4)}, &Replicas{}},
		"Unknown":              {changes{noTemplate, evicted, has(5, 3)}, nil},
		"VacatesUnknown":       {changes{unplaced, evicted, noTemplate, has(5, 4)}, &Replicas{Has: 5, Keeps: 5, Held: true, Counted: true}},
		"Deleted":              {changes{deleted, evicted, has(5, 3)}, nil},
		"DeletedUnplaced":      {changes{deleted, unplaced, evicted, has(5, 3)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf(tc.changes...)
			r := s.replicas()
			if diff := cmp.Diff(tc.want, r); diff != "" {
				t.Error(diff)
			}
			if w := Want(s, render.NewCache(), standard); w.Manifest != nil && r.Counted && *interpreter.Replicas(w.Manifest) != r.Keeps {
				t.Errorf("the manifest has %d replicas", *interpreter.Replicas(w.Manifest))
			}
			// Where nothing moves, the other clusters, which may be many, are not asked.
			still := []string{"NoCopy", "ScaledDown", "NeverScalesUp", "NotDivided", "VacatesWithoutAMove", "Deleted"}
			if s.moves() && slices.Contains(still, name) {
				t.Error("replicas move")
			}
		})
	}
}

// placedCopies is a mirror that knows only these copies of every binding.
type placedCopies struct {
	observer
	copies []mirror.Object
}

func (p placedCopies) Placed(types.UID) []mirror.Object { return p.copies }

// noMembers is a registry without clusters.
type noMembers struct{ registry }

func (noMembers) Member(string) (*member.Member, bool) { return nil, false }

// TestStayWithoutTemplate: a copy whose template is unknown stays while its binding moves nowhere,
// and the results record that all its replicas stay. An explanation records nothing.
func TestStayWithoutTemplate(t *testing.T) {
	oak := mirror.Object{Cluster: "oak", UID: "u", Name: "web", Binding: "b", Replicas: 2, Available: 2}
	for name, tc := range map[string]struct {
		change []func(*Snapshot)
		keeps  int32
	}{
		"Stays":  {[]func(*Snapshot){evicted, noTemplate, func(s *Snapshot) { s.Binding.Spec.Clusters = nil }}, 2},
		"Leaves": {[]func(*Snapshot){unplaced, noTemplate}, 0},
		"Placed": {[]func(*Snapshot){evicted, noTemplate}, 2}, // nothing is decided
	} {
		t.Run(name, func(t *testing.T) {
			a := &Applier{dependencies: dependencies{mirror: placedCopies{copies: []mirror.Object{oak}}, registry: noMembers{}}, results: newResults()}
			s := snapshotOf(tc.change...)
			s.Copy = oak
			if a.release(s, false); a.results.leaves("b", "oak", 2) != 2 {
				t.Error("an explanation was recorded")
			}
			if a.release(s, true); a.results.leaves("b", "oak", 2) != tc.keeps {
				t.Errorf("%d replicas stay, want %d", a.results.leaves("b", "oak", 2), tc.keeps)
			}
		})
	}
}
