package website

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// steps has the steps that the reconciler runs for a Website: deploy, expose and available, one for
// each condition. A step returns nil when its condition is met.
type steps struct {
	client client.Client
	// live reads without the cache, which would otherwise hold every Deployment of the hub.
	live client.Reader
}

// deploy is the step that creates or updates the Deployment of a Website on the hub. The errors are
// those of ensure.
func (s *steps) deploy(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, deployment(w))
}

// expose is the step that creates or updates the Service of a Website on the hub. The errors are
// those of ensure.
func (s *steps) expose(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, service(w))
}

// available is the step that waits until the Deployment of a Website is available, counted over all
// its clusters. Until then it returns a result of reconciler.Waiting. It sets
// w.Status.AvailableReplicas.
func (s *steps) available(ctx context.Context, w *appsv1alpha1.Website) error {
	var d appsv1.Deployment
	if err := s.live.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Spec.DeploymentName}, &d); err != nil {
		return fmt.Errorf("get Deployment %s: %w", w.Spec.DeploymentName, err)
	}
	w.Status.AvailableReplicas = d.Status.AvailableReplicas
	// A policy may let each cluster run all replicas. Then the status counts more than spec.replicas.
	status := d.Status
	if status.ObservedGeneration < d.Generation || status.UpdatedReplicas < *d.Spec.Replicas ||
		status.Replicas != status.UpdatedReplicas || status.AvailableReplicas != status.UpdatedReplicas {
		return reconciler.Waiting(appsv1alpha1.ReasonProgressing, 0,
			"%d replicas are available; see Deployment %s and its ResourceBinding", status.AvailableReplicas, w.Spec.DeploymentName)
	}
	return nil
}

// ensure creates want, an object of the Website w, or updates the existing one if it lacks fields
// of want. If the existing object does not belong to w, it is not changed, and the error is a
// result of reconciler.Waiting with the reason NameTaken. An object that another client creates
// meanwhile is an error. An object that another client replaces meanwhile is not changed: the
// update names the UID of the object that was read.
func (s *steps) ensure(ctx context.Context, w *appsv1alpha1.Website, want *unstructured.Unstructured) error {
	kind, name := want.GetKind(), want.GetName()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	err := s.live.Get(ctx, client.ObjectKeyFromObject(want), live)
	if apierrors.IsNotFound(err) {
		if err := s.client.Create(ctx, want, client.FieldOwner(FieldManager)); err != nil {
			return fmt.Errorf("create %s %s: %w", kind, name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s %s: %w", kind, name, err)
	}
	if !metav1.IsControlledBy(live, w) {
		return reconciler.Waiting(appsv1alpha1.ReasonNameTaken, 0,
			"%s %s exists and does not belong to this Website; delete or rename it, or create a Website with another deploymentName", kind, name)
	}
	if covers(live.Object, want.Object) {
		return nil
	}
	want.SetUID(live.GetUID())
	err = s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", kind, name, err)
	}
	return nil
}

// covers reports whether the object live has all fields of want, with the same values. Further
// fields in live are ignored: other clients or the API server's defaults set them. Objects in lists
// are compared by name; lists of plain values must be equal.
func covers(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		for key, value := range want {
			if !ok || !covers(live[key], value) {
				return false
			}
		}
		return ok
	case []any:
		live, ok := live.([]any)
		if !ok {
			return false
		}
		return coversList(live, want)
	}
	return live == want
}

// coversList reports whether the list live has all elements of want, as covers compares them. It
// finds an object of want in live by its field name, which all wanted objects have.
func coversList(live, want []any) bool {
	named := map[any]any{}
	for _, element := range live {
		if o, ok := element.(map[string]any); ok {
			named[o["name"]] = o
		}
	}
	for i, element := range want {
		o, ok := element.(map[string]any)
		switch {
		case ok && !covers(named[o["name"]], o):
			return false
		case !ok && (len(live) != len(want) || !covers(live[i], element)):
			return false
		}
	}
	return true
}
