package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/test/e2e/demo"
)

// hasCondition waits until an object on the hub has a condition, given as Type=Status/Reason,
// whose message contains all texts in says.
func hasCondition(t testing.TB, want string, says []string, object ...string) {
	t.Helper()
	kind, rest, _ := strings.Cut(want, "=")
	eventually(t, deadline, func() string {
		out, err := demo.TryGet("hub", append([]string{"-o", "json"}, object...)...)
		if err != nil {
			return err.Error()
		}
		var o struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		if err := json.Unmarshal([]byte(out), &o); err != nil {
			return err.Error()
		}
		for _, c := range o.Status.Conditions {
			if c.Type != kind || string(c.Status)+"/"+c.Reason != rest {
				continue
			}
			for _, word := range says {
				if !strings.Contains(c.Message, word) {
					return fmt.Sprintf("%v: %s does not say %q: %s", object, kind, word, c.Message)
				}
			}
			return ""
		}
		return fmt.Sprintf("%v: want %s, got %+v", object, want, o.Status.Conditions)
	})
}

// shows waits until kubectl get prints exactly want. "" also matches a missing object.
func shows(t testing.TB, context, want string, args ...string) {
	t.Helper()
	eventually(t, deadline, func() string {
		out, err := demo.TryGet(context, append([]string{"--ignore-not-found"}, args...)...)
		if err != nil || strings.TrimSpace(out) != want {
			return fmt.Sprintf("%s: get %s: want %q, got %q, %v", context, strings.Join(args, " "), want, strings.TrimSpace(out), err)
		}
		return ""
	})
}

// absent waits until an object is gone from a context.
func absent(t testing.TB, context string, args ...string) {
	t.Helper()
	shows(t, context, "", append(args, "-o", "name")...)
}

func configMap(ns, name, labels, who string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, labels: {%s}}\ndata: {who: %s}\n", name, ns, labels, who)
}

// policy returns a PropagationPolicy with selectors and the rest of its spec, in YAML.
func policy(ns, name, selectors, rest string) string {
	return fmt.Sprintf(`
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: %s, namespace: %s}
spec: {resourceSelectors: [%s], %s}
`, name, ns, selectors, rest)
}

const (
	anyConfigMap  = "{apiVersion: v1, kind: ConfigMap}"
	anyDeployment = "{apiVersion: apps/v1, kind: Deployment}"
	inOakAndPine  = "placement: {clusterAffinity: {clusterNames: [oak, pine]}}"
)

