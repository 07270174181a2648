package search

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
)

// roots adds the roots to the graph and returns them, sorted. They are the objects with the
// requested name, and missing objects with that name to which other objects refer. For an image
// they are images. It sets g.unread. Without a root the error is NotFound, or says why the caller
// may not see the objects. At a limit it returns errCut and the roots found until then.
func (g *graphBuilder) roots(ctx context.Context) ([]*vertex, error) {
	if g.kind == "" {
		return g.images(ctx)
	}
	gr, err := g.rootType(ctx)
	if err != nil {
		return nil, err
	}
	if err := g.unqualify(gr); err != nil {
		return nil, err
	}
	r, err := g.reachOf(ctx, gr)
	if err != nil {
		return nil, err
	}
	if g.namespace != "" && r.namespaced {
		at := r.at
		at.namespace = g.namespace
		if _, err := g.authorize(ctx, at, params{}, "list"); err != nil {
			return nil, err
		}
	}
	if r.refused != nil {
		return nil, r.refused
	}
	if err := r.seen.check(r.at, params{clusters: g.clusters}); err != nil {
		return nil, err
	}
	if err := g.checkClusters(g.at, g.clusters); err != nil {
		return nil, err
	}
	if g.namespace != "" && !r.namespaced {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter of=%q: %s are in no namespace: write %s/%s", g.of, gr, g.kind, g.name))
	}
	if err := g.findUnread(r); err != nil {
		return nil, err
	}
	r.root = true
	roots := map[vertexKey]*vertex{}
	root := func(v *vertex) error {
		v, err := g.add(v)
		if err == nil {
			roots[v.key()] = v
		}
		return err
	}
	err = g.found(ctx, gr, func(q *store.Query) {
		q.Names = []string{g.name}
		if g.namespace != "" {
			q.Namespaces = []string{g.namespace}
		}
	}, root)
	if err == nil && g.up {
		err = g.missing(ctx, r, root)
	}
	if len(roots) == 0 && err == nil {
		err = apierrors.NewNotFound(gr, g.name)
	}
	return slices.SortedFunc(maps.Values(roots), compareVertices), err
}

// findUnread sets g.unread to the requested clusters that the hub has not read yet. Only clusters
// in which the caller may see something of one of the given types count. It returns an error (503)
// if the hub has read none of the requested clusters.
func (g *graphBuilder) findUnread(of ...*reach) error {
	open := g.Clusters()
	if g.at.cluster != "" {
		open = []string{g.at.cluster}
	} else if g.clusters != nil {
		open = g.clusters
	}
	open = slices.DeleteFunc(slices.Clone(open), func(c string) bool {
		return !slices.ContainsFunc(of, func(r *reach) bool { return r.seen.fence == nil || !r.seen.closed(c) })
	})
	var k kind
	// The caller may know all clusters in open, so the scope needs no fence.
	err := k.findUnread(open, g.Mirror.Types(), nil, scope{})
	g.unread = k.unread
	return err
}

// missing calls f with a vertex for each object that has the requested name, does not exist, and to
// which another object refers. Two vertices may be equal. r is the reach of the type of the root.
func (g *graphBuilder) missing(ctx context.Context, r *reach, f func(*vertex) error) error {
	each := func(says *vertex) error {
		for _, l := range says.links {
			key := vertexKey{kind: r.kind, cluster: says.cluster, name: g.name}
			if r.namespaced {
				key.namespace = cmp.Or(l.Namespace, says.namespace)
			}
			if l.Inverse || l.Kind != r.kind || l.Name != g.name || l.Selector != nil || !g.relations[l.Relation] ||
				g.namespace != "" && key.namespace != g.namespace || g.vertices[key] != nil || !r.sees(key.cluster, key.namespace) {
				continue
			}
			if err := f(g.absent(r, key, l.UID)); err != nil {
				return err
			}
		}
		return nil
	}
	// Here only places without the object matter. What refers to an existing object is read later,
	// by around.
	lacks := func(cluster, namespace string) bool {
		return g.vertices[vertexKey{r.kind, cluster, namespace, g.name}] == nil && r.sees(cluster, namespace)
	}
	if r.kind == nodeOnly && g.relations[graph.Node] && g.mirrors(podsType, nil) {
		if err := g.foundIn(ctx, podsType, func(cluster, _ string) bool { return lacks(cluster, "") }, func(q *store.Query) {
			q.Fields = []store.FieldRequirement{{Path: "spec.nodeName", Operator: selection.Equals, Value: g.name}}
		}, each); err != nil {
			return err
		}
	}
	return g.referringTo(ctx, r.kind, g.namespace, g.name, false, nil, func(source graph.Source, cluster, namespace string) bool {
		switch {
		case !r.namespaced:
			return lacks(cluster, "")
		case g.namespace != "":
			return lacks(cluster, g.namespace)
		default:
			// With Across, an object of any namespace may refer to the root. Which namespace it
			// names is only in the object itself.
			return source.Across || lacks(cluster, namespace)
		}
	}, each)
}

