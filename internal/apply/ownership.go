package apply

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// fieldSet is a set of fields as in managedFields. The key "f:NAME" is a field of a map,
// "k:{KEYS}", "v:VALUE" and "i:INDEX" are elements of a list, and "." is the value itself. An
// empty set stands for the value with everything in it.
type fieldSet map[string]any

// fieldsIn returns the set of an entry of managedFields; nil if the entry has none.
func fieldsIn(entry metav1.ManagedFieldsEntry) fieldSet {
	var s fieldSet
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &s) != nil {
		return nil
	}
	return s
}

// isOurs reports whether an entry of managedFields belongs to our server-side apply.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workv1alpha2.FieldManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// ownSet returns the fields that our server-side apply owns by its entry in a version of the
// API; nil if there is no such entry.
func ownSet(o *unstructured.Unstructured, version string) fieldSet {
	for _, entry := range o.GetManagedFields() {
		if isOurs(entry) && entry.APIVersion == version {
			return fieldsIn(entry)
		}
	}
	return nil
}

// at returns the part of the set at a key. whole is true if the set has all of the value there.
func (s fieldSet) at(key string) (part fieldSet, whole bool) {
	m, found := s[key].(map[string]any)
	return m, found && len(m) == 0
}

// has reports whether the set has the field, or list element, at the end of a path of keys.
func (s fieldSet) has(path ...string) bool {
	for _, key := range path {
		part, found := s[key].(map[string]any)
		if !found {
			return false
		}
		s = part
	}
	return true
}

// element returns the key under which the set has the i-th element of a list; "" if the set
// lacks it.
func (s fieldSet) element(value any, i int) string {
	for key := range s {
		kind, text, _ := strings.Cut(key, ":")
		var want any
		if json.Unmarshal([]byte(text), &want) != nil {
			continue
		}
		switch kind {
		case "k":
			keys, _ := want.(map[string]any)
			o, isMap := value.(map[string]any)
			matches := isMap && len(keys) > 0
			for name, v := range keys {
				is, set := o[name]
				matches = matches && (!set || sameText(v, is)) // an omitted key has its default
			}
			if matches {
				return key
			}
		case "v":
			if sameText(want, value) {
				return key
			}
		case "i":
			if text == strconv.Itoa(i) {
				return key
			}
		}
	}
	return ""
}

// keyed returns the element of a list that a set has under a key; nil if there is none.
func keyed(elements []any, key string) any {
	for i, element := range elements {
		if (fieldSet{key: nil}).element(element, i) == key {
			return element
		}
	}
	return nil
}

// sameText reports whether two values are equal as JSON.
func sameText(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// takenFromUs reports whether somebody changed our copy since it was applied: a field of the
// manifest has another value, and is not ours any more. A field that is ours and has another
// value got it during the apply, from a webhook or an API server that does not know the field.
// Applying it again would change nothing.
func takenFromUs(manifest, live *unstructured.Unstructured) bool {
	return taken(retained(manifest, live).Object, live.Object, ownSet(live, manifest.GetAPIVersion()), false)
}

func taken(wanted, is any, ours fieldSet, whole bool) bool {
	if whole {
		return false
	}
	switch wanted := wanted.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for name, value := range wanted {
			part, all := ours.at("f:" + name)
			if taken(value, fields[name], part, all) {
				return true
			}
		}
		return false
	case []any:
		elements, _ := is.([]any)
		for i, value := range wanted {
			key := ours.element(value, i)
			part, all := ours.at(key)
			is := counterpart(wanted, elements, i)
			if strings.HasPrefix(key, "k:") {
				is = keyed(elements, key)
			}
			if taken(value, is, part, all) {
				return true
			}
		}
		return false
	default:
		return !same(wanted, is)
	}
}

// controllers are the field managers of Kubernetes' controllers and of autoscalers.
var controllers = []string{
	"kube-controller-manager", "cloud-controller-manager", "kube-scheduler", "kubelet", "kube-apiserver", "k3s", "kubelite", "k0s",
	"cluster-autoscaler", "autoscaler", "horizontal-pod-autoscaler", "vpa-updater", "vpa-recommender", "keda", "keda-operator",
}

// isController reports whether an entry of managedFields belongs to a controller of Kubernetes
// or an autoscaler. That includes every client of the subresource scale except kubectl.
func isController(entry metav1.ManagedFieldsEntry) bool {
	return slices.Contains(controllers, entry.Manager) || entry.Subresource == "scale" && !strings.HasPrefix(entry.Manager, "kubectl")
}

// controllersSet returns the fields that controllers of Kubernetes and autoscalers own.
func controllersSet(o *unstructured.Unstructured) fieldSet {
	var all fieldSet
	for _, entry := range o.GetManagedFields() {
		if isController(entry) {
			all = merge(all, fieldsIn(entry))
		}
	}
	return all
}