// TestObjectThatIsNotOurs: an unmanaged object in a member is not changed, unless the policy
// has Overwrite.
func TestObjectThatIsNotOurs(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "foreign")
	demo.Kubectl(t, "oak", "create", "namespace", ns)
	t.Cleanup(func() { demo.Kubectl(t, "oak", "delete", "namespace", ns, "--ignore-not-found", "--wait=false") })
	apply(t, "oak", configMap(ns, "settings", "", "theirs"))
	shows(t, "fleet", "theirs", "configmap", "settings", "-n", ns, "-o", "jsonpath={.items[*].data.who}{.data.who}")

	apply(t, "hub", policy(ns, "all", anyConfigMap, inOakAndPine))
	apply(t, "hub", configMap(ns, "settings", "", "ours"))
	shows(t, "pine", "ours", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")
	hasCondition(t, "FullyApplied=False/Conflict", []string{"oak"}, "resourcebinding", "settings-configmap", "-n", ns)
	shows(t, "oak", "theirs []", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who} [{.metadata.labels}]")

	// The owner of the hub's namespace does not own oak's namespace of that name, unless an
	// administrator allows that.
	demo.Kubectl(t, "hub", "patch", "propagationpolicy", "all", "-n", ns, "--type=merge", "-p", `{"spec":{"conflictResolution":"Overwrite"}}`)
	hasCondition(t, "FullyApplied=False/Conflict", []string{"oak", "work.orrery.dev/allow-takeover"}, "resourcebinding", "settings-configmap", "-n", ns)
	demo.Kubectl(t, "hub", "label", "namespace", ns, "work.orrery.dev/allow-takeover=true")
	hasCondition(t, "FullyApplied=True/FullyApplied", nil, "resourcebinding", "settings-configmap", "-n", ns)
	shows(t, "oak", "ours", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")

	// The object and its namespace existed before this hub, so both stay.
	demo.Kubectl(t, "hub", "delete", "namespace", ns)
	absent(t, "pine", "namespace", ns)
	shows(t, "oak", "ours []", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who} [{.metadata.labels}]")
	shows(t, "oak", "Active", "namespace", ns, "-o", "jsonpath={.status.phase}")
}

// TestTwoPoliciesClaimOneObject: of two policies that select an object, one places it. The
// status of the other names it.
func TestTwoPoliciesClaimOneObject(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "claims")
	apply(t, "hub", fmt.Sprintf(`
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: claims}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap, namespace: %s}]
  priority: 100
  placement: {clusterAffinity: {clusterNames: [pine]}}
`, ns))
	t.Cleanup(func() { demo.Kubectl(t, "hub", "delete", "clusterpropagationpolicy", "claims") })
	apply(t, "hub", policy(ns, "own", anyConfigMap, "placement: {clusterAffinity: {clusterNames: [oak]}}"))
	apply(t, "hub", configMap(ns, "settings", "", "me"))

	hasCondition(t, "Undisputed=False/LostClaim", []string{"ConfigMap " + ns + "/settings", "PropagationPolicy " + ns + "/own"}, "clusterpropagationpolicy", "claims")
	hasCondition(t, "Ready=True/Ready", nil, "propagationpolicy", "own", "-n", ns)
	shows(t, "oak", "me", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")
	absent(t, "pine", "configmap", "settings", "-n", ns)

	demo.Kubectl(t, "hub", "delete", "propagationpolicy", "own", "-n", ns)
	shows(t, "pine", "me", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")
	absent(t, "oak", "configmap", "settings", "-n", ns)
	hasCondition(t, "Undisputed=True/Undisputed", nil, "clusterpropagationpolicy", "claims")
}

// TestPolicyThatPlacesNothing: a policy that places nothing reports the reason.
func TestPolicyThatPlacesNothing(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "nothing")
	apply(t, "hub", policy(ns, "nobody", "{apiVersion: v1, kind: ConfigMap, name: nobody}", ""))
	apply(t, "hub", policy(ns, "no-kind", "{apiVersion: example.org/v1, kind: Gadget}", ""))
	apply(t, "hub", policy(ns, "no-cluster", anyConfigMap, "placement: {clusterAffinity: {clusterNames: [nowhere]}}"))
	apply(t, "hub", configMap(ns, "settings", "", "me"))

	hasCondition(t, "Ready=False/NothingSelected", nil, "propagationpolicy", "nobody", "-n", ns)
	hasCondition(t, "Claimed=False/KindNotServed", []string{"resourceSelectors[0]", "Gadget"}, "propagationpolicy", "no-kind", "-n", ns)
	hasCondition(t, "Scheduled=False/NoClusterFits", []string{"nowhere: UnknownCluster"}, "resourcebinding", "settings-configmap", "-n", ns)
}

// TestSkippedInSystemNamespaces: a cluster-wide policy reports the objects of system namespaces
// that it skips, and how to place them.
func TestSkippedInSystemNamespaces(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "skipped")
	const role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: e2e-skipped, namespace: %s, labels: {e2e: skipped}}\n"
	apply(t, "hub", fmt.Sprintf(role, ns))
	apply(t, "hub", fmt.Sprintf(role, "kube-system"))
	t.Cleanup(func() { demo.Kubectl(t, "hub", "delete", "role", "e2e-skipped", "-n", "kube-system") })
	const all = `
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: e2e-skipped}
spec:
  resourceSelectors: [{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, labelSelector: {matchLabels: {e2e: skipped}}}%s]
  placement: {clusterAffinity: {clusterNames: [oak]}}
`
	apply(t, "hub", fmt.Sprintf(all, ""))
	t.Cleanup(func() { demo.Kubectl(t, "hub", "delete", "clusterpropagationpolicy", "e2e-skipped") })
	hasCondition(t, "Complete=False/SystemNamespace", []string{"1 (Role kube-system/e2e-skipped)", "name the namespace in the selector"}, "clusterpropagationpolicy", "e2e-skipped")
	hasCondition(t, "Ready=True/Ready", nil, "clusterpropagationpolicy", "e2e-skipped")
	shows(t, "hub", "Warning SystemNamespace", "events", "--field-selector=involvedObject.name=e2e-skipped", "-o", "jsonpath={.items[0].type} {.items[0].reason}")
	shows(t, "oak", "e2e-skipped", "role", "e2e-skipped", "-n", ns, "-o", "jsonpath={.metadata.name}")
	absent(t, "oak", "role", "e2e-skipped", "-n", "kube-system")

	apply(t, "hub", fmt.Sprintf(all, ", {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, namespace: kube-system, labelSelector: {matchLabels: {e2e: skipped}}}"))
	hasCondition(t, "Complete=True/Complete", nil, "clusterpropagationpolicy", "e2e-skipped")
	shows(t, "oak", "e2e-skipped", "role", "e2e-skipped", "-n", "kube-system", "-o", "jsonpath={.metadata.name}")
}

