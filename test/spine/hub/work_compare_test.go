package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/test/spine"
)

// compare returns an error that lists the differences between the hub and its members. Unless
// whole is set, it compares only the members without faults.
func (w *randomWork) compare(whole bool) error {
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	defer cancel()
	var errs []error
	for _, ns := range workNamespaces {
		errs = append(errs, w.compareWork(ctx, ns, whole))
	}
	if err := errors.Join(errs...); err != nil || !whole {
		return err
	}
	for _, m := range spine.Members.List {
		out, err := w.Hub.Orrery("cluster", "orphans", m.Name, "-o", "name")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if slices.ContainsFunc(workNamespaces, func(ns string) bool { return strings.Contains(line, ns) }) {
				errs = append(errs, fmt.Errorf("%s: an orphan is listed, and no cluster left: %s", m.Name, line))
			}
		}
	}
	return errors.Join(errs...)
}

// well is true if a member has no fault that affects the kind. sick is true if it has another
// fault: an API that does not answer, or a kind that the hub may not write.
func (w *randomWork) well(member, kind string) (well, sick bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.cut[member] && !w.forbidden[member] && w.denied[member] != kind, w.sick[member] || w.denied[member] != ""
}

func (w *randomWork) compareWork(ctx context.Context, ns string, whole bool) error {
	var errs []error
	differs := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	bindings, err := w.admin.ListKind(ctx, "work.orrery.dev/v1alpha2", "ResourceBinding", ns)
	if err != nil {
		return err
	}
	byUID, byTemplate := map[types.UID]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	for i := range bindings {
		b := &bindings[i]
		kind, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "kind")
		name, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "name")
		byUID[b.GetUID()], byTemplate[kind+"/"+name] = b, b
	}
	has := map[string]map[string]*unstructured.Unstructured{} // by member, then KIND/NAME
	for _, m := range spine.Members.List {
		has[m.Name] = map[string]*unstructured.Unstructured{}
		for _, k := range workKinds {
			list, err := m.ListKind(ctx, k.APIVersion, k.Kind, ns)
			if err != nil {
				return err
			}
			for i := range list {
				if !spine.BuiltIn(&list[i]) {
					has[m.Name][k.Kind+"/"+list[i].GetName()] = &list[i]
				}
			}
		}
	}

	for _, k := range workKinds {
		templates, err := w.admin.ListKind(ctx, k.APIVersion, k.Kind, ns)
		if err != nil {
			return err
		}
		for i := range templates {
			t := &templates[i]
			if spine.BuiltIn(t) {
				continue
			}
			key := k.Kind + "/" + t.GetName()
			b := byTemplate[key]
			if t.GetDeletionTimestamp() != nil {
				if whole {
					differs("%s/%s is being deleted still: finalizers %v, binding %v", ns, key, t.GetFinalizers(), bindingText(b))
				}
				continue
			}
			if b == nil {
				differs("%s/%s has no binding", ns, key)
				continue
			}
			if k.Kind == "Job" && hasEnded(t) && t.GetName() >= "j2" {
				continue // the hub deletes this template
			}
			if uid, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "uid"); uid != string(t.GetUID()) || b.GetDeletionTimestamp() != nil {
				if whole {
					differs("the binding of %s/%s is of another object of the name, or being deleted: %s", ns, key, bindingText(b))
				}
				// The new binding is created when no cluster has a copy of the old one.
				continue
			}
			w.mu.Lock()
			wanted := w.placed[ns+" "+k.Kind]
			w.mu.Unlock()
			// Templates are not newly placed in clusters that do not answer.
			if !whole {
				wanted = slices.DeleteFunc(slices.Clone(wanted), func(cluster string) bool { well, _ := w.well(cluster, k.Kind); return !well })
			}
			names := slices.Sorted(maps.Keys(clustersOf(b)))
			if !slices.Equal(names, wanted) && (whole || slices.ContainsFunc(wanted, func(cluster string) bool { return !slices.Contains(names, cluster) })) {
				differs("%s/%s is bound to %v, and the policy names %v", ns, key, names, wanted)
			}
			for _, cluster := range wanted {
				if why := w.unlikeWork(t, b, has[cluster][key], cluster); why != "" {
					differs("%s/%s in %s: %s; %s", ns, key, cluster, why, bindingText(b))
				}
			}
		}
	}

	for _, m := range spine.Members.List {
		for key, o := range has[m.Name] {
			well, sick := w.well(m.Name, o.GetKind())
			if !well && !whole || o.GetDeletionTimestamp() != nil && !whole {
				continue
			}
			if label := types.UID(o.GetLabels()[workv1alpha2.BindingLabel]); label != "" {
				b := byUID[label]
				switch {
				case b == nil:
					differs("%s: %s/%s has the mark of a binding that is not there", m.Name, ns, key)
				case b.GetDeletionTimestamp() != nil:
					if whole || !sick {
						differs("%s: %s/%s is there, and its binding is being deleted: %s", m.Name, ns, key, bindingText(b))
					}
				default:
					// A copy that moves stays while its new cluster has a fault.
					if _, names := clustersOf(b)[m.Name]; !names && whole {
						differs("%s: %s/%s is left, and its binding does not name the cluster: %s", m.Name, ns, key, bindingText(b))
					}
				}
				continue
			}
			w.mu.Lock()
			before := w.before[m.Name+" "+o.GetKind()+" "+ns+"/"+o.GetName()]
			w.mu.Unlock()
			if before != o.GetUID() {
				differs("%s: %s/%s is nobody's: labels %v, annotations %v", m.Name, ns, key, o.GetLabels(), o.GetAnnotations())
			}
			for name := range o.GetAnnotations() {
				if strings.HasPrefix(name, "work.orrery.dev/") && whole {
					differs("%s: %s/%s was there before, is no copy, and has the annotation %s", m.Name, ns, key, name)
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, uid := range w.before {
		member, rest, _ := strings.Cut(name, " ")
		kind, path, _ := strings.Cut(rest, " ")
		object, in := strings.CutPrefix(path, ns+"/")
		if !in || kind == "Job" { // the member may delete the Job itself
			continue
		}
		switch o := has[member][kind+"/"+object]; {
		case o == nil:
			differs("%s: %s was there before, and is gone", member, rest)
		case o.GetUID() != uid:
			differs("%s: %s was there before, and was replaced", member, rest)
		}
	}
	return errors.Join(errs...)
}

func bindingText(b *unstructured.Unstructured) string {
	if b == nil {
		return "no binding"
	}
	results, _, _ := unstructured.NestedSlice(b.Object, "status", "aggregatedStatus")
	var messages []string
	for _, r := range results {
		r, _ := r.(map[string]any)
		if message, _ := r["appliedMessage"].(string); message != "" {
			messages = append(messages, fmt.Sprintf("%v: %s", r["clusterName"], message))
		}
	}
	runs, _, _ := unstructured.NestedSlice(b.Object, "status", "runs")
	return fmt.Sprintf("the binding says %s, %v, runs %v", spine.Conditions(b), messages, runs)
}

// unlikeWork describes how the object in a cluster differs from the template, or returns "".
func (w *randomWork) unlikeWork(t, b, o *unstructured.Unstructured, cluster string) string {
	phase := ""
	runs, _, _ := unstructured.NestedSlice(b.Object, "status", "runs")
	for _, r := range runs {
		r, _ := r.(map[string]any)
		if r["clusterName"] == cluster && r["templateUID"] == string(t.GetUID()) {
			phase, _ = r["phase"].(string)
		}
	}
	w.mu.Lock()
	ended := len(w.ended[cluster+" "+string(t.GetUID())]) > 0
	rerun := w.reruns[t.GetUID()]
	before := w.before[cluster+" "+t.GetKind()+" "+t.GetNamespace()+"/"+t.GetName()]
	w.mu.Unlock()
	over := workv1alpha2.RunPhase(phase).Ended()
	if ended && !over && rerun == 0 {
		return fmt.Sprintf("it ended there, and its run is %q", phase)
	}
	if o == nil {
		if over {
			return ""
		}
		return "it is missing"
	}
	if over && hasEnded(o) {
		return ""
	}
	marked := o.GetLabels()[workv1alpha2.BindingLabel]
	equal := true
	switch t.GetKind() {
	case "ConfigMap":
		equal = fmt.Sprint(t.Object["data"]) == fmt.Sprint(o.Object["data"])
	case "StatefulSet":
		equal = workOf(t) == workOf(o)
	}
	switch {
	case marked == string(b.GetUID()) && equal:
		return ""
	case marked == string(b.GetUID()):
		return fmt.Sprintf("the copy is %v, and the template %v", spine.Contents(o), spine.Contents(t))
	case marked != "":
		return "the copy is of another binding, " + marked
	case before != o.GetUID():
		return "it is no copy, and was not there before"
	case t.GetKind() == "Job":
	case equal:
		return "what was there before is equal, and not adopted"
	case t.GetNamespace() == overwriteNamespace:
		return "what was there before is not overwritten"
	}
	if has := spine.Conditions(b); !strings.Contains(has, "FullyApplied=False/") {
		return "what was there before is in the way, and the binding says " + has
	}
	return ""
}

// workOf returns the fields of a StatefulSet that TestRandomWork varies.
func workOf(s *unstructured.Unstructured) string {
	service, _, _ := unstructured.NestedString(s.Object, "spec", "serviceName")
	containers, _, _ := unstructured.NestedSlice(s.Object, "spec", "template", "spec", "containers")
	if len(containers) != 1 {
		return fmt.Sprintf("%s %d containers", service, len(containers))
	}
	c, _ := containers[0].(map[string]any)
	return fmt.Sprint(service, c["env"])
}
