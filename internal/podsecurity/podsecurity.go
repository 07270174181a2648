// Package podsecurity reports whether a namespace of the hub admits the pods of an object, by
// the Pod Security Standards of Kubernetes. It is pure.
//
// The hub runs no pods, so its API server does not check them. The members check if they have
// the labels of the hub's namespace, which Orrery copies to them. But a member may ignore the
// labels, and its answer is late: it refuses the pods of a Deployment, not the Deployment.
package podsecurity

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// labelPrefix is the prefix of the labels of a namespace that set its levels of Pod Security:
// enforce, audit, warn and their versions.
const labelPrefix = "pod-security.kubernetes.io/"

// Labels returns the Pod Security labels among the labels of a namespace; nil if there are none.
// Orrery copies them to the namespace in members.
func Labels(labels map[string]string) map[string]string {
	var found map[string]string
	for key, value := range labels {
		if !strings.HasPrefix(key, labelPrefix) {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value
	}
	return found
}

// Level is a level of the Pod Security Standards: privileged, baseline or restricted. It is the
// value of a server flag, for namespaces without labels. "" means privileged.
type Level string

// String implements pflag.Value.
func (l *Level) String() string {
	if *l == "" {
		return string(api.LevelPrivileged)
	}
	return string(*l)
}

// Set implements pflag.Value. Another value than the three levels is an error and does not change
// l.
func (l *Level) Set(value string) error {
	level, err := api.ParseLevel(value)
	if err != nil {
		return errors.New("must be privileged, baseline or restricted")
	}
	*l = Level(level)
	return nil
}

// Type implements pflag.Value.
func (l *Level) Type() string { return "level" }

// Standard checks the pods in objects of the hub against the Pod Security levels of their
// namespaces. It is immutable and may be used from several goroutines.
type Standard struct {
	evaluator policy.Evaluator
	defaults  api.Policy
}

// New returns a Standard with the checks of all versions. unlabelled is the level of namespaces
// without labels. An error means that the built-in checks are invalid.
func New(unlabelled Level) (*Standard, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("read the Pod Security Standards: %w", err)
	}
	s := &Standard{evaluator: evaluator}
	s.defaults.Enforce = api.LevelVersion{Level: api.Level(unlabelled.String()), Version: api.LatestVersion()}
	return s, nil
}

// Violation returns the message why a namespace with the labels namespace does not admit the pods
// of an object. It is "" if the namespace admits them, or if the object has no pods. Only the label
// of enforce counts; an invalid level counts as restricted, as in Kubernetes. The message is about
// the first pod spec that violates the level. A pod spec that cannot be decoded is refused, except
// at the level privileged.
func (s *Standard) Violation(o *unstructured.Unstructured, namespace map[string]string) string {
	decided, _ := api.PolicyToEvaluate(namespace, s.defaults)
	level := decided.Enforce
	if level.Level == api.LevelPrivileged {
		return ""
	}
	var found string
	pods("", nil, o.Object, func(path string, metadata, spec map[string]any) bool {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"spec": spec}, &pod); err != nil {
			found = fmt.Sprintf("%s cannot be read as that of a pod, so that nobody knows whether it keeps to PodSecurity %q: %v", path, level.String(), err)
			return false
		}
		annotations, _, _ := unstructured.NestedStringMap(metadata, "annotations")
		result := policy.AggregateCheckResults(s.evaluator.EvaluatePod(level, &metav1.ObjectMeta{Annotations: annotations}, &pod.Spec))
		if !result.Allowed {
			found = fmt.Sprintf("%s violates PodSecurity %q: %s", path, level.String(), result.ForbiddenDetail())
		}
		return result.Allowed
	})
	return found
}

// pods calls f for each pod spec in at, which is an object or a part of it. path is the path of at
// in the object, and metadata the metadata field beside at, which may be nil. f gets both for the
// pod spec, such as spec.template.spec. Pod specs are recognized by their fields and not by the
// kind of the object, because custom kinds contain pods, too. When f returns false, pods stops and
// returns false.
func pods(path string, metadata, at map[string]any, f func(path string, metadata, spec map[string]any) bool) bool {
	if looksLikePod(at) && !f(path, metadata, at) {
		return false
	}
	beside, _ := at["metadata"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(at)) {
		here := strings.TrimPrefix(path+"."+key, ".")
		if !podsIn(here, beside, at[key], f) {
			return false
		}
	}
	return true
}

// podsIn calls pods for each map in v, which is the value of a field: a map, a list or neither.
// metadata is that beside a map; elements of lists have none. It returns false when f did.
func podsIn(path string, metadata map[string]any, v any, f func(path string, metadata, spec map[string]any) bool) bool {
	switch v := v.(type) {
	case map[string]any:
		return pods(path, metadata, v, f)
	case []any:
		for i, element := range v {
			if !podsIn(fmt.Sprintf("%s[%d]", path, i), nil, element, f) {
				return false
			}
		}
	}
	return true
}

// looksLikePod reports whether a map looks like a pod spec. It does if it has a list of containers
// of any sort, or requests the network, process or IPC namespace of the node.
func looksLikePod(o map[string]any) bool {
	for _, name := range []string{"containers", "initContainers", "ephemeralContainers"} {
		list, _ := o[name].([]any)
		if slices.ContainsFunc(list, func(v any) bool { _, ok := v.(map[string]any); return ok }) {
			return true
		}
	}
	return o["hostNetwork"] == true || o["hostPID"] == true || o["hostIPC"] == true
}
