package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// fence has the fields that an override must not change, with their values. The fields are read
// from the object before and after the override, and compared. Paths in the override are not
// examined: there are more ways to write a field than to read it.
type fence struct {
	holds  fields // finalizers and owners, which no override may change
	rights fields // fields about rights, which only a ClusterOverridePolicy may change
}

// fields holds values, as JSON, by their paths in an object.
type fields map[string]string

// fenced reads from an object the fields that an override of policy p must not change. rights stay
// empty if p is a ClusterOverridePolicy, whose Namespace is "": it may change rights. rights also
// stay empty for a ConfigMap and a Secret, whose data gives no rights.
func fenced(o *unstructured.Unstructured, p *policyv1alpha1.OverridePolicy) fence {
	f := fence{holds: fields{}, rights: fields{}}
	f.holds.read("", "", o.Object, func(parent, key string) bool {
		return parent == "metadata" && (key == "finalizers" || key == "ownerReferences")
	})
	if p.Namespace == "" {
		return f
	}
	switch o.GroupVersionKind().GroupKind().String() {
	case "ConfigMap", "Secret": // Kubernetes gives the keys of the data no meaning
		return f
	}
	held := podRight
	if grantsRights(o) {
		held = func(string, string) bool { return true }
	}
	f.rights.read("", "", o.Object, held)
	return f
}

// check returns an error if o differs from the object that f was read from in a field that
// policy p must not change.
func (f fence) check(o *unstructured.Unstructured, p *policyv1alpha1.OverridePolicy) error {
	now := fenced(o, p)
	if path := f.holds.change(now.holds); path != "" {
		return fmt.Errorf("an override cannot change %s: what holds or owns an object is not the same in any two clusters", path)
	}
	path := f.rights.change(now.rights)
	switch {
	case path == "":
		return nil
	case grantsRights(o):
		return fmt.Errorf("only a ClusterOverridePolicy may change %s of a %s: it says who may do what in the cluster",
			path, o.GroupVersionKind().GroupKind())
	default:
		return fmt.Errorf("only a ClusterOverridePolicy may change %s: it says what pods may do in the cluster", path)
	}
}

// read adds every field of v for which held is true, at any depth, because each kind has its pod
// template at another path. path is the path of v. parent is the name of the map field that has
// v as its value or in its list.
func (f fields) read(path, parent string, v any, held func(parent, key string) bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			at := key
			if strings.ContainsAny(key, `."[]=`) {
				at = strconv.Quote(key)
			}
			if path != "" {
				at = path + "." + at
			}
			if held(parent, key) {
				raw, err := json.Marshal(value)
				if err != nil {
					raw = fmt.Append(nil, value) // a template may have values that JSON cannot express
				}
				f[at] = string(raw)
				continue
			}
			f.read(at, key, value, held)
		}
	case []any:
		at := positions(v)
		for i, element := range v {
			f.read(path+at[i], parent, element, held)
		}
	}
}

// positions returns the path suffix of each element of a list. It is [name="NAME"] if each element
// has a unique name, so that an element may be inserted before others. Otherwise it is the index,
// such as [0].
func positions(list []any) []string {
	named, numbered := make([]string, len(list)), make([]string, len(list))
	seen := map[string]bool{}
	for i, element := range list {
		numbered[i] = "[" + strconv.Itoa(i) + "]"
		o, _ := element.(map[string]any)
		if name, ok := o["name"].(string); ok {
			named[i] = "[name=" + strconv.Quote(name) + "]"
			seen[name] = true
		}
	}
	if len(seen) < len(list) {
		return numbered
	}
	return named
}

// change returns the first path, in the order of text, that f and now do not have with the same
// value; "" if they are equal.
func (f fields) change(now fields) string {
	paths := slices.Concat(slices.Collect(maps.Keys(f)), slices.Collect(maps.Keys(now)))
	slices.Sort(paths)
	for _, path := range paths {
		was, before := f[path]
		if is, after := now[path]; before != after || was != is {
			return path
		}
	}
	return ""
}

// grantsRights reports whether an object decides who may do what in a cluster: its API group is
// that of RBAC or of admission registration.
func grantsRights(o *unstructured.Unstructured) bool {
	group := o.GroupVersionKind().Group
	return group == "rbac.authorization.k8s.io" || group == "admissionregistration.k8s.io"
}

// podRight reports whether the field key of the map parent is subject to the Pod Security
// Standards, or says as whom a pod calls the API server. Custom kinds name their security contexts
// podSecurityContext and the like, so the end of the name counts.
func podRight(parent, key string) bool {
	switch key {
	case "hostPID", "hostIPC", "hostNetwork", "hostUsers", "hostPath", "hostPort",
		"privileged", "seccompProfile", "appArmorProfile", "procMount",
		"serviceAccountName", "serviceAccount", "automountServiceAccountToken":
		return true
	case "host":
		// The host of a probe: the node sends requests to it for the pod.
		return parent == "httpGet" || parent == "tcpSocket"
	}
	return strings.HasSuffix(strings.ToLower(key), "securitycontext") ||
		strings.HasPrefix(key, "container.apparmor.security.beta.kubernetes.io/") ||
		strings.HasPrefix(key, "container.seccomp.security.alpha.kubernetes.io/") ||
		key == "seccomp.security.alpha.kubernetes.io/pod"
}
