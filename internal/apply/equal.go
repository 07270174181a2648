package apply

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/render"
)

// difference describes how an object differs from what creating its template would give.
type difference struct {
	// Excess are the fields that only the object has. Other are those that have other values or
	// are missing. They are paths without values, which may be secret.
	Excess, Other []string
}

// none reports whether the object is equal.
func (d *difference) none() bool { return len(d.Excess)+len(d.Other) == 0 }

// String describes the difference in one sentence; "" if there is none.
func (d *difference) String() string {
	var parts []string
	if len(d.Other) > 0 {
		parts = append(parts, "it differs from the template in "+some(d.Other))
	}
	if len(d.Excess) > 0 {
		parts = append(parts, "it has more than the template: "+some(d.Excess))
	}
	return strings.Join(parts, "; ")
}

// differences compares an object (live) with what creating the manifest would give in its cluster
// (created). It ignores the status, metadata that every write changes, the cluster's own fields,
// fields of Kubernetes' controllers and autoscalers, and marks of other tools. It is pure.
func differences(manifest, created, live *unstructured.Unstructured) difference {
	c := comparison{own: clusterOwn(manifest), controllers: controllersSet(live)}
	top := func(o *unstructured.Unstructured) map[string]any {
		fields := maps.Clone(o.Object)
		delete(fields, "status")
		metadata, _ := fields["metadata"].(map[string]any)
		if metadata = maps.Clone(metadata); metadata == nil {
			metadata = map[string]any{}
		}
		for _, name := range []string{
			"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "generateName",
			"deletionTimestamp", "deletionGracePeriodSeconds",
			"finalizers", // finalizers say only when the object may be removed
		} {
			delete(metadata, name)
		}
		for _, name := range []string{"labels", "annotations"} {
			if metadata[name] == nil {
				metadata[name] = map[string]any{}
			}
		}
		fields["metadata"] = metadata
		return fields
	}
	c.compare("", top(created), top(live), c.controllers, false)
	slices.Sort(c.found.Excess)
	slices.Sort(c.found.Other)
	return c.found
}

// comparison collects the result of one call of differences.
type comparison struct {
	own         ownFields
	controllers fieldSet // fields that Kubernetes' controllers and autoscalers own
	found       difference
}

// compare adds the differences between two values at a path to c.found; nil stands for an absent
// value. theirs are the fields in the values that controllers own; whole is true if controllers own
// all of the value.
func (c *comparison) compare(path string, created, live any, theirs fieldSet, whole bool) {
	switch {
	case c.own.has(path, created, live), whole && mayBeControllers(path):
		return
	case live == nil:
		c.found.Other = append(c.found.Other, path)
		return
	}
	switch is := live.(type) {
	case map[string]any:
		fields, isMap := created.(map[string]any)
		if created != nil && !isMap {
			c.found.Other = append(c.found.Other, path)
			return
		}
		if created == nil && len(theirs) == 0 {
			c.found.Excess = append(c.found.Excess, path)
			return
		}
		names := maps.Clone(fields)
		if names == nil {
			names = map[string]any{}
		}
		maps.Copy(names, is)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if fields[name] == nil && is[name] == nil {
				continue
			}
			part, all := theirs.at("f:" + name)
			c.compare(join(path, name), fields[name], is[name], part, all)
		}
	case []any:
		elements, isList := created.([]any)
		if created != nil && !isList {
			c.found.Other = append(c.found.Other, path)
			return
		}
		c.compareLists(path, elements, is, theirs, created == nil)
	default:
		switch {
		case created == nil:
			c.found.Excess = append(c.found.Excess, path)
		case !sameText(created, live):
			c.found.Other = append(c.found.Other, path)
		}
	}
}

// compareLists adds the differences between two lists, whose elements correspond by name or else by
// index. absent is true if the created object does not have the list. Another order of the elements
// is a difference. theirs are the fields that controllers own.
func (c *comparison) compareLists(path string, created, live []any, theirs fieldSet, absent bool) {
	name := elementNames(created, live)
	if name == nil || absent && len(theirs) == 0 {
		switch {
		case absent:
			c.found.Excess = append(c.found.Excess, path)
		case len(created) != len(live):
			if prefixOf(created, live) {
				c.found.Excess = append(c.found.Excess, path)
				return
			}
			c.found.Other = append(c.found.Other, path)
		default:
			for i := range live {
				c.compare(fmt.Sprintf("%s[%d]", path, i), created[i], live[i], nil, false)
			}
		}
		return
	}
	wanted := map[string]any{}
	var order []string
	for _, v := range created {
		wanted[name(v)] = v
		order = append(order, name(v))
	}
	has := map[string]bool{}
	var common []string
	for i, v := range live {
		n := name(v)
		has[n] = true
		part, all := theirs.at(theirs.element(v, i))
		if _, both := wanted[n]; both {
			common = append(common, n)
		}
		c.compare(fmt.Sprintf("%s[%s]", path, n), wanted[n], v, part, all)
	}
	order = slices.DeleteFunc(order, func(n string) bool {
		if !has[n] {
			c.compare(fmt.Sprintf("%s[%s]", path, n), wanted[n], nil, nil, false)
		}
		return !has[n]
	})
	if !slices.Equal(order, common) {
		// The order differs: applying the template would change it.
		c.found.Other = append(c.found.Other, path)
	}
}