func widgets() string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.e2e.example.org}
spec:
  group: e2e.example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`
}

// TestKindThatAMemberDoesNotServe: a kind that one member does not serve is placed in the
// others. It is placed in that member once the member serves it.
func TestKindThatAMemberDoesNotServe(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "kinds")
	for _, context := range []string{"hub", "oak"} {
		apply(t, context, widgets())
	}
	t.Cleanup(func() {
		for _, context := range []string{"hub", "oak", "pine"} {
			demo.Kubectl(t, context, "delete", "crd", "widgets.e2e.example.org", "--ignore-not-found")
		}
	})
	demo.Kubectl(t, "hub", "wait", "--for=condition=Established", "crd/widgets.e2e.example.org", "--timeout=180s")
	apply(t, "hub", policy(ns, "all", "{apiVersion: e2e.example.org/v1, kind: Widget}", inOakAndPine))
	eventually(t, deadline, func() string {
		out, err := demo.TryKubectl("hub", "apiVersion: e2e.example.org/v1\nkind: Widget\nmetadata: {name: w, namespace: "+ns+"}\nspec: {size: 3}\n", "apply", "-f", "-")
		if err != nil {
			return out
		}
		return ""
	})
	binding := []string{"resourcebinding", "w-widget.e2e.example.org", "-n", ns}
	hasCondition(t, "Scheduled=True/Scheduled", []string{"pine: it does not serve the kind"}, binding...)
	shows(t, "oak", "3", "widgets.e2e.example.org", "w", "-n", ns, "-o", "jsonpath={.spec.size}")

	apply(t, "pine", widgets())
	shows(t, "pine", "3", "widgets.e2e.example.org", "w", "-n", ns, "-o", "jsonpath={.spec.size}")
	hasCondition(t, "FullyApplied=True/FullyApplied", nil, binding...)
	shows(t, "fleet", "oak pine", "widgets.e2e.example.org", "-n", ns, "-o", "jsonpath={.items[*].metadata.annotations.fleet\\.orrery\\.dev/cluster}")
}

// TestDefinitionPlacedWithItsObjects: separate policies place a CustomResourceDefinition and
// its objects at the same time, in either order. An object waits for the definition, reports
// that, and is then placed where the definition is.
func TestDefinitionPlacedWithItsObjects(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "definitions")
	crd := strings.NewReplacer("widgets", "cranks", "widget", "crank", "Widget", "Crank").Replace(widgets())
	t.Cleanup(func() {
		demo.Kubectl(t, "hub", "delete", "clusterpropagationpolicy", "e2e-definitions", "--ignore-not-found")
		for _, context := range []string{"hub", "oak", "pine"} {
			demo.Kubectl(t, context, "delete", "crd", "cranks.e2e.example.org", "--ignore-not-found")
		}
	})
	// The object first: no member knows its kind.
	apply(t, "hub", crd)
	demo.Kubectl(t, "hub", "wait", "--for=condition=Established", "crd/cranks.e2e.example.org", "--timeout=180s")
	apply(t, "hub", policy(ns, "all", "{apiVersion: e2e.example.org/v1, kind: Crank}", inOakAndPine))
	crank := func(name string) string {
		return "apiVersion: e2e.example.org/v1\nkind: Crank\nmetadata: {name: " + name + ", namespace: " + ns + "}\nspec: {size: 3}\n"
	}
	eventually(t, deadline, func() string {
		out, err := demo.TryKubectl("hub", crank("first"), "apply", "-f", "-")
		if err != nil {
			return out
		}
		return ""
	})
	first := []string{"resourcebinding", "first-crank.e2e.example.org", "-n", ns}
	hasCondition(t, "Scheduled=False/NoClusterFits", []string{"oak: it does not serve the kind", "pine: it does not serve the kind"}, first...)

	// Then its definition, by a cluster-wide policy, with another object in the same moment.
	apply(t, "hub", crank("second")+`---
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: e2e-definitions}
spec:
  resourceSelectors: [{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, name: cranks.e2e.example.org}]
  `+inOakAndPine+`
