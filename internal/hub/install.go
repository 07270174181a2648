package hub

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/config/crd"
	"orrery.dev/orrery/internal/manifest"
)

// fieldManager is the field manager of the server-side applies with which the hub installs objects.
const fieldManager = "orrery-hub"

// The Service on the hub through which an API server reaches the aggregated fleet API.
const (
	systemNamespace = "orrery-system"
	fleetService    = "orrery-fleet"
	// fleetServerName is the host name that the API server expects in the certificate of the fleet
	// API.
	fleetServerName = fleetService + "." + systemNamespace + ".svc"
)

// installManifest has the objects that are installed besides the kinds: namespaces, roles and
// bindings.
//
//go:embed install.yaml
var installManifest []byte

// installedAtOnce is the number of concurrent requests while the hub installs its objects.
const installedAtOnce = 5

// installer creates and updates the objects in an API server that this version of Orrery requires.
//
// It applies all of them at every start, which repairs changes by users and upgrades older
// versions. The API server writes nothing if an apply changes nothing.
type installer struct{ client manifest.Client }

// newInstaller returns an installer for the API server that config describes.
func newInstaller(config *rest.Config) (*installer, error) {
	client, err := manifest.NewClient(config, manifest.Options{FieldManager: fieldManager})
	return &installer{client: client}, err
}

// install installs Orrery's kinds, roles and the registration of the aggregated fleet API. It
// returns when the API server serves the kinds. id is the ID of the hub: the UID of the namespace
// kube-system. ca in d is the authority that the API server needs for the fleet API. Errors that a
// restarting API server can cause are retried every second until ctx ends; others are returned. If
// the API server has a newer schema of a kind, install returns an error and changes nothing.
func install(ctx context.Context, config *rest.Config, o Options, d dataDir, log logr.Logger) (id string, err error) {
	i, err := newInstaller(config)
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(d.authority(serverCA))
	if err != nil {
		return "", fmt.Errorf("read server CA: %w", err)
	}
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

// passing reports whether err is temporary: a restarting or busy API server can cause it, so that a
// retry may succeed. It is false for nil.
func passing(err error) bool {
	return err != nil && (utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err))
}

// install makes one attempt to install everything, and returns the ID of the hub. ca is the
// authority of the fleet API's certificate. If the API server has a newer schema of a kind,
// install returns an error before it writes anything.
func (i *installer) install(ctx context.Context, o Options, ca []byte) (id string, err error) {
	definitions, err := definitions()
	if err != nil {
		return "", err
	}
	objects, err := manifest.Parse(installManifest, yaml.YAMLToJSONStrict)
	if err != nil {
		return "", fmt.Errorf("read install.yaml: %w", err)
	}
	if err := i.checkSchema(ctx, definitions); err != nil {
		return "", err
	}
	// The kinds are applied concurrently, because the API server takes some time to serve each. The
	// other objects keep their order: some are in a namespace of the manifest, or refer to an earlier
	// object.
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(installedAtOnce)
	g.Go(func() error {
		for _, o := range append(objects, fleetObjects(o, ca)...) {
			if _, err := i.apply(gctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	for _, d := range definitions {
		g.Go(func() error { return i.define(gctx, d) })
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return i.id(ctx)
}

// checkSchema returns an error if the API server has one of Orrery's kinds with a newer schema than
// this program. It writes nothing. It is called before the wait for the Lease.
func checkSchema(ctx context.Context, config *rest.Config) error {
	i, err := newInstaller(config)
	if err != nil {
		return err
	}
	definitions, err := definitions()
	if err != nil {
		return err
	}
	return i.checkSchema(ctx, definitions)
}

// checkSchema returns an error if the API server has one of the kinds in definitions with a newer
// schema.
func (i *installer) checkSchema(ctx context.Context, definitions []*unstructured.Unstructured) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(installedAtOnce)
	for _, d := range definitions {
		g.Go(func() error { return i.checkVersion(ctx, d.GetName()) })
	}
	return g.Wait()
}

// checkVersion returns an error if the CustomResourceDefinition with this name has a newer schema
// version on the API server, or an invalid one. It is no error if the definition does not exist or
// has no version.
func (i *installer) checkVersion(ctx context.Context, name string) error {
	o, err := i.client.Get(ctx, manifest.Definition(name))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at CustomResourceDefinition %s: %w", name, err)
	}
	text, marked := o.GetAnnotations()[crd.SchemaVersionAnnotation]
	if !marked {
		return nil // it is from before there were versions
	}
	version, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: annotation %s is %q, which is no number: set it to the schema version of the server that last ran on this hub",
			name, crd.SchemaVersionAnnotation, text)
	}
	if version > crd.SchemaVersion {
		return fmt.Errorf("CustomResourceDefinition %s has schema version %d, of a newer orrery; this one has version %d, and would drop the fields that it does not know: "+
			"use the newer one, or restore a backup of the hub from before the upgrade", name, version, crd.SchemaVersion)
	}
	return nil
}

// id returns the ID of the hub: the UID of the namespace kube-system. A new API server creates the
// namespace shortly after it is ready, so id waits for it until ctx ends.
func (i *installer) id(ctx context.Context) (string, error) {
	var id string
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ns, err := i.client.Get(ctx, manifest.Object{
			Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), Name: metav1.NamespaceSystem,
		})
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

// apply creates or updates one object by server-side apply, with force, and returns it as stored.
func (i *installer) apply(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	applied, _, err := i.client.Apply(ctx, manifest.Guessed(o), o, true, false)
	if err != nil {
		return nil, fmt.Errorf("install %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return applied, nil
}

// define installs one kind (a CustomResourceDefinition) and waits until the API server serves it,
// or ctx ends.
func (i *installer) define(ctx context.Context, o *unstructured.Unstructured) error {
	applied, err := i.apply(ctx, o)
	if err != nil {
		return err
	}
	return i.client.AwaitServed(ctx, applied, func(error) bool { return false })
}

// fleetObjects returns the Service and the APIService that register the aggregated fleet API. The
// Service has an ExternalName, because the fleet API runs on a host outside of any cluster network.
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

// definitions returns the CustomResourceDefinitions of Orrery's kinds. Each has an annotation for
// the version of its schema.
func definitions() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := fs.WalkDir(crd.Files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := crd.Files.ReadFile(path)
		if err != nil {
			return err
		}
		objects, err := manifest.Parse(content, yaml.YAMLToJSONStrict)
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
