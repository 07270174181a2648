package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/test/spine"
)

// incomparableError means that hub and members cannot be compared now, because one did not
// answer.
type incomparableError struct{ error }

// Unwrap returns the error of the request.
func (i incomparableError) Unwrap() error { return i.error }

// hasDifference reports whether an error of compare contains a difference, not only
// incomparableErrors.
func hasDifference(err error) bool {
	switch e := err.(type) { //nolint:errorlint // all parts of it are visited
	case nil, incomparableError:
		return false
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), hasDifference)
	default:
		return true
	}
}

// compare returns an error that lists the differences between the hub and its members.
func (a *attack) compare() error {
	ctx, cancel := context.WithTimeout(a.Context(), time.Minute)
	defer cancel()
	joined := map[string]types.UID{}
	clusters, err := a.admin.ListKind(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "")
	if err != nil {
		return incomparableError{err}
	}
	var errs []error
	for _, c := range clusters {
		joined[c.GetName()] = c.GetUID()
		if has := spine.Conditions(&c); !strings.Contains(has, "Ready=True/") {
			errs = append(errs, incomparableError{fmt.Errorf("cluster %s: %s: %v", c.GetName(), has, c.Object["status"])})
		}
	}
	for _, ns := range attackNamespaces {
		errs = append(errs, a.compareNamespace(ctx, ns, joined))
	}
	return errors.Join(errs...)
}

