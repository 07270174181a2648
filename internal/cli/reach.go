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

// reaching has the flags of commands that do for objects of every cluster what kubectl does for one
// cluster, such as get, logs and exec.
type reaching struct {
	streams

	hub       hubFlags
	clusters  []string // values of --cluster: names and patterns
	namespace string   // --namespace; "": the namespace of the context
	all       bool     // --all-namespaces
}

// add adds the flags --kubeconfig, --context, --namespace and --cluster to a command, with
// completions. clusters is the help text of --cluster.
func (r *reaching) add(cmd *cobra.Command, clusters string) {
	r.hub.add(cmd)
	cmd.Flags().StringVarP(&r.namespace, "namespace", "n", "", "where the objects are (default: the namespace of the context, or default)")
	cmd.Flags().StringSliceVarP(&r.clusters, "cluster", "C", nil, clusters)
	// Errors mean that the flag does not exist or already has completions.
	_ = cmd.RegisterFlagCompletionFunc("cluster", r.hub.completeClusterFlag)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.hub.completeNamespaces)
}

// addAll adds the flag --all-namespaces to a command.
func (r *reaching) addAll(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "in every namespace")
}

// kube returns the streams in the form that commands of the package kubectl take.
func (s streams) kube() genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: s.in, Out: s.out, ErrOut: s.err}
}

// hubAPI has what a command needs for requests to the hub as the user of the kubeconfig: a
// configuration, and the defaults of the context. hubFlags.api makes it.
type hubAPI struct {
	config    *rest.Config // for the root of the hub
	path      string       // path of the kubeconfig
	namespace string       // namespace of the context
}

// api returns the access to the hub that the flags select, also if the context is that of the fleet
// or of a member. It sends no request. Requests end with ctx. Each warning of the hub is written to
// w once.
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

// unreachedError is the error that the hub did not answer, or did not accept the credentials of the
// kubeconfig. Its text names both and says what to do. A command prints only this error, also if it
// is joined with others.
type unreachedError struct{ error }

// Unwrap returns the error of the request.
func (e unreachedError) Unwrap() error { return e.error }

// telling returns a wrapper for the transports of a command. It turns failures of requests to the
// hub into errors that say what to do: unreachedError, awayError, refusedError and
// unknownClusterError. A request that only reads is sent again while orrery server is unavailable;
// all transports of one wrapper together wait up to serverWait. host is the address of the hub, and
// path the kubeconfig, for messages. A 401 of a member is passed on, because it is not about this
// kubeconfig.
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

// quiet stops client-go from logging to standard error in this process, since commands print errors
// themselves. Only the first call has an effect.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// hubRoot returns the URL of the root of the hub, without a slash at the end. host may be the URL
// of the hub, of its fleet or of a member through the hub.
func hubRoot(host string) string {
	root, _, _ := strings.Cut(host, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
	return strings.TrimSuffix(root, "/")
}

// roundTripper lets a func be an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// until returns a wrapper for a transport that cancels its requests when ctx ends, with the cause
// of ctx. Code of kubectl needs it, because it sends requests with a context that does not end.
func until(ctx context.Context) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			both, cancel := context.WithCancelCause(r.Context())
			context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
			return next.RoundTrip(r.WithContext(both)) //nolint:contextcheck // it is derived from the request's
		})
	}
}

// below is the API at a path of the hub: that of the hub itself, of the fleet, or of a member.
// Commands of the package kubectl take it as a genericclioptions.RESTClientGetter. Its config may
// be changed before the first request.
type below struct {
	config    *rest.Config
	namespace string
	named     bool // the user named the namespace
	served    discovery.CachedDiscoveryInterface
}

// below returns the API at a path of the hub; "": that of the hub itself. namespace is the one that
// the user has named; "": that of the context. The functions wrap are applied to the transport. No
// request is sent.
func (h *hubAPI) below(path, namespace string, wrap ...transport.WrapperFunc) (*below, error) {
	b := &below{config: rest.CopyConfig(h.config), namespace: h.namespace}
	b.config.Host += path
	for _, w := range wrap {
		b.config.Wrap(w)
	}
	// As in kubectl, whose exec and attach create clients of the core group from this config.
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

// member returns the API of a cluster, through the proxy of the hub. namespace is the one that the
// user has named; "": that of the context. Whether the cluster exists is not checked. If the
// cluster is unreachable, requests fail at once and are not repeated.
func (h *hubAPI) member(cluster, namespace string) (*below, error) {
	return h.below(fleetv1alpha1.ClustersPath+"/"+url.PathEscape(cluster)+"/proxy", namespace, onceOnly)
}

// onceOnly wraps a transport so that responses with status 503 have no header Retry-After. With the
// header, clients of Kubernetes repeat a request up to ten times; without it the command fails at
// once.
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

// loaded presents an API as a kubeconfig that was loaded, for commands of the package kubectl.
type loaded struct{ *below }

// RawConfig implements clientcmd.ClientConfig. The result is empty, because no kubeconfig has the
// API's path.
func (loaded) RawConfig() (clientcmdapi.Config, error) { return *clientcmdapi.NewConfig(), nil }

// ClientConfig implements clientcmd.ClientConfig.
func (l loaded) ClientConfig() (*rest.Config, error) { return l.ToRESTConfig() }

// Namespace implements clientcmd.ClientConfig.
func (l loaded) Namespace() (string, bool, error) { return l.namespace, l.named, nil }

// ConfigAccess implements clientcmd.ClientConfig.
func (loaded) ConfigAccess() clientcmd.ConfigAccess { return clientcmd.NewDefaultPathOptions() }

// checkSelector returns a usageError for an invalid label selector. "" is valid.
func checkSelector(selector string) error {
	if _, err := labels.Parse(selector); err != nil {
		return usageError{fmt.Errorf("--selector %q: %w", selector, err)}
	}
	return nil
}

// isPattern reports whether a value of --cluster is a pattern for path.Match, such as eu-*, and not
// a name.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// chosen returns the names of the clusters that --cluster selects, sorted and without duplicates;
// nil without the flag, which means all. For patterns it requests the names of all clusters. A
// pattern without a match is an error. Names that are not patterns are not checked.
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

// some returns up to ten names for a message, and the number of the others. Without names it
// returns "none".
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

// clusterNames requests the sorted names of the clusters of the fleet. A caller who may not list
// Clusters gets the names of those in which the caller may see objects, unsorted.
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

// fleet returns a client of the fleet API of the hub. It sends no request.
func (h *hubAPI) fleet() (*fleetClient, error) {
	return newFleetClient(h.config, h.path)
}
