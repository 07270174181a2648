package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/store"
)

// Limits of a graph: defaults and maxima.
const (
	usualDepth, mostDepth = 3, 10
	usualNodes, mostNodes = 300, 2000
	// mostLookups is the maximum number of lookups for one graph: queries of the store, except those
	// for owned objects, image names and further pages.
	mostLookups = 5000
	// mostGraphed is the maximum number of objects that are read for one graph, each in about
	// half a millisecond. At most half of them are read to find the roots.
	mostGraphed = 20_000
	// graphPage is the number of objects that one query for a graph returns. Some objects are large,
	// so few are in memory at once, and only their links are kept.
	graphPage = 50
	// mostSelecting is the maximum number of Services, or other objects that select pods, of one
	// namespace that are read to find those that select a pod.
	mostSelecting = 1000
)

var (
	podsType   = schema.GroupResource{Resource: "pods"}
	eventsType = schema.GroupResource{Resource: "events"}
	nodeOnly   = schema.GroupKind{Kind: "Node"}
)

// imagePrefix begins the parameter "of" if the graph is around an image, as in image:nginx.
const imagePrefix = "image:"

// graphed are the parsed parameters of a request for a graph: the objects and images that one
// object or image uses, and the objects that use it. The parameter "of" names that object or image,
// the root.
type graphed struct {
	of        string
	kind      string // kind, namespace and name are the parts of of; kind is empty for an image
	namespace string
	name      string
	clusters  []string // sorted
	depth     int
	nodes     int
	up, down  bool // up: what uses the root; down: what the root uses
	relations map[graph.Relation]bool
}

// graphParameters has the parsers of the parameters of a graph, by name. A parameter with a nil
// parser is ignored.
var graphParameters = map[string]func(g *graphed, value string) error{
	"of":       func(g *graphed, v string) error { return g.parse(v) },
	"clusters": func(g *graphed, v string) error { return sortedNames(&g.clusters, v) },
	"depth":    numbered(1, mostDepth, func(g *graphed, n int) { g.depth = n }),
	"limit":    numbered(1, mostNodes, func(g *graphed, n int) { g.nodes = n }),
	"direction": func(g *graphed, v string) error {
		g.up, g.down = v == "usedBy" || v == "both", v == "uses" || v == "both"
		if !g.up && !g.down {
			return errors.New("must be uses, usedBy or both")
		}
		return nil
	},
	"relations": func(g *graphed, v string) error {
		g.relations = map[graph.Relation]bool{}
		all := graph.Relations()
		for name := range strings.SplitSeq(v, ",") {
			one := graph.Relation(strings.TrimSpace(name))
			switch {
			case one == "all":
				for _, r := range all {
					g.relations[r] = true
				}
			case slices.Contains(all, one):
				g.relations[one] = true
			default:
				return fmt.Errorf("%q is no relation: these are %v, and all", one, all)
			}
		}
		return nil
	},
	"timeout": nil, "pretty": nil,
}

// numbered returns the parser of a parameter that is a number from least to most, and passed to
// set.
func numbered(least, most int, set func(g *graphed, n int)) func(*graphed, string) error {
	return func(g *graphed, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a number from %d to %d", least, most)
		}
		set(g, n)
		return nil
	}
}

// parse parses the parameter "of", which names the root: KIND/NAME, KIND/NAMESPACE/NAME or
// image:IMAGE. For an image, g.kind stays empty and g.name is the image.
func (g *graphed) parse(of string) error {
	g.of = of
	if !isText(of) {
		return errors.New("is no text: nothing has it")
	}
	if image, ok := strings.CutPrefix(of, imagePrefix); ok {
		if g.name = image; image == "" {
			return errors.New("an image is missing: write image:nginx, or image:nginx:1.25")
		}
		return nil
	}
	parts := strings.Split(of, "/")
	if slices.Contains(parts, "") || len(parts) != 2 && len(parts) != 3 {
		return errors.New("must be KIND/NAME, KIND/NAMESPACE/NAME or image:IMAGE, as in secrets/shop/db-pass")
	}
	g.kind, g.name = parts[0], parts[len(parts)-1]
	if len(parts) == 3 {
		g.namespace = parts[1]
	}
	return nil
}

// parseGraph parses the query of a request for a graph. It returns an error (400) for a parameter
// that is unknown, repeated or invalid, and if the parameter "of" is missing. By default a graph
// has both directions, and all relations except Events.
func parseGraph(q url.Values) (*graphed, error) {
	g := &graphed{depth: usualDepth, nodes: usualNodes, up: true, down: true, relations: map[graph.Relation]bool{}}
	for _, r := range graph.Relations() {
		g.relations[r] = r != graph.Event // not by default, because there are many Events
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		set, known := graphParameters[name]
		if !known {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q: a graph has %s", name, strings.Join(slices.Sorted(maps.Keys(graphParameters)), ", ")))
		}
		if len(q[name]) > 1 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s is given twice", name))
		}
		if value := q.Get(name); set != nil && value != "" {
			if err := set(g, value); err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter %s=%q: %v", name, value, err))
			}
		}
	}
	if g.of == "" {
		return nil, apierrors.NewBadRequest("parameter of is missing: it says of what the graph is, as KIND/NAME, KIND/NAMESPACE/NAME or image:IMAGE")
	}
	return g, nil
}

