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

// fence is what an override must leave as it is. It is read from the object before and after, and
// not from what an override names: there are more ways to write a field than to read it.
type fence struct {
	holds  fields // finalizers and owners: nobody's to override
	rights fields // what only a ClusterOverridePolicy may change
}

// fields are values, as JSON, by where they are in an object.
type fields map[string]string

// fenced reads what an override of a policy must leave as it is.
func fenced(o *unstructured.Unstructured, p *policyv1alpha1.OverridePolicy) fence {
	f := fence{holds: fields{}, rights: fields{}}
	f.holds.read("", "", o.Object, func(parent, key string) bool {
		return parent == "metadata" && (key == "finalizers" || key == "ownerReferences")
	})
	if p.Namespace == "" {
		return f
	}
	switch o.GroupVersionKind().GroupKind().String() {
	case "ConfigMap", "Secret": // the keys of their data mean nothing to Kubernetes
		return f
	}
	held := podRight
	if grantsRights(o) {
		held = func(string, string) bool { return true }
	}
	f.rights.read("", "", o.Object, held)
	return f
}

// check refuses an object whose fenced fields are not what they were.
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

// read takes in every field that is held, at any depth: each kind has its pods elsewhere.
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
					raw = fmt.Append(nil, value) // a template may hold what JSON cannot
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

// positions says where the elements of a list are: by name where each has its own, so that an
// element may be put before others, and else by number.
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

// change is where two differ first; empty when they do not.
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

// grantsRights is true of objects that say who may do what in a cluster.
func grantsRights(o *unstructured.Unstructured) bool {
	group := o.GroupVersionKind().Group
	return group == "rbac.authorization.k8s.io" || group == "admissionregistration.k8s.io"
}

// podRight is true of the fields of a pod that Pod Security Standards speak of, and of those that
// say as whom it talks to the API server. Custom kinds call their security contexts
// podSecurityContext and the like.
func podRight(parent, key string) bool {
	switch key {
	case "hostPID", "hostIPC", "hostNetwork", "hostUsers", "hostPath", "hostPort",
		"privileged", "seccompProfile", "appArmorProfile", "procMount",
		"serviceAccountName", "serviceAccount", "automountServiceAccountToken":
		return true
	case "host":
		return parent == "httpGet" || parent == "tcpSocket" // of a probe: the node asks it for the pod
	}
	return strings.HasSuffix(strings.ToLower(key), "securitycontext") ||
		strings.HasPrefix(key, "container.apparmor.security.beta.kubernetes.io/") ||
		strings.HasPrefix(key, "container.seccomp.security.alpha.kubernetes.io/") ||
		key == "seccomp.security.alpha.kubernetes.io/pod"
}
