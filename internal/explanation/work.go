package explanation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
)

// Works returns the state of an object in each of its clusters that the caller sees, sorted by
// name. The argument of is the name of the object, as KIND[.GROUP]/NAMESPACE/NAME, without
// NAMESPACE for a cluster-scoped kind. Hidden is the number of its clusters that the caller does
// not see. If the object is in no cluster at all, Message says why. If cluster is not "", the list
// has only that cluster, with the manifests. Then the error is NotFound if the object is not there
// or the caller does not see the cluster.
func (e *Explainer) Works(ctx context.Context, may Authorize, of, cluster string) (*fleetv1alpha1.WorkList, error) {
	s, err := e.subject(ctx, may, "parameter of", of)
	if err != nil {
		return nil, err
	}
	list := &fleetv1alpha1.WorkList{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "WorkList"}, Of: explained(s.object), Items: []fleetv1alpha1.Work{},
	}
	if s.binding == nil {
		if list.Message = "no policy places it"; !e.know.Bindings.Synced() {
			list.Message = "the hub has just started and is still reading placements: try again in a few seconds"
		}
		if cluster != "" {
			return nil, notThere(cluster)
		}
		return list, nil
	}
	names := binding.Clusters(s.binding)
	for _, c := range e.know.Mirror.Placed(s.binding.UID) {
		names.Insert(c.Cluster)
	}
	own := names.UnsortedList()
	for _, r := range s.binding.Status.Runs {
		own = append(own, r.ClusterName)
	}
	seen := newVisibilityFilter(s.visibility, own)
	var shown []string
	for name := range names {
		if seen.cluster(name) && (cluster == "" || name == cluster) {
			shown = append(shown, name)
		}
	}
	slices.Sort(shown)
	if list.Hidden = len(seen.hidden); cluster != "" {
		if list.Hidden = 0; len(shown) == 0 {
			return nil, notThere(cluster)
		}
	}
	results, _ := e.results(ctx, s) // clusters without a result are unknown
	live, err := e.live(ctx, s, slices.DeleteFunc(slices.Clone(shown), func(name string) bool { return !s.reads(name) }))
	if err != nil {
		return nil, err
	}
	results = seen.results(results)
	for _, name := range shown {
		w := e.work(ctx, s, name, live[name])
		if r, ok := results[name]; ok {
			w.Result = &r
		}
		list.Items = append(list.Items, w.row(cluster != ""))
	}
	if len(list.Items) == 0 && list.Hidden == 0 {
		list.Message = e.unplaced(s, &seen)
	}
	return list, nil
}

// unplaced returns, as a text for users, why an object with a binding is in no cluster.
func (e *Explainer) unplaced(s *subject, seen *visibilityFilter) string {
	if !s.binding.DeletionTimestamp.IsZero() {
		return "its placement is being removed"
	}
	f := facts{subject: s}
	if outcome, ok := e.know.Placement.Outcome(s.binding.UID); ok {
		f.outcome = &outcome
	}
	return f.outcomeMessage(seen)
}

// notThere returns the NotFound error for one cluster in Works. A cluster without the object and a
// cluster that the caller does not see have the same error.
func notThere(cluster string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, schema.GroupResource{Group: fleetv1alpha1.GroupVersion.Group, Resource: "works"}, cluster,
		fmt.Sprintf("the object is not placed in a cluster %s that you may see", cluster), 0, true)
}

// live returns the object as it is in the given clusters, by cluster, from the mirror: the hub's
// database of objects in clusters. Clusters without the object are left out.
func (e *Explainer) live(ctx context.Context, s *subject, clusters []string) (map[string]*unstructured.Unstructured, error) {
	live := map[string]*unstructured.Unstructured{}
	if len(clusters) == 0 {
		return live, nil
	}
	q := store.Query{Group: s.resource.Group, Resource: s.resource.Resource, Clusters: clusters, Names: []string{s.object.GetName()}}
	if namespace := s.object.GetNamespace(); namespace != "" {
		q.Namespaces = []string{namespace}
	}
	page, err := e.know.Store.List(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read %s %s of the clusters: %w", s.object.GetKind(), s.object.GetName(), err)
	}
	for _, r := range page.Rows {
		o := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(r.Body, &o.Object); err != nil {
			return nil, fmt.Errorf("read %s %s of cluster %s: %w", s.object.GetKind(), s.object.GetName(), r.Cluster, err)
		}
		live[r.Cluster] = o
	}
	return live, nil
}

