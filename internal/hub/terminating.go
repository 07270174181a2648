package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// terminating is the interval between checks of namespaces whose deletion does not end, because an
// APIService may have been created or deleted.
const terminating = 30 * time.Second

// finalizeNamespaces completes the deletion of namespaces that only wait for APIs without a server,
// until ctx ends. It runs on a hub with its own API server. Failures are logged, and repeated after
// the interval terminating. It returns an error only if no client can be created.
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

// finalizer completes the deletion of namespaces on a hub with its own API server, where some APIs
// have no server.
type finalizer struct {
	client   kubernetes.Interface
	services aggregator.Interface
	config   *rest.Config
}

// finalize removes the finalizer of Kubernetes from the namespace ns if ns only waits for APIs that
// nothing serves on the hub. The API server then deletes ns. done reports whether finalize removed
// the finalizer. If ns has changed since it was read, finalize does nothing.
func (f *finalizer) finalize(ctx context.Context, ns *corev1.Namespace) (done bool, err error) {
	if !waitsForAPIs(ns) {
		return false, nil
	}
	failing, err := f.failing(ctx)
	if err != nil || len(failing) == 0 {
		return false, err
	}
	registered, err := f.services.ApiregistrationV1().APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	if recovered(ns, registered.Items, failing) {
		return false, nil // Kubernetes will look into the namespace once more, and the condition changes
	}
	for _, gv := range failing {
		if served, err := f.served(ctx, gv); served || err != nil {
			return false, err
		}
	}
	ns = ns.DeepCopy() // the copy keeps the resourceVersion, so a changed namespace is a conflict
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

// waitsForAPIs reports whether the namespace is being deleted, Kubernetes has deleted everything
// that it found in it, and the namespace only stays because some APIs did not answer.
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

// recovered reports whether an API version that failed when Kubernetes last looked into the
// namespace answers now. Such an API may have objects in the namespace that nobody has deleted. The
// condition of the namespace names the API versions in its message; failing are those that fail
// now.
func recovered(ns *corev1.Namespace, registered []apiregistrationv1.APIService, failing []schema.GroupVersion) bool {
	at := slices.IndexFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
		return c.Type == corev1.NamespaceDeletionDiscoveryFailure
	})
	return at >= 0 && slices.ContainsFunc(registered, func(s apiregistrationv1.APIService) bool {
		gv := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
		return !slices.Contains(failing, gv) && strings.Contains(ns.Status.Conditions[at].Message, " "+gv.String()+": ")
	})
}

// failing returns the API versions whose discovery fails on the hub, in no order; nil if there are
// none.
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

// served reports whether an API version may be served on the hub: by the API server itself, or by a
// server outside, as the fleet API is. It is false if its APIService refers to a Service in the
// hub, which no pod serves. It is true after an error.
func (f *finalizer) served(ctx context.Context, gv schema.GroupVersion) (bool, error) {
	registered, err := f.services.ApiregistrationV1().APIServices().Get(ctx, gv.Version+"."+gv.Group, metav1.GetOptions{})
	if err != nil {
		return true, err
	}
	return f.answered(ctx, registered.Spec.Service)
}

// answered reports whether a server may answer for by, the Service of an APIService. A nil by means
// the API server itself, so the result is true. It is false for a Service that does not exist, and
// for one without an external name. It is true after an error.
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
