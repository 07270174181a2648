package apply

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	now        = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func placeWanted(change ...func(*Wanted)) Wanted {
	w := Wanted{
		Decided: true, Object: Object{Resource: configMaps, Namespace: "ns", Name: "a"}, Digest: "new",
		Manifest: &unstructured.Unstructured{}, Source: mark.Source{Template: "t", Cluster: "c"}, Foreign: Adopt,
	}
	for _, f := range change {
		f(&w)
	}
	return w
}

// ourCopy returns a copy as the binding wants it, with changes.
func ourCopy(change ...func(*Copy)) Copy {
	c := Copy{
		Object: mirror.Object{
			Cluster: "oak", Resource: configMaps, Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7",
			Binding: "b", Digest: "new", Fields: 1,
		},
		Owner: Binding, Authentic: true, ThisJoin: true,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func at(c Copy, others ...Copy) Seen {
	s := Seen{Reachable: true, Listed: true, At: presence.Present, AtObject: c}
	if c.Placed() {
		s.Copies = append([]Copy{c}, others...)
	}
	return s
}

func copies(all ...Copy) Seen { return Seen{Reachable: true, Listed: true, Copies: all} }

// theirs turns a copy into an object without marks.
func theirs(c *Copy) {
	c.Object = mirror.Object{Cluster: "oak", Resource: configMaps, Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7"}
	c.Owner, c.Authentic, c.ThisJoin = Nobody, false, false
}

// said returns each action as one word for tables; a Report as its reason.
func said(actions []Action) []string {
	out := []string{}
	for _, a := range actions {
		switch {
		case a.Verb == Report:
			out = append(out, a.Reason)
		case a.Verb == Retry && a.After > 0:
			out = append(out, "Retry after "+a.After.String())
		case a.Verb == Delete || a.Verb == Unmark:
			out = append(out, a.Verb.String()+" "+a.Copy.Name)
		default:
			out = append(out, a.Verb.String())
		}
	}
	return out
}

func TestPlanOfAPlacement(t *testing.T) {
	absent := Seen{Reachable: true, Listed: true, At: presence.Absent}
	const applied = workv1alpha2.ReasonFullyApplied
	applies := Known{Now: now, Digest: "new", Fields: 1, Applied: true}
	restoreChecked := func(k Known) Known { k.RestoreChecked = true; return k }
	for name, tc := range map[string]struct {
		wanted Wanted
		seen   Seen
		known  Known
		want   []string
	}{
		"NothingIsThere":         {placeWanted(), absent, Known{}, []string{"Create"}},
		"AnEarlierRequestIsOpen": {placeWanted(), absent, Known{Unsure: true}, []string{"Ask"}},
		"TheTypeCannotBeListed": {
			placeWanted(), Seen{Reachable: true, At: presence.Absent, Problem: "500"}, Known{}, []string{workv1alpha2.ReasonListFails, "Await"},
		},
		"AppliedAndTheTypeCannotBeListed": {placeWanted(), Seen{Reachable: true, Problem: "500"}, applies, []string{applied, "Await"}},
		"TheTypeIsNotListed":              {placeWanted(), Seen{Reachable: true, At: presence.Absent}, Known{}, []string{"Await"}},
		"AsWanted":                        {placeWanted(), at(ourCopy()), applies, []string{applied}},
		"NothingIsRemembered":             {placeWanted(), at(ourCopy()), Known{}, []string{"Compare"}},
		"AnOlderManifest":                 {placeWanted(), at(ourCopy(func(c *Copy) { c.Digest = "old" })), Known{}, []string{"Update"}},
		"OfAnEarlierJoin":                 {placeWanted(), at(ourCopy(func(c *Copy) { c.ThisJoin = false })), Known{}, []string{"Update"}},
		"WithoutASource":                  {placeWanted(), at(ourCopy(func(c *Copy) { c.ThisJoin, c.Authentic = false, false })), Known{}, []string{"Update"}},
		"BeingDeleted":                    {placeWanted(), at(ourCopy(func(c *Copy) { c.Deleting = true })), Known{}, []string{workv1alpha2.ReasonApplying}},
		"Drift":                           {placeWanted(), at(ourCopy(func(c *Copy) { c.Fields = 2 })), applies, []string{"Repair"}},
		"DriftAgain":                      {placeWanted(), at(ourCopy(func(c *Copy) { c.Fields = 2 })), Known{Now: now, Digest: "new", Fields: 1, PutBacks: 5, PutBack: now.Add(-time.Second)}, []string{"Retry after 3s"}},
		"DriftLongAfterTheLast":           {placeWanted(), at(ourCopy(func(c *Copy) { c.Fields = 2 })), Known{Now: now, Digest: "new", Fields: 1, PutBacks: 5, PutBack: now.Add(-time.Hour)}, []string{"Repair"}},
		"AnApplyWithoutAnAnswer":          {placeWanted(), at(ourCopy(func(c *Copy) { c.Fields = 2 })), Known{Unsure: true}, []string{"Update"}},
		"AppliedSinceWhatIsKnown":         {placeWanted(), at(ourCopy(func(c *Copy) { c.Fields = 2 })), Known{Digest: "old", Fields: 1}, []string{"Update"}},
		"RejectedJustNow":                 {placeWanted(), absent, Known{Now: now, Refused: "new", RetryAt: now.Add(time.Minute)}, []string{"Retry after 1m0s"}},
		"AnotherWasRejected":              {placeWanted(), absent, Known{Now: now, Refused: "old", RetryAt: now.Add(time.Minute)}, []string{"Create"}},
		"ObjectOfOthers":                  {placeWanted(), at(ourCopy(theirs)), Known{}, []string{"Judge"}},
		"ObjectOfOthersJudged":            {placeWanted(), at(ourCopy(theirs)), Known{Judged: "u/7/new/1"}, []string{workv1alpha2.ReasonConflict, "Retry"}},
		"ObjectOfOthersChanged":           {placeWanted(), at(ourCopy(theirs, func(c *Copy) { c.ResourceVersion = "8" })), Known{Judged: "u/7/new/1"}, []string{"Judge"}},
		"ANamespaceThatWeMade":            {placeWanted(), func() Seen { s := at(ourCopy(theirs)); s.OurNamespace = true; return s }(), Known{}, []string{"Update"}},
		"OfAnotherBinding":                {placeWanted(), at(ourCopy(func(c *Copy) { c.Owner = Another })), Known{}, []string{workv1alpha2.ReasonConflict, "Retry"}},
		"OfABindingThatGoes":              {placeWanted(), at(ourCopy(func(c *Copy) { c.Owner = Going })), Known{}, []string{"Retry"}},
		"OrphanOfThisHub":                 {placeWanted(), at(ourCopy(func(c *Copy) { c.Owner, c.ThisJoin = Nobody, false })), Known{}, []string{"Update"}},
		"PlacedByAnotherHub":              {placeWanted(), at(ourCopy(func(c *Copy) { c.Owner, c.Authentic, c.ThisJoin = Nobody, false, false })), Known{}, []string{"Judge"}},
		"NewerThanTheHub":                 {placeWanted(), at(ourCopy(func(c *Copy) { c.Newer, c.Digest = true, "newer" })), Known{}, []string{"Suspect"}},
		"RestoredAndNotConfirmed":         {placeWanted(), at(ourCopy(func(c *Copy) { c.Newer, c.Digest = true, "newer" })), Known{Restored: true}, []string{workv1alpha2.ReasonHubRestored}},
		"RestoredAndNotNewer":             {placeWanted(), at(ourCopy(func(c *Copy) { c.Digest = "old" })), Known{Restored: true}, []string{"Update"}},
		"OfAnotherGeneration":             {placeWanted(func(w *Wanted) { w.Decided = false }), absent, Known{}, []string{"Retry"}},
		"CannotBeRendered":                {placeWanted(func(w *Wanted) { w.Reason = workv1alpha2.ReasonRenderFailed }), absent, Known{}, []string{workv1alpha2.ReasonRenderFailed}},
		"Unreachable":                     {placeWanted(), Seen{Lost: true}, Known{}, []string{workv1alpha2.ReasonClusterUnreachable}},
		"UnreachableAndApplied":           {placeWanted(), Seen{Lost: true}, applies, []string{applied}},
		"UnreachableAndEdited":            {placeWanted(func(w *Wanted) { w.Digest = "newer" }), Seen{Lost: true}, applies, []string{workv1alpha2.ReasonClusterUnreachable}},
		"NotAskedYet":                     {placeWanted(), Seen{}, Known{}, []string{"Retry"}},
		"LeftUnderAnotherName":            {placeWanted(), at(ourCopy(), ourCopy(func(c *Copy) { c.Name, c.UID = "b", "v" })), restoreChecked(applies), []string{applied, "Delete b"}},
		"LeftSeenThroughAnotherAPI":       {placeWanted(), at(ourCopy(), ourCopy(func(c *Copy) { c.Resource.Group = "other" })), applies, []string{applied}},
		"LeftOfAnEarlierJoin":             {placeWanted(), at(ourCopy(), ourCopy(func(c *Copy) { c.Name, c.UID, c.ThisJoin = "b", "v", false })), applies, []string{applied}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, said(Plan(tc.wanted, tc.seen, tc.known))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanOfARemoval(t *testing.T) {
	wants := func(intent Intent, change ...func(*Wanted)) Wanted {
		w := Wanted{Intent: intent, Decided: true, Object: Object{Resource: configMaps, Namespace: "ns", Name: "a"}}
		for _, f := range change {
			f(&w)
		}
		return w
	}
	keeps := func(intent Intent) Wanted { return wants(intent, func(w *Wanted) { w.Keeps = true }) }
	earlier := func(c *Copy) { c.ThisJoin = false }
	adopted := func(c *Copy) { c.Origin = workv1alpha2.OriginAdopted }
	for name, tc := range map[string]struct {
		wanted Wanted
		seen   Seen
		known  Known
		want   []string
	}{
		"Vacated":                       {wants(Vacate), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Delete a"}},
		"VacatedAndHeld":                {wants(Vacate, func(w *Wanted) { w.Held = true }), copies(ourCopy()), Known{RestoreChecked: true}, []string{}},
		"VacatedByADecisionOfThePast":   {wants(Vacate, func(w *Wanted) { w.Decided = false }), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Retry"}},
		"VacatedOfAnEarlierJoin":        {wants(Vacate), copies(ourCopy(earlier)), Known{RestoreChecked: true}, []string{"Forget"}},
		"VacatedAndAdopted":             {wants(Vacate), copies(ourCopy(adopted)), Known{RestoreChecked: true}, []string{"Unmark a"}},
		"Removed":                       {wants(Remove), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Delete a"}},
		"RemovedAndThePolicyIsUnread":   {wants(Remove, func(w *Wanted) { w.PolicyUnread = true }), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Retry"}},
		"RemovedAtOnceThoughItMoves":    {wants(Remove, func(w *Wanted) { w.Held = true }), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Delete a"}},
		"RemovedOfAnEarlierJoin":        {wants(Remove), copies(ourCopy(earlier)), Known{RestoreChecked: true}, []string{"Forget"}},
		"RemovedAndTakenOver":           {wants(Remove), copies(ourCopy(func(c *Copy) { c.Origin = workv1alpha2.OriginTakenOver })), Known{RestoreChecked: true}, []string{"Unmark a"}},
		"RemovedAndGoing":               {wants(Remove), copies(ourCopy(func(c *Copy) { c.Deleting = true })), Known{RestoreChecked: true}, []string{}},
		"RemovedAndNotListed":           {wants(Remove), Seen{Reachable: true, Copies: []Copy{ourCopy()}}, Known{RestoreChecked: true}, []string{"Delete a", "Await"}},
		"RemovedAndCannotBeListed":      {wants(Remove), Seen{Reachable: true, Problem: "500"}, Known{RestoreChecked: true}, []string{workv1alpha2.ReasonListFails, "Await"}},
		"RemovedAndNoOtherCanBeListed":  {wants(Remove), Seen{Reachable: true, Problem: "500", Copies: []Copy{ourCopy()}}, Known{RestoreChecked: true}, []string{"Delete a", workv1alpha2.ReasonListFails, "Await"}},
		"RestoredAndCannotBeListed":     {wants(Remove), Seen{Reachable: true, Problem: "500", Copies: []Copy{ourCopy()}}, Known{Restored: true}, []string{workv1alpha2.ReasonHubRestored, "Await"}},
		"RemovedAndUnreachable":         {wants(Remove), Seen{Copies: []Copy{ourCopy()}}, Known{RestoreChecked: true}, []string{}},
		"RemovedAndARequestIsOpen":      {wants(Remove), copies(), Known{Unsure: true, RestoreChecked: true}, []string{"Ask"}},
		"RemovedAndNewer":               {wants(Remove), copies(ourCopy(func(c *Copy) { c.Newer = true })), Known{RestoreChecked: true}, []string{"Suspect"}},
		"RemovedAndTheHubIsRestored":    {wants(Remove), copies(ourCopy()), Known{Restored: true}, []string{workv1alpha2.ReasonHubRestored}},
		"ClaimLeavesACluster":           {keeps(Vacate), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Unmark a"}},
		"ClaimNobodyNeeds":              {keeps(Remove), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Unmark a"}},
		"Left":                          {wants(Leave), copies(ourCopy()), Known{RestoreChecked: true}, []string{"Unmark a"}},
		"RemovedBeforeTheRestoreCheck":  {wants(Remove), copies(ourCopy()), Known{}, []string{"Retry after 500ms"}},
		"NothingLeft":                   {wants(Remove), copies(), Known{RestoreChecked: true}, []string{"Forget"}},
		"VacatedAndTheHubIsRestored":    {wants(Vacate), copies(ourCopy()), Known{Restored: true}, []string{workv1alpha2.ReasonHubRestored}},
		"VacatedWithWhatTheHubLacksYet": {wants(Vacate), copies(ourCopy(func(c *Copy) { c.Newer = true })), Known{RestoreChecked: true}, []string{"Suspect"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, said(Plan(tc.wanted, tc.seen, tc.known))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		placements []Placement
		want       map[string]int32
	}{
		"ReplacementIsNotThere": {[]Placement{{"a", 0, 5, 5, false}, {"b", 5, 0, 0, false}}, map[string]int32{"a": 5}},
		"ReplacementIsOld":      {[]Placement{{"a", 0, 5, 5, false}, {"b", 10, 0, 5, false}}, map[string]int32{"a": 5}},
		"ReplacementHasHalf":    {[]Placement{{"a", 0, 5, 5, false}, {"b", 10, 0, 5, true}}, map[string]int32{"a": 5}},
		"ReplacementIsThere":    {[]Placement{{"a", 0, 5, 5, false}, {"b", 10, 0, 10, true}}, map[string]int32{}},
		"WhatMovesIsBroken":     {[]Placement{{"a", 0, 5, 0, false}, {"b", 5, 0, 0, false}}, map[string]int32{}},
		"OneOfTenIsBroken":      {[]Placement{{"a", 0, 10, 9, false}, {"b", 10, 0, 4, true}}, map[string]int32{"a": 10}},
		"WeightsFlip":           {[]Placement{{"a", 8, 0, 2, true}, {"b", 2, 6, 8, true}}, map[string]int32{"b": 6}},
		"WeightsFlippedHalf":    {[]Placement{{"a", 8, 0, 5, true}, {"b", 2, 6, 8, true}}, map[string]int32{"b": 3}},
		"WeightsFlipped":        {[]Placement{{"a", 8, 0, 8, true}, {"b", 2, 6, 8, true}}, map[string]int32{}},
		"LastHealthyCopyStays":  {[]Placement{{"a", 3, 0, 0, true}, {"b", 0, 3, 3, false}}, map[string]int32{"b": 3}},
		"OneOfTwoMayGo":         {[]Placement{{"a", 0, 3, 3, false}, {"b", 0, 3, 3, false}, {"c", 6, 0, 3, true}}, map[string]int32{"b": 3}},
		"UserScalesDownMeanwhile": {
			[]Placement{{"a", 0, 5, 5, false}, {"b", 2, 0, 2, true}}, map[string]int32{},
		},
		"NothingMoves": {[]Placement{{"a", 2, 0, 0, true}, {"b", 2, 0, 5, true}}, map[string]int32{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Release(tc.placements, 0)); diff != "" {
				t.Errorf("what has to stay (-want +got):\n%s", diff)
			}
		})
	}
}

// If not all requested replicas fit, no more replicas leave than were replaced.
func TestReleaseWhenNotAllFit(t *testing.T) {
	for name, tc := range map[string]struct {
		placements []Placement
		want       map[string]int32
	}{
		"Half":   {[]Placement{{"a", 0, 4, 4, false}, {"b", 2, 0, 2, true}}, map[string]int32{"a": 4}},
		"None":   {[]Placement{{"a", 0, 4, 4, false}}, map[string]int32{"a": 4}},
		"Within": {[]Placement{{"a", 1, 3, 4, true}, {"b", 2, 0, 2, true}}, map[string]int32{"a": 1}},
		"All":    {[]Placement{{"a", 0, 4, 4, false}, {"b", 4, 0, 4, true}}, map[string]int32{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Release(tc.placements, 4)); diff != "" {
				t.Errorf("what has to stay (-want +got):\n%s", diff)
			}
		})
	}
}

// The available replicas never fall below the smaller of the wanted ones and those that were
// available before, for any moves and any replacements.
func FuzzRelease(f *testing.F) {
	f.Add([]byte{0, 5, 5, 0, 5, 0, 0, 1})
	f.Add([]byte{2, 6, 8, 1, 8, 0, 5, 1, 0, 3, 3, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var placements []Placement
		for i := 0; i+3 < len(data) && len(placements) < 6; i += 4 {
			p := Placement{
				Cluster: string(rune('a' + len(placements))), Wanted: int32(data[i] % 20), Moving: int32(data[i+1] % 20),
				Available: int32(data[i+2] % 40), Current: data[i+3]%2 == 1,
			}
			p.Available = min(p.Available, p.Wanted+p.Moving)
			placements = append(placements, p)
		}
		var wanted, before, after int32
		for _, p := range placements {
			wanted += p.Wanted
		}
		wanted += int32(len(data) % 4 * 3) // more are wanted than fit
		stay := Release(placements, wanted)
		for _, p := range placements {
			if !p.Current && p.Moving == 0 {
				continue
			}
			before += p.Available
			if left := stay[p.Cluster]; p.Moving > 0 {
				if left < 0 || left > p.Moving {
					t.Errorf("%s: %d of %d stay", p.Cluster, left, p.Moving)
				}
				p.Available = max(0, p.Available-(p.Moving-left)) // the worst case
			}
			after += p.Available
		}
		if after < min(wanted, before) {
			t.Errorf("%d are left of %d available, and %d are wanted: %+v, %v", after, before, wanted, placements, stay)
		}
	})
}

func TestContentsOfANamespace(t *testing.T) {
	of := newInhabitant
	for name, tc := range map[string]struct {
		found         []inhabitant
		held, pending []string
	}{
		"KubernetesOwn": {found: []inhabitant{
			of("ServiceAccount", "default", "1", false), of("ConfigMap", "kube-root-ca.crt", "2", false), of("Event", "e", "3", false),
			of("Endpoints", "web", "4", false), of("EndpointSlice", "web-x", "5", false),
		}},
		"OfOthers":          {found: []inhabitant{of("ConfigMap", "theirs", "1", false)}, held: []string{"configmaps ns/theirs"}},
		"Placed":            {found: []inhabitant{of("ConfigMap", "ours", "1", true)}, pending: []string{"configmaps ns/ours"}},
		"OwnedByPlaced":     {found: []inhabitant{of("Pod", "p", "1", false, "2"), of("ReplicaSet", "r", "2", false, "3"), of("Deployment", "d", "3", true)}, pending: []string{"pods ns/p", "replicasets ns/r", "deployments ns/d"}},
		"OwnedByOthers":     {found: []inhabitant{of("Pod", "p", "1", false, "2"), of("ReplicaSet", "r", "2", false)}, held: []string{"pods ns/p", "replicasets ns/r"}},
		"OwnerIsGone":       {found: []inhabitant{of("Pod", "p", "1", false, "gone")}, pending: []string{"pods ns/p"}},
		"ClaimOfAPlacedSet": {found: []inhabitant{of("PersistentVolumeClaim", "data-db-0", "1", false, "2"), of("StatefulSet", "db", "2", true)}, held: []string{"persistentvolumeclaims ns/data-db-0"}, pending: []string{"statefulsets ns/db"}},
		"ClaimAlone":        {found: []inhabitant{of("PersistentVolumeClaim", "data", "1", false)}, held: []string{"persistentvolumeclaims ns/data"}},
	} {
		t.Run(name, func(t *testing.T) {
			held, pending := classify(tc.found)
			if diff := cmp.Diff([][]string{tc.held, tc.pending}, [][]string{held, pending}); diff != "" {
				t.Errorf("held and pending (-want +got):\n%s", diff)
			}
		})
	}
}

func newInhabitant(kind, name string, uid types.UID, placed bool, owners ...types.UID) inhabitant {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}}
	for _, owner := range owners {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{UID: owner})
	}
	resource := strings.ToLower(kind)
	if !strings.HasSuffix(resource, "s") {
		resource += "s"
	}
	group := map[string]string{"EndpointSlice": "discovery.k8s.io"}[kind]
	return inhabitant{member.API{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind}, Resource: resource}, o, placed}
}

// TestPlanHoldsBack: while changes are suspended, no plan of a placement writes anything, for
// any observed state. A copy as wanted is reported as applied, and removals go on.
func TestPlanHoldsBack(t *testing.T) {
	absent := Seen{Reachable: true, Listed: true, At: presence.Absent}
	seen := []Seen{
		{},
		absent,
		{Reachable: true},
		copies(), copies(ourCopy()), copies(ourCopy(func(c *Copy) { c.Origin = "Adopted" })),
		at(ourCopy()), at(ourCopy(), ourCopy(func(c *Copy) { c.Name, c.UID = "left", "v" })), at(ourCopy(theirs)),
	}
	for _, change := range []func(*Copy){
		func(c *Copy) { c.Digest = "old" }, func(c *Copy) { c.Fields = 2 }, func(c *Copy) { c.ThisJoin = false },
		func(c *Copy) { c.Deleting = true }, func(c *Copy) { c.Owner = Nobody }, func(c *Copy) { c.Newer = true },
	} {
		seen = append(seen, at(ourCopy(change)))
	}
	known := []Known{
		{Now: now, RestoreChecked: true},
		{Now: now, RestoreChecked: true, Digest: "new", Fields: 1, Applied: true},
		{Now: now, RestoreChecked: true, Unsure: true},
		{Now: now, RestoreChecked: true, Digest: "old", Fields: 1},
		{Now: now},
		{Now: now, RestoreChecked: true, Restored: true},
	}
	held, written := 0, 0
	for _, s := range seen {
		for _, k := range known {
			for _, intent := range []Intent{Place, Vacate, Remove, Leave} {
				w := placeWanted(func(w *Wanted) { w.Intent = intent })
				free := Plan(w, s, k)
				w.Suspended, w.SuspendedMessage = workv1alpha2.ReasonSuspended, "held back"
				actions := Plan(w, s, k)
				writes := slices.ContainsFunc(actions, func(a Action) bool { return a.Verb.writes() })
				says := slices.ContainsFunc(actions, func(a Action) bool { return a.Reason == workv1alpha2.ReasonSuspended })
				would := slices.ContainsFunc(free, func(a Action) bool { return a.Verb.writes() })
				switch {
				case intent == Remove || intent == Leave:
					if !cmp.Equal(said(free), said(actions)) {
						t.Errorf("a deletion is held up: %v instead of %v", said(actions), said(free))
					}
					if would {
						written++
					}
				case writes:
					t.Errorf("%v is planned of %+v", said(actions), s)
				case would != says:
					t.Errorf("%v is planned instead of %v", said(actions), said(free))
				case says:
					held++
				}
			}
		}
	}
	if held == 0 || written == 0 {
		t.Errorf("%d plans were held back, and %d of deletions were not: nothing is shown", held, written)
	}
	if got := said(Plan(placeWanted(func(w *Wanted) { w.Suspended = workv1alpha2.ReasonSuspended }), at(ourCopy()), Known{Digest: "new", Fields: 1})); !cmp.Equal(got, []string{workv1alpha2.ReasonFullyApplied}) {
		t.Errorf("what is as wanted is reported as %v", got)
	}
}