func (a *attack) compareNamespace(ctx context.Context, ns string, joined map[string]types.UID) error {
	var errs []error
	differs := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	bindings, err := a.admin.ListKind(ctx, "work.orrery.dev/v1alpha2", "ResourceBinding", ns)
	if err != nil {
		return incomparableError{err}
	}
	byUID, byTemplate := map[types.UID]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	for i := range bindings {
		b := &bindings[i]
		kind, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "kind")
		name, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "name")
		byUID[b.GetUID()], byTemplate[kind+"/"+name] = b, b
	}
	policies := map[string][]string{} // joined clusters by policy
	for _, name := range []string{"rest", "workloads"} {
		p, err := a.admin.Find(ctx, "policy.orrery.dev/v1alpha1", "PropagationPolicy", ns, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return incomparableError{err}
		}
		names, _, _ := unstructured.NestedStringSlice(p.Object, "spec", "placement", "clusterAffinity", "clusterNames")
		policies[name] = slices.DeleteFunc(names, func(n string) bool { return joined[n] == "" })
		slices.Sort(policies[name])
	}
	where, value, err := a.override(ctx, ns)
	if err != nil {
		return incomparableError{err}
	}

	has := map[string]map[string]*unstructured.Unstructured{} // by member, then KIND/NAME
	for _, m := range spine.Members.List {
		has[m.Name] = map[string]*unstructured.Unstructured{}
		for _, k := range spine.Kinds {
			list, err := m.ListKind(ctx, k.APIVersion, k.Kind, ns)
			if err != nil {
				return incomparableError{err}
			}
			for i := range list {
				if !spine.BuiltIn(&list[i]) {
					has[m.Name][k.Kind+"/"+list[i].GetName()] = &list[i]
				}
			}
		}
	}

	// Every wanted copy exists, as rendered.
	templates := 0
	for _, k := range spine.Kinds {
		list, err := a.admin.ListKind(ctx, k.APIVersion, k.Kind, ns)
		if err != nil {
			return incomparableError{err}
		}
		for i := range list {
			t := &list[i]
			if t.GetLabels()["attack"] == "" {
				continue
			}
			templates++
			key := k.Kind + "/" + t.GetName()
			b := byTemplate[key]
			if b == nil {
				differs("%s/%s has no binding", ns, key)
				continue
			}
			if uid, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "uid"); uid != string(t.GetUID()) {
				differs("the binding of %s/%s is of another object of the name", ns, key)
			}
			targets := clustersOf(b)
			wanted, policy := policies["rest"], "rest"
			if k.Kind == "Deployment" {
				wanted, policy = policies["workloads"], "workloads"
			}
			if names := slices.Sorted(maps.Keys(targets)); len(wanted) > 0 && !slices.Equal(names, wanted) &&
				(k.Kind != "Deployment" || slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(wanted, n) })) {
				differs("%s/%s is bound to %v, and policy %s names %v", ns, key, names, policy, wanted)
			}
			sum := int64(0)
			for cluster, n := range targets {
				sum += n
				o := has[cluster][key]
				if _, ok := a.unmanagedObject(cluster+" "+k.Kind+" "+ns+"/"+t.GetName(), o); ok {
					if has := spine.Conditions(b); !strings.Contains(has, "FullyApplied=False/Conflict") {
						differs("%s/%s in %s is foreign, and the binding says %s", ns, key, cluster, has)
					}
					continue
				}
				switch {
				case joined[cluster] == "":
					differs("%s/%s is bound to %s, which is not joined", ns, key, cluster)
				case o == nil:
					differs("%s/%s is missing in %s", ns, key, cluster)
				case o.GetLabels()[workv1alpha2.BindingLabel] != string(b.GetUID()):
					differs("%s/%s in %s has the mark %q, want %s", ns, key, cluster, o.GetLabels()[workv1alpha2.BindingLabel], b.GetUID())
				default:
					if diff := unlike(t, o, n, cluster == where, value); diff != "" {
						differs("%s/%s in %s: %s", ns, key, cluster, diff)
					}
				}
			}
			if want := spine.Replicas(t); k.Kind == "Deployment" && len(targets) > 0 && sum != want {
				differs("%s/%s: %d replicas are bound, want %d", ns, key, sum, want)
			}
		}
	}

	// No other object of ours exists, and all foreign objects exist unchanged.
	for _, m := range spine.Members.List {
		for key, o := range has[m.Name] {
			kind, name, _ := strings.Cut(key, "/")
			if _, ok := a.unmanagedObject(m.Name+" "+kind+" "+ns+"/"+name, o); ok {
				if o.GetLabels()[workv1alpha2.BindingLabel] != "" {
					differs("%s: foreign %s/%s has our mark", m.Name, ns, key)
				}
				continue
			}
			label := types.UID(o.GetLabels()[workv1alpha2.BindingLabel])
			if b := byUID[label]; b != nil {
				if _, named := clustersOf(b)[m.Name]; named || ofAnotherJoin(o, joined[m.Name]) {
					continue
				}
				differs("%s: %s/%s is left, and its binding does not name the cluster", m.Name, ns, key)
				continue
			}
			// A restored hub does not know which objects it placed since its backup.
			if o.GetAnnotations()[workv1alpha2.OrphanAnnotation] != "" || a.restored && label != "" || label != "" && ofAnotherJoin(o, joined[m.Name]) {
				continue
			}
			differs("%s: %s/%s is nobody's: labels %v, annotations %v", m.Name, ns, key, o.GetLabels(), o.GetAnnotations())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range a.theirs {
		member, rest, _ := strings.Cut(name, " ")
		kind, path, _ := strings.Cut(rest, " ")
		object, in := strings.CutPrefix(path, ns+"/")
		if !in {
			continue
		}
		o := has[member][kind+"/"+object]
		switch {
		case o == nil:
			differs("%s: foreign %s is gone", member, rest)
		case o.GetUID() != s.UID:
			differs("%s: foreign %s was replaced", member, rest)
		case fmt.Sprint(withoutVolatile(spine.Contents(o))) != fmt.Sprint(withoutVolatile(s.Contents)):
			differs("%s: foreign %s was changed from %v to %v", member, rest, s.Contents, spine.Contents(o))
		}
	}
	return errors.Join(errs...)
}

// withoutVolatile drops the contents of a PersistentVolumeClaim, which its controllers change.
func withoutVolatile(c any) any {
	m, _ := c.(map[string]any)
	if m["kind"] == "PersistentVolumeClaim" {
		return m["kind"]
	}
	return c
}

// unmanagedObject returns the unmanaged object that was created under the name. It returns false
// unless o is that object.
func (a *attack) unmanagedObject(name string, o *unstructured.Unstructured) (unmanagedObject, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.theirs[name]
	return s, ok && o != nil && o.GetUID() == s.UID
}

// ofAnotherJoin reports whether a copy is from an earlier join of the cluster: its source has
// the UID of another Cluster object.
func ofAnotherJoin(o *unstructured.Unstructured, cluster types.UID) bool {
	if cluster == "" {
		return true // left in a cluster that is not joined
	}
	source := o.GetAnnotations()[workv1alpha2.SourceAnnotation]
	return source != "" && !strings.Contains(source, string(cluster))
}

// override returns the cluster and the value in the current override policy of a namespace.
func (a *attack) override(ctx context.Context, ns string) (cluster, value string, err error) {
	o, err := a.admin.Find(ctx, "policy.orrery.dev/v1alpha1", "OverridePolicy", ns, "where")
	if err != nil {
		return "", "", client.IgnoreNotFound(err)
	}
	rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "overrideRules")
	rule, _ := rules[0].(map[string]any)
	names, _, _ := unstructured.NestedStringSlice(rule, "targetCluster", "clusterNames")
	text, _, _ := unstructured.NestedSlice(rule, "overriders", "plaintext")
	first, _ := text[0].(map[string]any)
	value, _ = first["value"].(string)
	return names[0], value, nil
}

// unlike describes how a copy differs from its template as rendered for a cluster, or returns
// "".
func unlike(template, o *unstructured.Unstructured, share int64, overridden bool, value string) string {
	switch template.GetKind() {
	case "Deployment":
		if n := spine.Replicas(o); n != share {
			return fmt.Sprintf("%d replicas, want %d", n, share)
		}
		const path = "spec template metadata annotations edit"
		was, _, _ := unstructured.NestedString(template.Object, strings.Fields(path)...)
		if is, _, _ := unstructured.NestedString(o.Object, strings.Fields(path)...); is != was {
			return fmt.Sprintf("edit %q, want %q", is, was)
		}
	case "ConfigMap", "Secret":
		want, _, _ := unstructured.NestedStringMap(template.Object, "data")
		if overridden && template.GetKind() == "ConfigMap" {
			want["where"] = value
		}
		if got, _, _ := unstructured.NestedStringMap(o.Object, "data"); !maps.Equal(want, got) {
			return fmt.Sprintf("data %v, want %v", got, want)
		}
	}
	return ""
}

// kindOf returns the kind, among those that tests compare, of a resource.
func kindOf(resource string) spine.Kind {
	for _, k := range spine.Kinds {
		plural := strings.ToLower(k.Kind) + "s"
		if plural == resource {
			return k
		}
	}
	return spine.Kind{}
}
