package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// naming has the objects that the arguments of a command name, in the syntax of kubectl:
// TYPE[,TYPE] [NAME ...], or TYPE/NAME ... parseNamed makes it.
type naming struct {
	types []string            // in the order of the arguments
	names map[string][]string // by type; a type without names means all its objects
}

// parseNamed parses arguments that name objects. Duplicates are dropped, and types are not checked.
// Without arguments the result has no types. Arguments with and without a slash cannot be mixed:
// that is a usageError.
func parseNamed(args []string) (*naming, error) {
	n := &naming{names: map[string][]string{}}
	add := func(kind, name string) error {
		if kind == "" {
			return usageError{fmt.Errorf("%q: want TYPE NAME, or TYPE/NAME, as in deploy/web", strings.Join(args, " "))}
		}
		if !slices.Contains(n.types, kind) {
			n.types = append(n.types, kind)
		}
		if name != "" && !slices.Contains(n.names[kind], name) {
			n.names[kind] = append(n.names[kind], name)
		}
		return nil
	}
	if slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "/") }) {
		for _, arg := range args {
			kind, name, ok := strings.Cut(arg, "/")
			if !ok || name == "" || strings.Contains(name, "/") {
				return nil, usageError{fmt.Errorf("%q beside TYPE/NAME: name every object as TYPE/NAME, as in deploy/web", arg)}
			}
			if err := add(kind, name); err != nil {
				return nil, err
			}
		}
		return n, nil
	}
	if len(args) == 0 {
		return n, nil
	}
	for kind := range strings.SplitSeq(args[0], ",") {
		for _, name := range append([]string{""}, args[1:]...) {
			if err := add(kind, name); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// byName reports whether the arguments name any object. It is false if they only have types.
func (n *naming) byName() bool { return len(n.names) > 0 }

// narrowed restricts the requests of kubectl get to some clusters and names. Several clusters may
// have an object of one name, so the request for a name becomes a list. getting.narrow makes it for
// one command. It is not safe for concurrent requests.
type narrowed struct {
	root     string // path of the fleet
	clusters []string
	names    map[schema.GroupResource][]string
	found    map[schema.GroupResource]map[string]bool
}

// wrap returns a RoundTripper that adds the clusters and names to requests for lists and watches of
// the fleet. Other requests pass unchanged. From each list it records in n.found which of the names
// exist.
func (n *narrowed) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		of, ok := listed(r.URL.Path, n.root)
		if !ok || r.Method != http.MethodGet {
			return next.RoundTrip(r)
		}
		narrow := *r.URL
		query := narrow.Query()
		if len(n.clusters) > 0 {
			query.Set("clusters", strings.Join(n.clusters, ","))
		}
		names := n.names[of]
		if len(names) > 0 {
			query.Set("names", strings.Join(names, ","))
		}
		narrow.RawQuery = query.Encode()
		r = r.Clone(r.Context())
		r.URL = &narrow
		answer, err := next.RoundTrip(r)
		if err != nil || len(names) == 0 || query.Get("watch") == "true" || query.Get("watch") == "1" || answer.StatusCode != http.StatusOK {
			return answer, err
		}
		return answer, n.note(of, answer)
	})
}

// note records in n.found the names of the objects in the list or table of a response. It replaces
// the body of the response by a copy, which can still be read.
func (n *narrowed) note(of schema.GroupResource, answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	err = errors.Join(err, answer.Body.Close())
	if err != nil {
		return err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	type object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	var list struct {
		Items []object `json:"items"`
		Rows  []struct {
			Object object `json:"object"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("read the hub's answer: %w", err)
	}
	if n.found[of] == nil {
		n.found[of] = map[string]bool{}
	}
	for _, o := range list.Items {
		n.found[of][o.Metadata.Name] = true
	}
	for _, row := range list.Rows {
		n.found[of][row.Object.Metadata.Name] = true
	}
	return nil
}

// listed returns the type of the objects that a request for path lists. root is the path of the
// fleet. It returns false if path is not below root or not that of a list; the type is then
// invalid.
func listed(path, root string) (schema.GroupResource, bool) {
	inside, ok := strings.CutPrefix(path, root+"/")
	segments := strings.Split(strings.Trim(inside, "/"), "/")
	var group string
	switch {
	case !ok:
		return schema.GroupResource{}, false
	case segments[0] == "api" && len(segments) > 2:
		segments = segments[2:]
	case segments[0] == "apis" && len(segments) > 3:
		group, segments = segments[1], segments[3:]
	default:
		return schema.GroupResource{}, false
	}
	if len(segments) >= 3 && segments[0] == "namespaces" {
		segments = segments[2:]
	}
	return schema.GroupResource{Group: group, Resource: segments[0]}, len(segments) == 1
}

// clustersOf returns the sorted names of the clusters that have objects of a type which the
// parameters select and the caller may see; nil if there are none. namespace is "" for all
// namespaces, and ignored for a cluster-scoped type.
func (c *fleetClient) clustersOf(ctx context.Context, m *meta.RESTMapping, namespace string, parameters url.Values) ([]string, error) {
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = ""
	}
	parameters = maps.Clone(parameters)
	parameters.Set("group", "cluster")
	var counts fleetv1alpha1.SearchCounts
	if err := c.get(ctx, pathOf(m.Resource, namespace, ""), parameters, &counts); err != nil {
		return nil, err
	}
	var names []string
	for _, g := range counts.Groups {
		names = append(names, g.Values...)
	}
	slices.Sort(names)
	return names, nil
}