// prefixOf reports whether a list begins with all elements of first and has more.
func prefixOf(first, list []any) bool {
	return len(first) < len(list) && sameText(first, list[:len(first)])
}

// elementNames returns a function that gives each element of the lists a name that is unique in its
// list: the value of a field such as name, mountPath or key, or port and protocol. It returns nil
// if no such field is unique in all lists.
func elementNames(lists ...[]any) func(any) string {
	for _, keys := range [][]string{{"name"}, {"mountPath"}, {"devicePath"}, {"containerPort", "protocol"}, {"port", "protocol"}, {"key"}, {"ip"}, {"topologyKey"}} {
		name := func(v any) string {
			o, _ := v.(map[string]any)
			var parts []string
			for _, key := range keys {
				if s := o[key]; s != nil {
					parts = append(parts, fmt.Sprint(s))
				}
			}
			return strings.Join(parts, "/")
		}
		fits := true
		for _, list := range lists {
			seen := map[string]bool{}
			for _, v := range list {
				n := name(v)
				fits = fits && n != "" && !seen[n]
				seen[n] = true
			}
		}
		if fits {
			return name
		}
	}
	return nil
}

// ownFields are the fields that each cluster sets itself, even if the template has other values
// or none. docs/kinds.md lists them.
type ownFields struct {
	paths    map[string]bool
	service  bool
	pod      bool
	headless bool // the template asks for a Service without an address
	bundles  bool // the template leaves CA bundles to the cluster
}

// clusterOwn returns the fields that a cluster sets itself for objects from a manifest.
func clusterOwn(manifest *unstructured.Unstructured) ownFields {
	kind := manifest.GroupVersionKind().GroupKind().String()
	own := ownFields{paths: map[string]bool{}, service: kind == "Service", pod: kind == "Pod"}
	always := map[string][][]string{
		"ServiceAccount":   {{"secrets"}},
		"PersistentVolume": {{"spec", "claimRef", "uid"}, {"spec", "claimRef", "resourceVersion"}},
		"Job.batch":        {{"spec", "ttlSecondsAfterFinished"}},
		"DaemonSet.apps":   {{"metadata", "annotations", "deprecated.daemonset.template.generation"}},
		"Namespace":        {{"spec", "finalizers"}, {"metadata", "labels", "kubernetes.io/metadata.name"}},
	}
	unlessSet := map[string][][]string{
		"Service":                             {{"spec", "healthCheckNodePort"}, {"spec", "ipFamilies"}, {"spec", "ipFamilyPolicy"}},
		"PersistentVolumeClaim":               {{"spec", "volumeName"}},
		"PersistentVolume":                    {{"spec", "claimRef"}},
		"ServiceAccount":                      {{"imagePullSecrets"}},
		"HorizontalPodAutoscaler.autoscaling": {{"spec", "minReplicas"}, {"spec", "metrics"}},
		"Pod":                                 {{"spec", "nodeName"}},
		"Job.batch": {
			{"spec", "selector"},
			{"spec", "completions"},
			{"spec", "template", "metadata", "labels", "controller-uid"},
			{"spec", "template", "metadata", "labels", "batch.kubernetes.io/controller-uid"},
			{"spec", "template", "metadata", "labels", "job-name"},
			{"spec", "template", "metadata", "labels", "batch.kubernetes.io/job-name"},
			{"metadata", "labels", "controller-uid"},
			{"metadata", "labels", "batch.kubernetes.io/controller-uid"},
			{"metadata", "labels", "job-name"},
			{"metadata", "labels", "batch.kubernetes.io/job-name"},
		},
	}
	add := func(path []string) {
		joined := ""
		for _, name := range path {
			joined = join(joined, name)
		}
		own.paths[joined] = true
	}
	for _, path := range always[kind] {
		add(path)
	}
	for _, path := range unlessSet[kind] {
		if _, set, err := unstructured.NestedFieldNoCopy(manifest.Object, path...); !set && err == nil {
			add(path)
		}
	}
	switch kind {
	case "ValidatingWebhookConfiguration.admissionregistration.k8s.io", "MutatingWebhookConfiguration.admissionregistration.k8s.io",
		"CustomResourceDefinition.apiextensions.k8s.io", "APIService.apiregistration.k8s.io":
		own.bundles = !bytes.Contains(encoded(manifest.Object), []byte(`"caBundle"`))
	}
	if interpreter.KeepsReplicas(manifest) {
		add(interpreter.ReplicasField(manifest))
	}
	if own.service {
		address, _, _ := unstructured.NestedString(manifest.Object, "spec", "clusterIP")
		own.headless = address == "None"
		if !own.headless {
			add([]string{"spec", "clusterIP"})
			add([]string{"spec", "clusterIPs"})
		}
	}
	return own
}