// reach is a type in a graph, with what the caller may list of it: the query that finds only
// visible objects. Objects of the type are only read with this query. reachOf makes it, once for
// each type.
type reach struct {
	at         location
	kind       schema.GroupKind
	namespaced bool
	// clusters are the requested clusters that mirror the type and in which the caller may see some
	// namespace.
	clusters map[string]bool
	seen     scope
	refused  error // why the caller may list no objects; nil: it may list some
	query    store.Query
	// asked are the clusters from which the type was read, also without a result.
	asked map[string]bool
	// root is true for the type of the object around which the graph is (the root).
	root bool
	// odd is true if something could not be read, because no query can express a reference or
	// selector of an object.
	odd bool
}

// hidden reports whether the caller may list no object of the type, so that nothing is read.
func (r *reach) hidden() bool { return r.refused != nil }

// sees reports whether the caller may list the type in a namespace of a cluster; "" for
// cluster-scoped objects. A caller that may see only some namespaces sees no cluster-scoped
// objects.
func (r *reach) sees(cluster, namespace string) bool {
	return !r.hidden() && (r.seen.fence == nil || slices.Contains(r.seen.namespaces, namespace) && r.seen.fence.Allowed(namespace, cluster))
}

// vertex is an object or image that was read, or to which an object refers. Once g.vertices has it,
// it is a node of the graph. state is "" for an object that was read, else missing or unknown.
type vertex struct {
	kind                     schema.GroupKind
	cluster, namespace, name string
	version                  string
	uid                      types.UID
	labels                   labels.Set
	reach                    *reach // nil for an image
	state                    fleetv1alpha1.GraphState
	links                    []graph.Link
}

// vertexKey identifies a vertex in a graph.
type vertexKey struct {
	kind                     schema.GroupKind
	cluster, namespace, name string
}

func (v *vertex) key() vertexKey { return vertexKey{v.kind, v.cluster, v.namespace, v.name} }

// arc is an edge of the graph: the vertex from uses the vertex to. relation says how.
type arc struct {
	from, to *vertex
	relation graph.Relation
}

// graphBuilder builds a graph, for one request and in one goroutine.
//
// All objects are read with the query of the reach of their type. So objects that the caller may
// not list are not found, their links are not followed, and they do not count for a limit.
type graphBuilder struct {
	*Search
	*graphed

	at      location
	reaches map[schema.GroupResource]*reach
	types   map[schema.GroupKind]schema.GroupResource
	// mirrored has the clusters from which a type is mirrored, by type.
	mirrored map[schema.GroupResource]map[string]bool
	// unasked are types that had to be read and are not mirrored, by cluster, for warnings. The key
	// "" has the types that no cluster mirrors.
	unasked map[string]map[schema.GroupResource]bool
	// unread are requested clusters that the hub has not read yet. They could have the root.
	unread []string

	vertices map[vertexKey]*vertex
	arcs     map[arc]bool
	selects  map[selectKey][]*vertex // objects that select pods, by type, cluster and namespace
	lookups  int                     // number of queries, see mostLookups
	// read is the number of objects that were read. It may reach mayRead, which is half of mostRead
	// while the roots are looked for, and mostRead afterwards.
	read, mayRead, mostRead int
	cut                     string // the limit at which the graph ends, as a text for users; "": none
}

// selectKey identifies the objects of a type in one namespace of one cluster.
type selectKey struct {
	gr                 schema.GroupResource
	cluster, namespace string
}

// errCut ends the construction of a graph that has reached a limit. The graph is answered as it is
// then, and g.cut is the text about the limit for the user.
var errCut = errors.New("the graph is cut")

// serveGraph answers with the graph around an object or an image (the root). If the root is not
// found, the NotFound error still has the warnings, because the object may exist and be unknown.
func (s *Search) serveGraph(w http.ResponseWriter, r *http.Request, at location) error {
	query := r.URL.Query()
	named := "" // the namespace of KIND/NAMESPACE/NAME
	if parts := strings.SplitN(query.Get("of"), "/", 4); len(parts) == 3 && !strings.Contains(parts[0], ":") {
		named = parts[1]
	}
	if err := s.admitAny(r.Context(), named); err != nil {
		return err
	}
	asked, err := parseGraph(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	g := s.newGraphBuilder(asked, at)
	roots, err := g.all(ctx)
	if err == nil || apierrors.IsNotFound(err) { // the object may exist and be unknown
		g.warn(r.Context(), w)
	}
	if err != nil {
		return err
	}
	return answer.JSON(w, http.StatusOK, g.graph(roots))
}

// newGraphBuilder returns a graphBuilder for the parameters asked and the path at. Its graph is
// empty.
func (s *Search) newGraphBuilder(asked *graphed, at location) *graphBuilder {
	g := &graphBuilder{
		Search: s, graphed: asked, at: at, reaches: map[schema.GroupResource]*reach{}, types: map[schema.GroupKind]schema.GroupResource{},
		mirrored: map[schema.GroupResource]map[string]bool{}, unasked: map[string]map[schema.GroupResource]bool{},
		vertices: map[vertexKey]*vertex{}, arcs: map[arc]bool{}, selects: map[selectKey][]*vertex{}, mostRead: mostGraphed,
	}
	for _, t := range s.Mirror.Types() {
		gr := t.GroupVersionResource().GroupResource()
		g.types[t.GroupVersionKind.GroupKind()] = gr
		if g.mirrored[gr] == nil {
			g.mirrored[gr] = map[string]bool{}
		}
		for _, c := range t.Clusters {
			g.mirrored[gr][c] = true
		}
	}
	return g
}

// all finds the roots, which are the objects or images that the request names, and reads the
// objects around them. It returns the roots. A limit that is reached is no error: g.cut says which,
// and the graph is incomplete. The time limit is no error either, if there are roots.
func (g *graphBuilder) all(ctx context.Context) ([]*vertex, error) {
	g.mayRead = g.mostRead / 2
	roots, err := g.roots(ctx)
	if err == nil || errors.Is(err, errCut) {
		g.mayRead = g.mostRead
		err = g.around(ctx, roots)
	}
	if err != nil && len(roots) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		g.cut, err = fmt.Sprintf("it takes longer than %s: name clusters, relations, a direction or a smaller depth", searchTimeout), errCut
	}
	if errors.Is(err, errCut) {
		err = nil
	}
	return roots, err
}

