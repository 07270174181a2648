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

// reaching are the flags of commands that do in the fleet what kubectl does in a cluster.
type reaching struct {
	streams

	hub       hubFlags
	clusters  []string // names, and patterns of them
	namespace string   // empty: that of the context
	all       bool     // in every namespace
}

func (r *reaching) add(cmd *cobra.Command, clusters string) {
	r.hub.add(cmd)
	cmd.Flags().StringVarP(&r.namespace, "namespace", "n", "", "where the objects are (default: the namespace of the context, or default)")
	cmd.Flags().StringSliceVarP(&r.clusters, "cluster", "C", nil, clusters)
	// They fail for a flag that is not there, or has one already.
	_ = cmd.RegisterFlagCompletionFunc("cluster", r.hub.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.hub.completeNamespaces)
}

func (r *reaching) addAll(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "in every namespace")
}

// kube are the streams, for kubectl's commands.
func (s streams) kube() genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: s.in, Out: s.out, ErrOut: s.err}
}

// hubAPI is how a hub is reached, as the caller.
type hubAPI struct {
	config    *rest.Config // of its root
	path      string       // of the kubeconfig
	namespace string       // of the context
}

// api reaches the hub. Requests end with the context; warnings are written to w, each once.
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

// unreachedError says that the hub did not answer a request, or does not know who asks: which hub, from where, and what to do. Commands end with it alone,
// whatever they were about.
type unreachedError struct{ error }

// Unwrap returns why.
func (e unreachedError) Unwrap() error { return e.error }

// telling has requests to the hub at an address, which is from a kubeconfig at a path, fail so. What a member says to the hub is not about this kubeconfig.
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

// quiet has client-go not log to standard error what commands tell themselves.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// hubRoot is the root of a hub, of which a context may name a part: the fleet or a member.
func hubRoot(host string) string {
	root, _, _ := strings.Cut(host, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
	return strings.TrimSuffix(root, "/")
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// until has requests end with a context: kubectl's commands begin them with one that does not end.
func until(ctx context.Context) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			both, cancel := context.WithCancelCause(r.Context())
			context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
			return next.RoundTrip(r.WithContext(both)) //nolint:contextcheck // it is derived from the request's
		})
	}
}

// below is an API at a path of the hub, as kubectl's commands ask for one.
type below struct {
	config    *rest.Config
	namespace string
	named     bool // the namespace was asked for
	served    discovery.CachedDiscoveryInterface
}

// below returns the API at a path. Requests go through what wraps them.
func (h *hubAPI) below(path, namespace string, wrap ...transport.WrapperFunc) (*below, error) {
	b := &below{config: rest.CopyConfig(h.config), namespace: h.namespace}
	b.config.Host += path
	for _, w := range wrap {
		b.config.Wrap(w)
	}
	// As kubectl has it: exec and attach make clients of the core group of what they are given.
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

// member is a cluster itself, through the hub.
func (h *hubAPI) member(cluster, namespace string) (*below, error) {
	return h.below(fleetv1alpha1.ClustersPath+"/"+url.PathEscape(cluster)+"/proxy", namespace, onceOnly)
}

// onceOnly has a cluster that is away be told at once: clients ask ten times of whoever says when to ask again.
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

// loaded is an API as if it were of a kubeconfig.
type loaded struct{ *below }

// RawConfig implements clientcmd.ClientConfig. There is none: the API is at a path of that of a context.
func (loaded) RawConfig() (clientcmdapi.Config, error) { return *clientcmdapi.NewConfig(), nil }

// ClientConfig implements clientcmd.ClientConfig.
func (l loaded) ClientConfig() (*rest.Config, error) { return l.ToRESTConfig() }

// Namespace implements clientcmd.ClientConfig.
func (l loaded) Namespace() (string, bool, error) { return l.namespace, l.named, nil }

// ConfigAccess implements clientcmd.ClientConfig.
func (loaded) ConfigAccess() clientcmd.ConfigAccess { return clientcmd.NewDefaultPathOptions() }

// checkSelector refuses a selector of labels that no server would take.
func checkSelector(selector string) error {
	if _, err := labels.Parse(selector); err != nil {
		return usageError{fmt.Errorf("--selector %q: %w", selector, err)}
	}
	return nil
}

// isPattern is true of what stands for several names.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// chosen are the clusters that the flags name; nil: all.
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

// some names the first of several.
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

// clusterNames are the clusters of the fleet, or for who may not list them those in which they may see something.
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

// fleet reaches the fleet API of the hub.
func (h *hubAPI) fleet() (*fleetClient, error) {
	return newFleetClient(h.config, h.path)
}
