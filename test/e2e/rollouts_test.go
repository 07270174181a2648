package e2e

import (
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/kube"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"orrery.dev/orrery/test/e2e/demo"
)

// TestRollouts: Helm 3 waits on the hub until every cluster is ready. Rollouts are listed and
// undone there.
func TestRollouts(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "rollouts")
	selectors := make([]string, 0, 5)
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ControllerRevision"} {
		selectors = append(selectors, "{apiVersion: apps/v1, kind: "+kind+"}")
	}
	apply(t, "hub", policy(ns, "all", strings.Join(selectors, ", "), inOakAndPine))

	const pod = "selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: busybox:1}]}}"
	workload := func(kind, name, more string) string {
		return fmt.Sprintf("apiVersion: apps/v1\nkind: %[2]s\nmetadata: {name: %[1]s, labels: {app.kubernetes.io/managed-by: Helm}}\nspec: {%[3]s"+pod+"}\n",
			name, kind, more)
	}
	flags := genericclioptions.NewConfigFlags(true)
	*flags.KubeConfig, *flags.Context, *flags.Namespace = demo.Kubeconfig(), "hub", ns
	helm := kube.New(flags)
	helm.Namespace = ns
	chart, err := helm.Build(strings.NewReader(strings.Join([]string{
		workload("Deployment", "web", "replicas: 2, "), workload("DaemonSet", "agent", ""),
	}, "---\n")), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := helm.Create(chart); err != nil {
		t.Fatal(err)
	}
	if err := helm.Wait(chart, deadline); err != nil {
		t.Fatalf("helm install --wait: %v", err)
	}
	for _, member := range []string{"oak", "pine"} {
		if n := demo.Kubectl(t, member, "get", "deployment", "web", "-n", ns, "-o", "jsonpath={.status.readyReplicas}"); n != "2" {
			t.Errorf("Helm was done when %s had %q replicas", member, n)
		}
	}

	for _, object := range []string{"deployment/web", "daemonset/agent"} {
		demo.Kubectl(t, "hub", "-n", ns, "set", "image", object, "c=busybox:2")
		demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", object, "--timeout=180s")
		eventually(t, deadline, func() string {
			if out := demo.Kubectl(t, "hub", "-n", ns, "rollout", "history", object); !strings.Contains(out, "\n2 ") {
				return out
			}
			return ""
		})
		demo.Kubectl(t, "hub", "-n", ns, "rollout", "undo", object)
		demo.Kubectl(t, "hub", "-n", ns, "rollout", "status", object, "--timeout=180s")
		shows(t, "pine", "busybox:1", "-n", ns, object, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		eventually(t, deadline, func() string {
			if out := demo.Kubectl(t, "hub", "-n", ns, "rollout", "history", object); strings.Contains(out, "\n1 ") || !strings.Contains(out, "\n3 ") {
				return out
			}
			return ""
		})
	}
	out := demo.Kubectl(t, "hub", "-n", ns, "get", "resourcebindings", "-o", "name")
	if strings.Contains(out, "replicaset") || strings.Contains(out, "revision") {
		t.Errorf("histories are placed: %s", out)
	}
	demo.Kubectl(t, "hub", "-n", ns, "delete", "deployment/web", "daemonset/agent")
	absent(t, "hub", "-n", ns, "replicasets,controllerrevisions")
}