// around adds to the graph the objects that the roots use, and those that use the roots, in up to
// g.depth steps. The two directions are not combined: an object that uses the same Secret as a root
// is not added. At a limit it returns errCut.
func (g *graphBuilder) around(ctx context.Context, roots []*vertex) error {
	for _, step := range []struct {
		wanted bool
		next   func(context.Context, []*vertex) ([]*vertex, error)
	}{{g.down, g.used}, {g.up, g.users}} {
		if !step.wanted {
			continue
		}
		met := map[*vertex]bool{}
		for _, v := range roots {
			met[v] = true
		}
		frontier := roots
		for range g.depth {
			found, err := step.next(ctx, frontier)
			if err != nil {
				return err
			}
			frontier = nil
			for _, v := range found {
				if !met[v] {
					met[v] = true
					frontier = append(frontier, v)
				}
			}
			slices.SortFunc(frontier, compareVertices)
		}
	}
	return nil
}

// compareVertices is the order of nodes in an answer: by cluster, namespace, kind, group and name.
func compareVertices(a, b *vertex) int {
	return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind.Kind, b.kind.Kind),
		cmp.Compare(a.kind.Group, b.kind.Group), cmp.Compare(a.name, b.name))
}

// reachOf returns the reach of a type: what the caller may list. Results are cached. If the caller
// may list nothing, that is in the field refused, and no error. A type that is neither mirrored nor
// known to package graph is an error.
func (g *graphBuilder) reachOf(ctx context.Context, gr schema.GroupResource) (*reach, error) {
	if r, ok := g.reaches[gr]; ok {
		return r, nil
	}
	r := &reach{at: location{cluster: g.at.cluster, names: g.at.names, GroupVersionResource: gr.WithVersion("v1")}, clusters: map[string]bool{}, asked: map[string]bool{}}
	for _, t := range g.Mirror.Types() {
		if t.GroupVersionResource().GroupResource() != gr {
			continue
		}
		r.at.GroupVersionResource, r.kind, r.namespaced = t.GroupVersionResource(), t.GroupVersionKind.GroupKind(), r.namespaced || t.Namespaced
		for _, cluster := range t.Clusters {
			if (g.at.cluster == "" || g.at.cluster == cluster) && (g.clusters == nil || hasOne(g.clusters, []string{cluster})) {
				r.clusters[cluster] = true
			}
		}
	}
	if r.kind.Kind == "" {
		t, ok := graph.TypeFor(gr)
		if !ok {
			return nil, fmt.Errorf("type %s is neither mirrored nor known", gr)
		}
		r.kind, r.namespaced = t.Kind, t.Namespaced
	}
	g.reaches[gr] = r
	seen, err := g.authorize(ctx, r.at, params{}, "list")
	switch {
	case apierrors.IsForbidden(err):
		r.refused = err
		return r, nil
	case err != nil:
		return nil, err
	case !r.namespaced && seen.refused != nil:
		r.refused = seen.refused
	}
	if r.hidden() {
		return r, nil
	}
	r.seen = seen
	r.query = store.Query{Group: gr.Group, Resource: gr.Resource}
	if seen.fence != nil {
		maps.DeleteFunc(r.clusters, func(cluster string, _ bool) bool { return seen.closed(cluster) })
	}
	if g.at.cluster != "" || g.clusters != nil || seen.fence != nil {
		// Without a cluster the list is empty and not nil, because nil means all clusters.
		r.query.Clusters = append([]string{}, slices.Sorted(maps.Keys(r.clusters))...)
	}
	r.query.Scopes = seen.scopes(r.at, kind{clusters: r.query.Clusters})
	return r, nil
}

// typeOf returns the resource of a kind; false if the kind is neither mirrored nor known to package
// graph.
func (g *graphBuilder) typeOf(kind schema.GroupKind) (schema.GroupResource, bool) {
	if gr, ok := g.types[kind]; ok {
		return gr, true
	}
	t, ok := graph.TypeOf(kind)
	return schema.GroupResource{Group: kind.Group, Resource: t.Resource}, ok
}

