package hub

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/config/crd"
)

// fieldManager owns what the hub installs.
const fieldManager = "orrery-hub"

// The Service by which an API server finds the fleet API.
const (
	systemNamespace = "orrery-system"
	fleetService    = "orrery-fleet"
	// fleetServerName is what the API server expects in the fleet API's certificate.
	fleetServerName = fleetService + "." + systemNamespace + ".svc"
)

//go:embed install.yaml
var installManifest []byte

// installer brings an API server to the state that this version of Orrery needs.
//
// It applies everything at every start, so that what somebody changed is repaired and
// what a newer version changed is upgraded. The API server writes nothing where an apply
// changes nothing.
type installer struct {
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
}

// install returns the ID of the API server when Orrery's kinds are served there. The
// fleet API is registered, and available when somebody serves it.
func install(ctx context.Context, config *rest.Config, o Options, d dataDir, log logr.Logger) (id string, err error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}
	discovery, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}
	ca, err := os.ReadFile(d.authority(serverCA))
	if err != nil {
		return "", fmt.Errorf("read server CA: %w", err)
	}
	i := &installer{dynamic: client, discovery: discovery}
	var last error
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		id, last = i.install(ctx, o, ca)
		if passing(last) {
			log.V(1).Info("Installing again in a moment", "reason", last.Error())
			return false, nil
		}
		return last == nil, last
	})
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), last)
	}
	return id, err
}

// passing tells whether an API server that was killed or is busy may answer this.
func passing(err error) bool {
	return err != nil && (utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err))
}

func (i *installer) install(ctx context.Context, o Options, ca []byte) (id string, err error) {
	definitions, err := definitions()
	if err != nil {
		return "", err
	}
	objects, err := decode(bytes.NewReader(installManifest))
	if err != nil {
		return "", fmt.Errorf("read install.yaml: %w", err)
	}
	if err := i.checkSchema(ctx, definitions); err != nil {
		return "", err
	}
	for _, o := range append(objects, fleetObjects(o, ca)...) {
		if _, err := i.apply(ctx, o); err != nil {
			return "", err
		}
	}
	// Several at once, because the API server takes a while to establish each.
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, d := range definitions {
		g.Go(func() error { return i.define(gctx, d) })
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	if err := i.waitServed(ctx, definitions); err != nil {
		return "", err
	}
	return i.id(ctx)
}

// checkSchema refuses an API server that has Orrery's kinds of a newer schema.
func checkSchema(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	definitions, err := definitions()
	if err != nil {
		return err
	}
	return (&installer{dynamic: client}).checkSchema(ctx, definitions)
}

func (i *installer) checkSchema(ctx context.Context, definitions []*unstructured.Unstructured) error {
	there := i.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, d := range definitions {
		o, err := there.Get(ctx, d.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at CustomResourceDefinition %s: %w", d.GetName(), err)
		}
		text, marked := o.GetAnnotations()[crd.SchemaVersionAnnotation]
		if !marked {
			continue // of before there were versions
		}
		version, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: annotation %s is %q, which is no version: set it to that of the server that last ran on this hub",
				d.GetName(), crd.SchemaVersionAnnotation, text)
		}
		if version > crd.SchemaVersion {
			return fmt.Errorf("CustomResourceDefinition %s has schema version %d, of a newer orrery; this one has version %d, and would drop the fields that it does not know: "+
				"use the newer one, or restore a backup of the hub from before the upgrade", d.GetName(), version, crd.SchemaVersion)
		}
	}
	return nil
}

// id waits for the namespace that a new API server makes a moment after it is ready.
func (i *installer) id(ctx context.Context) (string, error) {
	namespaces := i.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	var id string
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		ns, err := namespaces.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		id = string(ns.GetUID())
		return true, nil
	})
	if err != nil {
		return "", fmt.Errorf("get namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return id, nil
}

func (i *installer) apply(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	// Right for the few kinds that are installed.
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	applied, err := i.dynamic.Resource(gvr).Namespace(o.GetNamespace()).
		Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return nil, fmt.Errorf("install %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return applied, nil
}

// poll is short because a wait is for something that the API server is doing already.
const poll = 50 * time.Millisecond

// define installs one kind and returns when it is established.
func (i *installer) define(ctx context.Context, o *unstructured.Unstructured) error {
	applied, err := i.apply(ctx, o)
	if err != nil {
		return err
	}
	definitions := i.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	var said string
	err = wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		established, message, err := establishment(applied)
		if said = message; err != nil || established {
			return established, err
		}
		if applied, err = definitions.Get(ctx, o.GetName(), metav1.GetOptions{}); err != nil {
			return false, err
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait until CustomResourceDefinition %s is established (%s): %w", o.GetName(), said, err)
	}
	return nil
}

func establishment(o *unstructured.Unstructured) (established bool, message string, err error) {
	var d apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		return false, "", err
	}
	for _, c := range d.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			established = true
		}
		if c.Status == apiextensionsv1.ConditionFalse {
			message = c.Message
		}
	}
	return established, message, nil
}

// waitServed returns when discovery shows every kind, which is a moment after it is
// established; a client that maps kinds to resources earlier would remember that there is
// none.
func (i *installer) waitServed(ctx context.Context, definitions []*unstructured.Unstructured) error {
	missing := map[schema.GroupVersion]map[string]bool{}
	for _, o := range definitions {
		var d apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
			return err
		}
		for _, v := range d.Spec.Versions {
			gv := schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
			if missing[gv] == nil {
				missing[gv] = map[string]bool{}
			}
			missing[gv][d.Spec.Names.Plural] = true
		}
	}
	for gv, plurals := range missing {
		err := wait.PollUntilContextCancel(ctx, poll, true, func(context.Context) (bool, error) {
			list, err := i.discovery.ServerResourcesForGroupVersion(gv.String())
			if err != nil {
				return false, nil //nolint:nilerr // not found, as long as it is not served
			}
			for _, r := range list.APIResources {
				delete(plurals, r.Name)
			}
			return len(plurals) == 0, nil
		})
		if err != nil {
			return fmt.Errorf("wait until %s is served: %w", gv, err)
		}
	}
	return nil
}

// fleetObjects register the aggregated API. An ExternalName makes the API server dial a
// host outside of any cluster network.
func fleetObjects(o Options, serverCA []byte) []*unstructured.Unstructured {
	gv := fleetv1alpha1.GroupVersion
	return []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Service",
			"metadata": map[string]any{"namespace": systemNamespace, "name": fleetService},
			"spec":     map[string]any{"type": "ExternalName", "externalName": o.FleetAdvertiseHost},
		}},
		{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": gv.Version + "." + gv.Group},
			"spec": map[string]any{
				"group": gv.Group, "version": gv.Version,
				"groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
				"service": map[string]any{
					"namespace": systemNamespace, "name": fleetService, "port": int64(o.FleetPort),
				},
				"caBundle": base64.StdEncoding.EncodeToString(serverCA),
			},
		}},
	}
}

// definitions are Orrery's kinds, each marked with the version of its schema.
func definitions() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := fs.WalkDir(crd.Files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := crd.Files.Open(path)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // embedded
		objects, err := decode(f)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, objects...)
		return nil
	})
	for _, o := range all {
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[crd.SchemaVersionAnnotation] = strconv.Itoa(crd.SchemaVersion)
		o.SetAnnotations(annotations)
	}
	return all, err
}

func decode(r io.Reader) ([]*unstructured.Unstructured, error) {
	const lookAhead = 1024 // to tell JSON from YAML
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(r, lookAhead); ; {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			objects = append(objects, o)
		}
	}
}
