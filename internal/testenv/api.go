package testenv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldManager is the field manager of changes that tests make.
const FieldManager = "testenv"

// requestTimeout limits each request of a test, because a server may hang.
const requestTimeout = 10 * time.Second

// API is a client of an API server for tests, with the operations of a user of kubectl. Methods
// with a testing.TB retry for at most Patience, and then fail the test.
type API struct {
	client.Client
}

// NewAPI returns a client of an API server. It sends no request.
func NewAPI(cfg *rest.Config) (*API, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Timeout = -1, requestTimeout
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", cfg.Host, err)
	}
	return &API{Client: c}, nil
}

// Parse returns the objects in YAML documents. Empty documents are left out.
func Parse(manifests string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(manifests))))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		raw, err := utilyaml.ToJSON(doc)
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, doc)
		}
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw, &o.Object); err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, doc)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

// TryApply applies manifests, as kubectl apply --server-side --force-conflicts does.
func (a *API) TryApply(ctx context.Context, manifests string) error {
	objects, err := Parse(manifests)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := a.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil
}

// Apply applies manifests, as TryApply does. It retries until the server accepts them, because the
// server may be restarting.
func (a *API) Apply(t testing.TB, manifests string) {
	t.Helper()
	Eventually(t, "apply", Patience, func() error { return a.TryApply(context.Background(), manifests) })
}

// Find returns an object. apiVersion is as in a manifest, such as apps/v1. namespace is "" for
// cluster-scoped kinds. The error is a NotFound if the object does not exist.
func (a *API) Find(ctx context.Context, apiVersion, kind, namespace, name string) (*unstructured.Unstructured, error) {
	o := object(apiVersion, kind, namespace, name)
	if err := a.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return nil, err
	}
	return o, nil
}

// Object returns an object. If the object does not exist, the test fails at once. It retries while
// the server does not answer.
func (a *API) Object(t testing.TB, apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	var o *unstructured.Unstructured
	Eventually(t, "read "+kind+" "+name, Patience, func() (err error) {
		o, err = a.Find(context.Background(), apiVersion, kind, namespace, name)
		if apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err
	})
	return o
}

// Remove deletes an object and does not wait until it is gone. An object that does not exist is no
// failure.
func (a *API) Remove(t testing.TB, apiVersion, kind, namespace, name string) {
	t.Helper()
	Eventually(t, "delete "+kind+" "+name, Patience, func() error {
		return client.IgnoreNotFound(a.Delete(context.Background(), object(apiVersion, kind, namespace, name), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	})
}

// MergePatch changes an object with a JSON merge patch. If the object does not exist, the test
// fails at once. Other errors are retried.
func (a *API) MergePatch(t testing.TB, apiVersion, kind, namespace, name, patch string) {
	t.Helper()
	Eventually(t, "patch "+kind+" "+name, Patience, func() error {
		err := a.Patch(context.Background(), object(apiVersion, kind, namespace, name), client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(FieldManager))
		if apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err
	})
}

// ListKind lists the objects of a kind in a namespace; "": in all namespaces.
func (a *API) ListKind(ctx context.Context, apiVersion, kind, namespace string) ([]unstructured.Unstructured, error) {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind+"List"))
	if err := a.List(ctx, l, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return l.Items, nil
}

// object returns an object with its kind and name only.
func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}