// each reads the objects of the type r that the caller may list, and calls f with the vertex of
// each until f fails. narrow adds restrictions to the query. The vertices are not added to the
// graph. At the limit of objects it sets g.cut and returns errCut. If the store refuses the query
// as invalid, it sets r.odd and returns nil.
func (g *graphBuilder) each(ctx context.Context, r *reach, narrow func(q *store.Query), f func(v *vertex) error) error {
	if r.hidden() || len(r.clusters) == 0 {
		return nil
	}
	q := r.query
	q.Limit = graphPage
	narrow(&q)
	r.note(q.Clusters)
	for {
		if g.read >= g.mayRead {
			g.cut = fmt.Sprintf("more than %d objects would be read: name clusters, a namespace, relations, a direction or a smaller depth", g.mayRead)
			return errCut
		}
		page, err := g.query(ctx, q)
		if apierrors.IsBadRequest(err) {
			r.odd = true // not an error of the caller: API servers accept any text as a reference
			return nil
		}
		if err != nil {
			return err
		}
		g.read += len(page.Rows)
		for i := range page.Rows {
			if err := f(g.meet(r, &page.Rows[i])); err != nil {
				return err
			}
		}
		if q.Continue = page.Continue; q.Continue == "" {
			return nil
		}
	}
}

// note records that the type is read from the given clusters; nil: from all clusters of r.
func (r *reach) note(clusters []string) {
	if clusters == nil {
		clusters = slices.Collect(maps.Keys(r.clusters))
	}
	for _, c := range clusters {
		r.asked[c] = true
	}
}

// mirrors reports whether the type is mirrored from any cluster. It also records, for a warning,
// which of the given clusters do not mirror the type, or that no cluster does.
func (g *graphBuilder) mirrors(gr schema.GroupResource, clusters []string) bool {
	on := g.mirrored[gr]
	if len(on) == 0 {
		clusters = []string{""}
	}
	for _, c := range clusters {
		if on[c] {
			continue
		}
		if g.unasked[c] == nil {
			g.unasked[c] = map[schema.GroupResource]bool{}
		}
		g.unasked[c][gr] = true
	}
	return len(on) > 0
}

// meet returns the vertex of an object that was read: the vertex in the graph, or a new one, which
// is not added. If the vertex in the graph was missing or unknown, it becomes the object's, with
// its links.
func (g *graphBuilder) meet(r *reach, row *store.Row) *vertex {
	v := &vertex{kind: r.kind, cluster: row.Cluster, namespace: row.Namespace, name: row.Name, version: row.Version, uid: row.UID, labels: row.Labels, reach: r}
	known, ok := g.vertices[v.key()]
	if ok && known.state == "" {
		return known
	}
	v.links = graph.Links(schema.GroupResource{Group: row.Group, Resource: row.Resource}, row.Body)
	if ok { // the object was missing before and exists now
		known.version, known.uid, known.labels, known.links, known.state = v.version, v.uid, v.labels, v.links, ""
		return known
	}
	return v
}

// add adds a vertex to the graph and returns it, or the equal vertex that the graph already has. At
// the limit of nodes it sets g.cut and returns errCut.
func (g *graphBuilder) add(v *vertex) (*vertex, error) {
	if known, ok := g.vertices[v.key()]; ok {
		return known, nil
	}
	if len(g.vertices) >= g.nodes {
		g.cut = fmt.Sprintf("there are more than %d nodes: set a limit of up to %d, or name clusters, relations, a direction or a smaller depth; a search for uses:KIND/NAME or image:IMAGE finds all that do", g.nodes, mostNodes)
		return nil, errCut
	}
	g.vertices[v.key()] = v
	return v, nil
}

// join adds the edge for the link l, which the vertex says has and which leads to the vertex other.
// If the link is inverse, other uses says. Vertices that the graph does not have are added. It
// returns errCut if there are too many nodes.
func (g *graphBuilder) join(says, other *vertex, l graph.Link) (err error) {
	if says, err = g.add(says); err == nil {
		other, err = g.add(other)
	}
	if err != nil {
		return err
	}
	if l.Inverse {
		says, other = other, says
	}
	g.arcs[arc{says, other, l.Relation}] = true
	return nil
}

// leads reports whether the link l of the object from refers to the vertex to, by kind, name,
// cluster, namespace and, if both are known, UID. It is false for links with a selector.
func (g *graphBuilder) leads(from *vertex, l graph.Link, to *vertex) bool {
	if l.Selector != nil || l.Kind != to.kind || l.Name != to.name || l.UID != "" && to.state == "" && l.UID != to.uid {
		return false
	}
	if to.reach == nil {
		return true
	}
	return from.cluster == to.cluster && (!to.reach.namespaced || cmp.Or(l.Namespace, from.namespace) == to.namespace)
}

