package cli

import (
	"encoding/base64"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/hub"
)

// TestNoTokenForNobody: no token is created if the manifest cannot be applied. A new token
// would end the old one, and in a rejoin also the key of the running agents.
func TestNoTokenForNobody(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(hub.Scheme()).WithObjects(
		&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "listener.orrery.dev"},
			Data:       map[string]string{"url": "https://hub.example.com", "key": "a2V5"},
		},
	).Build()
	p := pullFlags{process: true, applyKubeconfig: filepath.Join(t.TempDir(), "missing")}
	err := p.hand(t.Context(), streams{out: io.Discard, err: io.Discard}, c, "oak")
	made := c.Get(t.Context(), client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "oak.join"}, &corev1.Secret{})
	if err == nil || !strings.Contains(err.Error(), "--apply-with-kubeconfig") || !apierrors.IsNotFound(made) {
		t.Errorf("the token: %v; %v", made, err)
	}
}

// TestRejoin: a rejoin prints a manifest with another token, and with the rights in the
// Cluster. Only with --replace, the hub revokes the agents' key, and the agents make another.
func TestRejoin(t *testing.T) {
	const annotation = "agent.orrery.dev/key"
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: clusterv1alpha1.SecretNamespace, Name: "oak.agent", Annotations: map[string]string{annotation: "one"},
	}}
	c := fake.NewClientBuilder().WithScheme(hub.Scheme()).WithObjects(
		key,
		&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak", UID: "one"}, Spec: clusterv1alpha1.ClusterSpec{
			SyncMode: clusterv1alpha1.Pull, Agent: &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfileMirror},
		}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "listener.orrery.dev"},
			Data:       map[string]string{"url": "https://hub.example.com", "key": "a2V5"},
		},
	).Build()
	token := func(replace bool) string {
		t.Helper()
		var out strings.Builder
		p := pullFlags{process: true, replace: replace}
		if err := p.hand(t.Context(), streams{out: &out, err: io.Discard}, c, "oak"); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); !strings.Contains(text, "orrery-mirror") || strings.Contains(text, "\n  name: orrery-all\n") || strings.Contains(text, "kind: Deployment") {
			t.Errorf("the manifest is not that of the profile and of a process:\n%s", text)
		}
		if want := "\n  replace: " + base64.StdEncoding.EncodeToString([]byte(strconv.FormatBool(replace))) + "\n"; !strings.Contains(out.String(), want) {
			t.Errorf("want %q in the manifest:\n%s", want, out.String())
		}
		_, after, _ := strings.Cut(out.String(), "\n  token: ")
		token, _, _ := strings.Cut(after, "\n")
		return token
	}
	first := token(false)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(key), key); err != nil || key.Annotations[annotation] != "one" {
		t.Errorf("the hub does not know the agents' key any more: %v, %v", key.Annotations, err)
	}
	second := token(true)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(key), key); err != nil || key.Annotations[annotation] != "" {
		t.Errorf("the hub still knows the agents' key: %v, %v", key.Annotations, err)
	}
	if first == "" || second == first {
		t.Error("the second token is the first")
	}
}

// TestDescribeAgent: the state of the agent is shown for a cluster that dials in, and for no
// other.
func TestDescribeAgent(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	placement := &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{"shop", "lab"}}
	connected := &clusterv1alpha1.AgentStatus{
		Version: "v1.2.3", Address: "10.0.0.7", Replicas: 2, Spares: 5, ConnectedSince: at(-time.Hour), CertificateExpires: at(48 * time.Hour),
	}
	for name, tc := range map[string]struct {
		spec   clusterv1alpha1.ClusterSpec
		status *clusterv1alpha1.AgentStatus
		want   []string
	}{
		"Push": {spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push}},
		"Away": {clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}, nil, []string{"Profile: All", "Agent: not connected"}},
		"Connected": {clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, Agent: placement}, connected, []string{
			"Profile: Placement in shop, lab", "Agent: v1.2.3 from 10.0.0.7, 2 connected with 5 spares, since 60m",
			"Agent's certificate: valid until 2026-06-03T12:00:00Z, for 2d",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			row := func(name string, values ...string) { got = append(got, name+": "+strings.Join(values, ", ")) }
			describeAgent(row, &clusterv1alpha1.Cluster{Spec: tc.spec, Status: clusterv1alpha1.ClusterStatus{Agent: tc.status}}, now)
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}
