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
// empty set stands for the value with everything in it. A nil set has no field.
type fieldSet map[string]any

// fieldsIn returns the set of an entry of managedFields; nil if the entry has none, or it
// cannot be decoded.
func fieldsIn(entry metav1.ManagedFieldsEntry) fieldSet {
	var s fieldSet
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &s) != nil {
		return nil
	}
	return s
}

// isOurs reports whether an entry of managedFields belongs to our server-side apply, and not
// to a subresource.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workv1alpha2.FieldManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// ownSet returns the fields of an object that our server-side apply owns in a version of the API;
// nil if managedFields have no such entry.
func ownSet(o *unstructured.Unstructured, version string) fieldSet {
	for _, entry := range o.GetManagedFields() {
		if isOurs(entry) && entry.APIVersion == version {
			return fieldsIn(entry)
		}
	}
	return nil
}

// at returns the part of the set below a key; nil if the set does not have the key. whole is true
// if the set has the value at the key with everything in it.
func (s fieldSet) at(key string) (part fieldSet, whole bool) {
	m, found := s[key].(map[string]any)
	return m, found && len(m) == 0
}

// has reports whether the set has the field or list element at the end of a path. The path
// consists of keys of a fieldSet, such as "f:spec". It is true for an empty path.
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

// element returns the key under which the set has an element of a list: the i-th one, with the
// given value. It is "" if the set lacks that element.
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
				// A key that value lacks has its default, as protocol TCP.
				matches = matches && (!set || sameText(v, is))
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

// keyed returns the element of a list that a key of a fieldSet names; nil if there is none.
func keyed(elements []any, key string) any {
	for i, element := range elements {
		if (fieldSet{key: nil}).element(element, i) == key {
			return element
		}
	}
	return nil
}

// sameText reports whether two values are equal as JSON. It is false if one cannot be encoded.
func sameText(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// takenFromUs reports whether another client changed our copy since the hub applied it: a field of
// the manifest has another value in the copy, and our server-side apply does not own the field any
// more. A field that we own may have another value, too. It got that value during the apply, from
// a webhook or an API server that does not know the field. So applying it again would not help.
func takenFromUs(manifest, live *unstructured.Unstructured) bool {
	return taken(retained(manifest, live).Object, live.Object, ownSet(live, manifest.GetAPIVersion()), false)
}

// taken reports whether a value in a copy (is) has a field that differs from the manifest (wanted)
// and is not ours. ours are the fields in the value that our server-side apply owns. whole is true
// if we own the value with everything in it.
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

// controllersSet returns the fields that controllers of Kubernetes and autoscalers own; nil:
// none.
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
		out["."] = map[string]any{} // one set has the value itself, the other set has fields in it
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

// pathOf returns the path of a field for messages: path with a key of a fieldSet appended, such as
// spec.containers[web] for the key k:{"name":"web"}.
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

// split divides the set into the fields for which stays is false (taken) and the fields for which
// stays is true (left). path is the path of the value that the set describes; "" for the whole
// object. split does not change the set.
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

// overlaps reports whether two sets have a field in common. The values themselves (".") do not
// count.
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

// beyond returns the paths of the fields of s that the other set lacks, in no order. path is the
// path of both sets.
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

// within returns a new set with those fields of s that exist in the value.
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

// takes is a function that returns the fields of an entry of managedFields that our server-side
// apply is to take over from the manager; nil: none. ours are the fields that our server-side apply
// owns already.
type takes func(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet

// everybodys returns the fields to take over from a manager of an object that the hub adopts: all
// of them, except those of subresources and of the hub. A controller keeps its fields, except those
// that define what pods run: no controller sets such fields in a template. It is a takes function.
func everybodys(entry metav1.ManagedFieldsEntry, _ fieldSet) fieldSet {
	switch {
	case entry.Subresource != "", entry.Manager == workv1alpha2.FieldManager, entry.Manager == workv1alpha2.ReplicasFieldManager:
		return nil
	case isController(entry):
		return fieldsIn(entry).ofPods()
	}
	return fieldsIn(entry)
}

// ofPods returns the part of the set that defines what pods run; nil if the set has none.
func (s fieldSet) ofPods() fieldSet {
	spec, _ := s.at("f:spec")
	pods := maps.Clone(spec)
	maps.DeleteFunc(pods, func(key string, _ any) bool { return key == "." || mayBeControllers(pathOf("spec", key)) })
	if len(pods) == 0 {
		return nil
	}
	return fieldSet{"f:spec": map[string]any(pods)}
}

// formerOwners returns the fields to take over from a client that created an object before an
// earlier version of the hub adopted it. Such a client updated the object, or applied it with
// kubectl or Helm, and owns fields together with us. It is nil for all other entries: a client that
// changed the object later took its fields from us. It is a takes function.
func formerOwners(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet {
	deployed := entry.Operation == metav1.ManagedFieldsOperationUpdate || entry.Manager == "helm" || strings.HasPrefix(entry.Manager, "kubectl")
	if set := everybodys(entry, ours); deployed && !isController(entry) && set.overlaps(ours) {
		return set
	}
	return nil
}

// restorers returns the fields to take over from a client that created a copy again from a backup,
// with its marks; nil for all other entries. It is a takes function.
func restorers(entry metav1.ManagedFieldsEntry, ours fieldSet) fieldSet {
	labels, _ := fieldsIn(entry).at("f:metadata")
	labels, _ = labels.at("f:labels")
	if _, marked := labels.at("f:" + workv1alpha2.BindingLabel); marked {
		return formerOwners(entry, ours)
	}
	return nil
}

// staying returns a function that reports whether the field at a path stays with its owner: the
// manifest leaves it to the cluster, or it is a mark of another tool.
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

// handOver returns the managedFields of an object in which our server-side apply owns the fields
// that the function selects returns for each entry. It returns false, and the entries as they are,
// if there is nothing to hand over. now is the time of our entry. It is pure.
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

// encodedSet returns a set in the form of managedFields; {} for an empty set.
func encodedSet(s fieldSet) *metav1.FieldsV1 {
	return metav1.NewFieldsV1(cmp.Or(string(encoded(map[string]any(s))), "{}"))
}

// toGo returns the sorted paths of the fields of an adopted object that its template lacks,
// and that the next change of the template removes.
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

// withoutControllers returns a manifest without the fields that a controller of Kubernetes or an
// autoscaler owns in the object live, and we do not. Fields that define what pods run, and
// metadata, stay in it. It returns the manifest itself if there are no such fields. It changes
// neither argument.
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

// without returns the map o, at a path of a manifest, without the fields that are in theirs and not
// in ours. Metadata and fields that no controller sets stay. o is not changed. changed is false if
// nothing was left out.
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
