package hub

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// lately is the maximum age of a decision when it is carried out.
const lately = 10 * time.Second

// judge checks a write before it is passed on.
func (w *randomWork) judge(m *testenv.Member, r testenv.Write) {
	if !slices.Contains(workNamespaces, cmp.Or(r.Namespace, r.Name)) || r.DryRun || r.Impersonated != "" {
		return
	}
	if why := w.fault(m, r); why != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong = append(w.wrong, fmt.Sprintf("%s: %s: %s", m.Name, r, why))
	}
}

// fault returns the rule that a write breaks, or "".
func (w *randomWork) fault(m *testenv.Member, r testenv.Write) string {
	if r.Resource == "namespaces" {
		if r.Verb == "delete" {
			return "nobody deleted the hub's namespace"
		}
		return ""
	}
	i := slices.IndexFunc(workKinds, func(k spine.Kind) bool { return strings.ToLower(k.Kind)+"s" == r.Resource })
	if i < 0 {
		return "nobody asked for it"
	}
	k := workKinds[i]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	o, err := m.Find(ctx, k.APIVersion, k.Kind, r.Namespace, r.Name)
	if err != nil {
		return "" // the write creates the object
	}
	if uid := r.UID(); uid != "" && uid != o.GetUID() {
		return "" // the member will refuse the write
	}
	if r.Verb == "delete" {
		return w.deletionFault(ctx, m, r, o)
	}
	if k.Kind == "ConfigMap" && r.Verb == "apply" && r.Namespace != overwriteNamespace && o.GetLabels()[workv1alpha2.BindingLabel] == "" {
		if is, would := o.Object["data"], r.Body["data"]; would != nil && fmt.Sprint(is) != fmt.Sprint(would) {
			return fmt.Sprintf("what was there before has %v and not %v, and nobody allowed to overwrite it", is, would)
		}
	}
	return ""
}

// deletionFault: a copy may be deleted only if its template was deleted, with the propagation
// policy of that deletion, if it was moved elsewhere, or if it has ended and shall run again.
func (w *randomWork) deletionFault(ctx context.Context, m *testenv.Member, r testenv.Write, o *unstructured.Unstructured) string {
	w.mu.Lock()
	was := w.before[named(m, o.GetKind(), o.GetNamespace(), o.GetName())]
	w.mu.Unlock()
	if was == o.GetUID() {
		return "it was there before the hub"
	}
	binding := types.UID(o.GetLabels()[workv1alpha2.BindingLabel])
	if binding == "" {
		return "it has no mark of a binding"
	}
	template := templateOf(o)
	sent, _, _ := unstructured.NestedString(r.Body, "propagationPolicy")
	_, err := w.history.list(ctx)
	p := w.history.since(binding, time.Now().Add(-lately))
	w.mu.Lock()
	defer w.mu.Unlock()
	deleted := w.deleted[template]
	moved := func() bool {
		return slices.ContainsFunc(p.said, func(s placement) bool { _, names := s.clusters[m.Name]; return !names })
	}
	switch {
	case p == nil && err == nil:
		return "there never was its binding " + string(binding)
	case p == nil:
		return "" // the bindings cannot be listed now
	case len(deleted) > 0:
		if moved() && sent == string(metav1.DeletePropagationBackground) {
			return ""
		}
		if o.GetKind() == "Job" && w.reruns[template] > 0 {
			return ""
		}
		if !slices.Contains(deleted, metav1.DeletionPropagation(sent)) {
			return fmt.Sprintf("its template was deleted with %v, and this deletion is sent with %q", deleted, sent)
		}
		return ""
	case o.GetKind() == "Job" && o.GetName() >= "j2" && (hasEnded(o) || p.deleting && (w.reruns[template] > 0 || moved())):
		// The hub deletes the template of a Job that has ended in every cluster where it is
		// placed.
		return ""
	case p.deleting && err == nil:
		return "nobody deleted its template, and its binding is gone"
	case err != nil:
		return ""
	case o.GetKind() == "Job" && w.reruns[template] > 0:
		return ""
	}
	if moved() {
		return ""
	}
	return "its binding names the cluster"
}

// judgeCreations checks the Jobs created since the last call. A Job that has ended may be
// created again only as often as a rerun was requested.
func (w *randomWork) judgeCreations() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range spine.Members.List {
		writes := m.Writes(w.judged[m.Name])
		w.judged[m.Name] += len(writes)
		for _, r := range writes {
			if r.Resource != "jobs" || r.Code != 201 || r.DryRun || !slices.Contains(workNamespaces, r.Namespace) {
				continue
			}
			text, _, _ := unstructured.NestedString(r.Body, "metadata", "annotations", workv1alpha2.SourceAnnotation)
			source, err := mark.Parse(text)
			if err != nil {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %s: its source cannot be read: %v", m.Name, r, err))
				continue
			}
			key := m.Name + " " + string(source.Template)
			after := 0 // how many earlier copies had ended
			for uid, end := range w.ended[key] {
				if slices.Contains(w.created[key], uid) || uid != r.UID() && end.Before(r.Time) {
					after++
				}
			}
			w.created[key] = append(w.created[key], r.UID())
			if after > w.reruns[source.Template] {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %s: template %s ended there %d times before, and %d reruns were asked for",
					m.Name, r, source.Template, after, w.reruns[source.Template]))
			}
		}
	}
}

// judgeOrphans: pods that a deletion orphaned still exist, with the same UID.
func (w *randomWork) judgeOrphans() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, uid := range w.orphans {
		member, path, _ := strings.Cut(key, " ")
		ns, name, _ := strings.Cut(path, "/")
		pod, err := spine.Members.Named(member).Find(w.Context(), "v1", "Pod", ns, name)
		switch {
		case err != nil:
			w.wrong = append(w.wrong, fmt.Sprintf("%s: the pod %s was left by a deletion with Orphan, and is not there: %v", member, path, err))
		case pod.GetUID() != uid || pod.GetDeletionTimestamp() != nil:
			w.wrong = append(w.wrong, fmt.Sprintf("%s: the pod %s was left by a deletion with Orphan as %s, and is %s, deleted %v", member, path, uid, pod.GetUID(), pod.GetDeletionTimestamp()))
		}
	}
	w.Logf("%d orphaned pods, %d ends of Jobs were judged", len(w.orphans), len(w.ended))
}