// work has the facts about an object in one cluster. Explainer.work collects them, and row draws
// the conclusions.
type work struct {
	fleetv1alpha1.Work

	uid      string                     // UID of the binding
	known    presence.Presence          // whether the cluster has the object
	copy     mirror.Object              // what the mirror last observed of the object in the cluster
	live     *unstructured.Unstructured // the object in the cluster; nil: the mirror has none
	rendered apply.Rendered             // what the cluster should have
	hides    bool                       // the object is a Secret, whose data is never shown
}

// work collects the facts about an object in one cluster. live is the object that the mirror has
// there; nil: none. If the caller sees the cluster but not the objects in it, the object counts as
// unknown. s must have a binding.
func (e *Explainer) work(ctx context.Context, s *subject, cluster string, live *unstructured.Unstructured) *work {
	b := s.binding
	w := &work{Work: fleetv1alpha1.Work{Cluster: cluster}, uid: string(b.UID), live: live, rendered: e.know.Applier.Rendered(ctx, b, cluster)}
	if target, placed := binding.Target(b, cluster); placed {
		w.Placed, w.Wanted = b.DeletionTimestamp.IsZero(), target.Replicas
	}
	gr := s.resource.GroupResource()
	w.known, w.copy = e.know.Mirror.Lookup(cluster, gr, b.Namespace, b.Spec.Resource.Name)
	w.hides = gr == schema.GroupResource{Resource: "secrets"}
	m, joined := e.know.Registry.Member(cluster)
	switch {
	case !s.reads(cluster):
		w.known, w.copy, w.Message = presence.Unknown, mirror.Object{}, "you may see this cluster, and not the objects in it"
	case !joined:
		w.Message = "the cluster has not joined, or the hub has not read it yet"
	case !m.Reachable():
		w.Message = "the cluster does not answer"
	default:
		switch _, served := m.APIs().Kind(s.object.GroupVersionKind()); {
		case served == presence.Absent:
			w.known, w.Message = presence.Absent, "the cluster does not serve the kind"
		case w.known == presence.Unknown && e.know.Mirror.Partial(cluster, gr):
			w.Message = "only some objects of this kind are mirrored from the cluster"
		case w.known == presence.Unknown:
			w.Message = "this kind is not mirrored from the cluster, or not read yet"
		case w.known == presence.Absent:
			w.Message = "the cluster does not have it"
		}
	}
	if seen, stale := e.know.Mirror.Freshness(cluster, gr); w.known == presence.Unknown && stale && !seen.IsZero() {
		w.LastSeen = new(metav1.NewTime(seen))
	}
	return w
}

// row draws the conclusions from the facts, stores them in w.Work and returns that for the answer.
// If whole is true, it adds the rendered manifest and the object in the cluster. It calls no
// component of the hub.
func (w *work) row(whole bool) fleetv1alpha1.Work {
	w.State = map[presence.Presence]fleetv1alpha1.WorkState{
		presence.Present: fleetv1alpha1.WorkPresent, presence.Absent: fleetv1alpha1.WorkAbsent, presence.Unknown: fleetv1alpha1.WorkUnknown,
	}[w.known]
	if w.known == presence.Absent {
		w.live = nil // the store still has the object, and receives the deletion shortly
	}
	ours := string(w.copy.Binding) == w.uid
	w.Health = string(workv1alpha2.ResourceUnknown)
	switch {
	case w.known == presence.Absent:
		w.Health = ""
	case ours:
		if w.known == presence.Present {
			w.Health = string(w.copy.Health)
		}
		w.Cause = interpreter.Cause(w.copy.Status)
		if w.Wanted != nil {
			w.Asked, w.Ready = &w.copy.Replicas, &w.copy.Available
		}
	case w.known == presence.Present:
		w.Message = w.Cluster + " already has an object of this name that this template did not create: delete it there, or take it over with conflictResolution: Overwrite in the policy"
	}
	for _, v := range w.rendered.Overrides {
		w.Overrides = append(w.Overrides, overridePolicy(v))
	}
	w.Images = images(w.rendered.Manifest, w.live)
	w.drift(ours)
	if whole {
		w.Rendered, w.Live = shown(w.rendered.Manifest, w.hides), shown(w.live, w.hides)
	}
	return w.Work
}

