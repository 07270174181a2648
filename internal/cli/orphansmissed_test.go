package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestMissed: each text about data that the fleet lacks is printed once. With a cluster given,
// texts about other clusters are left out.
func TestMissed(t *testing.T) {
	partial := func(name, reason, versions string) clusterv1alpha1.Cluster {
		return clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: clusterv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{
				Type: clusterv1alpha1.ConditionAPIsComplete, Reason: reason, Message: "types that are not listed are unknown, because these do not answer: " + versions,
			}}},
		}
	}
	const (
		oak     = "cluster oak cannot list widgets.example.com, so its objects are missing or the last known: 500"
		elm     = "cluster elm is unreachable since 2026-01-02T03:04:05Z: its objects are the last known"
		both    = "nothing is known yet of elm, oak: its objects are missing"
		cut     = "nothing is known yet of elm and 7 more: their objects are missing" // perhaps also oak
		neither = "only secrets in the namespaces in which you may list them on the hub are shown: shop"
	)
	m := &missed{}
	for _, text := range []string{oak, elm, oak, both, cut, neither} {
		m.HandleWarningHeaderWithContext(t.Context(), 299, "-", text)
	}
	m.HandleWarningHeaderWithContext(t.Context(), 199, "-", "another server's")
	m.clusters([]clusterv1alpha1.Cluster{
		partial("oak", clusterv1alpha1.ReasonComplete, ""),
		partial("elm", clusterv1alpha1.ReasonPartial, "metrics.k8s.io/v1beta1, silent.example.com/v1"),
		partial("ash", clusterv1alpha1.ReasonPartial, "custom.metrics.k8s.io/v1beta2, metrics.k8s.io/v1beta1"),
	})
	silent := "cluster elm: types that are not listed are unknown, because these do not answer: metrics.k8s.io/v1beta1, silent.example.com/v1"
	p := &placedOnHub{clusters: map[string]types.UID{"oak": "1", "elm": "2", "ash": "3"}}
	for cluster, want := range map[string][]string{
		"":    {oak, elm, both, cut, neither, silent},
		"oak": {oak, both, cut, neither},
		"elm": {elm, both, cut, neither, silent},
	} {
		if diff := cmp.Diff(want, m.about(cluster, p)); diff != "" {
			t.Errorf("of %q (-want +got):\n%s", cluster, diff)
		}
	}
}

// orphans lists copies without a binding while elm cannot list a type, because its conversion
// webhook does not answer.
func (f *hubOfTwo) orphans(t *testing.T) {
	const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: dials.example.com}
spec:
  group: example.com
  names: {kind: Dial, plural: dials, singular: dial}
  scope: Cluster
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/convert"}}
  versions:
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`
	testenv.Eventually(t, "all is looked at", testenv.Patience, func() error {
		if code, out, errOut := f.run("cluster", "orphans"); code != 0 || out != "No orphans.\n" || errOut != "" {
			return fmt.Errorf("%d %q %q", code, out, errOut)
		}
		return nil
	})
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(crd), &o.Object); err != nil {
		t.Fatal(err)
	}
	c := dynamic.NewForConfigOrDie(f.elm.Config())
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := c.Resource(definitions).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dial := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Dial", "metadata": map[string]any{"name": "one"},
	}}
	testenv.Eventually(t, "the type is served", testenv.Patience, func() error {
		_, err := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "dials"}).Create(t.Context(), dial, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier attempt had no answer
			return nil
		}
		return err
	})
	testenv.Eventually(t, "the cluster is named", testenv.Patience, func() error {
		code, out, errOut := f.run("cluster", "orphans")
		if code != 0 || out != "No orphans in what could be looked at.\n" || !strings.Contains(errOut, "Warning: cluster elm ") || !strings.Contains(errOut, "dials.example.com") || !strings.Contains(errOut, "convert") {
			return fmt.Errorf("%d %q %q", code, out, errOut)
		}
		return nil
	})
	runUntil(t, f.run, func(code int, out, errOut string) bool {
		return code == 0 && out == "No orphans.\n" && errOut == ""
	}, "cluster", "orphans", "oak")
	runUntil(t, f.run, func(code int, out, _ string) bool {
		return code == 0 && strings.TrimSpace(out) == "[]"
	}, "cluster", "orphans", "-o", "json")
}
