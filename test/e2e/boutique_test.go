package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

type deploymentList struct {
	Items []struct {
		Metadata struct {
			Name        string            `json:"name"`
			Namespace   string            `json:"namespace"`
			Generation  int64             `json:"generation"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Replicas int `json:"replicas"`
		} `json:"spec"`
		Status struct {
			ObservedGeneration int64 `json:"observedGeneration"`
			Replicas           int   `json:"replicas"`
			ReadyReplicas      int   `json:"readyReplicas"`
			AvailableReplicas  int   `json:"availableReplicas"`
			UpdatedReplicas    int   `json:"updatedReplicas"`
		} `json:"status"`
	} `json:"items"`
}

const boutiquePolicy = `
apiVersion: policy.orrery.dev/v1alpha1
kind: ClusterPropagationPolicy
metadata: {name: boutique}
spec:
  resourceSelectors:
  - {apiVersion: apps/v1, kind: Deployment, namespace: boutique}
  - {apiVersion: v1, kind: Service, namespace: boutique}
  - {apiVersion: v1, kind: ServiceAccount, namespace: boutique}
`

// TestOnlineBoutique places a real application, unchanged, in every cluster.
func TestOnlineBoutique(t *testing.T) {
	t.Parallel()
	manifest := filepath.Join("testdata", "online-boutique.yaml")
	testenv.Inputs(t, filepath.Join("test", "e2e", manifest)) // kubectl reads it
	namespace(t, "boutique")
	apply(t, "hub", boutiquePolicy)
	t.Cleanup(func() { demo.Kubectl(t, "hub", "delete", "clusterpropagationpolicy", "boutique") })
	demo.Kubectl(t, "hub", "-n", "boutique", "apply", "-f", manifest)

	const workloads = 12
	eventually(t, deadline, func() string {
		for _, m := range demo.Clusters {
			var l deploymentList
			if err := get(m, &l, "deployments", "-n", "boutique"); err != nil {
				return err.Error()
			}
			if len(l.Items) != workloads {
				return fmt.Sprintf("%s has %d of %d deployments", m, len(l.Items), workloads)
			}
			for _, d := range l.Items {
				if d.Status.ReadyReplicas != d.Spec.Replicas {
					return fmt.Sprintf("%s: deployment %s has %d of %d replicas ready", m, d.Metadata.Name, d.Status.ReadyReplicas, d.Spec.Replicas)
				}
			}
		}
		return ""
	})
	// The statuses of the templates show the same.
	eventually(t, deadline, func() string {
		var l deploymentList
		if err := get("hub", &l, "deployments", "-n", "boutique"); err != nil {
			return err.Error()
		}
		for _, d := range l.Items {
			want := d.Spec.Replicas // each cluster has that many, and the hub shows that number
			s := d.Status
			if s.ReadyReplicas != want || s.AvailableReplicas != want || s.Replicas != want || s.UpdatedReplicas != want || s.ObservedGeneration != d.Metadata.Generation {
				return fmt.Sprintf("hub: deployment %s: want %d of everything at generation %d, got %+v", d.Metadata.Name, want, d.Metadata.Generation, s)
			}
		}
		return ""
	})
	// kubectl's own commands wait for that, too.
	demo.Kubectl(t, "hub", "-n", "boutique", "rollout", "status", "deployment/frontend", "--timeout=180s")
	demo.Kubectl(t, "hub", "-n", "boutique", "wait", "--for=condition=Available", "deployment", "--all", "--timeout=180s")

	// One request lists the Deployments of all clusters.
	eventually(t, deadline, func() string {
		var l deploymentList
		if err := get("fleet", &l, "deployments", "-n", "boutique"); err != nil {
			return err.Error()
		}
		if want := workloads * len(demo.Clusters); len(l.Items) != want {
			return fmt.Sprintf("the fleet shows %d of %d deployments", len(l.Items), want)
		}
		return ""
	})

	demo.Kubectl(t, "hub", "-n", "boutique", "delete", "-f", manifest)
	eventually(t, deadline, func() string {
		for _, m := range demo.Clusters {
			if left := demo.Kubectl(t, m, "get", "deployments,services,serviceaccounts,replicasets,pods,endpointslices", "-n", "boutique", "-o", "name"); left != "" && strings.TrimSpace(left) != "serviceaccount/default" {
				return fmt.Sprintf("%s still has %s", m, left)
			}
		}
		if left := demo.Kubectl(t, "hub", "get", "resourcebindings", "-n", "boutique", "-o", "name"); left != "" {
			return "the hub still has " + left
		}
		return ""
	})
	demo.Kubectl(t, "hub", "delete", "namespace", "boutique")
	eventually(t, deadline, func() string {
		for _, m := range demo.Clusters {
			if left := demo.Kubectl(t, m, "get", "namespace", "boutique", "--ignore-not-found", "-o", "name"); left != "" {
				return fmt.Sprintf("%s still has %s", m, left)
			}
			if left := demo.Kubectl(t, m, "get", "all,sa", "-A", "-l", "work.orrery.dev/binding", "-o", "jsonpath={.items[?(@.metadata.namespace=='boutique')].metadata.name}"); left != "" {
				return fmt.Sprintf("%s still has %s", m, left)
			}
		}
		return ""
	})
}
