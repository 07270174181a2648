package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/neutral"
)

// completeTimeout limits the requests for one shell completion, because a user is waiting: 10
// seconds. A busy hub may need seconds to count the namespaces of a fleet.
const completeTimeout = 10 * time.Second

// mostCompletions is the maximum number of completions that the shell gets, 200.
const mostCompletions = 200

// completing calls ask, which requests completions from the hub, and returns them in the form that
// cobra expects. The context of ask ends after completeTimeout. After an error there are no
// completions, and the directive says that. Errors and warnings are not printed, because the shell
// would take them for completions.
func (f *hubFlags) completing(cmd *cobra.Command, ask func(context.Context, *hubAPI) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	h, err := f.api(ctx, io.Discard) // the shell would take a warning for a completion
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	found, err := ask(ctx, h)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// beginning returns the texts that begin with typed, sorted and without duplicates, at most
// mostCompletions. It leaves out texts that are not single words for a shell, since a name from a
// cluster could be read as a command. texts stays unchanged.
func beginning(texts []string, typed string) []string {
	texts = slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return !strings.HasPrefix(text, typed) || !neutral.IsWord(text) })
	slices.Sort(texts)
	texts = slices.Compact(texts)
	return texts[:min(len(texts), mostCompletions)]
}

// completeClusters completes the only argument of a command, the name of a cluster. If there is an
// argument already, there are no completions.
func (f *hubFlags) completeClusters(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.completeMoreClusters(cmd, nil, typed)
}

// completeMoreClusters completes the next argument of a command that takes several names of
// clusters. It leaves out those in args.
func (f *hubFlags) completeMoreClusters(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return f.completing(cmd, func(ctx context.Context, h *hubAPI) ([]string, error) {
		names, err := h.clusterNames(ctx)
		return slices.DeleteFunc(beginning(names, typed), func(name string) bool { return slices.Contains(args, name) }), err
	})
}

// completeClusterFlag completes the value of --cluster: the last name in a list that is separated
// by commas.
func (f *hubFlags) completeClusterFlag(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return f.completing(cmd, func(ctx context.Context, h *hubAPI) ([]string, error) {
		before, last := "", typed
		if i := strings.LastIndex(typed, ","); i >= 0 {
			before, last = typed[:i+1], typed[i+1:]
		}
		names, err := h.clusterNames(ctx)
		var out []string
		for _, name := range beginning(names, last) {
			out = append(out, before+name)
		}
		return out, err
	})
}

// completeNamespaces completes the value of --namespace: the name of a namespace that any cluster
// of the fleet has.
func (f *hubFlags) completeNamespaces(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return f.completing(cmd, func(ctx context.Context, h *hubAPI) ([]string, error) {
		fleet, err := h.fleet()
		if err != nil {
			return nil, err
		}
		names, err := (&searching{}).completions(ctx, fleet.client, "namespace", typed)
		return beginning(names, typed), err
	})
}

// completeObjects completes arguments that name objects, as TYPE NAME ... or TYPE/NAME .... It
// offers types of the fleet, and names of objects in the namespace and clusters of the flags. After
// several types with commas, it completes names of the first type.
func (r *reaching) completeObjects(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return r.hub.completing(cmd, func(ctx context.Context, h *hubAPI) ([]string, error) {
		kind, name, slash := strings.Cut(typed, "/")
		switch {
		case slash:
			names, err := r.namesOf(ctx, h, kind, name)
			for i := range names {
				names[i] = kind + "/" + names[i]
			}
			return names, err
		case len(args) == 0:
			before := ""
			if i := strings.LastIndex(typed, ","); i >= 0 {
				before, typed = typed[:i+1], typed[i+1:]
			}
			types, err := h.types(typed)
			for i := range types {
				types[i] = before + types[i]
			}
			return types, err
		case strings.Contains(args[0], "/"):
			types, err := h.types(typed)
			for i := range types {
				types[i] += "/"
			}
			return types, err
		default:
			names, err := r.namesOf(ctx, h, strings.Split(args[0], ",")[0], typed)
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args[1:], name) }), err
		}
	})
}

// completePods completes the first argument of exec, attach and logs: the name of a pod, or
// TYPE/NAME. Later arguments have no completions.
func (r *reaching) completePods(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if strings.Contains(typed, "/") {
		return r.completeObjects(cmd, nil, typed)
	}
	return r.completeObjects(cmd, []string{"pods"}, typed)
}

// types returns the names of the types of the fleet that begin with typed, for completions. If two
// groups have a type of one name, the later gets its group as a suffix. Types that cannot be
// listed, and groups whose discovery fails, are left out.
func (h *hubAPI) types(typed string) ([]string, error) {
	fleet, err := h.fleet()
	if err != nil {
		return nil, err
	}
	lists, err := fleet.served.ServerPreferredResources()
	if len(lists) == 0 {
		return nil, err
	}
	var names []string
	taken := map[string]bool{}
	for _, list := range lists { // the core group is first
		group, _, ok := strings.Cut(list.GroupVersion, "/")
		for _, t := range list.APIResources {
			if strings.Contains(t.Name, "/") || !slices.Contains(t.Verbs, "list") {
				continue
			}
			name := t.Name
			if taken[name] && ok {
				name += "." + group
			}
			taken[name] = true
			names = append(names, name)
		}
	}
	return beginning(names, typed), nil
}

// namesOf returns the names that begin with typed of objects of the type kind, for completions; see
// beginning. The objects are those in the namespace and clusters of the flags, or in all clusters
// if the patterns of --cluster cannot be resolved. namesOf reads at most five pages, because many
// clusters may have objects of the same name.
func (r *reaching) namesOf(ctx context.Context, h *hubAPI, kind, typed string) ([]string, error) {
	const pages, page = 5, 1000
	fleet, err := h.fleet()
	if err != nil {
		return nil, err
	}
	m, err := fleet.find(kind)
	if err != nil {
		return nil, err
	}
	parameters := url.Values{"limit": {strconv.Itoa(page)}}
	// Only with characters of names: others have a meaning in a query.
	if typed != "" && strings.Trim(typed, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" {
		parameters.Set("q", "name:"+typed+"*")
	}
	if clusters, err := r.chosen(ctx, h); err == nil && len(clusters) > 0 {
		parameters.Set("clusters", strings.Join(clusters, ","))
	}
	namespace := r.usual(h)
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = ""
	}
	var names []string
	for range pages {
		request := fleet.client.Get().AbsPath(pathOf(m.Resource, namespace, "")...).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
		for name := range parameters {
			request = request.Param(name, parameters.Get(name))
		}
		body, err := request.Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		slices.Sort(names)
		if names = slices.Compact(names); list.Continue == "" || len(names) >= mostCompletions {
			break
		}
		parameters.Set("continue", list.Continue)
	}
	return beginning(names, typed), nil
}
