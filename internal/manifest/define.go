package manifest

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// poll is the interval at which AwaitServed reads again. It is short because the API server is
// already preparing the kind.
const poll = 50 * time.Millisecond

// Definition returns the Object of the CustomResourceDefinition with this name.
func Definition(name string) Object {
	return Object{Resource: apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"), Name: name}
}

// AwaitServed waits until discovery has all served versions of a CustomResourceDefinition,
// which is a moment after the definition is established. A client that maps kinds to resources
// earlier would remember that the kind is unknown. applied is the definition as an apply
// returned it, so that it is read again only if it is new. An error of the API server ends the
// wait unless again returns true for it. If ctx ends, the error wraps its cause and has the
// last reason.
func (c Client) AwaitServed(ctx context.Context, applied *unstructured.Unstructured, again func(error) bool) error {
	name := applied.GetName()
	why, err := c.unserved(ctx, applied)
	if err == nil && why == "" {
		return nil
	}
	for {
		var reason string
		o, err := c.Get(ctx, Definition(name))
		if err == nil {
			reason, err = c.unserved(ctx, o)
		}
		switch {
		case ctx.Err() != nil: // the error below has the earlier reason, which says more
		case err == nil && reason == "":
			return nil
		case err == nil:
			why = reason
		case !again(err):
			return fmt.Errorf("wait until CustomResourceDefinition %s is served: %w", name, err)
		default:
			why = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until CustomResourceDefinition %s is served: %w: %s", name, context.Cause(ctx), why)
		case <-time.After(poll):
		}
	}
}

// unserved returns why the kind of a CustomResourceDefinition (o) is not served yet; "" if
// discovery has the kind in all versions that the definition serves.
func (c Client) unserved(ctx context.Context, o *unstructured.Unstructured) (why string, err error) {
	var d apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		return "", err
	}
	established, why := false, "it is not established"
	for _, condition := range d.Status.Conditions {
		switch {
		case condition.Type == apiextensionsv1.Established:
			established = condition.Status == apiextensionsv1.ConditionTrue
		case condition.Status == apiextensionsv1.ConditionFalse:
			why = condition.Message
		}
	}
	if !established {
		return why, nil
	}
	for _, v := range d.Spec.Versions {
		if !v.Served {
			continue
		}
		gv := schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
		served, err := c.serves(ctx, gv, d.Spec.Names.Plural)
		if err != nil {
			return "", err
		}
		if !served {
			return fmt.Sprintf("discovery has no %s in %s", d.Spec.Names.Plural, gv), nil
		}
	}
	return "", nil
}

// serves reports whether discovery has a resource in an API version. It is false, without an error,
// if the API version does not exist.
func (c Client) serves(ctx context.Context, gv schema.GroupVersion, resource string) (bool, error) {
	answer, _, err := c.do(ctx, "get", c.rest.Get().AbsPath(groupPath(gv)...))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var list metav1.APIResourceList
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, &list); err != nil {
		return false, err
	}
	for i := range list.APIResources {
		if list.APIResources[i].Name == resource {
			return true, nil
		}
	}
	return false, nil
}