// rootType returns the type of the objects around which the graph is: the type with the requested
// name g.kind that the caller may know. Of several types with the name, it is the well-known type
// of Kubernetes, or else that of the core group. The type need not be mirrored. It returns an error
// (400) if no type has the name, or if several have it and neither rule decides.
func (g *graphBuilder) rootType(ctx context.Context) (schema.GroupResource, error) {
	named := query.Term{Key: query.Kind, Op: query.Equal, Values: []query.Value{{Text: g.kind}}}
	var found []schema.GroupResource
	for _, t := range g.Mirror.Types() {
		gr := t.GroupVersionResource().GroupResource()
		if !named.IsKind(gr.Group, kindNames(kind{API: t.API})) || slices.Contains(found, gr) {
			continue
		}
		visible, err := g.mayName(ctx, t)
		if err != nil {
			return gr, err
		}
		if visible {
			found = append(found, gr)
		}
	}
	known, isKnown := graph.ParseKind(g.kind)
	usual := schema.GroupResource{}
	if t, ok := graph.TypeOf(known); ok && isKnown {
		usual = schema.GroupResource{Group: known.Group, Resource: t.Resource}
	}
	switch core := slices.IndexFunc(found, func(gr schema.GroupResource) bool { return gr.Group == "" }); {
	case len(found) == 1:
		return found[0], nil
	case usual.Resource != "" && (len(found) == 0 || slices.Contains(found, usual)):
		return usual, nil
	case core >= 0:
		return found[core], nil
	case len(found) == 0:
		return usual, apierrors.NewBadRequest(fmt.Sprintf("parameter of=%q: no kind is mirrored that is %q; %q lists those that are", g.of, g.kind, "kubectl --context fleet api-resources"))
	}
	var all []string
	for _, gr := range found {
		all = append(all, gr.String())
	}
	return usual, apierrors.NewBadRequest(fmt.Sprintf("parameter of=%q: %q is one of %s: write which", g.of, g.kind, enumerate(all)))
}

// unqualify removes the cluster from a requested name NAME@CLUSTER, for a request with Qualified
// names, and sets g.clusters to it. It returns an error (400) if the name has no cluster, or
// another one than the request. It does nothing for Merged names, and for a namespaced type without
// a namespace.
func (g *graphBuilder) unqualify(gr schema.GroupResource) error {
	if g.at.names == Merged {
		return nil
	}
	named := &g.name
	if g.namespace != "" {
		named = &g.namespace
	} else if g.namespaced(location{GroupVersionResource: gr.WithVersion("")}) {
		return nil // the request is for the name in all namespaces and clusters
	}
	name, cluster, ok := unqualified(*named)
	if !ok || g.at.cluster != "" && g.at.cluster != cluster || g.clusters != nil && !slices.Equal(g.clusters, []string{cluster}) {
		return apierrors.NewBadRequest(fmt.Sprintf("parameter of=%q: %q must be a name with its one cluster, NAME@CLUSTER", g.of, *named))
	}
	if *named = name; g.at.cluster == "" {
		g.clusters = []string{cluster}
	}
	return nil
}

// images adds the roots of a graph around an image, and returns them: the requested images that
// some object runs which the caller may list. It sets g.unread. Without an image the error is
// NotFound, or says why the caller may not see the objects.
func (g *graphBuilder) images(ctx context.Context) ([]*vertex, error) {
	var refused, closed error
	var reaches []*reach
	for _, gr := range graph.Running() {
		// A caller that may not list pods is refused, even if no pods are mirrored.
		if !g.mirrors(gr, nil) && gr != podsType {
			continue
		}
		r, err := g.reachOf(ctx, gr)
		if err != nil {
			return nil, err
		}
		if r.refused != nil {
			refused = cmp.Or(refused, r.refused)
		} else if err := r.seen.check(r.at, params{clusters: g.clusters}); err != nil {
			closed = cmp.Or(closed, err)
		} else {
			reaches = append(reaches, r)
		}
	}
	if err := cmp.Or(closed, refused); err != nil && len(reaches) == 0 {
		return nil, err
	}
	// This check follows those of rights: a caller that may list nothing must not learn the names
	// of clusters.
	if err := g.checkClusters(g.at, g.clusters); err != nil {
		return nil, err
	}
	if err := g.findUnread(reaches...); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, r := range reaches {
		r.root = true
		r.note(nil)
		if err := g.run(ctx, r, found); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "images"}, g.name)
	}
	var roots []*vertex
	for _, image := range slices.Sorted(maps.Keys(found)) {
		v, err := g.add(&vertex{kind: graph.Images, name: image})
		if err != nil {
			return roots, err
		}
		roots = append(roots, v)
	}
	return roots, nil
}

// run adds to found the requested images that visible objects of the type r run. A requested name
// with a tag or digest means that image. A name without them means all images of the repository,
// also if the name lacks the registry.
func (g *graphBuilder) run(ctx context.Context, r *reach, found map[string]bool) error {
	if len(r.clusters) == 0 {
		return nil
	}
	if repository(g.name) != g.name {
		q := r.query
		q.Limit = 1
		q.Fields = []store.FieldRequirement{{Path: store.FieldImages, Operator: selection.Equals, Value: g.name}}
		page, err := g.query(ctx, q)
		if len(page.Rows) > 0 {
			found[g.name] = true
		}
		return err
	}
	within, cancel := context.WithTimeout(ctx, g.longest)
	defer cancel()
	groups, err := g.Store.Groups(within, r.query, []store.By{{Field: store.FieldImages}})
	if err := g.answered(ctx, within, r.query, err); err != nil {
		return err
	}
	for _, one := range groups {
		if of := repository(one.Values[0]); of == g.name || strings.HasSuffix(of, "/"+g.name) {
			found[one.Values[0]] = true
		}
	}
	return nil
}

// repository returns an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}
