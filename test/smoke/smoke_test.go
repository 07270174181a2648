//go:build smoke

// Package smoke places one workload in a running fleet, changes it, moves it and deletes it.
// `make quick` runs the test against the fleet that `make fleet` keeps. It needs the tag smoke,
// because every other run of the tests starts fleets of its own.
package smoke

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/internal/testenv"
)

// directoryVariable is the environment variable with the data directory of the fleet.
const directoryVariable = "ORRERY_FLEET"

// config returns access to the hub or a member of the fleet, from the kubeconfig context of
// that name.
func config(t *testing.T, name string) *rest.Config {
	t.Helper()
	dir := os.Getenv(directoryVariable)
	if dir == "" {
		t.Fatalf("%s is not set: start a fleet with `make fleet`, and run this test with `make quick`", directoryVariable)
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(dir, "kubeconfig")},
		&clientcmd.ConfigOverrides{CurrentContext: name},
	).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func cluster(t *testing.T, name string) *testenv.API {
	t.Helper()
	api, err := testenv.NewAPI(config(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return api
}

const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: registry.example.com/web:1}]}
`

const policy = `
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: web, namespace: NAMESPACE}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]
  placement: {clusterAffinity: {clusterNames: [CLUSTER]}}
`

func TestPlaceScaleMoveDelete(t *testing.T) {
	hub, oak, pine := cluster(t, "hub"), cluster(t, "oak"), cluster(t, "pine")
	ns := testenv.Namespace(t, config(t, "hub"))
	fill := func(text, replicas, in string) string {
		return strings.NewReplacer("NAMESPACE", ns, "REPLICAS", replicas, "CLUSTER", in).Replace(text)
	}
	t.Cleanup(func() { hub.Remove(t, "v1", "Namespace", "", ns) })

	hub.Apply(t, fill(policy, "", "oak")+"---"+fill(workload, "2", ""))
	has(t, oak, ns, 2)
	status(t, hub, ns, 2)

	hub.Apply(t, fill(workload, "3", ""))
	has(t, oak, ns, 3)
	status(t, hub, ns, 3)

	hub.Apply(t, fill(policy, "", "pine"))
	has(t, pine, ns, 3)
	hasNone(t, oak, ns)

	hub.Remove(t, "apps/v1", "Deployment", ns, "web")
	hasNone(t, pine, ns)
}

// has waits until a member has the Deployment with that many available replicas.
func has(t *testing.T, member *testenv.API, ns string, replicas int64) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("the member has %d available replicas", replicas), testenv.Patience, func() error {
		return available(t, member, ns, replicas)
	})
}

// status waits until the status of the template has that many available replicas.
func status(t *testing.T, hub *testenv.API, ns string, replicas int64) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("the template's status has %d available replicas", replicas), testenv.Patience, func() error {
		return available(t, hub, ns, replicas)
	})
}

func available(t *testing.T, api *testenv.API, ns string, replicas int64) error {
	t.Helper()
	d, err := api.Find(t.Context(), "apps/v1", "Deployment", ns, "web")
	if err != nil {
		return err
	}
	if n, _, _ := unstructured.NestedInt64(d.Object, "status", "availableReplicas"); n != replicas {
		return fmt.Errorf("it has %d", n)
	}
	return nil
}

func hasNone(t *testing.T, member *testenv.API, ns string) {
	t.Helper()
	testenv.Eventually(t, "the member has no Deployment any more", testenv.Patience, func() error {
		_, err := member.Find(t.Context(), "apps/v1", "Deployment", ns, "web")
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it has one")
	})
}