// used adds to the graph the objects and images that the vertices in frontier use, with the edges.
// It returns them, with duplicates. A missing or unknown vertex uses nothing, even if objects name
// it as their owner.
func (g *graphBuilder) used(ctx context.Context, frontier []*vertex) ([]*vertex, error) {
	var out []*vertex
	frontier = slices.DeleteFunc(slices.Clone(frontier), func(v *vertex) bool { return v.state != "" })
	err := g.follow(ctx, frontier, false, &out)
	if err == nil {
		err = g.selected(ctx, frontier, &out)
	}
	if err == nil {
		err = g.owned(ctx, frontier, &out)
	}
	if err == nil {
		err = g.referring(ctx, frontier, true, &out)
	}
	return out, err
}

// users adds to the graph the objects that use the vertices in frontier, with the edges. It returns
// them, with duplicates.
func (g *graphBuilder) users(ctx context.Context, frontier []*vertex) ([]*vertex, error) {
	var out []*vertex
	err := g.follow(ctx, frontier, true, &out)
	if err == nil {
		err = g.referring(ctx, frontier, false, &out)
	}
	for _, v := range frontier {
		if err == nil {
			err = g.selecting(ctx, v, &out)
		}
		if err == nil {
			err = g.pointed(ctx, v, &out)
		}
	}
	return out, err
}

// target is what links refer to: a kind and a name, in any cluster and namespace.
type target struct {
	kind schema.GroupKind
	name string
}

// saying is a link, and the vertex that has the link (by).
type saying struct {
	by   *vertex
	link graph.Link
}

// place returns the key of the object to which the link refers. r is the reach of the type of that
// object.
func (s saying) place(r *reach) vertexKey {
	key := vertexKey{kind: s.link.Kind, cluster: s.by.cluster, name: s.link.Name}
	if r.namespaced {
		key.namespace = cmp.Or(s.link.Namespace, s.by.namespace)
	}
	return key
}

// follow reads the objects that the links of the vertices in frontier name. Without inverse these
// are the objects that the vertices use. With inverse they are those that use the vertices, such as
// owners. They are added to the graph, with the edges, and to out.
func (g *graphBuilder) follow(ctx context.Context, frontier []*vertex, inverse bool, out *[]*vertex) error {
	wanted := map[target][]saying{}
	var order []target
	for _, v := range frontier {
		for _, l := range v.links {
			if l.Inverse != inverse || l.Selector != nil || !g.relations[l.Relation] {
				continue
			}
			if l.Kind == graph.Images {
				image := &vertex{kind: graph.Images, name: l.Name}
				if err := g.join(v, image, l); err != nil {
					return err
				}
				*out = append(*out, g.vertices[image.key()])
				continue
			}
			to := target{l.Kind, l.Name}
			if wanted[to] == nil {
				order = append(order, to)
			}
			wanted[to] = append(wanted[to], saying{v, l})
		}
	}
	for _, to := range order {
		if err := g.named(ctx, to, wanted[to], out); err != nil {
			return err
		}
	}
	return nil
}

// named reads, in one query, the objects to which the links in said refer; all refer to the kind
// and name to. It adds them to the graph, with the edges, and to out. An object that is not found
// is added as missing or unknown, unless the caller may not list it.
func (g *graphBuilder) named(ctx context.Context, to target, said []saying, out *[]*vertex) error {
	gr, ok := g.typeOf(to.kind)
	if !ok {
		return nil
	}
	r, err := g.reachOf(ctx, gr)
	if err != nil || r.hidden() {
		return err
	}
	var clusters, namespaces []string
	for _, s := range said {
		key := s.place(r)
		if !isText(key.name) || !isText(key.namespace) {
			continue // no object has such a name, and the query would be invalid
		}
		clusters = append(clusters, key.cluster)
		if r.namespaced {
			namespaces = append(namespaces, key.namespace)
		}
	}
	found := map[vertexKey]*vertex{}
	if len(clusters) > 0 {
		if err := g.found(ctx, gr, func(q *store.Query) {
			q.Names, q.Namespaces = []string{to.name}, distinct(namespaces)
			among(q, clusters)
		}, func(v *vertex) error {
			found[v.key()] = v
			return nil
		}); err != nil {
			return err
		}
	}
	for _, s := range said {
		key := s.place(r)
		v, there := found[key]
		if !there {
			if !r.sees(key.cluster, key.namespace) {
				continue
			}
			v = g.absent(r, key, s.link.UID)
		}
		if !g.leads(s.by, s.link, v) {
			continue // the object with this name is not the one that the link means
		}
		if err := g.join(s.by, v, s.link); err != nil {
			return err
		}
		*out = append(*out, g.vertices[v.key()])
	}
	return nil
}

// isText reports whether a text can be in the store and in a query: it is valid UTF-8 without zero
// bytes.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// absent returns a new vertex for an object to which another object refers and that was not found.
// Its state is missing, or unknown if not all objects of the type in the cluster are mirrored.
func (g *graphBuilder) absent(r *reach, key vertexKey, uid types.UID) *vertex {
	v := &vertex{kind: key.kind, cluster: key.cluster, namespace: key.namespace, name: key.name, reach: r, uid: uid, state: fleetv1alpha1.GraphMissing, version: r.at.Version}
	gr := r.at.GroupResource()
	if !r.clusters[key.cluster] || !g.Mirror.Stored(key.cluster, gr) || g.Mirror.Lost(key.cluster, gr) || g.Mirror.Partial(key.cluster, gr) {
		v.state = fleetv1alpha1.GraphUnknown
	}
	return v
}