`)
	for _, name := range []string{"first", "second"} {
		for _, context := range []string{"oak", "pine"} {
			shows(t, context, "3", "cranks.e2e.example.org", name, "-n", ns, "-o", "jsonpath={.spec.size}")
		}
		hasCondition(t, "FullyApplied=True/FullyApplied", nil, "resourcebinding", name+"-crank.e2e.example.org", "-n", ns)
	}
	hasCondition(t, "Healthy=True/Healthy", nil, "clusterresourcebinding", "cranks.e2e.example.org-customresourcedefinition")
}

// TestManifestThatAMemberRejects: when a member rejects a manifest, the binding has the
// member's message.
func TestManifestThatAMemberRejects(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "rejected")
	const words = "nobody is called mallory here"
	apply(t, "pine", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-rejected}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  validations: [{expression: "!('who' in object.data) || object.data.who != 'mallory'", message: %s}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-rejected}
spec:
  policyName: e2e-rejected
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}}
`, words, ns))
	t.Cleanup(func() {
		demo.Kubectl(t, "pine", "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "e2e-rejected")
	})
	// The policy is in force when it rejects our own request.
	demo.Kubectl(t, "pine", "create", "namespace", ns)
	eventually(t, deadline, func() string {
		out, _ := demo.TryKubectl("pine", configMap(ns, "probe", "", "mallory"), "apply", "--dry-run=server", "-f", "-")
		if !strings.Contains(out, words) {
			return out
		}
		return ""
	})
	apply(t, "hub", policy(ns, "all", anyConfigMap, inOakAndPine))
	apply(t, "hub", configMap(ns, "settings", "", "mallory"))
	binding := []string{"resourcebinding", "settings-configmap", "-n", ns}
	hasCondition(t, "FullyApplied=False/Rejected", []string{"pine", words}, binding...)
	eventually(t, deadline, func() string {
		out, err := demo.TryGet("hub", append([]string{"-o", "jsonpath={.status.aggregatedStatus[?(@.clusterName=='pine')].appliedMessage}"}, binding...)...)
		if err != nil || !strings.Contains(out, words) {
			return fmt.Sprintf("the binding says of pine %q, %v, want %q", out, err, words)
		}
		return ""
	})
	shows(t, "oak", "mallory", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")
	absent(t, "pine", "configmap", "settings", "-n", ns)
	eventually(t, deadline, func() string {
		if out, code := demo.Run(t, "cluster", "describe", "pine"); code != 0 || !strings.Contains(out, words) {
			return "cluster describe does not say it:\n" + out
		}
		return ""
	})

	apply(t, "hub", configMap(ns, "settings", "", "alice"))
	hasCondition(t, "FullyApplied=True/FullyApplied", nil, binding...)
	shows(t, "pine", "alice", "configmap", "settings", "-n", ns, "-o", "jsonpath={.data.who}")
	demo.Kubectl(t, "pine", "delete", "namespace", ns, "--wait=false")
}

// TestOverrides: overrides differ by cluster. Cluster-wide overrides are applied first. When
// overrides are deleted, the fields have their former values again.
func TestOverrides(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "overrides")
	apply(t, "hub", fmt.Sprintf(`
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterOverridePolicy
metadata: {name: e2e-overrides}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, namespace: %[1]s}]
  overrideRules:
  - overriders: {imageOverrider: [{component: Registry, operator: replace, value: mirror.example.org}]}
---
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: local, namespace: %[1]s}
spec:
  overrideRules:
  - targetCluster: {clusterNames: [pine]}
    overriders:
      imageOverrider: [{component: Tag, operator: replace, value: canary}]
      plaintext: [{path: /spec/replicas, operator: replace, value: 2}]
`, ns))
	t.Cleanup(func() {
		demo.Kubectl(t, "hub", "delete", "clusteroverridepolicy", "e2e-overrides", "--ignore-not-found")
	})
	apply(t, "hub", policy(ns, "all", anyDeployment, inOakAndPine))
	demo.Kubectl(t, "hub", "-n", ns, "create", "deployment", "web", "--image=docker.io/library/nginx:1.29", "--replicas=1")
	image := []string{"deployment", "web", "-n", ns, "-o", "jsonpath={.spec.template.spec.containers[0].image} {.spec.replicas}"}
	shows(t, "oak", "mirror.example.org/library/nginx:1.29 1", image...)
	shows(t, "pine", "mirror.example.org/library/nginx:canary 2", image...)

	demo.Kubectl(t, "hub", "delete", "clusteroverridepolicy", "e2e-overrides")
	shows(t, "oak", "docker.io/library/nginx:1.29 1", image...)
	shows(t, "pine", "docker.io/library/nginx:canary 2", image...)

	// An override that cannot be applied is named, and the cluster keeps its copy.
	demo.Kubectl(t, "hub", "patch", "overridepolicy", "local", "-n", ns, "--type=json", "-p",
		`[{"op":"replace","path":"/spec/overrideRules/0/overriders/plaintext/0/path","value":"/spec/nonsense/deep"}]`)
	hasCondition(t, "FullyApplied=False/RenderFailed", []string{"pine", "local", "/spec/nonsense/deep"}, "resourcebinding", "web-deployment", "-n", ns)
	shows(t, "pine", "docker.io/library/nginx:canary 2", image...)

	demo.Kubectl(t, "hub", "delete", "overridepolicy", "local", "-n", ns)
	shows(t, "pine", "docker.io/library/nginx:1.29 1", image...)
}

