package spine

import (
	"fmt"
	"strings"
)

// Deployment returns a Deployment whose pods are simulated.
func Deployment(ns, name string, replicas int) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: web, image: "example.org/web:1"}]}
`, ns, name, replicas)
}

// ConfigMap returns a ConfigMap with the value at the key "key".
func ConfigMap(ns, name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {key: %q}\n", name, ns, value)
}

// Secret returns a Secret with the value at the key "key".
func Secret(ns, name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData: {key: %q}\n", name, ns, value)
}

// Service returns a Service for the pods of the Deployment of that name.
func Service(ns, name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %[2]s, namespace: %[1]s}\nspec: {selector: {app: %[2]s}, ports: [{port: 80}]}\n", ns, name)
}

// ServiceAccount returns a ServiceAccount.
func ServiceAccount(ns, name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", name, ns)
}

// Claim returns a PersistentVolumeClaim.
func Claim(ns, name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s, namespace: %s}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n", name, ns)
}

// Job returns a suspended Job.
func Job(ns, name string) string {
	return fmt.Sprintf(`---
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: x, image: "example.org/job:1"}]}}}
`, name, ns)
}

// Everything selects each kind of object that tests use.
const Everything = "{apiVersion: apps/v1, kind: Deployment}, {apiVersion: batch/v1, kind: Job}, {apiVersion: v1, kind: ConfigMap}, " +
	"{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: Service}, {apiVersion: v1, kind: ServiceAccount}, {apiVersion: v1, kind: PersistentVolumeClaim}"

// Policy returns a PropagationPolicy with these selectors. more are further fields of its spec.
func Policy(ns, name, selectors, placement string, more ...string) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: %s, namespace: %s}
spec: {resourceSelectors: [%s], placement: {%s}%s}
`, name, ns, selectors, placement, prefixed(more))
}

// ClusterPolicy returns a ClusterPropagationPolicy. Its selectors name the namespaces.
func ClusterPolicy(name, selectors, placement string, more ...string) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: %s}
spec: {resourceSelectors: [%s], placement: {%s}%s}
`, name, selectors, placement, prefixed(more))
}

func prefixed(more []string) string {
	if len(more) == 0 {
		return ""
	}
	return ", " + strings.Join(more, ", ")
}

// In returns a placement in the named clusters.
func In(names ...string) string {
	return "clusterAffinity: {clusterNames: [" + strings.Join(names, ", ") + "]}"
}

// Tolerating is the part of a placement that tolerates each taint of a cluster without an end.
const Tolerating = "clusterTolerations: [{operator: Exists}]"

// Divided returns a placement that divides replicas among clusters by weight.
func Divided(weights map[string]int) string {
	var names, list []string
	for _, n := range []string{"oak", "pine", "birch"} {
		if weight, ok := weights[n]; ok {
			names = append(names, n)
			list = append(list, fmt.Sprintf("{targetCluster: {clusterNames: [%s]}, weight: %d}", n, weight))
		}
	}
	return In(names...) + ", replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {staticWeightList: [" + strings.Join(list, ", ") + "]}}"
}

// Lower converts the name of a case to the name of a namespace.
func Lower(name string) string {
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('-')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
