package manifest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Object names an object of an API server by its resource.
type Object struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string
}

// String returns the object as users name it, such as deployments.apps shop/cart.
func (o Object) String() string {
	if o.Namespace == "" {
		return fmt.Sprintf("%s %s", o.Resource.GroupResource(), o.Name)
	}
	return fmt.Sprintf("%s %s/%s", o.Resource.GroupResource(), o.Namespace, o.Name)
}

// Named returns the name of an object whose kind has the REST mapping m. namespace is the default
// for an object of a namespaced kind that names none. An object of a cluster-scoped kind gets no
// namespace.
func Named(o *unstructured.Unstructured, m *meta.RESTMapping, namespace string) Object {
	named := Object{Resource: m.Resource, Namespace: cmp.Or(o.GetNamespace(), namespace), Name: o.GetName()}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		named.Namespace = ""
	}
	return named
}

// Guessed returns the name of an object without discovery: its resource is the plural of its kind.
// That is right for all kinds of Kubernetes and Orrery. An object without a namespace counts as
// cluster-scoped.
func Guessed(o *unstructured.Unstructured) Object {
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return Object{Resource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// path returns the segments of the object's path in the API; without a name those of the
// collection.
func (o Object) path() []string {
	path := groupPath(o.Resource.GroupVersion())
	if o.Namespace != "" {
		path = append(path, "namespaces", o.Namespace)
	}
	path = append(path, o.Resource.Resource)
	if o.Name != "" {
		path = append(path, o.Name)
	}
	return path
}

// groupPath returns the segments of the path of an API version: api/v1 for the core group, else
// apis/GROUP/VERSION.
func groupPath(gv schema.GroupVersion) []string {
	if gv.Group == "" {
		return []string{"api", gv.Version}
	}
	return []string{"apis", gv.Group, gv.Version}
}

// Options are the settings of a Client.
type Options struct {
	// FieldManager owns the fields that the client writes.
	FieldManager string
	// Timeout bounds one request; 0: only the context does.
	Timeout time.Duration
	// Called is called with the verb of each request before it is sent. It may be nil.
	Called func(verb string)
}

// Client sends requests to one API server. Unlike the dynamic client it reports whether an
// apply created the object, and unlike the client of controller-runtime it sends no requests
// for discovery. It may be used by several goroutines. An error of the API server is returned
// as it is, so that the functions of apierrors recognize it.
type Client struct {
	rest    *rest.RESTClient
	options Options
}

// NewClient returns a client, with its own connections, for the API server of config.
func NewClient(config *rest.Config, o Options) (Client, error) {
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return Client{}, fmt.Errorf("make a client: %w", err)
	}
	return NewClientFor(config, h, o)
}

// NewClientFor returns a client that uses the connections of h. It does not change config.
func NewClientFor(config *rest.Config, h *http.Client, o Options) (Client, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.ContentType = "application/json"
	config.WarningHandler, config.WarningHandlerWithContext = rest.NoWarnings{}, nil
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, h)
	if err != nil {
		return Client{}, fmt.Errorf("make a client: %w", err)
	}
	if o.Called == nil {
		o.Called = func(string) {}
	}
	return Client{c, o}, nil
}

// As returns a client that writes as another field manager, with the same connections. c is
// not changed.
func (c Client) As(manager string) Client {
	c.options.FieldManager = manager
	return c
}

// Apply applies a manifest to o by server-side apply, and returns the object after that. created
// reports whether the object was created. With force it takes fields that other managers own;
// without force such a field is a conflict. With dryRun nothing changes in the cluster.
func (c Client) Apply(
	ctx context.Context, o Object, manifest any, force, dryRun bool,
) (applied *unstructured.Unstructured, created bool, err error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, false, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.ApplyPatchType).Param("fieldManager", c.options.FieldManager)
	if force {
		request.Param("force", "true")
	}
	verb := "apply"
	if dryRun {
		request.Param("dryRun", metav1.DryRunAll)
		verb = "try"
	}
	return c.do(ctx, verb, request.AbsPath(o.path()...).Body(body))
}

// ApplyAll applies objects in order, each with force: it takes fields that other managers own.
// Their kinds must be served already, and their resources be as Guessed says. It stops at the first
// error, which names the object; the objects before it stay applied.
func (c Client) ApplyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		at := Guessed(o)
		if _, _, err := c.Apply(ctx, at, o, true, false); err != nil {
			return fmt.Errorf("apply %s: %w", at, err)
		}
	}
	return nil
}

// Create creates an object from a manifest, which has the name, and returns the object. It fails
// with AlreadyExists if the object exists.
func (c Client) Create(ctx context.Context, o Object, manifest any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	o.Name = ""
	request := c.rest.Post().Param("fieldManager", c.options.FieldManager)
	created, _, err := c.do(ctx, "create", request.AbsPath(o.path()...).Body(body))
	return created, err
}

// Replace replaces an object by a manifest, and returns it. It fails with a conflict if the
// manifest has another resourceVersion than the object. A manifest without a resourceVersion
// replaces any.
func (c Client) Replace(ctx context.Context, o Object, manifest any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Put().Param("fieldManager", c.options.FieldManager)
	replaced, _, err := c.do(ctx, "replace", request.AbsPath(o.path()...).Body(body))
	return replaced, err
}

