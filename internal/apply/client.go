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
)

// callTimeout is how long a member may take to answer.
const callTimeout = 15 * time.Second

// calls counts the requests to members by verb. It stands still while nothing changes.
var calls = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "orrery_apply_calls_total",
	Help: "Requests to member clusters to change or read what is placed there.",
}, []string{"verb"})

func init() { metrics.Registry.MustRegister(calls) } //nolint:gochecknoinits // where controller-runtime's own metrics register

func (o Object) path() []string {
	path := []string{"apis", o.Resource.Group, o.Resource.Version}
	if o.Resource.Group == "" {
		path = []string{"api", o.Resource.Version}
	}
	if o.Namespace != "" {
		path = append(path, "namespaces", o.Namespace)
	}
	path = append(path, o.Resource.Resource)
	if o.Name != "" {
		path = append(path, o.Name)
	}
	return path
}

// memberClient makes the calls to one member. Unlike the dynamic client it tells an apply that
// created the object from one that found it.
type memberClient struct{ rest *rest.RESTClient }

func newMemberClient(config *rest.Config) (memberClient, error) {
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.ContentType = "application/json"
	config.WarningHandler = rest.NoWarnings{}
	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return memberClient{}, fmt.Errorf("make a client: %w", err)
	}
	return memberClient{c}, nil
}

// apply applies a manifest as our field manager. A dry run changes nothing in the cluster.
func (c memberClient) apply(
	ctx context.Context, o Object, manifest any, force, dryRun bool,
) (applied *unstructured.Unstructured, created bool, err error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, false, fmt.Errorf("encode %s: %w", o, err)
	}
	request := c.rest.Patch(types.ApplyPatchType).Param("fieldManager", workv1alpha2.FieldManager)
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

func (c memberClient) create(ctx context.Context, o Object, manifest any) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o, err)
	}
	o.Name = ""
	request := c.rest.Post().Param("fieldManager", workv1alpha2.FieldManager)
	created, _, err := c.do(ctx, "create", request.AbsPath(o.path()...).Body(body))
	return created, err
}

func (c memberClient) get(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	found, _, err := c.do(ctx, "get", c.rest.Get().AbsPath(o.path()...))
	return found, err
}

// mark changes labels and annotations of the object that has that UID, and leaves it otherwise
// as it is; nil takes one off.
func (c memberClient) mark(ctx context.Context, o Object, uid types.UID, labels, annotations map[string]any) (*unstructured.Unstructured, error) {
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
	request := c.rest.Patch(types.MergePatchType).Param("fieldManager", workv1alpha2.FieldManager)
	patched, _, err := c.do(ctx, "mark", request.AbsPath(o.path()...).Body(body))
	return patched, err
}

// list reads the metadata of all objects of a type in a namespace; in all of them if it is empty.
func (c memberClient) list(ctx context.Context, gvr schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	const page = "500"
	var all []metav1.PartialObjectMetadata
	next := ""
	for {
		calls.WithLabelValues("list").Inc()
		list := &metav1.PartialObjectMetadataList{}
		request := c.rest.Get().AbsPath(Object{Resource: gvr, Namespace: namespace}.path()...).Param("limit", page)
		if next != "" {
			request.Param("continue", next)
		}
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
			return nil, fmt.Errorf("list %s in namespace %s: %w", gvr.GroupResource(), namespace, err)
		}
		all = append(all, list.Items...)
		if next = list.Continue; next == "" {
			return all, nil
		}
	}
}

// acceptMetadata asks for metadata only.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// delete deletes the object that has that UID; what it owns follows in the background.
func (c memberClient) delete(ctx context.Context, o Object, conditions metav1.Preconditions) (*unstructured.Unstructured, error) {
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

func (c memberClient) do(ctx context.Context, verb string, request *rest.Request) (*unstructured.Unstructured, bool, error) {
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
