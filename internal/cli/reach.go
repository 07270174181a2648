package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/scheme"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// reaching are the flags of commands that do for the fleet what kubectl does for a cluster.
type reaching struct {
	streams

	hub       hubFlags
	clusters  []string // names and patterns
	namespace string   // empty: the namespace of the context
	all       bool     // all namespaces
}

func (r *reaching) add(cmd *cobra.Command, clusters string) {
	r.hub.add(cmd)
	cmd.Flags().StringVarP(&r.namespace, "namespace", "n", "", "where the objects are (default: the namespace of the context, or default)")
	cmd.Flags().StringSliceVarP(&r.clusters, "cluster", "C", nil, clusters)
	// Errors mean that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("cluster", r.hub.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.hub.completeNamespaces)
}

func (r *reaching) addAll(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "in every namespace")
}

// kube returns the streams for commands of kubectl.
func (s streams) kube() genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: s.in, Out: s.out, ErrOut: s.err}
}

// hubAPI is the access to a hub with the credentials of the caller.
type hubAPI struct {
	config    *rest.Config // for the root of the hub
	path      string       // path of the kubeconfig
	namespace string       // namespace of the context
}

// api returns the access to the hub. Requests end with ctx. Warnings are written to w, each
// once.
func (f *hubFlags) api(ctx context.Context, w io.Writer) (*hubAPI, error) {
	c, path, err := f.load()
	if err != nil {
		return nil, err
	}
	cfg, err := configOf(c, path)
	if err != nil {
		return nil, err
	}
	namespace, _, err := c.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	cfg.Host = hubRoot(cfg.Host)
	cfg.WarningHandler = rest.NewWarningWriter(w, rest.WarningWriterOptions{Deduplicate: true})
	cfg.Wrap(until(ctx))
	return &hubAPI{config: cfg, path: path, namespace: namespace}, nil
}

// unreachedError is the error that the hub did not respond, or does not accept the credentials.
// It names the hub and the kubeconfig, and says what to do. A command ends with this error
// alone, and drops all its other errors.
type unreachedError struct{ error }

// Unwrap returns the cause.
func (e unreachedError) Unwrap() error { return e.error }

// telling returns a wrapper that makes requests to the hub fail with unreachedError and similar
// errors. host is the address of the hub, path the kubeconfig that has it. A 401 of a member is
// passed on, because it is not about this kubeconfig.
func telling(host, path string) transport.WrapperFunc {
	var server serverOutage
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			answer, err := server.reached(r, next, host, path)
			_, unreached := errors.AsType[unreachedError](err)
			if err == nil {
				if err := cmp.Or(awayIn(answer), answeredError(r, answer, next)); err != nil {
					return nil, err
				}
			}
			switch {
			case err == nil && answer.StatusCode == http.StatusUnauthorized && !strings.HasPrefix(r.URL.Path, fleetv1alpha1.ClustersPath+"/"):
				_ = answer.Body.Close()
				return nil, unreachedError{fmt.Errorf("the hub at %s does not accept the credentials in %s: they have expired, or are another hub's; ask for a new kubeconfig", host, path)}
			case err == nil || r.Context().Err() != nil || unreached:
				return answer, err
			case errors.Is(err, syscall.ECONNREFUSED):
				return nil, unreachedError{fmt.Errorf("reach the hub at %s (from %s): %w; is it running?", host, path, err)}
			default:
				return nil, unreachedError{fmt.Errorf("reach the hub at %s (from %s): %w", host, path, err)}
			}
		})
	}
}

// quiet stops client-go from logging to standard error, since commands print errors themselves.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// hubRoot returns the root of the hub for an address that may be of its fleet or of a member.
func hubRoot(host string) string {
	root, _, _ := strings.Cut(host, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
	return strings.TrimSuffix(root, "/")
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// until makes requests end with a context: commands of kubectl use a context that does not end.
func until(ctx context.Context) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			both, cancel := context.WithCancelCause(r.Context())
			context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
			return next.RoundTrip(r.WithContext(both)) //nolint:contextcheck // it is derived from the request's
		})
	}
}

// below is an API at a path of the hub, for commands of kubectl.
type below struct {
	config    *rest.Config
	namespace string
	named     bool // the user named the namespace
	served    discovery.CachedDiscoveryInterface
}

