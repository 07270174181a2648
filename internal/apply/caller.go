package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mirror"
)

// callTimeout is how long a member may take to answer.
const callTimeout = 15 * time.Second

// calls counts the requests to members by verb. It stands still while nothing changes.
var calls = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "orrery_apply_calls_total",
	Help: "Requests to member clusters to change or read what is placed there.",
}, []string{"verb"})

func init() { metrics.Registry.MustRegister(calls) } //nolint:gochecknoinits // where controller-runtime's own metrics register

// object names an object in a member.
type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func objectOf(o mirror.Object) object { return object{o.Resource, o.Namespace, o.Name} }

// String is how users name objects, such as deployments.apps shop/cart.
func (o object) String() string {
	if o.namespace == "" {
		return fmt.Sprintf("%s %s", o.resource.GroupResource(), o.name)
	}
	return fmt.Sprintf("%s %s/%s", o.resource.GroupResource(), o.namespace, o.name)
}

func (o object) path() []string {
	path := []string{"apis", o.resource.Group, o.resource.Version}
	if o.resource.Group == "" {
		path = []string{"api", o.resource.Version}
	}
	if o.namespace != "" {
		path = append(path, "namespaces", o.namespace)
	}
	path = append(path, o.resource.Resource)
	if o.name != "" {
		path = append(path, o.name)
	}
	return path
}

// caller makes the calls to one member. Unlike the dynamic client it tells an apply that
// created the object from one that found it.
type caller struct{ rest *rest.RESTClient }

func newCaller(config *rest.Config) (caller, error) {
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.ContentType = "application/json"
	config.WarningHandler = rest.NoWarnings{}
	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return caller{}, fmt.Errorf("make a client: %w", err)
	}
	return caller{c}, nil
}

// apply applies a manifest as our field manager.
func (c caller) apply(ctx context.Context, o object, manifest any, force bool) (applied *unstructured.Unstructured, created bool, err error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, false, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.ApplyPatchType).Param("fieldManager", workv1alpha2.FieldManager)
	if force {
		request.Param("force", "true")
	}
	return c.do(ctx, "apply", request.AbsPath(o.path()...).Body(body))
}

func (c caller) create(ctx context.Context, o object, manifest any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	o.name = ""
	request := c.rest.Post().Param("fieldManager", workv1alpha2.FieldManager)
	created, _, err := c.do(ctx, "create", request.AbsPath(o.path()...).Body(body))
	return created, err
}

func (c caller) get(ctx context.Context, o object) (*unstructured.Unstructured, error) {
	found, _, err := c.do(ctx, "get", c.rest.Get().AbsPath(o.path()...))
	return found, err
}

// unmark takes marks off the object that has that UID, and leaves it otherwise as it is.
func (c caller) unmark(ctx context.Context, o object, uid types.UID, labels, annotations []string) (*unstructured.Unstructured, error) {
	nulls := func(keys []string) map[string]any {
		m := make(map[string]any, len(keys))
		for _, k := range keys {
			m[k] = nil
		}
		return m
	}
	metadata := map[string]any{"uid": uid, "labels": nulls(labels)}
	if len(annotations) > 0 {
		metadata["annotations"] = nulls(annotations)
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.MergePatchType).Param("fieldManager", workv1alpha2.FieldManager)
	patched, _, err := c.do(ctx, "unmark", request.AbsPath(o.path()...).Body(body))
	return patched, err
}

// delete deletes the object that has that UID; what it owns follows in the background.
func (c caller) delete(ctx context.Context, o object, conditions metav1.Preconditions) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &conditions,
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	if err != nil {
		return nil, fmt.Errorf("encode deletion of %s: %w", o, err)
	}
	answer, _, err := c.do(ctx, "delete", c.rest.Delete().AbsPath(o.path()...).Body(body))
	return answer, err
}

func (c caller) do(ctx context.Context, verb string, request *rest.Request) (*unstructured.Unstructured, bool, error) {
	calls.WithLabelValues(verb).Inc()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var code int
	result := request.SetHeader("Accept", "application/json").Do(ctx).StatusCode(&code)
	if err := result.Error(); err != nil { // unlike Raw's, it is the API server's own
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
