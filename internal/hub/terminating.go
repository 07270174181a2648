package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// An APIService that is a template refers to a Service that no pod serves on the hub, where
// Services are templates, too. Kubernetes deletes no namespace while it cannot determine whether
// such an API has objects there. On an embedded hub it has none, because its server would store
// them, and no such server runs. So a namespace is deleted if everything else in it is deleted.

// terminating is the interval between checks of waiting namespaces: an APIService may have been
// created or deleted.
const terminating = 30 * time.Second

// finalizeNamespaces completes, until ctx ends, the deletion of namespaces that only wait for
// APIs without a server.
func (h *Hub) finalizeNamespaces(ctx context.Context, log logr.Logger) error {
	config := h.Config()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	services, err := aggregator.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	f := &finalizer{client: client, services: services, config: config}
	look := func(o any) {
		ns, ok := o.(*corev1.Namespace)
		if !ok {
			return
		}
		switch done, err := f.finalize(ctx, ns); {
		case err != nil && ctx.Err() == nil:
			log.Error(err, "Namespace is looked at again", "namespace", ns.Name)
		case done:
			log.Info("Namespace is deleted, though APIs do not answer: nothing serves them on the hub", "namespace", ns.Name)
		}
	}
	// Only namespaces that are being deleted are listed and watched.
	selector := fields.OneTermEqualSelector("status.phase", string(corev1.NamespaceTerminating)).String()
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return client.CoreV1().Namespaces().List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return client.CoreV1().Namespaces().Watch(ctx, o)
			},
		}, client),
		ObjectType: &corev1.Namespace{}, ResyncPeriod: terminating,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, o any) { look(o) }},
	})
	controller.RunWithContext(ctx)
	return nil
}

type finalizer struct {
	client   kubernetes.Interface
	services aggregator.Interface
	config   *rest.Config
}

// finalize deletes a namespace if it only waits for APIs that nothing serves on the hub.
func (f *finalizer) finalize(ctx context.Context, ns *corev1.Namespace) (done bool, err error) {
	if !waitsForAPIs(ns) {
		return false, nil
	}
	failing, err := f.failing(ctx)
	if err != nil || len(failing) == 0 {
		return false, err
	}
	for _, gv := range failing {
		if served, err := f.served(ctx, gv); served || err != nil {
			return false, err
		}
	}
	ns = ns.DeepCopy() // it keeps its resourceVersion, so that a changed namespace is not finalized
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err = f.client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // the next event repeats the check
	}
	if err != nil {
		return false, fmt.Errorf("finalize namespace: %w", err)
	}
	return true, nil
}

// waitsForAPIs reports whether Kubernetes has deleted everything that it found in a namespace,
// and the namespace only stays because some APIs did not answer.
func waitsForAPIs(ns *corev1.Namespace) bool {
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return false
	}
	want := map[corev1.NamespaceConditionType]corev1.ConditionStatus{
		corev1.NamespaceDeletionDiscoveryFailure: corev1.ConditionTrue,
		corev1.NamespaceDeletionGVParsingFailure: corev1.ConditionFalse,
		corev1.NamespaceDeletionContentFailure:   corev1.ConditionFalse,
		corev1.NamespaceContentRemaining:         corev1.ConditionFalse,
		corev1.NamespaceFinalizersRemaining:      corev1.ConditionFalse,
	}
	for _, c := range ns.Status.Conditions {
		if status, counts := want[c.Type]; counts {
			if c.Status != status {
				return false
			}
			delete(want, c.Type)
		}
	}
	return len(want) == 0
}

// failing returns the APIs whose discovery fails.
func (f *finalizer) failing(ctx context.Context) ([]schema.GroupVersion, error) {
	client, err := discovery.NewDiscoveryClientForConfig(f.config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	_, err = client.ServerPreferredNamespacedResources()
	if some, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); ok {
		var all []schema.GroupVersion
		for gv := range some.Groups {
			all = append(all, gv)
		}
		return all, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("ask which APIs there are: %w", err)
	}
	return nil, nil
}

// served reports whether an API may be served on the hub: by the API server itself, or by a
// Service that refers to an external name, as that of the fleet API does.
func (f *finalizer) served(ctx context.Context, gv schema.GroupVersion) (bool, error) {
	registered, err := f.services.ApiregistrationV1().APIServices().Get(ctx, gv.Version+"."+gv.Group, metav1.GetOptions{})
	if err != nil {
		return true, err
	}
	return f.answered(ctx, registered.Spec.Service)
}

func (f *finalizer) answered(ctx context.Context, by *apiregistrationv1.ServiceReference) (bool, error) {
	if by == nil {
		return true, nil
	}
	service, err := f.client.CoreV1().Services(by.Namespace).Get(ctx, by.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	return service.Spec.Type == corev1.ServiceTypeExternalName, nil
}