// merge returns the union of two sets. It changes neither.
func merge(a, b fieldSet) fieldSet {
	out := maps.Clone(a)
	if out == nil {
		out = fieldSet{}
	}
	if len(a) == 0 && len(b) > 0 && a != nil || len(b) == 0 && len(a) > 0 && b != nil {
		out["."] = map[string]any{} // one has the value itself, the other what is in it
	}
	for key, value := range b {
		of, _ := value.(map[string]any)
		if is, both := out[key].(map[string]any); both {
			of = merge(is, of)
		}
		out[key] = of
	}
	return out
}

// pathOf returns the path of a key of a set as text.
func pathOf(path, key string) string {
	kind, text, _ := strings.Cut(key, ":")
	var value any
	if kind == "f" || json.Unmarshal([]byte(text), &value) != nil {
		return join(path, text)
	}
	if keys, isMap := value.(map[string]any); isMap {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(keys)) {
			parts = append(parts, fmt.Sprint(keys[name]))
		}
		text = strings.Join(parts, "/")
	}
	return path + "[" + strings.Trim(text, `"`) + "]"
}

// split divides the set into the fields that are handed over and those that stay.
func (s fieldSet) split(path string, stays func(path string) bool) (taken, left fieldSet) {
	taken, left = fieldSet{}, fieldSet{}
	for key, value := range s {
		part, _ := value.(map[string]any)
		here := pathOf(path, key)
		switch {
		case key == ".":
			taken[key] = value
		case stays(here):
			left[key] = value
		case len(part) == 0:
			taken[key] = value
		default:
			t, l := fieldSet(part).split(here, stays)
			if len(t) > 0 {
				taken[key] = map[string]any(t)
			}
			if len(l) > 0 {
				left[key] = map[string]any(l)
			}
		}
	}
	return taken, left
}

// overlaps reports whether two sets have a field in common.
func (s fieldSet) overlaps(other fieldSet) bool {
	for key, value := range s {
		part, _ := value.(map[string]any)
		of, both := other[key].(map[string]any)
		if key == "." || !both {
			continue
		}
		if len(part) == 0 || len(of) == 0 || fieldSet(part).overlaps(of) {
			return true
		}
	}
	return false
}

// beyond returns the paths of the fields that the other set lacks.
func (s fieldSet) beyond(path string, other fieldSet) (paths []string) {
	for key, value := range s {
		part, _ := value.(map[string]any)
		of, both := other[key].(map[string]any)
		switch {
		case key == ".":
		case !both:
			paths = append(paths, pathOf(path, key))
		case len(of) > 0:
			paths = append(paths, fieldSet(part).beyond(pathOf(path, key), of)...)
		}
	}
	return paths
}

// within returns the fields of the set that exist in a value.
func (s fieldSet) within(value any) fieldSet {
	out := fieldSet{}
	for key, inner := range s {
		part, _ := inner.(map[string]any)
		var is any
		switch of := value.(type) {
		case map[string]any:
			is = of[strings.TrimPrefix(key, "f:")]
		case []any:
			is = keyed(of, key)
		}
		if key == "." {
			out[key] = inner
		} else if is != nil {
			out[key] = map[string]any(fieldSet(part).within(is))
		}
	}
	return out
}

