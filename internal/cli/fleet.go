package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// fleetClient is a client of the fleet API of a hub, which has the mirrored objects of all
// clusters, for one command. It keeps the types of the fleet after the first discovery.
type fleetClient struct {
	config *rest.Config // for the root of the fleet
	client rest.Interface
	served discovery.CachedDiscoveryInterface
}

// fleet returns a client of the fleet API of the hub. The context of the kubeconfig may be that of
// the hub, of the fleet or of a member. It sends no request. Requests of the client end with ctx.
// Each warning of the hub is written to w once.
func (f *hubFlags) fleet(ctx context.Context, w io.Writer) (*fleetClient, error) {
	cfg, path, err := f.config()
	if err != nil {
		return nil, err
	}
	cfg.Host = hubRoot(cfg.Host) // the context may be that of the fleet or of a member
	cfg.WarningHandler = rest.NewWarningWriter(w, rest.WarningWriterOptions{Deduplicate: true})
	cfg.Wrap(until(ctx))
	return newFleetClient(cfg, path)
}

// newFleetClient returns a client of the fleet API of a hub. hub is the configuration for the root
// of the hub and stays unchanged. path is the path of the kubeconfig, for errors.
func newFleetClient(hub *rest.Config, path string) (*fleetClient, error) {
	cfg := rest.CopyConfig(hub)
	cfg.Host += fleetv1alpha1.FleetPath
	c := &fleetClient{config: cfg}
	asJSON := dynamic.ConfigFor(cfg)
	asJSON.GroupVersion = &schema.GroupVersion{}
	var err error
	if c.client, err = rest.UnversionedRESTClientFor(asJSON); err != nil {
		return nil, fmt.Errorf("reach the hub at %s (from %s): %w", cfg.Host, path, err)
	}
	served, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s (from %s): %w", cfg.Host, path, err)
	}
	c.served = memory.NewMemCacheClient(served)
	return c, nil
}

// find returns the type of the fleet with a name, as kubectl does. The name is the singular or
// plural, a short name, or has version and group; the case of letters has no effect. An unknown
// type is an error with advice. The first call requests the types of the fleet.
func (c *fleetClient) find(name string) (*meta.RESTMapping, error) {
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(c.served), c.served, nil)
	gvr, gr := schema.ParseResourceArg(strings.ToLower(name))
	var kind schema.GroupVersionKind
	err := error(&meta.NoResourceMatchError{})
	if gvr != nil {
		kind, err = mapper.KindFor(*gvr)
	}
	if meta.IsNoMatchError(err) {
		kind, err = mapper.KindFor(gr.WithVersion(""))
	}
	if err == nil {
		var found *meta.RESTMapping
		if found, err = mapper.RESTMapping(kind.GroupKind(), kind.Version); err == nil {
			return found, nil
		}
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the fleet has no type %q; %q lists all types", name, "orrery api-resources")
	}
	return nil, fmt.Errorf("find type %q: %w", name, err)
}

// pathOf returns the segments of a path below the root of the fleet. It is the path of the object
// with a name or, if name is "", of all objects of the type. namespace is "" for all namespaces and
// for a cluster-scoped type.
func pathOf(gvr schema.GroupVersionResource, namespace, name string) []string {
	segments := []string{"apis", gvr.Group, gvr.Version}
	if gvr.Group == "" {
		segments = []string{"api", gvr.Version}
	}
	if namespace != "" {
		segments = append(segments, "namespaces", namespace)
	}
	segments = append(segments, gvr.Resource)
	if name != "" {
		segments = append(segments, name)
	}
	return segments
}

// changes requests the history of an object, or the deleted or changed objects of a type, at a path
// of the fleet. It reads page by page and calls each with every change until each returns false. Of
// each parameter only the first value is sent. An error of the hub is returned as its Status.
func (c *fleetClient) changes(ctx context.Context, path []string, parameters url.Values, each func(fleetv1alpha1.ObjectChange) (more bool)) error {
	for next := ""; ; {
		request := c.client.Get().AbsPath(path...)
		for name, values := range parameters {
			request = request.Param(name, values[0])
		}
		if next != "" {
			request = request.Param("continue", next)
		}
		body, err := request.Do(ctx).Raw()
		if err != nil {
			return refusalIn(body, err)
		}
		var page fleetv1alpha1.ObjectHistory
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("read the hub's answer: %w", err)
		}
		for _, change := range page.Items {
			if !each(change) {
				return nil
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// refusalIn returns the Status in the body of a response as an error, because client-go replaces
// its message. err is the error of client-go; it is returned if the body has no Status of a
// failure.
func refusalIn(body []byte, err error) error {
	var refused apierrors.StatusError
	if json.Unmarshal(body, &refused.ErrStatus) != nil || refused.ErrStatus.Status != metav1.StatusFailure {
		return err
	}
	return &refused
}

// where has the flags --namespace and --cluster of history, diff and graph: which objects of the
// fleet they are about.
type where struct {
	namespace string
	clusters  []string
}

func (w *where) add(cmd *cobra.Command, f *hubFlags, namespace string) {
	cmd.Flags().StringVarP(&w.namespace, "namespace", "n", "", namespace)
	cmd.Flags().StringSliceVarP(&w.clusters, "cluster", "C", nil, "only in this cluster; can be repeated (default: all)")
	// Errors mean that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("cluster", f.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces)
}

// parameters returns the URL parameters of a request for changes: the clusters, if --cluster is
// set, and allFields if all is true. The namespace is a part of the path and not a parameter.
func (w *where) parameters(all bool) url.Values {
	p := url.Values{}
	if len(w.clusters) > 0 {
		p.Set("clusters", strings.Join(w.clusters, ","))
	}
	if all {
		p.Set("allFields", "true")
	}
	return p
}
