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

// steps of a Website, one for each condition.
type steps struct {
	client client.Client
	// live reads past the cache, which would otherwise hold every Deployment of the hub.
	live client.Reader
}

func (s *steps) deploy(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, deployment(w))
}

func (s *steps) expose(ctx context.Context, w *appsv1alpha1.Website) error {
	return s.ensure(ctx, w, service(w))
}

// available reads how the Deployment fares, in all its clusters together.
func (s *steps) available(ctx context.Context, w *appsv1alpha1.Website) error {
	var d appsv1.Deployment
	if err := s.live.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Spec.DeploymentName}, &d); err != nil {
		return fmt.Errorf("get Deployment %s: %w", w.Spec.DeploymentName, err)
	}
	w.Status.AvailableReplicas = d.Status.AvailableReplicas
	// Clusters may each run all replicas, so that there are more than the Deployment says.
	status := d.Status
	if status.ObservedGeneration < d.Generation || status.UpdatedReplicas < *d.Spec.Replicas ||
		status.Replicas != status.UpdatedReplicas || status.AvailableReplicas != status.UpdatedReplicas {
		return reconciler.Waiting(appsv1alpha1.ReasonProgressing, 0,
			"%d replicas are available; see Deployment %s and its ResourceBinding", status.AvailableReplicas, w.Spec.DeploymentName)
	}
	return nil
}

// ensure makes an object of the Website as it should be, and writes nothing when it is.
// An object of that name which the Website does not own is not touched: what is absent
// is created, which cannot hit another object, and what is there is changed on the
// condition that it is still the one that was looked at.
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

// covers says whether an object has everything that is wanted of it. What others or the
// API server's defaults add does not matter, except in lists of plain values, which are
// wanted as a whole.
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

// coversList finds the elements of a list of objects by name; what is written here
// names all of them.
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