// drift sets Drift to the differences between the rendered manifest and the object in the cluster.
// If they cannot be compared, it sets DriftUnknown to the reason; both are set if only a part could
// be. ours is true if the object is a copy of the template. All differences in the data of a Secret
// are one entry without values.
func (w *work) drift(ours bool) {
	switch {
	case w.rendered.Manifest == nil:
		w.DriftUnknown = w.rendered.Message
	case w.known == presence.Absent:
		w.DriftUnknown = cmp.Or(w.Message, "the cluster does not have it")
	case w.live == nil:
		w.DriftUnknown = cmp.Or(w.Message, "the mirror has not stored it yet")
	case !ours:
		w.DriftUnknown = cmp.Or(w.Message, "the object that was last seen there is not a copy of this template")
	default:
		manifest, live := w.rendered.Manifest, w.live
		if _, all := live.Object["type"]; w.hides && !all {
			manifest = only(manifest, "apiVersion", "kind", "metadata")
			w.DriftUnknown = "only the metadata could be compared: the data is not mirrored"
		} else if w.known == presence.Unknown {
			w.DriftUnknown = w.Message
		}
		hidden := false
		for _, d := range apply.Drift(manifest, live) {
			if w.hides && secretField(d.Path) {
				hidden = true
				continue
			}
			w.Drift = append(w.Drift, d)
		}
		if hidden {
			w.Drift = append(w.Drift, fleetv1alpha1.FieldDifference{Path: "data", Hidden: true})
		}
	}
}

// dataFields are the fields of a Secret that answers never show.
var dataFields = []string{"data", "stringData"}

// secretField reports whether the path of a field, such as data.password, is in the data of a
// Secret.
func secretField(path string) bool {
	return slices.ContainsFunc(dataFields, func(field string) bool { return path == field || strings.HasPrefix(path, field+".") })
}

// only returns a copy of an object with only the given top-level fields. The copy shares the
// values of the fields with o.
func only(o *unstructured.Unstructured, fields ...string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(o.Object)}
	maps.DeleteFunc(out.Object, func(name string, _ any) bool { return !slices.Contains(fields, name) })
	return out
}

// shown returns the JSON of an object for the answer; nil if o is nil. If hides is true, o is a
// Secret, and its data is left out.
func shown(o *unstructured.Unstructured, hides bool) json.RawMessage {
	if o == nil {
		return nil
	}
	if hides {
		o = &unstructured.Unstructured{Object: maps.Clone(o.Object)}
		maps.DeleteFunc(o.Object, func(name string, _ any) bool { return slices.Contains(dataFields, name) })
	}
	raw, err := json.Marshal(o.Object)
	if err != nil {
		// cannot happen: the object was parsed from JSON
		return json.RawMessage(fmt.Sprintf("%q", err.Error()))
	}
	return raw
}

// images returns the images of the containers and init containers, by the name of the container: in
// the rendered manifest and in the object of the cluster. Each object may be nil, and then its
// images are "".
func images(rendered, live *unstructured.Unstructured) []fleetv1alpha1.WorkImage {
	var all []fleetv1alpha1.WorkImage
	add := func(o *unstructured.Unstructured, set func(*fleetv1alpha1.WorkImage, string)) {
		if o == nil {
			return
		}
		for _, list := range []string{"initContainers", "containers"} {
			containers, _ := interpreter.PodSpec(o)[list].([]any)
			for _, c := range containers {
				container, _ := c.(map[string]any)
				name, _ := container["name"].(string)
				image, _ := container["image"].(string)
				i := slices.IndexFunc(all, func(w fleetv1alpha1.WorkImage) bool { return w.Container == name })
				if i < 0 {
					i, all = len(all), append(all, fleetv1alpha1.WorkImage{Container: name})
				}
				set(&all[i], image)
			}
		}
	}
	add(rendered, func(w *fleetv1alpha1.WorkImage, image string) { w.Wanted = image })
	add(live, func(w *fleetv1alpha1.WorkImage, image string) { w.Live = image })
	return all
}