// among restricts a query to those of its clusters that are in clusters. If none is left,
// q.Clusters is empty and not nil, and the query finds nothing.
func among(q *store.Query, clusters []string) {
	wanted := distinct(clusters)
	if q.Clusters != nil {
		wanted = slices.DeleteFunc(wanted, func(c string) bool { return !slices.Contains(q.Clusters, c) })
	}
	q.Clusters = append([]string{}, wanted...)
}

// distinct returns a new slice with the names sorted and without duplicates.
func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// selected reads the pods that selectors of the vertices in frontier select. It adds them to the
// graph, with the edges, and to out.
func (g *graphBuilder) selected(ctx context.Context, frontier []*vertex, out *[]*vertex) error {
	for _, v := range frontier {
		for _, l := range v.links {
			if l.Selector == nil || !g.relations[l.Relation] {
				continue
			}
			if err := g.found(ctx, podsType, func(q *store.Query) {
				q.Namespaces, q.Labels = []string{v.namespace}, l.Selector
				among(q, []string{v.cluster})
			}, func(pod *vertex) error {
				err := g.join(v, pod, l)
				*out = append(*out, g.vertices[pod.key()])
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// found reads the objects of a type that the caller may list, and calls f with the vertex of each
// until f fails. narrow adds restrictions to the query. It counts as one lookup, which may exceed a
// limit: then it returns errCut.
func (g *graphBuilder) found(ctx context.Context, gr schema.GroupResource, narrow func(q *store.Query), f func(v *vertex) error) error {
	r, err := g.reachOf(ctx, gr)
	if err == nil {
		err = g.lookUp()
	}
	if err != nil {
		return err
	}
	return g.each(ctx, r, narrow, f)
}

// lookUp counts a query of the store (a lookup). Beyond mostLookups it sets g.cut, which says that
// the graph is incomplete, and returns errCut.
func (g *graphBuilder) lookUp() error {
	if g.lookups++; g.lookups > mostLookups {
		g.cut = fmt.Sprintf("it takes more than %d lookups: name clusters, relations, a direction or a smaller depth", mostLookups)
		return errCut
	}
	return nil
}

// foundIn reads objects of a type as found does, but only from the clusters and namespaces for
// which wanted returns true. An index of the store has the places with such objects, so other
// objects are not read. It counts as up to two lookups.
func (g *graphBuilder) foundIn(ctx context.Context, gr schema.GroupResource, wanted func(cluster, namespace string) bool, narrow func(q *store.Query), f func(v *vertex) error) error {
	r, err := g.reachOf(ctx, gr)
	if err != nil || r.hidden() || len(r.clusters) == 0 {
		return err
	}
	if err := g.lookUp(); err != nil {
		return err
	}
	r.note(nil)
	q := r.query
	narrow(&q)
	within, cancel := context.WithTimeout(ctx, g.longest)
	defer cancel()
	groups, err := g.Store.Groups(within, q, []store.By{{Column: "cluster"}, {Column: "namespace"}})
	if errors.Is(err, store.ErrGroups) {
		g.cut = "it is referred to in too many places: name clusters, or a namespace"
		return errCut
	}
	switch err := g.answered(ctx, within, q, err); {
	case apierrors.IsBadRequest(err):
		r.odd = true
		return nil
	case err != nil:
		return err
	}
	places := map[string][]string{}
	for _, one := range groups {
		if cluster, namespace := one.Values[0], one.Values[1]; wanted(cluster, namespace) {
			places[cluster] = append(places[cluster], namespace)
		}
	}
	if len(places) == 0 {
		return nil
	}
	return g.found(ctx, gr, func(q *store.Query) {
		narrow(q)
		if q.Clusters = slices.Sorted(maps.Keys(places)); r.namespaced {
			q.Scopes = places
		}
	}, f)
}

// owned reads the objects whose owner is one of the vertices in frontier. The store has the types
// of these objects by the UID of the owner. It adds the objects to the graph, with the edges, and
// to out.
func (g *graphBuilder) owned(ctx context.Context, frontier []*vertex, out *[]*vertex) error {
	if !g.relations[graph.Owner] {
		return nil
	}
	uids := map[string][]types.UID{}
	for _, v := range frontier {
		if v.uid != "" && v.reach != nil {
			uids[v.cluster] = append(uids[v.cluster], v.uid)
		}
	}
	owned := map[string]map[types.UID][]schema.GroupResource{}
	for cluster, some := range uids {
		of, err := g.Store.Owned(ctx, cluster, some)
		if err := g.answered(ctx, ctx, store.Query{Resource: "objects"}, err); err != nil {
			return err
		}
		owned[cluster] = of
	}
	for _, v := range frontier {
		for _, gr := range owned[v.cluster][v.uid] {
			if len(g.mirrored[gr]) == 0 {
				continue
			}
			r, err := g.reachOf(ctx, gr)
			if err != nil {
				return err
			}
			// This is not counted as a lookup: the owned objects may be of a type that the
			// caller may not list.
			if err := g.each(ctx, r, func(q *store.Query) {
				q.OwnerUID = v.uid
				among(q, []string{v.cluster})
			}, func(of *vertex) error { return g.joinAll(of, v, true, out) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// joinAll adds the edge for each link of the vertex says that refers to the vertex other and is
// inverse as given. For each edge it adds says to out. It returns errCut if there are too many
// nodes.
func (g *graphBuilder) joinAll(says, other *vertex, inverse bool, out *[]*vertex) error {
	for _, l := range says.links {
		if l.Inverse != inverse || !g.relations[l.Relation] || !g.leads(says, l, other) {
			continue
		}
		if err := g.join(says, other, l); err != nil {
			return err
		}
		*out = append(*out, g.vertices[says.key()])
	}
	return nil
}

// referring reads the objects whose links name a vertex in frontier. Without inverse these objects
// use the vertex; with inverse the vertex uses them, as a Service its EndpointSlices. It adds them
// to the graph, with the edges, and to out. One query serves vertices with the same name in several
// clusters.
func (g *graphBuilder) referring(ctx context.Context, frontier []*vertex, inverse bool, out *[]*vertex) error {
	type named struct {
		kind            schema.GroupKind
		namespace, name string
	}
	together := map[named]map[string]*vertex{}
	var order []named
	for _, v := range frontier {
		if v.reach == nil {
			continue
		}
		one := named{v.kind, v.namespace, v.name}
		if together[one] == nil {
			together[one] = map[string]*vertex{}
			order = append(order, one)
		}
		together[one][v.cluster] = v
	}
	for _, one := range order {
		clusters := slices.Collect(maps.Keys(together[one]))
		if err := g.referringTo(ctx, one.kind, one.namespace, one.name, inverse, clusters, nil, func(says *vertex) error {
			return g.joinAll(says, together[one][says.cluster], inverse, out)
		}); err != nil {
			return err
		}
	}
	return nil
}

// referringTo reads objects that may refer to a name of a kind, and calls f with the vertex of
// each. f must check whether a link really leads there. namespace is that of the named object; "":
// it has none, or any. The objects are read from the given clusters. If clusters is nil, they are
// read from the places for which wanted returns true.
func (g *graphBuilder) referringTo(
	ctx context.Context, kind schema.GroupKind, namespace, name string, inverse bool,
	clusters []string, wanted func(source graph.Source, cluster, namespace string) bool, f func(*vertex) error,
) error {
	for _, source := range graph.Sources(kind) {
		if source.Inverse != inverse || !slices.ContainsFunc(source.Says, func(r graph.Relation) bool { return g.relations[r] }) ||
			source.Optional && len(g.mirrored[source.GroupResource]) == 0 {
			continue
		}
		where := clusters
		if source.Optional {
			where = nil
		}
		if !g.mirrors(source.GroupResource, where) {
			continue
		}
		r, err := g.reachOf(ctx, source.GroupResource)
		if err != nil {
			return err
		}
		terms := []string{graph.Term(kind, name)}
		if source.Across && namespace != "" {
			terms = append(terms, graph.TermAcross(kind, namespace, name))
		}
		for i, term := range terms {
			if i == 0 && namespace != "" && !r.namespaced {
				continue // the next term includes the namespace
			}
			narrow := func(q *store.Query) {
				q.Fields = []store.FieldRequirement{{Path: store.FieldReferences, Operator: selection.Equals, Value: term}}
				if i == 0 && namespace != "" {
					q.Namespaces = []string{namespace}
				}
				if clusters != nil {
					among(q, clusters)
				}
			}
			if clusters != nil {
				err = g.found(ctx, source.GroupResource, narrow, f)
			} else {
				err = g.foundIn(ctx, source.GroupResource, func(cluster, namespace string) bool { return wanted(source, cluster, namespace) }, narrow, f)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// pointed reads the objects that use a vertex and that only other indexes than that of references
// find: what runs an image, the pods of a node, and the Events about an object. It adds them to the
// graph, with the edges, and to out.
func (g *graphBuilder) pointed(ctx context.Context, v *vertex, out *[]*vertex) error {
	by := func(gr schema.GroupResource, path, value string) error {
		var where []string
		if v.cluster != "" {
			where = []string{v.cluster}
		}
		if !g.mirrors(gr, where) {
			return nil
		}
		return g.found(ctx, gr, func(q *store.Query) {
			q.Fields = []store.FieldRequirement{{Path: path, Operator: selection.Equals, Value: value}}
			if where != nil {
				among(q, where)
			}
		}, func(says *vertex) error { return g.joinAll(says, v, false, out) })
	}
	if v.reach == nil {
		if !g.relations[graph.Image] {
			return nil
		}
		for _, gr := range graph.Running() {
			if err := by(gr, store.FieldImages, v.name); err != nil {
				return err
			}
		}
		return nil
	}
	if v.kind == nodeOnly && g.relations[graph.Node] {
		if err := by(podsType, "spec.nodeName", v.name); err != nil {
			return err
		}
	}
	if v.uid != "" && g.relations[graph.Event] {
		return by(eventsType, "involvedObject.uid", string(v.uid))
	}
	return nil
}

// selecting reads the objects whose selectors select a pod, in the namespace of the pod. It adds
// them to the graph, with the edges, and to out. It does nothing if pod is not a Pod, or is
// missing.
func (g *graphBuilder) selecting(ctx context.Context, pod *vertex, out *[]*vertex) error {
	if pod.kind.Kind != "Pod" || pod.kind.Group != "" || pod.state != "" || !g.relations[graph.Selector] {
		return nil
	}
	for _, gr := range graph.Selecting() {
		if !g.mirrors(gr, []string{pod.cluster}) {
			continue
		}
		key := selectKey{gr, pod.cluster, pod.namespace}
		if _, known := g.selects[key]; !known {
			g.selects[key] = nil
			if err := g.found(ctx, gr, func(q *store.Query) {
				q.Namespaces = []string{pod.namespace}
				among(q, []string{pod.cluster})
			}, func(v *vertex) error {
				if g.selects[key] = append(g.selects[key], v); len(g.selects[key]) > mostSelecting {
					g.cut = fmt.Sprintf("there are more than %d %s in a namespace: leave out the relation selector", mostSelecting, gr.Resource)
					return errCut
				}
				return nil
			}); err != nil {
				return err
			}
		}
		for _, v := range g.selects[key] {
			for _, l := range v.links {
				if l.Selector == nil || !l.Selector.Matches(pod.labels) {
					continue
				}
				if err := g.join(v, pod, l); err != nil {
					return err
				}
				*out = append(*out, g.vertices[v.key()])
			}
		}
	}
	return nil
}

// graph returns the answer with the nodes and edges that were found, sorted. roots are the nodes
// around which the graph is.
func (g *graphBuilder) graph(roots []*vertex) fleetv1alpha1.ObjectGraph {
	out := fleetv1alpha1.ObjectGraph{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1alpha1.GroupVersion.String(), Kind: "ObjectGraph"},
		Roots:    []int{}, Nodes: []fleetv1alpha1.GraphNode{}, Edges: []fleetv1alpha1.GraphEdge{}, Cut: g.cut,
	}
	place := map[*vertex]int{}
	for _, v := range slices.SortedFunc(maps.Values(g.vertices), compareVertices) {
		place[v] = len(out.Nodes)
		n := fleetv1alpha1.GraphNode{
			Cluster: v.cluster, Group: v.kind.Group, Version: v.version, Kind: v.kind.Kind, Namespace: v.namespace, Name: v.name, UID: v.uid, State: v.state,
		}
		if v.reach != nil {
			n.Resource = v.reach.at.Resource
			if n.Namespace == "" {
				n.Name = g.at.names.of(n.Name, n.Cluster)
			}
			n.Namespace = g.at.names.of(n.Namespace, n.Cluster)
		}
		out.Nodes = append(out.Nodes, n)
	}
	for _, v := range roots {
		out.Roots = append(out.Roots, place[v])
	}
	for a := range g.arcs {
		out.Edges = append(out.Edges, fleetv1alpha1.GraphEdge{From: place[a.from], To: place[a.to], Relation: string(a.relation)})
	}
	slices.SortFunc(out.Edges, func(a, b fleetv1alpha1.GraphEdge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Relation, b.Relation))
	})
	return out
}

// warn adds warnings to the header, about clusters whose data is old or incomplete. For each type
// they are about the clusters from which the type was read and that have objects in the graph. For
// the type of the roots they are about all clusters.
func (g *graphBuilder) warn(ctx context.Context, w http.ResponseWriter) {
	has := map[string]bool{"": true}
	for _, v := range g.vertices {
		has[v.cluster] = true
	}
	warnings := g.warnings(g.at, kind{unread: g.unread}, scope{})
	only := narrowed{}
	for _, r := range g.reaches {
		var of []string
		for c := range r.asked {
			if r.clusters[c] && (r.root || has[c]) {
				of = append(of, c)
			}
		}
		if len(of) > 0 {
			slices.Sort(of)
			only.add(r.at.GroupResource(), r.seen)
			warnings = append(warnings, g.typeWarnings(r.at, kind{clusters: of, isHistory: true}, r.seen)...)
		}
		if r.odd {
			warnings = append(warnings, fmt.Sprintf("some %s may be left out: a name that is referred to is longer than names are, or a selector has too many requirements", r.at.GroupResource()))
		}
	}
	for cluster, types := range g.unasked {
		var names []string
		for gr := range types {
			// A caller that may not list the type gets no warning: objects of the type would be
			// left out in any case.
			seen, err := g.authorize(ctx, location{cluster: g.at.cluster, GroupVersionResource: gr.WithVersion("v1")}, params{}, "list")
			if err == nil && (cluster == "" || seen.fence == nil || !seen.closed(cluster)) {
				names = append(names, gr.String())
			}
		}
		switch {
		case len(names) == 0 || !has[cluster]:
		case cluster == "":
			warnings = append(warnings, "not mirrored of any cluster, so that what they use is not known: "+enumerate(names))
		default:
			warnings = append(warnings, fmt.Sprintf("not mirrored of cluster %s, so that what they use there is not known: %s", cluster, enumerate(names)))
		}
	}
	if text := only.text(nil); text != "" {
		warnings = append(warnings, text)
	}
	slices.Sort(warnings)
	tell(w, warnings)
}
