package hub

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/testenv"
)

// TestDeletionProtection: what has the label is not deleted on the hub, by whichever request.
func TestDeletionProtection(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "external")
	if err := os.WriteFile(kubeconfig, testenv.Kubeconfig(0), 0o600); err != nil {
		t.Fatal(err)
	}
	h, _ := run(t, Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: kubeconfig})
	c := client(t, h.Config())
	ns := testenv.Namespace(t, testenv.Config(0))
	configMaps := c.CoreV1().ConfigMaps(ns)
	create := func(name, protection string) {
		t.Helper()
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if protection != "" {
			o.Labels = map[string]string{"resourcetemplate.orrery.dev/deletion-protected": protection}
		}
		if _, err := configMaps.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("protected", "Always")
	create("other", "Never")
	create("plain", "")
	refused := func(err error) error {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "remove the label resourcetemplate.orrery.dev/deletion-protected") {
			return errors.Join(errors.New("it was not refused"), err)
		}
		return nil
	}
	// The API server takes a moment to follow a new policy.
	eventually(t, "the policy is in force", func() error {
		return refused(configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	})
	if err := refused(configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{})); err != nil {
		t.Error(err)
	}
	if err := refused(configMaps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"other", "plain"} {
		if err := configMaps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	unlabel := []byte(`{"metadata":{"labels":{"resourcetemplate.orrery.dev/deletion-protected":null}}}`)
	if _, err := configMaps.Patch(t.Context(), "protected", "application/merge-patch+json", unlabel, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Delete(t.Context(), "protected", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
