package addon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/manifest"
)

const (
	// FieldManager is the field manager of objects that this package applies.
	FieldManager = "orrery-lifecycle"
	// callTimeout limits one request. A request to an API server that does not answer is then soon
	// retried at another one.
	callTimeout = 15 * time.Second
)

// cluster is the client of the API server of a built cluster. Its methods retry until ctx ends if
// the API server is unavailable, or refuses a request that may succeed later. transient says which
// errors these are. It may be used from several goroutines.
type cluster struct {
	client client.Client
	writer manifest.Client
}

// connect returns the cluster for a client configuration, which it does not change. It sends no
// request.
func connect(cfg *rest.Config) (*cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = FieldManager
	cfg.QPS = -1 // the API server has priority and fairness
	if cfg.Timeout == 0 {
		cfg.Timeout = callTimeout
	}
	// Warnings concern the authors of manifests, and would appear among the program's own output.
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme.Scheme, HTTPClient: h})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	w, err := manifest.NewClientFor(cfg, h, manifest.Options{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	return &cluster{client: c, writer: w}, nil
}

// resolve returns the identity of an object as the API server sees it: with a namespace only if its
// kind is namespaced. namespace is the default. With an error, such as an unknown kind, it returns
// what refOf returns.
func (c *cluster) resolve(ctx context.Context, o *unstructured.Unstructured, namespace string) (ref, error) {
	r := refOf(o, namespace)
	gvk := o.GroupVersionKind()
	var mapping *meta.RESTMapping
	err := retry(ctx, func() (err error) {
		mapping, err = c.client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		return err
	})
	if err != nil {
		return r, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		r.Namespace = ""
	}
	return r, nil
}

// apply applies an object with server-side apply and returns the stored object. It takes over
// fields that other managers set. If dry is true, it is a dry run, and the API server stores
// nothing.
func (c *cluster) apply(ctx context.Context, o *unstructured.Unstructured, dry bool) (*unstructured.Unstructured, error) {
	var result *unstructured.Unstructured
	err := retry(ctx, func() error {
		mapping, err := c.client.RESTMapper().RESTMapping(kindOf(o), o.GroupVersionKind().Version)
		if err != nil {
			return err
		}
		result, _, err = c.writer.Apply(ctx, manifest.Named(o, mapping, ""), o, true, dry)
		return err
	})
	return result, err
}

// get reads an object into o, which must be empty. It returns false, without an error, if the
// object does not exist.
func (c *cluster) get(ctx context.Context, o client.Object, namespace, name string) (bool, error) {
	err := retry(ctx, func() error {
		return client.IgnoreNotFound(c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o))
	})
	return err == nil && o.GetUID() != "", err
}

// list lists objects into l.
func (c *cluster) list(ctx context.Context, l client.ObjectList, options ...client.ListOption) error {
	return retry(ctx, func() error { return c.client.List(ctx, l, options...) })
}

// metadata lists the metadata of the objects of a kind that belong to any addon group: those with
// the label groupLabel. The result is nil, without an error, if the API server lacks the kind.
func (c *cluster) metadata(ctx context.Context, gvk schema.GroupVersionKind) ([]metav1.PartialObjectMetadata, error) {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := c.list(ctx, l, client.HasLabels{groupLabel})
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list objects of kind %s: %w", gvk.Kind, err)
	}
	return l.Items, nil
}

// remove deletes an object if the UID in the cluster is still that of o. It does not wait until the
// object is gone. An object that does not exist is no error.
func (c *cluster) remove(ctx context.Context, o client.Object) error {
	uid := o.GetUID()
	return retry(ctx, func() error {
		return client.IgnoreNotFound(c.client.Delete(ctx, o,
			client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &uid}))
	})
}

// retry calls f, with growing pauses, until it succeeds, fails with a permanent error, or ctx ends.
// If ctx ends, it returns the last error that is not about ctx, together with the cause of ctx.
func retry(ctx context.Context, f func() error) error {
	wait := 50 * time.Millisecond
	var last error
	for {
		err := f()
		if err == nil || !transient(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// transient reports whether err is one after which the same request may succeed later. The API
// server may be down, starting or busy, or a webhook may not run yet. An invalid certificate is
// permanent.
func transient(err error) bool {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) ||
			apierrors.IsUnexpectedServerError(err) || notServedYet(status.Status())
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	_, request := errors.AsType[*url.Error](err)
	return request || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// notServedYet reports whether a "not found" error may be due to a new API server. Such a server
// may lack a namespace that it will create itself, or a custom resource that another API server
// serves already. Every "not found" that names no object counts.
func notServedYet(s metav1.Status) bool {
	if s.Reason != metav1.StatusReasonNotFound {
		return false
	}
	if s.Details == nil || s.Details.Name == "" {
		return true
	}
	return s.Details.Kind == "namespaces" && builtinNamespace(s.Details.Name)
}