// TestSelectedByLabel: policies select objects by label. An object that loses the label keeps
// its placement until it is deleted, and its binding reports that no policy claims it.
func TestSelectedByLabel(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "labels")
	apply(t, "hub", policy(ns, "placed", "{apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {place: me}}}", inOakAndPine))
	apply(t, "hub", configMap(ns, "in", "place: me", "me"))
	apply(t, "hub", configMap(ns, "out", "place: not", "me"))
	who := []string{"configmap", "in", "-n", ns, "-o", "jsonpath={.data.who}"}
	shows(t, "oak", "me", who...)
	shows(t, "pine", "me", who...)

	apply(t, "hub", configMap(ns, "in", "place: not", "still"))
	hasCondition(t, "Scheduled=True/PolicyGone", []string{"placed"}, "resourcebinding", "in-configmap", "-n", ns)
	shows(t, "hub", "Unclaimed", "events", "-n", ns, "--field-selector=involvedObject.name=in,reason=Unclaimed", "-o", "jsonpath={.items[0].reason}")
	shows(t, "oak", "still", who...)
	absent(t, "hub", "resourcebinding", "out-configmap", "-n", ns)
	absent(t, "oak", "configmap", "out", "-n", ns)

	demo.Kubectl(t, "hub", "delete", "configmap", "in", "-n", ns)
	absent(t, "oak", "configmap", "in", "-n", ns)
	absent(t, "pine", "configmap", "in", "-n", ns)
	absent(t, "hub", "resourcebinding", "in-configmap", "-n", ns)
}

