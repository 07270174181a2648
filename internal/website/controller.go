// Package website turns a git repository into a web site. For each Website, its controller
// keeps a Deployment and a Service on the hub, which policies place in clusters as they place
// other objects. The controller knows nothing of clusters. It is the example for extending
// Orrery with another kind.
package website

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// FieldManager is the field manager of the fields that the controller sets, "orrery-website". It is
// also the value of the label app.kubernetes.io/managed-by.
const FieldManager = "orrery-website"

// byDeployment is the name of the index of Websites by spec.deploymentName, which is the name of
// their Deployment and Service.
const byDeployment = "spec.deploymentName"

// Add adds the controller of Websites, and its index in the cache, to a manager of the hub. The
// manager must not have started.
func Add(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &appsv1alpha1.Website{}, byDeployment,
		func(o client.Object) []string {
			w, ok := o.(*appsv1alpha1.Website)
			if !ok {
				return nil
			}
			return []string{w.Spec.DeploymentName}
		})
	if err != nil {
		return fmt.Errorf("index Websites: %w", err)
	}
	// Deployments and Services are mapped to Websites by name and not by owner. A Website does not own
	// an object that had its name before, and must see the deletion of that object. Only the metadata
	// of the hub's Deployments and Services is cached, because most of them have nothing to do with
	// Websites.
	named := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return namedAfter(ctx, mgr.GetClient(), o)
	})
	err = ctrl.NewControllerManagedBy(mgr).Named("website").
		For(&appsv1alpha1.Website{}).
		WatchesMetadata(&appsv1.Deployment{}, named, builder.OnlyMetadata).
		WatchesMetadata(&corev1.Service{}, named, builder.OnlyMetadata).
		WithOptions(reconciler.Options[reconcile.Request](1)).
		Complete(newLoop(mgr.GetClient(), mgr.GetAPIReader()))
	if err != nil {
		return fmt.Errorf("add website controller: %w", err)
	}
	return nil
}

// namedAfter returns a request for each Website in the namespace of o, a Deployment or Service,
// whose spec.deploymentName is the name of o. If the Websites cannot be listed, it logs the error
// and returns nil.
func namedAfter(ctx context.Context, c client.Reader, o client.Object) []reconcile.Request {
	var sites appsv1alpha1.WebsiteList
	err := c.List(ctx, &sites, client.InNamespace(o.GetNamespace()), client.MatchingFields{byDeployment: o.GetName()})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list Websites by Deployment", "namespace", o.GetNamespace(), "name", o.GetName())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(sites.Items))
	for i := range sites.Items {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{
			Namespace: sites.Items[i].Namespace, Name: sites.Items[i].Name,
		}})
	}
	return requests
}

// newLoop returns the reconciler of Websites. It writes with c. live reads Deployments and Services
// from the API server and not from the cache.
func newLoop(c client.Client, live client.Reader) *reconciler.Loop[*appsv1alpha1.Website] {
	s := &steps{client: c, live: live}
	return &reconciler.Loop[*appsv1alpha1.Website]{
		Client:     c,
		Ready:      appsv1alpha1.ConditionReady,
		Conditions: func(w *appsv1alpha1.Website) *[]metav1.Condition { return &w.Status.Conditions },
		Steps: []reconciler.Step[*appsv1alpha1.Website]{
			{Condition: appsv1alpha1.ConditionDeployed, Run: s.deploy},
			{Condition: appsv1alpha1.ConditionExposed, Run: s.expose, NonBlocking: true},
			{Condition: appsv1alpha1.ConditionAvailable, Run: s.available},
		},
	}
}
