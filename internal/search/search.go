// Package search answers questions about the whole fleet in the shape of the Kubernetes
// API: discovery, lists and reads of the mirrored objects of every cluster, so that plain
// kubectl works on all clusters at once.
//
//	/api/v1/pods                              every pod of every cluster
//	/apis/apps/v1/namespaces/shop/deployments those of one namespace, wherever it is
//	/clusters/oak/api/v1/pods                 one cluster, as it was last seen
//
// labelSelector, fieldSelector, limit and continue mean what they mean everywhere;
// clusters, namespaces and names (comma-separated lists) narrow further, and so does all of Clusterpedia's grammar
// (grammar.go, docs/search.md). A field selector may name any field of the objects, also in lists. Whatever else is asked for is refused,
// not ignored: also a field that objects of the type do not have. Metrics take less of it (checkLive). Objects carry the annotation
// fleet.orrery.dev/cluster, and tables have a column for it.
//
// What objects use, and what uses them, is at the path graph (graph.go), as an ObjectGraph.
//
// What was is asked for in the same places: at=MOMENT has lists and reads answer for a moment, and history=true, deleted=true and changedSince=MOMENT are
// answered with an ObjectHistory, to those who may see the objects.
//
// What is mirrored can be watched, too: resourceVersion is the version of the store, and what changed since is told from its journal.
//
// The answer comes from the mirror. Where that may differ from the truth, a Warning
// header says so: a cluster that is unreachable, a type that is still being read, a type
// that some cluster has in another version or scope. Metrics (metrics.k8s.io) are not mirrored: the clusters are asked for them when somebody
// asks here (live.go, asker.go), and a Warning names those that are left out.
//
// Who may see what: the caller must be allowed to list (or get) the type on the hub, in
// the namespace asked for or in all of them. A right in the hub's namespace N is a right
// to see namespace N of every cluster that N may use (package access); a right in all of
// them shows every cluster. What one cluster serves may be seen by those who may get its
// Cluster, or list some type in all namespaces. Who may see nothing is told so before anything
// is said of a cluster, also of one that there is not.
package search

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/lru"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/store"
)

// Mirror is what search needs of the mirror.
type Mirror interface {
	// Types that are mirrored, by version and scope, and from which clusters.
	Types() []mirror.Type
	// Stored is false until the type was listed in the cluster and handed to the store.
	Stored(cluster string, gr schema.GroupResource) bool
	// Lost is true while what the store had of the type in the cluster is lost.
	Lost(cluster string, gr schema.GroupResource) bool
	Incomplete(cluster string, gr schema.GroupResource) (partly, missing int)
	// Stale says since when a cluster has not been seen.
	Stale(cluster string) (since time.Time, stale bool)
	// Freshness says whether what is known of a type in a cluster is stale, and when the cluster last said something of it.
	Freshness(cluster string, gr schema.GroupResource) (seen time.Time, stale bool)
	// Silence returns why a type of a cluster is not followed, and whether it was listed.
	Silence(cluster string, gr schema.GroupResource) (why string, listed bool)
	// Partial is true when not every object of a type is mirrored of a cluster.
	Partial(cluster string, gr schema.GroupResource) bool
	// WithoutData is true when of some or all Secrets of a cluster only the metadata is known to be mirrored.
	WithoutData(cluster string) bool
}

// Store is what search needs of the store.
type Store interface {
	List(ctx context.Context, q store.Query) (store.Page, error)
	Revisions(ctx context.Context, of store.Object, before int64, limit int) (store.Revisions, error)
	Revision(ctx context.Context, of store.Object, seq int64) (store.Revision, error)
	Deleted(ctx context.Context, q store.Query, hidden func(of *store.Row, ended time.Time) bool, before int64, limit int) (store.Revisions, error)
	Compare(ctx context.Context, q store.Query) (store.Differences, error)
	Count(ctx context.Context, q store.Query) (int64, error)
	Groups(ctx context.Context, q store.Query, by []store.By) ([]store.Group, error)
	Owned(ctx context.Context, cluster string, owners []types.UID) (map[types.UID][]schema.GroupResource, error)
	Version(ctx context.Context) (store.Version, error)
	Since(gr schema.GroupResource, after store.Version) (events []*store.Event, now store.Version, more <-chan struct{}, err error)
}

// Fence says which clusters the hub's namespaces may use.
type Fence interface {
	Allowed(namespace, cluster string) bool
}