// TestRefusedInput: invalid input is refused when it is applied, with the path of the field.
func TestRefusedInput(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "refused")
	cluster := "apiVersion: cluster.orrery.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {apiEndpoint: %q, secretRef: {namespace: a, name: b}%s}\n"
	override := "apiVersion: policy.orrery.dev/v1alpha1\nkind: OverridePolicy\nmetadata: {name: p, namespace: " + ns + "}\nspec: {overrideRules: [{overriders: {%s}}]}\n"
	site := "apiVersion: apps.orrery.dev/v1alpha1\nkind: Website\nmetadata: {name: w, namespace: " + ns + "}\nspec: {gitRepo: %q, deploymentName: w%s}\n"
	for name, tc := range map[string]struct{ manifest, says string }{
		"UnknownField":           {policy(ns, "p", anyConfigMap, "placment: {}"), `unknown field "spec.placment"`},
		"UnknownNestedField":     {policy(ns, "p", anyConfigMap, "placement: {clusterAffinity: {clusterNmes: [oak]}}"), `unknown field "spec.placement.clusterAffinity.clusterNmes"`},
		"UnknownFieldInCluster":  {fmt.Sprintf(cluster, "c", "https://10.0.0.1:6443", ", regoin: eu"), `unknown field "spec.regoin"`},
		"UnknownFieldInWebsite":  {fmt.Sprintf(site, "https://git.example.org/a.git", ", replica: 2"), `unknown field "spec.replica"`},
		"UnknownFieldInOverride": {fmt.Sprintf(override, "imageOverider: []"), `unknown field "spec.overrideRules[0].overriders.imageOverider"`},
		"NoSelector":             {policy(ns, "p", "", ""), "spec.resourceSelectors"},
		"KarmadaField":           {policy(ns, "p", anyConfigMap, "failover: {application: {}}"), "application failover is not honoured yet: an unhealthy copy stays in its cluster"},
		"KarmadaPlacement":       {policy(ns, "p", anyConfigMap, "placement: {spreadConstraints: [{spreadByField: region, minGroups: 3, maxGroups: 2}]}"), "minGroups is greater than maxGroups"},
		"KarmadaCluster":         {fmt.Sprintf(cluster, "c", "https://10.0.0.1:6443", ", zone: a"), "zone is not honoured: use zones, a list"},
		"Enum":                   {policy(ns, "p", anyConfigMap, "conflictResolution: Perhaps"), `spec.conflictResolution: Unsupported value: "Perhaps"`},
		"NameAndLabels":          {policy(ns, "p", "{apiVersion: v1, kind: ConfigMap, name: a, labelSelector: {matchLabels: {a: b}}}", ""), "spec.resourceSelectors[0]: Invalid value"},
		"OurOwnKind":             {policy(ns, "p", "{apiVersion: cluster.orrery.dev/v1alpha1, kind: Cluster}", ""), "Orrery's own policies, bindings and clusters cannot be placed"},
		"FieldSelector":          {policy(ns, "p", anyConfigMap, "placement: {clusterAffinity: {fieldSelector: {matchExpressions: [{key: region, operator: In}]}}}"), "spec.placement.clusterAffinity.fieldSelector.matchExpressions[0]: Invalid value"},
		"WeightsOfDuplicated":    {policy(ns, "p", anyConfigMap, "placement: {replicaScheduling: {weightPreference: {dynamicWeight: AvailableReplicas}}}"), "spec.placement.replicaScheduling: Invalid value"},
		"PlainHTTP":              {fmt.Sprintf(cluster, "c", "http://10.0.0.1:6443", ""), "spec.apiEndpoint: Invalid value"},
		"NameOfAContext":         {fmt.Sprintf(cluster, "fleet", "https://10.0.0.1:6443", ""), "metadata.name is taken"},
		"ImageWithoutValue":      {fmt.Sprintf(override, "imageOverrider: [{component: Tag, operator: replace}]"), "spec.overrideRules[0].overriders.imageOverrider[0]: Invalid value"},
		"EmptyOverriders":        {fmt.Sprintf(override, ""), "spec.overrideRules[0].overriders"},
		"PathIsNoPointer":        {fmt.Sprintf(override, "plaintext: [{path: spec.replicas, operator: remove}]"), "spec.overrideRules[0].overriders.plaintext[0].path: Invalid value"},
		"SiteIsNoURL":            {fmt.Sprintf(site, "site.git", ""), "spec.gitRepo: Invalid value"},
	} {
		if !t.Run(name, func(t *testing.T) {
			eventually(t, deadline, func() string { // a busy API server may give another error first
				out, err := demo.TryKubectl("hub", tc.manifest, "apply", "--dry-run=server", "-f", "-")
				if err == nil {
					t.Fatalf("want a refusal that says %q, got:\n%s", tc.says, out)
				}
				if !strings.Contains(out, tc.says) {
					return fmt.Sprintf("want a refusal that says %q, got: %v\n%s", tc.says, err, out)
				}
				return ""
			})
		}) {
			t.FailNow() // every further case might take as long
		}
	}
}

// TestStatusesAddUp: for every kind with a status of its own, the hub adds up the statuses, and
// kubectl's commands for them work.
func TestStatusesAddUp(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "statuses")
	apply(t, "hub", policy(ns, "all", "{apiVersion: apps/v1, kind: StatefulSet}, {apiVersion: apps/v1, kind: DaemonSet}, {apiVersion: batch/v1, kind: Job}, {apiVersion: v1, kind: Service}",
		"placement: {clusterAffinity: {clusterNames: [oak, pine, birch]}}"))
	const pod = "template: {metadata: {labels: {app: %[2]s}}, spec: {containers: [{name: c, image: busybox}]%[3]s}}"
	apply(t, "hub", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: db, namespace: %[1]s}
