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

// steps has the steps of a Website, one for each condition.
type steps struct {
	client client.Client
	// live reads without the cache, which would otherwise hold every Deployment of the hub.
	live client.Reader
}

func (s *steps) deploy(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, deployment(w))
}

func (s *steps) expose(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, service(w))
}

// available reports whether the Deployment is available, in all its clusters together.
func (s *steps) available(ctx context.Context, w *appsv1alpha1.Website) error {
	var d appsv1.Deployment
	if err := s.live.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Spec.DeploymentName}, &d); err != nil {
		return fmt.Errorf("get Deployment %s: %w", w.Spec.DeploymentName, err)
	}
	w.Status.AvailableReplicas = d.Status.AvailableReplicas
	// If each cluster runs all replicas, there are more than spec.replicas of the Deployment.
	status := d.Status
	if status.ObservedGeneration < d.Generation || status.UpdatedReplicas < *d.Spec.Replicas ||
		status.Replicas != status.UpdatedReplicas || status.AvailableReplicas != status.UpdatedReplicas {
		return reconciler.Waiting(appsv1alpha1.ReasonProgressing, 0,
			"%d replicas are available; see Deployment %s and its ResourceBinding", status.AvailableReplicas, w.Spec.DeploymentName)
	}
	return nil
}

// ensure creates or updates an object of the Website, and writes nothing if the object is as
// wanted. It never changes an object of that name that the Website does not own. A missing
// object is created, which fails if another one exists by then. An update has the UID of the
// object that was read.
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

// covers reports whether an object has all wanted fields. Fields that others or the defaults of
// the API server add are ignored. Lists of plain values must be equal.
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

// coversList compares lists. It finds objects in them by name: all wanted objects have one.
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