// TryCreate returns, by dry run, what creating a manifest would give. The object has the name in
// the manifest; o.Name is ignored.
func (c Client) TryCreate(ctx context.Context, o Object, manifest any) (*unstructured.Unstructured, error) {
	o.Name = ""
	return c.try(ctx, c.rest.Post(), o, manifest)
}

// TryReplace returns, by dry run, what an object would become if a manifest replaced it.
func (c Client) TryReplace(ctx context.Context, o Object, manifest any) (*unstructured.Unstructured, error) {
	return c.try(ctx, c.rest.Put(), o, manifest)
}

// try sends a manifest as a dry run, for TryCreate and TryReplace, and returns the object that the
// API server would store.
func (c Client) try(ctx context.Context, request *rest.Request, o Object, manifest any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	request.Param("fieldManager", c.options.FieldManager).Param("dryRun", metav1.DryRunAll)
	would, _, err := c.do(ctx, "try", request.AbsPath(o.path()...).Body(body))
	return would, err
}

// SetManagers sets the managedFields of an object, and returns the object. It changes nothing
// else, and fails with a conflict if the object has another resourceVersion.
func (c Client) SetManagers(ctx context.Context, o Object, resourceVersion string, entries []metav1.ManagedFieldsEntry) (*unstructured.Unstructured, error) {
	body, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		// An object with another resourceVersion is a conflict.
		{"op": "replace", "path": "/metadata/resourceVersion", "value": resourceVersion},
	})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.JSONPatchType).Param("fieldManager", c.options.FieldManager)
	patched, _, err := c.do(ctx, "own", request.AbsPath(o.path()...).Body(body))
	return patched, err
}

// Get reads an object. The error is NotFound if there is none.
func (c Client) Get(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	found, _, err := c.do(ctx, "get", c.rest.Get().AbsPath(o.path()...))
	return found, err
}

// Mark changes labels and annotations of the object with this UID, and nothing else, and returns
// the object. In both maps the value nil removes a key. It fails with a conflict if the object has
// another UID.
func (c Client) Mark(ctx context.Context, o Object, uid types.UID, labels, annotations map[string]any) (*unstructured.Unstructured, error) {
	metadata := map[string]any{"uid": uid}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.MergePatchType).Param("fieldManager", c.options.FieldManager)
	patched, _, err := c.do(ctx, "mark", request.AbsPath(o.path()...).Body(body))
	return patched, err
}

// List reads the metadata of all objects of a type in a namespace, page by page; "" stands for
// all namespaces. Timeout and Called apply to each page.
func (c Client) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	const page = "500"
	var all []metav1.PartialObjectMetadata
	next := ""
	for {
		c.options.Called("list")
		list := &metav1.PartialObjectMetadataList{}
		request := c.rest.Get().AbsPath(Object{Resource: gvr, Namespace: namespace}.path()...).Param("limit", page)
		if next != "" {
			request.Param("continue", next)
		}
		err := func() error {
			ctx, cancel := c.bounded(ctx)
			defer cancel()
			result := request.SetHeader("Accept", acceptMetadata).Do(ctx)
			if err := result.Error(); err != nil {
				return err
			}
			body, err := result.Raw()
			if err != nil {
				return err
			}
			return json.Unmarshal(body, list)
		}()
		if err != nil {
			where := "all namespaces"
			if namespace != "" {
				where = "namespace " + namespace
			}
			return nil, fmt.Errorf("list %s in %s: %w", gvr.GroupResource(), where, err)
		}
		all = append(all, list.Items...)
		if next = list.Continue; next == "" {
			return all, nil
		}
	}
}

// acceptMetadata requests only the metadata of a list.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Delete deletes the object if it meets the preconditions; otherwise it fails with a conflict.
// propagation says what happens to its dependents; "" is Background. The answer is the object, with
// a deletion timestamp, while finalizers hold it. Otherwise the answer is a Status.
func (c Client) Delete(
	ctx context.Context, o Object, conditions metav1.Preconditions, propagation metav1.DeletionPropagation,
) (*unstructured.Unstructured, error) {
	propagation = cmp.Or(propagation, metav1.DeletePropagationBackground)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &conditions,
		PropagationPolicy: &propagation,
	})
	if err != nil {
		return nil, fmt.Errorf("encode deletion of %s: %w", o, err)
	}
	answer, _, err := c.do(ctx, "delete", c.rest.Delete().AbsPath(o.path()...).Body(body))
	return answer, err
}

// do sends a request, after Options.Called with verb, and decodes the answer. The bool reports
// whether the answer has the status code 201 (Created). An error of the API server is returned as
// it is.
func (c Client) do(ctx context.Context, verb string, request *rest.Request) (*unstructured.Unstructured, bool, error) {
	c.options.Called(verb)
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var code int
	result := request.SetHeader("Accept", "application/json").Do(ctx).StatusCode(&code)
	// Unlike the error of Raw, result.Error is the API server's own.
	if err := result.Error(); err != nil {
		return nil, false, err
	}
	body, err := result.Raw()
	if err != nil {
		return nil, false, err
	}
	answer := &unstructured.Unstructured{}
	if err := answer.UnmarshalJSON(body); err != nil {
		return nil, false, fmt.Errorf("read the API server's answer: %w", err)
	}
	return answer, code == http.StatusCreated, nil
}

// bounded returns ctx with the timeout of the client; without a timeout, ctx itself. The caller
// must call the CancelFunc.
func (c Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.options.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.options.Timeout)
}
