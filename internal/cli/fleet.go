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

// fleetClient is a client of the fleet API of a hub.
type fleetClient struct {
	config *rest.Config // for the root of the fleet
	client rest.Interface
	served discovery.CachedDiscoveryInterface
}

// fleet returns a client of the fleet API. Requests end with ctx; warnings are written to w.
func (f *hubFlags) fleet(ctx context.Context, w io.Writer) (*fleetClient, error) {
	cfg, path, err := f.config()
	if err != nil {
		return nil, err
	}
	cfg.Host = hubRoot(cfg.Host) // the context named fleet has the same hub
	cfg.WarningHandler = rest.NewWarningWriter(w, rest.WarningWriterOptions{Deduplicate: true})
	cfg.Wrap(until(ctx))
	return newFleetClient(cfg, path)
}

// newFleetClient returns a client of the fleet API of the hub in the kubeconfig at a path.
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

// find returns the type with a name, as kubectl does: in singular or plural, as a short name, or
// with the group.
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
		return nil, fmt.Errorf("the fleet has no type %q; %q lists those that it has", name, "orrery api-resources")
	}
	return nil, fmt.Errorf("find type %q: %w", name, err)
}

// pathOf returns the path of a type below the root of the fleet or, if name is not empty, of an
// object.
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

// changes requests an ObjectHistory, page by page, and calls each with its changes until each
// returns false.
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

// refusalIn returns the Status in the body of an error response; err if there is none.
func refusalIn(body []byte, err error) error {
	var refused apierrors.StatusError
	if json.Unmarshal(body, &refused.ErrStatus) != nil || refused.ErrStatus.Status != metav1.StatusFailure {
		return err
	}
	return &refused
}

// where selects the objects of a command.
type where struct {
	namespace string
	clusters  []string
}

func (w *where) add(cmd *cobra.Command, f *hubFlags, namespace string) {
	cmd.Flags().StringVarP(&w.namespace, "namespace", "n", "", namespace)
	cmd.Flags().StringSliceVarP(&w.clusters, "cluster", "C", nil, "only in this cluster; may be given more than once (default: all)")
	// Errors mean that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("cluster", f.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces)
}

// parameters returns the parameters of a request for a history.
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