spec: {selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: %[1]s}
spec: {serviceName: db, replicas: 2, selector: {matchLabels: {app: db}}, `+fmt.Sprintf(pod, ns, "db", "")+`}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: %[1]s}
spec: {selector: {matchLabels: {app: agent}}, `+fmt.Sprintf(pod, ns, "agent", "")+`}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: %[1]s}
spec: {completions: 2, parallelism: 2, `+fmt.Sprintf(pod, ns, "once", ", restartPolicy: Never")+`}
`, ns))
	shows(t, "hub", "2", "statefulset", "db", "-n", ns, "-o", "jsonpath={.status.readyReplicas}")
	shows(t, "hub", "9 9", "daemonset", "agent", "-n", ns, "-o", "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}")
	shows(t, "hub", "6", "job", "once", "-n", ns, "-o", "jsonpath={.status.succeeded}")
	demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", "daemonset/agent", "--timeout=180s")
	demo.Kubectl(t, "hub", "-n", ns, "wait", "--for=condition=Complete", "job/once", "--timeout=180s")
	hasCondition(t, "Healthy=True/Healthy", nil, "resourcebinding", "db-statefulset", "-n", ns)
	hasCondition(t, "Healthy=True/Healthy", nil, "resourcebinding", "db-service", "-n", ns)
}

// TestReplicasAreDivided: replicas are divided by static weights, and by free capacity of
// nodes.
func TestReplicasAreDivided(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "divided")
	divided := "placement: {clusterAffinity: {clusterNames: [oak, pine]}, replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {%s}}}"
	apply(t, "hub", policy(ns, "static", "{apiVersion: apps/v1, kind: Deployment, name: static}",
		fmt.Sprintf(divided, "staticWeightList: [{targetCluster: {clusterNames: [oak]}, weight: 2}, {targetCluster: {clusterNames: [pine]}, weight: 1}]")))
	apply(t, "hub", policy(ns, "dynamic", "{apiVersion: apps/v1, kind: Deployment, name: dynamic}", fmt.Sprintf(divided, "dynamicWeight: AvailableReplicas")))
	demo.Kubectl(t, "hub", "-n", ns, "create", "deployment", "static", "--image=nginx", "--replicas=6")
	replicas := "jsonpath={.spec.replicas}"
	shows(t, "oak", "4", "deployment", "static", "-n", ns, "-o", replicas)
	shows(t, "pine", "2", "deployment", "static", "-n", ns, "-o", replicas)
	demo.Kubectl(t, "hub", "-n", ns, "scale", "deployment/static", "--replicas=9")
	shows(t, "oak", "6", "deployment", "static", "-n", ns, "-o", replicas)
	shows(t, "pine", "3", "deployment", "static", "-n", ns, "-o", replicas)
	demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", "deployment/static", "--timeout=180s")

	// Nodes have 8 cores, so that one such pod fits into each. There are six nodes.
	apply(t, "hub", fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: dynamic, namespace: %s}
spec:
  replicas: 20
  selector: {matchLabels: {app: dynamic}}
  template: {metadata: {labels: {app: dynamic}}, spec: {containers: [{name: c, image: busybox, resources: {requests: {cpu: "6"}}}]}}
`, ns))
	hasCondition(t, "Scheduled=False/Insufficient", []string{"6 of 20 replicas are placed"}, "resourcebinding", "dynamic-deployment", "-n", ns)
	demo.Kubectl(t, "hub", "-n", ns, "scale", "deployment/dynamic", "--replicas=4")
	hasCondition(t, "Scheduled=True/Scheduled", nil, "resourcebinding", "dynamic-deployment", "-n", ns)
	demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", "deployment/dynamic", "--timeout=180s")
}

