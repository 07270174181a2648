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

// fleetClient asks the fleet API of a hub.
type fleetClient struct {
	config *rest.Config // of the root of the fleet
	client rest.Interface
	served discovery.CachedDiscoveryInterface
}

// fleet reaches the fleet API. Requests end with the context; warnings are written to w.
func (f *hubFlags) fleet(ctx context.Context, w io.Writer) (*fleetClient, error) {
	cfg, path, err := f.config()
	if err != nil {
		return nil, err
	}
	cfg.Host = hubRoot(cfg.Host) // the context fleet has the same hub
	cfg.WarningHandler = rest.NewWarningWriter(w, rest.WarningWriterOptions{Deduplicate: true})
	cfg.Wrap(until(ctx))
	return newFleetClient(cfg, path)
}

// newFleetClient reaches the fleet API of the hub that a kubeconfig at a path names.
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

// find returns the type that a user means, as kubectl does: by its name in singular or plural, a short name, or a name with its group.
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

// pathOf is where a type is below the root of the fleet, or an object, unless the name is empty.
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

// changes asks for an ObjectHistory, page by page, and calls each with its changes until that says that it is enough.
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

// refusalIn returns the hub's own words, if an answer that is an error has some.
func refusalIn(body []byte, err error) error {
	var refused apierrors.StatusError
	if json.Unmarshal(body, &refused.ErrStatus) != nil || refused.ErrStatus.Status != metav1.StatusFailure {
		return err
	}
	return &refused
}

// where says which objects a command is about.
type where struct {
	namespace string
	clusters  []string
}

func (w *where) add(cmd *cobra.Command, f *hubFlags, namespace string) {
	cmd.Flags().StringVarP(&w.namespace, "namespace", "n", "", namespace)
	cmd.Flags().StringSliceVarP(&w.clusters, "cluster", "C", nil, "only in this cluster; may be given more than once (default: all)")
	// They fail for a flag that is not there, or has one already.
	_ = cmd.RegisterFlagCompletionFunc("cluster", f.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces)
}

// parameters are those of a request about what was.
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
