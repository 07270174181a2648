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

// completeTimeout limits a completion, because a user is waiting. A busy hub may need seconds to
// count the namespaces of a fleet.
const completeTimeout = 10 * time.Second

// mostCompletions is the maximum number of completions.
const mostCompletions = 200

// completing requests completions from the hub, within completeTimeout. Errors are not printed.
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

// beginning returns the texts with a prefix, sorted and without duplicates, at most
// mostCompletions. It leaves out texts that are not words: a shell would take them for several
// words, or for a command.
func beginning(texts []string, typed string) []string {
	texts = slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return !strings.HasPrefix(text, typed) || !neutral.IsWord(text) })
	slices.Sort(texts)
	texts = slices.Compact(texts)
	return texts[:min(len(texts), mostCompletions)]
}

// completeClusters completes the name of a cluster as the only argument.
func (f *hubFlags) completeClusters(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.completeMoreClusters(cmd, nil, typed)
}

// completeMoreClusters completes names of clusters that are not arguments yet.
func (f *hubFlags) completeMoreClusters(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return f.completing(cmd, func(ctx context.Context, h *hubAPI) ([]string, error) {
		names, err := h.clusterNames(ctx)
		return slices.DeleteFunc(beginning(names, typed), func(name string) bool { return slices.Contains(args, name) }), err
	})
}

// completeClusterFlag completes a list of clusters.
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

// completeNamespaces completes the name of a namespace in any cluster.
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

// completeObjects completes TYPE NAME ... and TYPE/NAME ....
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

// completePods completes POD and TYPE/NAME as the first argument.
func (r *reaching) completePods(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if strings.Contains(typed, "/") {
		return r.completeObjects(cmd, nil, typed)
	}
	return r.completeObjects(cmd, []string{"pods"}, typed)
}

// types returns the names of the types of the fleet with a prefix.
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

// namesOf returns the names of objects of a type with a prefix. It reads a few pages only: many
// clusters may have an object of the same name.
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
	// other characters have a meaning in a query
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