// Options of a Search. All of them are required, but for those of which it is said what their zero value means.
type Options struct {
	Mirror Mirror
	Store  Store
	// Ready is false until Clusters, and the Types of the Mirror, are those that were known before the process began: what is missing in them need
	// not be missing. Once true it stays so.
	Ready func() bool
	// Clusters are the names of the fleet's clusters.
	Clusters func() []string
	// Authorize returns an error when the request's user may not do that on the hub.
	Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error
	// Namespaces are those of the hub in which the request's user may do that, for one who may not in all.
	Namespaces func(ctx context.Context, what authorizationv1.ResourceAttributes) ([]string, error)
	// Fence says which clusters the hub's namespaces may use; an error if that is not known.
	Fence func() (Fence, error)
	// Made is when a namespace of the hub was made: what was in clusters before was that of another one of the name; false: it is not known.
	Made func(namespace string) (time.Time, bool)
	// Grants is closed when what Authorize, Namespaces or Fence say may have changed: then there is another.
	Grants func() <-chan struct{}
	// UntoldRights is true if rights may change and Grants is not closed. Then watches ask for them every few seconds.
	UntoldRights bool
	// Generation counts the changes of which clusters a namespace of the hub may use, but for clusters that join or leave. It changes
	// after what Fence returns. nil: it never changes.
	Generation func(namespace string) uint64
	// Live is a cluster to be asked itself; false: there is none of the name.
	Live func(cluster string) (Live, bool)
	// Version is what the fleet says it is; clients compare their own with it.
	Version func() (*version.Info, error)
}

// Names is how the objects of several clusters are told apart.
type Names bool

// Objects keep their names, and may have it in common with others: that is for people. Or namespaces are NAMESPACE@CLUSTER, and names
// of what is in no namespace NAME@CLUSTER: that is for programs, to which two objects of one namespace and name are one.
const (
	Merged    Names = false
	Qualified Names = true
)

// of qualifies a name with its cluster.
func (n Names) of(name, cluster string) string {
	if n == Merged || name == "" {
		return name
	}
	return name + "@" + cluster
}

// qualify takes the cluster out of the names of a path; false: they name two clusters, or none where one must be.
func (at *location) qualify(names Names) bool {
	at.names = names
	if names == Merged {
		return true
	}
	named := &at.name
	if at.namespace != "" {
		named = &at.namespace
	}
	if *named == "" {
		return true
	}
	name, cluster, ok := unqualified(*named)
	if !ok || at.cluster != "" && at.cluster != cluster {
		return false
	}
	*named, at.cluster = name, cluster
	return true
}

// unqualified is the reverse of Qualified.of.
func unqualified(qualified string) (name, cluster string, ok bool) {
	i := strings.LastIndexByte(qualified, '@') // names of roles may have one, clusters' have none
	if i <= 0 || i == len(qualified)-1 {
		return "", "", false
	}
	return qualified[:i], qualified[i+1:], true
}

// Search serves the mirrored objects.
type Search struct {
	Options

	asker   *asker
	longest time.Duration // a query of the store, of one page, may take
	slowest time.Duration // a client that takes none of what a watch writes for so long has gone
	lossy   sync.Map      // kinds (schema.GroupVersionKind) of which a cluster has what protobuf loses
	encoded *lru.Cache    // the JSON of objects that watches were told of, by sharing: most are told to several

	predecessors *predecessors
}

// New returns a Search.
func New(o Options) *Search {
	return &Search{Options: o, asker: newAsker(o.Live), slowest: time.Minute, longest: longestQuery, encoded: lru.New(mostShared), predecessors: newPredecessors()}
}

// Serve answers the request for path, which is escaped and relative to the root of the
// search.
func (s *Search) Serve(w http.ResponseWriter, r *http.Request, path string, names Names) error {
	if !s.Ready() {
		return starting()
	}
	at, ok := locate(path)
	if !ok || !at.qualify(names) {
		return notFound(path)
	}
	if at.GroupVersion() == collectionVersion && at.Resource == collectionResource {
		return s.serveCollections(w, r, at)
	}
	if at.Resource != "" {
		return s.serveObjects(w, r, at)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return refuse(r, at)
	}
	if serve, ok := documents[at.document]; ok {
		return serve(s, w, r, at)
	}
	if err := s.authorizeDocument(r.Context(), at); err != nil {
		return err
	}
	if at.document == "" {
		return answer.JSON(w, http.StatusOK, metav1.RootPaths{Paths: []string{"/api", "/apis", "/clusters/NAME", "/graph", "/healthz", "/livez", "/readyz", "/search", "/version"}})
	}
	return s.discover(w, r, at)
}