// takes returns the fields of an entry of managedFields that are handed over. ours are the
// fields that our server-side apply owns already.
type takes func(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet

// everybodys selects the fields of all managers that wrote an object before it was ours. A
// controller keeps its fields, except those that say what pods run, which no controller sets in
// a template.
func everybodys(entry metav1.ManagedFieldsEntry, _ fieldSet) fieldSet {
	switch {
	case entry.Subresource != "", entry.Manager == workv1alpha2.FieldManager, entry.Manager == workv1alpha2.ReplicasFieldManager:
		return nil
	case isController(entry):
		return fieldsIn(entry).ofPods()
	}
	return fieldsIn(entry)
}

// ofPods returns the part of the set that says what pods run.
func (s fieldSet) ofPods() fieldSet {
	spec, _ := s.at("f:spec")
	pods := maps.Clone(spec)
	maps.DeleteFunc(pods, func(key string, _ any) bool { return key == "." || mayBeControllers(pathOf("spec", key)) })
	if len(pods) == 0 {
		return nil
	}
	return fieldSet{"f:spec": map[string]any(pods)}
}

// formerOwners selects the fields of the clients that created an object which an earlier
// version of the hub adopted: they updated it, or applied it with kubectl or Helm, and own
// fields together with us. A client that changed the object since then took its fields from us.
func formerOwners(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet {
	deployed := entry.Operation == metav1.ManagedFieldsOperationUpdate || entry.Manager == "helm" || strings.HasPrefix(entry.Manager, "kubectl")
	if set := everybodys(entry, ours); deployed && !isController(entry) && set.overlaps(ours) {
		return set
	}
	return nil
}

// restorers selects the fields of a client that created a copy again, with its marks, from a
// backup of it.
func restorers(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet {
	labels, _ := fieldsIn(entry).at("f:metadata")
	labels, _ = labels.at("f:labels")
	if _, marked := labels.at("f:" + workv1alpha2.BindingLabel); marked {
		return formerOwners(entry, ours)
	}
	return nil
}

// staying returns a function that reports whether a field is not handed over: the manifest
// leaves it to the cluster, or it is a mark of another tool.
func staying(manifest, live *unstructured.Unstructured) func(path string) bool {
	own := clusterOwn(manifest)
	return func(path string) bool {
		var value any
		if path == `metadata.labels."app.kubernetes.io/managed-by"` {
			value = live.GetLabels()["app.kubernetes.io/managed-by"]
		}
		return path == "metadata.finalizers" || own.has(path, nil, value)
	}
}

// handOver returns the managedFields of an object in which our server-side apply owns what the
// selected entries owned; false if it owns all of that already. It is pure.
func handOver(manifest, live *unstructured.Unstructured, selects takes, now time.Time) ([]metav1.ManagedFieldsEntry, bool) {
	entries := live.GetManagedFields()
	ours := metav1.ManagedFieldsEntry{
		Manager: workv1alpha2.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: manifest.GetAPIVersion(), FieldsType: "FieldsV1",
	}
	if i := slices.IndexFunc(entries, isOurs); i >= 0 {
		ours = entries[i]
	}
	before := fieldsIn(ours)
	all := before
	stays := staying(manifest, live)
	changed := false
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range entries {
		if isOurs(entry) {
			continue
		}
		handed := selects(entry, before)
		taken, left := handed.split("", stays)
		if len(handed) > 0 && isController(entry) {
			left = fieldsIn(entry)
			spec, _ := left.at("f:spec")
			pods, _ := handed.at("f:spec")
			maps.DeleteFunc(spec, func(key string, _ any) bool { _, of := pods[key]; return of })
		}
		if entry.APIVersion != ours.APIVersion {
			taken = taken.within(live.Object)
		}
		if len(taken) == 0 {
			kept = append(kept, entry)
			continue
		}
		changed = true
		all = merge(all, taken)
		if len(left) > 0 {
			entry.FieldsV1 = encodedSet(left)
			kept = append(kept, entry)
		}
	}
	if !changed {
		return entries, false
	}
	at := metav1.NewTime(now)
	ours.Time, ours.FieldsV1 = &at, encodedSet(all)
	return append(kept, ours), true
}

func encodedSet(s fieldSet) *metav1.FieldsV1 {
	return metav1.NewFieldsV1(cmp.Or(string(encoded(map[string]any(s))), "{}"))
}

// toGo returns the paths of the fields of an adopted object that its template lacks, and that
// the next change of the template removes.
func toGo(manifest, live *unstructured.Unstructured) []string {
	ours := ownSet(live, manifest.GetAPIVersion())
	stays := staying(manifest, live)
	var paths []string
	for _, entry := range live.GetManagedFields() {
		taken, _ := formerOwners(entry, ours).split("", stays)
		paths = append(paths, taken.beyond("", ours)...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// withoutControllers returns a manifest without the fields that a controller of Kubernetes or
// an autoscaler owns, and we do not. It changes neither argument.
func withoutControllers(manifest, live *unstructured.Unstructured) *unstructured.Unstructured {
	theirs := controllersSet(live)
	if len(theirs) == 0 {
		return manifest
	}
	ours := ownSet(live, manifest.GetAPIVersion())
	fields, changed := without(manifest.Object, "", theirs, ours)
	if !changed {
		return manifest
	}
	return &unstructured.Unstructured{Object: fields}
}

func without(o map[string]any, path string, theirs, ours fieldSet) (out map[string]any, changed bool) {
	out = maps.Clone(o)
	for name, value := range o {
		here := join(path, name)
		part, whole := theirs.at("f:" + name)
		own, owned := ours["f:"+name].(map[string]any)
		switch fields, isMap := value.(map[string]any); {
		case !mayBeControllers(here), here == "metadata":
		case whole && !owned:
			delete(out, name)
			changed = true
		case isMap && len(part) > 0:
			if less, dropped := without(fields, here, part, own); dropped {
				out[name], changed = less, true
			}
		}
	}
	return out, changed
}
