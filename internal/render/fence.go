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

// fence is what an override must not change. It is read from the object before and after the
// override, and not from the fields that the override names: there are more ways to write a
// field than to read it.
type fence struct {
	holds  fields // finalizers and owners, which no override may change
	rights fields // what only a ClusterOverridePolicy may change
}

// fields holds values, as JSON, by their paths in an object.
type fields map[string]string

// fenced reads from an object what an override of policy p must not change.
func fenced(o *unstructured.Unstructured, p *policyv1alpha1.OverridePolicy) fence {
	f := fence{holds: fields{}, rights: fields{}}
	f.holds.read("", "", o.Object, func(parent, key string) bool {
		return parent == "metadata" && (key == "finalizers" || key == "ownerReferences")
	})
	if p.Namespace == "" {
		return f
	}
	switch o.GroupVersionKind().GroupKind().String() {
	case "ConfigMap", "Secret": // Kubernetes gives the keys of their data no meaning
		return f
	}
	held := podRight
	if grantsRights(o) {
		held = func(string, string) bool { return true }
	}
	f.rights.read("", "", o.Object, held)
	return f
}

// check returns an error if a fenced field has changed.
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

// read adds every field for which held is true, at any depth, as each kind has its pods
// elsewhere.
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

// positions returns the path suffixes of the elements of a list: by name if each has a unique
// one, so that an element may be inserted before others, and else by index.
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

// change returns the first path in which the fields differ; "" if they are equal.
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

// grantsRights reports whether an object says who may do what in a cluster.
func grantsRights(o *unstructured.Unstructured) bool {
	group := o.GroupVersionKind().Group
	return group == "rbac.authorization.k8s.io" || group == "admissionregistration.k8s.io"
}

// podRight reports whether a field of a pod is subject to the Pod Security Standards, or says
// as whom the pod calls the API server. Custom kinds name their security contexts
// podSecurityContext and the like.
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