// below returns the API at a path of the hub. wrap are added to the transport.
func (h *hubAPI) below(path, namespace string, wrap ...transport.WrapperFunc) (*below, error) {
	b := &below{config: rest.CopyConfig(h.config), namespace: h.namespace}
	b.config.Host += path
	for _, w := range wrap {
		b.config.Wrap(w)
	}
	// As in kubectl: exec and attach create clients of the core group from this config.
	b.config.APIPath, b.config.GroupVersion, b.config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	if namespace != "" {
		b.namespace, b.named = namespace, true
	}
	served, err := discovery.NewDiscoveryClientForConfig(b.config)
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	b.served = memory.NewMemCacheClient(served)
	return b, nil
}

// member returns the API of a cluster, through the proxy of the hub.
func (h *hubAPI) member(cluster, namespace string) (*below, error) {
	return h.below(fleetv1alpha1.ClustersPath+"/"+url.PathEscape(cluster)+"/proxy", namespace, onceOnly)
}

// onceOnly removes Retry-After from responses about an unreachable cluster, so that the command
// fails at once: clients retry ten times if the header is present.
func onceOnly(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && answer.StatusCode == http.StatusServiceUnavailable {
			answer.Header.Del("Retry-After")
		}
		return answer, err
	})
}

// ToRESTConfig implements genericclioptions.RESTClientGetter.
func (b *below) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(b.config), nil }

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (b *below) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) { return b.served, nil }

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (b *below) ToRESTMapper() (meta.RESTMapper, error) {
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(b.served), b.served, nil), nil
}

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter.
func (b *below) ToRawKubeConfigLoader() clientcmd.ClientConfig { return loaded{b} }

// loaded presents an API as a loaded kubeconfig.
type loaded struct{ *below }

// RawConfig implements clientcmd.ClientConfig. It is empty: no kubeconfig has the path of the
// API.
func (loaded) RawConfig() (clientcmdapi.Config, error) { return *clientcmdapi.NewConfig(), nil }

// ClientConfig implements clientcmd.ClientConfig.
func (l loaded) ClientConfig() (*rest.Config, error) { return l.ToRESTConfig() }

// Namespace implements clientcmd.ClientConfig.
func (l loaded) Namespace() (string, bool, error) { return l.namespace, l.named, nil }

// ConfigAccess implements clientcmd.ClientConfig.
func (loaded) ConfigAccess() clientcmd.ConfigAccess { return clientcmd.NewDefaultPathOptions() }

// checkSelector returns an error for an invalid label selector.
func checkSelector(selector string) error {
	if _, err := labels.Parse(selector); err != nil {
		return usageError{fmt.Errorf("--selector %q: %w", selector, err)}
	}
	return nil
}

// isPattern reports whether a name is a pattern.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// chosen returns the clusters that the flags name; nil: all.
func (r *reaching) chosen(ctx context.Context, h *hubAPI) ([]string, error) {
	var names, known []string
	for _, asked := range r.clusters {
		if asked == "" {
			return nil, usageError{errors.New("--cluster: want the name of a cluster, or a pattern such as eu-*")}
		}
		if !isPattern(asked) {
			names = append(names, asked)
			continue
		}
		if known == nil {
			var err error
			if known, err = h.clusterNames(ctx); err != nil {
				return nil, err
			}
		}
		before := len(names)
		for _, name := range known {
			matches, err := path.Match(asked, name)
			if err != nil {
				return nil, usageError{fmt.Errorf("--cluster %q: %w", asked, err)}
			}
			if matches {
				names = append(names, name)
			}
		}
		if len(names) == before {
			return nil, fmt.Errorf("no cluster has a name like %q; the fleet has %s", asked, some(known))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// some returns the first of several names, and the number of the others.
func some(names []string) string {
	const shown = 10
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > shown:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// clusterNames returns the clusters of the fleet. For a caller that may not list them, it
// returns the clusters in which the caller may see something.
func (h *hubAPI) clusterNames(ctx context.Context) ([]string, error) {
	c, err := metadata.NewForConfig(h.config)
	if err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	list, err := c.Resource(clusterv1alpha1.GroupVersion.WithResource("clusters")).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		fleet, err := h.fleet()
		if err != nil {
			return nil, err
		}
		return (&searching{}).completions(ctx, fleet.client, "cluster", "")
	}
	if err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// fleet returns a client of the fleet API of the hub.
func (h *hubAPI) fleet() (*fleetClient, error) {
	return newFleetClient(h.config, h.path)
}
