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

// Works returns the state of an object in its clusters. If cluster is not "", it returns only
// that cluster, with its manifests.
func (e *Explainer) Works(ctx context.Context, may Authorize, of, cluster string) (*fleetv1alpha1.WorkList, error) {
	s, err := e.subject(ctx, may, "parameter of", of)
	if err != nil {
		return nil, err
	}
	list := &fleetv1alpha1.WorkList{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "WorkList"}, Of: explained(s.object), Items: []fleetv1alpha1.Work{},
	}
	if s.binding == nil {
		if list.Message = "nothing places it"; !e.know.Bindings.Synced() {
			list.Message = "the hub has just started and does not know yet where it is placed: ask again in a moment"
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
	seen := newSight(s.visibility, own)
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
		w := e.work(s, name, live[name])
		if r, ok := results[name]; ok {
			w.Result = &r
		}
		list.Items = append(list.Items, w.row(cluster != ""))
	}
	if len(list.Items) == 0 && list.Hidden == 0 {
		list.Message = "it is placed in no cluster"
	}
	return list, nil
}

// notThere returns the same error for a cluster without the object as for one that the caller
// may not see.
func notThere(cluster string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodGet, schema.GroupResource{Group: fleetv1alpha1.GroupVersion.Group, Resource: "works"}, cluster,
		fmt.Sprintf("the object is not placed in a cluster %s that you may see", cluster), 0, true)
}

// live returns the stored objects of some clusters, by cluster.
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

// work has the facts about an object in one cluster.
type work struct {
	fleetv1alpha1.Work

	uid      string // of the binding
	known    presence.Presence
	copy     mirror.Object // from the index of the mirror
	live     *unstructured.Unstructured
	rendered apply.Rendered
	hides    bool // the data of a Secret is hidden
}

// work collects the facts about an object in one cluster.
func (e *Explainer) work(s *subject, cluster string, live *unstructured.Unstructured) *work {
	b := s.binding
	w := &work{Work: fleetv1alpha1.Work{Cluster: cluster}, uid: string(b.UID), live: live, rendered: e.know.Applier.Rendered(b, cluster)}
	if target, placed := binding.Target(b, cluster); placed {
		w.Placed, w.Wanted = b.DeletionTimestamp.IsZero(), target.Replicas
	}
	gr := s.resource.GroupResource()
	w.known, w.copy = e.know.Mirror.Lookup(cluster, gr, b.Namespace, b.Spec.Resource.Name)
	w.hides = gr == schema.GroupResource{Resource: "secrets"}
	m, joined := e.know.Registry.Member(cluster)
	switch {
	case !s.reads(cluster):
		w.known, w.copy, w.Message = presence.Unknown, mirror.Object{}, "you may see that the cluster is there, and not what is in it"
	case !joined:
		w.Message = "the cluster is not joined, or not known yet"
	case !m.Reachable():
		w.Message = "the cluster does not answer"
	default:
		switch _, served := m.APIs().Kind(s.object.GroupVersionKind()); {
		case served == presence.Absent:
			w.known, w.Message = presence.Absent, "the cluster does not serve the kind"
		case w.known == presence.Unknown && e.know.Mirror.Partial(cluster, gr):
			w.Message = "not every object of the type is mirrored of the cluster"
		case w.known == presence.Unknown:
			w.Message = "the type is not mirrored of the cluster, or not read yet"
		case w.known == presence.Absent:
			w.Message = "it is not there"
		}
	}
	if seen, stale := e.know.Mirror.Freshness(cluster, gr); w.known == presence.Unknown && stale && !seen.IsZero() {
		w.LastSeen = new(metav1.NewTime(seen))
	}
	return w
}

// row draws the conclusions from the facts. It is pure. whole adds the manifests.
func (w *work) row(whole bool) fleetv1alpha1.Work {
	w.State = map[presence.Presence]fleetv1alpha1.WorkState{
		presence.Present: fleetv1alpha1.WorkPresent, presence.Absent: fleetv1alpha1.WorkAbsent, presence.Unknown: fleetv1alpha1.WorkUnknown,
	}[w.known]
	if w.known == presence.Absent {
		w.live = nil // the store receives the deletion shortly
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
		w.Message = "what is there is not a copy of the placement"
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

// drift compares the rendered manifest with the object in the cluster.
func (w *work) drift(ours bool) {
	switch {
	case w.rendered.Manifest == nil:
		w.DriftUnknown = w.rendered.Message
	case w.known == presence.Absent:
		w.DriftUnknown = cmp.Or(w.Message, "it is not there")
	case w.live == nil:
		w.DriftUnknown = cmp.Or(w.Message, "what is there is not stored yet")
	case !ours:
		w.DriftUnknown = cmp.Or(w.Message, "what was seen there is not a copy of the placement")
	default:
		manifest, live := w.rendered.Manifest, w.live
		if _, all := live.Object["type"]; w.hides && !all {
			manifest = only(manifest, "apiVersion", "kind", "metadata")
			w.DriftUnknown = "of all but its metadata: that is not mirrored"
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

// dataFields are the fields of a Secret that are never shown.
var dataFields = []string{"data", "stringData"}

func secretField(path string) bool {
	return slices.ContainsFunc(dataFields, func(field string) bool { return path == field || strings.HasPrefix(path, field+".") })
}

// only returns an object with only some of its fields.
func only(o *unstructured.Unstructured, fields ...string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(o.Object)}
	maps.DeleteFunc(out.Object, func(name string, _ any) bool { return !slices.Contains(fields, name) })
	return out
}

// shown returns the JSON of an object; nil if o is nil. If hides is true, the data of a Secret
// is left out.
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

// images returns the images of the containers, in the rendered manifest and in the cluster.
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
