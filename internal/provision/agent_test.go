package provision

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
)

// listens publishes the address at which agents reach the hub.
func (h *hub) listens(t *testing.T, url string) {
	t.Helper()
	key, err := tunnel.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "listener.orrery.dev"},
		Data:       map[string]string{"url": url, "key": base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())},
	}
	eventually(t, "the listener is published", func() (bool, string) {
		err := h.Update(t.Context(), m)
		if apierrors.IsNotFound(err) {
			err = h.Create(t.Context(), m)
		}
		return err == nil, fmt.Sprint(err)
	})
	t.Cleanup(func() { _ = client.IgnoreNotFound(h.Delete(context.WithoutCancel(t.Context()), m)) })
}

// built returns a client of the cluster that is built. The objects of the agent are removed when
// the test ends.
func built(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(testenv.Config(1), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range []client.Object{
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: agent.Name}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: tunnel.JoinSecret}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: agent.Name}},
		} {
			testenv.Eventually(t, "delete "+o.GetName(), patience, func() error {
				return client.IgnoreNotFound(c.Delete(context.WithoutCancel(t.Context()), o))
			})
		}
	})
	return c
}

// manifested returns the token in the manifest that was applied in the built cluster.
func manifested(t *testing.T, c client.Client, cluster string) string {
	t.Helper()
	read := func(name string, o client.Object) {
		t.Helper()
		eventually(t, name+" is read", func() (bool, string) {
			err := c.Get(t.Context(), client.ObjectKey{Namespace: tunnel.Namespace, Name: name}, o)
			if apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err == nil, fmt.Sprint(err)
		})
	}
	d := &appsv1.Deployment{}
	read(agent.Name, d)
	if image := d.Spec.Template.Spec.Containers[0].Image; image != plan.AgentImage {
		t.Errorf("the agent's image is %s, want the one that hosts make, %s", image, plan.AgentImage)
	}
	s := &corev1.Secret{}
	read(tunnel.JoinSecret, s)
	if name := string(s.Data[tunnel.JoinCluster]); name != cluster {
		t.Errorf("the manifest is for cluster %q", name)
	}
	return string(s.Data[tunnel.JoinToken])
}

// TestJoinsByAgent: a cluster that is built gets the manifest of an agent once. It then waits for
// the agent.
func TestJoinsByAgent(t *testing.T) {
	h := startHub(t)
	h.listens(t, "https://hub.example.com")
	member := built(t)
	o := cluster("oak", 1, 2)
	o.Spec.Provision.Join = clusterv1alpha1.Pull
	h.create(t, o)
	h.until(t, "oak", clusterv1alpha1.ConditionReachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonWaitingForAgent)
	o = h.until(t, "oak", provisioned, metav1.ConditionTrue, clusterv1alpha1.ReasonProvisioned)
	if o.Spec.SyncMode != clusterv1alpha1.Pull || o.Spec.APIEndpoint != "" {
		t.Errorf("syncMode %s, apiEndpoint %q: want Pull, and no address before the agent says it", o.Spec.SyncMode, o.Spec.APIEndpoint)
	}
	if manifested(t, member, "oak") == "" {
		t.Error("the manifest has no token")
	}
	if ran := h.ran(); len(ran) != 1 {
		t.Errorf("it was built more than once: %q", ran)
	}
}

// TestJoinChanges: a member that the hub has built changes to an agent. The hub dials the member
// until the agent connects.
func TestJoinChanges(t *testing.T) {
	h := startHub(t)
	h.listens(t, "https://hub.example.com")
	member := built(t)
	h.create(t, cluster("oak", 1))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.Join = clusterv1alpha1.Pull })
	h.untilPhase(t, "oak-2", lifecyclev1alpha1.PhaseSucceeded)
	first := manifested(t, member, "oak")
	o := h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if o.Spec.SyncMode != clusterv1alpha1.Push {
		t.Error("the hub dials no more, and no agent has come")
	}
	// Changing back restores the former way.
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.Join = clusterv1alpha1.Push })
	h.untilPhase(t, "oak-3", lifecyclev1alpha1.PhaseSucceeded)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if manifested(t, member, "oak") != first {
		t.Error("a manifest was applied for who needs none")
	}
}

// TestJoinRefused: if agents cannot reach the hub, nothing is built, and the message says what to
// do.
func TestJoinRefused(t *testing.T) {
	for name, listens := range map[string]string{"Nowhere": "", "OnThisMachine": "https://127.0.0.1:7443"} {
		t.Run(name, func(t *testing.T) {
			h := startHub(t)
			if listens != "" {
				h.listens(t, listens)
			}
			o := cluster("oak", 1)
			o.Spec.Provision.Join = clusterv1alpha1.Pull
			h.create(t, o)
			o = h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
			if why := meta.FindStatusCondition(o.Status.Conditions, provisioned).Message; !strings.Contains(why, "spec.provision.join") || !strings.Contains(why, "orrery server") {
				t.Errorf("it says %q", why)
			}
			if ran := h.ran(); len(ran) > 0 {
				t.Errorf("it was begun: %q", ran)
			}
		})
	}
}