// documents are the paths of one segment that are neither objects nor discovery. A test has a row
// for each of them: it says that nothing of the request is parsed before the caller is authorized.
var documents = map[string]func(s *Search, w http.ResponseWriter, r *http.Request, at location) error{
	"search":  (*Search).serveSearch,
	"graph":   (*Search).serveGraph,
	"healthz": (*Search).serveHealth,
	"livez":   (*Search).serveHealth,
	"readyz":  (*Search).serveHealth,
	"version": (*Search).serveVersion,
}

// serveVersion answers with the version of the hub.
func (s *Search) serveVersion(w http.ResponseWriter, r *http.Request, at location) error {
	if err := s.authorizeDocument(r.Context(), at); err != nil {
		return err
	}
	v, err := s.Version()
	if err != nil {
		return fmt.Errorf("ask the hub for its version: %w", err)
	}
	return answer.JSON(w, http.StatusOK, v)
}

// authorizeDocument returns an error if the cluster of a location is not in the fleet, or if the
// caller may not know of the cluster.
func (s *Search) authorizeDocument(ctx context.Context, at location) error {
	if at.cluster == "" {
		return nil
	}
	if err := s.authorizeCluster(ctx, at.cluster); err != nil {
		return err
	}
	return s.checkClusters(at, nil)
}

// authorizeCluster asks the hub whether the caller may know what there is in a cluster. It asks the
// same whether there is such a cluster or not.
func (s *Search) authorizeCluster(ctx context.Context, name string) error {
	denied := s.authorizeGet(ctx, name)
	if !apierrors.IsForbidden(denied) {
		return denied
	}
	for group, versions := range s.catalogue("") {
		for v, types := range versions {
			for _, t := range types {
				err := s.Authorize(ctx, authorizationv1.ResourceAttributes{Verb: "list", Group: group, Version: v, Resource: t.Resource})
				if !apierrors.IsForbidden(err) {
					return err
				}
			}
		}
	}
	return denied
}

// authorizeGet asks the hub whether the caller may get a Cluster.
func (s *Search) authorizeGet(ctx context.Context, name string) error {
	return s.Authorize(ctx, authorizationv1.ResourceAttributes{
		Verb: "get", Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters", Name: name,
	})
}

// location is what a path names: a document, or, when Resource is set, objects.
type location struct {
	cluster  string // "": all
	document string // "", api, apis, or one of documents
	schema.GroupVersionResource
	namespace, name, subresource string
	watch                        bool
	names                        Names
	shown                        *conversion // nil: objects are shown as what they are
	own                          bool        // those of other versions are asked for by themselves, also where these are interchangeable
}

// locate parses a path. It knows no types: whether they exist is for others to say.
func locate(path string) (location, bool) {
	var at location
	segments, ok := split(path)
	if !ok {
		return at, false
	}
	if len(segments) >= 2 && segments[0] == "clusters" {
		at.cluster, segments = segments[1], segments[2:]
	}
	if len(segments) == 0 {
		return at, true
	}
	at.document, segments = segments[0], segments[1:]
	if _, ok := documents[at.document]; ok {
		return at, len(segments) == 0
	}
	switch at.document {
	case "api":
	case "apis":
		if len(segments) > 0 {
			at.Group, segments = segments[0], segments[1:]
		}
	default:
		return at, false
	}
	if len(segments) == 0 {
		return at, true
	}
	at.Version, segments = segments[0], segments[1:]
	if len(segments) > 0 && segments[0] == "watch" {
		at.watch, segments = true, segments[1:]
	}
	// Namespaces are objects too, with subresources of two known names.
	if len(segments) >= 3 && segments[0] == "namespaces" && segments[2] != "status" && segments[2] != "finalize" {
		at.namespace, segments = segments[1], segments[2:]
	}
	for i, segment := range segments {
		switch i {
		case 0:
			at.Resource = segment
		case 1:
			at.name = segment
		case 2:
			at.subresource = segment
		}
	}
	return at, true
}

// split unescapes the segments of a path; none may be empty.
func split(path string) ([]string, bool) {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil, true
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		plain, err := url.PathUnescape(s)
		if err != nil || plain == "" {
			return nil, false
		}
		segments[i] = plain
	}
	return segments, true
}