// TestReplicasGoWhereTheyMayRun: by free capacity, replicas are placed where nodes have
// capacity and the namespace's quota admits them.
func TestReplicasGoWhereTheyMayRun(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "room")
	node := strings.Fields(demo.Kubectl(t, "pine", "get", "nodes", "-o", "name"))[0]
	demo.Kubectl(t, "pine", "label", node, ns+"=fast")
	t.Cleanup(func() { demo.Kubectl(t, "pine", "label", node, ns+"-") })
	shows(t, "fleet", "pine", "nodes", "-l", ns+"=fast", "-o", "jsonpath={.items[*].metadata.annotations.fleet\\.orrery\\.dev/cluster}")
	apply(t, "hub", policy(ns, "all", "{apiVersion: apps/v1, kind: Deployment}",
		"placement: {clusterAffinity: {clusterNames: [oak, pine]}, replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {dynamicWeight: AvailableReplicas}}}"))
	picky := func(name string, replicas int) {
		t.Helper()
		apply(t, "hub", fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template: {metadata: {labels: {app: %[1]s}}, spec: {nodeSelector: {%[2]s: fast}, containers: [{name: c, image: busybox}]}}
`, name, ns, replicas))
	}
	picky("first", 3)
	hasCondition(t, "Scheduled=True/Scheduled", nil, "resourcebinding", "first-deployment", "-n", ns)
	shows(t, "hub", "pine=3", "resourcebinding", "first-deployment", "-n", ns, "-o", "jsonpath={range .spec.clusters[*]}{.name}={.replicas}{end}")
	demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", "deployment/first", "--timeout=180s")

	// In these clusters only the API servers count the use of a quota, when pods are created.
	// So the test writes the status.
	demo.Kubectl(t, "pine", "-n", ns, "create", "quota", "q", "--hard=pods=5")
	demo.Kubectl(t, "pine", "-n", ns, "patch", "resourcequota", "q", "--subresource=status", "--type=merge", "-p", `{"status": {"hard": {"pods": "5"}, "used": {"pods": "3"}}}`)
	shows(t, "fleet", "3", "resourcequotas", "-n", ns, "-o", "jsonpath={.items[*].status.used.pods}")
	picky("second", 4)
	hasCondition(t, "Scheduled=False/Insufficient", []string{"2 of 4 replicas are placed"}, "resourcebinding", "second-deployment", "-n", ns)
	shows(t, "pine", "2", "deployment", "second", "-n", ns, "-o", "jsonpath={.status.replicas}")
	demo.Kubectl(t, "pine", "-n", ns, "delete", "resourcequota", "q")
	hasCondition(t, "Scheduled=True/Scheduled", nil, "resourcebinding", "second-deployment", "-n", ns)
	demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", "deployment/second", "--timeout=180s")
}

// TestMemberContext: a member's context behaves like the member. Its answers, also refusals,
// are unchanged.
func TestMemberContext(t *testing.T) {
	t.Parallel()
	direct := filepath.Join(demo.Dir(), "members", "oak", "kubeconfig")
	ns := namespace(t, "member-context")
	demo.Kubectl(t, "oak", "create", "namespace", ns)
	t.Cleanup(func() { demo.Kubectl(t, "oak", "delete", "namespace", ns, "--wait=false") })
	// The node of the pod is simulated. The pod can be created as soon as its ServiceAccount
	// exists.
	eventually(t, deadline, func() string {
		if out, err := demo.TryKubectl("oak", "", "-n", ns, "run", "web", "--image=nginx"); err != nil {
			return out
		}
		return ""
	})
	demo.Kubectl(t, "oak", "-n", ns, "wait", "--for=condition=Ready", "pod/web", "--timeout=180s")
	for name, args := range map[string][]string{
		"Exec":        {"exec", "web", "--", "true"},
		"Logs":        {"logs", "web", "-c", "no-such-container"},
		"NoSuchPod":   {"logs", "nobody"},
		"NoSuchKind":  {"get", "gadgets"},
		"BadManifest": {"create", "configmap", "Bad_Name"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"-n", ns}, args...)
			eventually(t, deadline, func() string { // one of the two may not answer for a moment
				want, err := demo.TryKubectl("oak", "", append([]string{"--kubeconfig", direct}, args...)...)
				if err == nil {
					t.Fatalf("the member has nothing against it: %s", want)
				}
				got, err := demo.TryKubectl("oak", "", args...)
				if err == nil || got != want {
					return fmt.Sprintf("through the hub: %v\n%s\nthe member itself:\n%s", err, got, want)
				}
				return ""
			})
		})
	}
}

// TestFormats: every command that lists objects prints them in every format.
func TestFormats(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"cluster list", "cluster describe oak", "demo status"} {
		for format, want := range map[string]string{"table": "oak", "wide": "oak", "json": `"name": "oak"`, "yaml": "name: oak"} {
			if !t.Run(command+" "+format, func(t *testing.T) {
				var out string
				eventually(t, deadline, func() string {
					var code int
					if out, code = demo.Run(t, append(strings.Fields(command), "-o", format)...); code != 0 || !strings.Contains(out, want) {
						return fmt.Sprintf("exit code %d, want %q in:\n%s", code, want, out)
					}
					return ""
				})
				if strings.Contains(out, "managedFields") {
					t.Error("it prints managedFields")
				}
				if format == "json" && !json.Valid([]byte(out)) {
					t.Errorf("no JSON:\n%s", out)
				}
			}) {
				t.FailNow() // every further case might take as long
			}
		}
	}
	for _, command := range []string{"describe", "unjoin"} {
		eventually(t, deadline, func() string {
			out, code := demo.Run(t, "cluster", command, "nowhere")
			if code != 1 {
				t.Fatalf("cluster %s: exit code %d, want 1:\n%s", command, code, out)
			}
			if !strings.Contains(out, "no cluster is named nowhere; the fleet has ") {
				return fmt.Sprintf("cluster %s does not say that there is no such cluster:\n%s", command, out)
			}
			return ""
		})
	}
}