// has reports whether the field at a path belongs to the cluster itself, or is a mark. created and
// live are the values of the field in the two compared objects; nil: absent.
func (f *ownFields) has(path string, created, live any) bool {
	switch {
	case f.service && path == "spec.clusterIP" && (live == "None" || created == "None"):
		return live == created // the template decides whether the Service has an address
	case f.paths[path]:
		return true
	case f.service && strings.HasPrefix(path, "spec.ports[") && strings.HasSuffix(path, "].nodePort"):
		return true
	case f.bundles && created == nil && strings.HasSuffix(path, ".caBundle"):
		return true
	// The name of the token volume differs for each pod.
	case f.pod && (strings.Contains(path, "["+tokenVolume) || strings.Contains(path, "["+tokenPath+"]")):
		return true
	}
	return isOthersMark(path, created, live)
}

const (
	// tokenVolume begins the name of the volume with the ServiceAccount token that admission adds to a
	// Pod.
	tokenVolume = "kube-api-access-"
	// tokenPath is the directory in which containers mount that volume.
	tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount" //nolint:gosec // a directory, and no credential
)

// isOthersMark reports whether a path is a mark: a label or annotation by which Karmada, Helm,
// kubectl or a hub recognizes an object. It is also true for the annotation of kubectl rollout
// restart in a pod template, if the created object lacks it.
func isOthersMark(path string, created, live any) bool {
	for _, prefix := range []string{"metadata.labels.", "metadata.annotations."} {
		if key, found := strings.CutPrefix(path, prefix); found {
			return isMarkKey(strings.Trim(key, `"`), live)
		}
	}
	// The annotation of kubectl rollout restart, if the template has none. A different one in the
	// template is a difference: it would restart the pods.
	return created == nil && strings.HasSuffix(path, `template.metadata.annotations."`+restartedAt+`"`)
}

// restartedAt is the annotation that kubectl rollout restart sets in a pod template.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// isMarkKey reports whether a label or annotation is a mark of Karmada, Helm, kubectl or a
// hub. The value matters only for app.kubernetes.io/managed-by, which is a mark of Helm.
func isMarkKey(key string, value any) bool {
	domain, _, _ := strings.Cut(key, "/")
	switch {
	case domain == "karmada.io", strings.HasSuffix(domain, ".karmada.io"), domain == "meta.helm.sh", domain == "helm.sh", domain == "kubectl.kubernetes.io":
		return true
	case key == "app.kubernetes.io/managed-by":
		return value == "Helm"
	case key == workv1alpha2.BindingLabel, key == workv1alpha2.DigestAnnotation, key == workv1alpha2.SourceAnnotation,
		key == workv1alpha2.OriginAnnotation, key == workv1alpha2.OrphanAnnotation, key == workv1alpha2.OwnedAnnotation:
		return true
	}
	return render.IsHubs(key)
}

// mayBeControllers reports whether a controller of Kubernetes may set the field at a path.
// Controllers set neither the fields that define what pods run, even if managedFields says so, nor
// the owners of an object.
func mayBeControllers(path string) bool {
	return !strings.HasPrefix(path, "metadata.ownerReferences") && !strings.HasPrefix(path, "spec.template.") && path != "spec.template" &&
		!strings.HasPrefix(path, "spec.jobTemplate") && !strings.HasPrefix(path, "spec.containers") && !strings.HasPrefix(path, "spec.initContainers") &&
		!strings.HasPrefix(path, "spec.host") && !strings.HasPrefix(path, "spec.securityContext")
}

// freeName returns name, cut if necessary, with "-" and random appended. The result has at
// most 40 characters, or as many as name if name is longer.
func freeName(name, random string) string {
	const short = 40
	if longest := max(len(name), short) - len(random) - 1; len(name) > longest {
		name = strings.TrimRight(name[:longest], ".-:")
	}
	return name + "-" + random
}
