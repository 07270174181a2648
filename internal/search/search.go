// Package search answers reads about the whole fleet in the shape of the Kubernetes API:
// discovery, lists, reads and watches of the mirrored objects of every cluster. Plain kubectl
// works on all clusters at once.
//
//	/api/v1/pods                              every pod of every cluster
//	/apis/apps/v1/namespaces/shop/deployments those of one namespace, in all clusters
//	/clusters/oak/api/v1/pods                 one cluster, as it was last seen
//
// The parameters labelSelector, fieldSelector, limit and continue mean what they mean in
// Kubernetes. The parameters clusters, namespaces and names (comma-separated lists) narrow the
// answer further, and so does the grammar of Clusterpedia (grammar.go, docs/search.md). A field
// selector may name any field of the objects, also in lists. Every other parameter is refused
// and not ignored, and so is a field that objects of the type do not have. Metrics take fewer
// parameters (checkLive). Objects carry the annotation fleet.orrery.dev/cluster, and tables
// have a column for it.
//
// The path graph (graph.go) returns an ObjectGraph: what objects use, and what uses them.
//
// The same paths answer for the past. With at=MOMENT, lists and reads answer for a moment. With
// history=true, deleted=true or changedSince=MOMENT, the answer is an ObjectHistory, for
// callers that may see the objects.
//
// Mirrored objects can be watched: resourceVersion is the version of the store, and the journal
// of the store has the changes since that version.
//
// The answer comes from the mirror. A Warning header says where the answer may differ from the
// clusters: a cluster is unreachable, a type is still being read, or a cluster has the type in
// another version or scope. Metrics (metrics.k8s.io) are not mirrored: the hub asks the
// clusters for them during the request (live.go, asker.go), and a Warning names the clusters
// that are left out.
//
// Permissions: the caller must be allowed to list (or get) the type on the hub, in the
// namespace of the request or in all namespaces. A right in namespace N of the hub is a right
// to see namespace N of every cluster that N may use (package access). A right in all
// namespaces shows every cluster. The types that a cluster serves are visible to callers that
// may get the Cluster or list some type in all namespaces. A caller that may see nothing is
// refused before the answer says anything about a cluster, also for a cluster that does not
// exist.
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

// Mirror is what this package needs of the mirror, which keeps the objects of all clusters in the
// store, the hub's database.
type Mirror interface {
	// Types returns the mirrored types, each with its clusters. A type with several API versions or
	// scopes (namespaced or not) has several entries.
	Types() []mirror.Type
	// Stored reports whether all objects of the type in the cluster were listed once, and handed to
	// the store.
	Stored(cluster string, gr schema.GroupResource) bool
	// Lost reports whether the store has lost the objects of the type in the cluster.
	Lost(cluster string, gr schema.GroupResource) bool
	// Incomplete returns how many objects of the type in the cluster are stored without a part
	// (partly), and how many are not stored at all (missing).
	Incomplete(cluster string, gr schema.GroupResource) (partly, missing int)
	// Stale returns whether a cluster is unreachable, and since when; zero: it was never reached.
	Stale(cluster string) (since time.Time, stale bool)
	// Freshness returns whether the mirrored objects of a type in a cluster are stale, and when
	// the cluster last reported about the type.
	Freshness(cluster string, gr schema.GroupResource) (seen time.Time, stale bool)
	// Silence returns why a type of a cluster is not watched at present, "" if it is, and whether
	// it could be listed.
	Silence(cluster string, gr schema.GroupResource) (why string, listed bool)
	// Partial reports whether only a part of the objects of a type is mirrored from a cluster.
	Partial(cluster string, gr schema.GroupResource) bool
	// WithoutData reports whether only the metadata of some or all Secrets of a cluster is known
	// to be mirrored.
	WithoutData(cluster string) bool
}

// Store is what this package needs of the store, which is the database of the mirrored objects and
// their history.
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

// Fence says which clusters the namespaces of the hub may use (the objects ClusterAccess).
type Fence interface {
	Allowed(namespace, cluster string) bool
}

// Options are what a Search needs of the hub. All fields are required, except those whose comments
// say what the zero value means.
type Options struct {
	Mirror Mirror
	Store  Store
	// Ready reports whether Clusters and Mirror.Types already have everything that was known before
	// the process began. Before that, a missing entry proves nothing. Once true, Ready stays true.
	Ready func() bool
	// Clusters returns the names of the clusters of the fleet.
	Clusters func() []string
	// Authorize returns nil if the user of ctx may do what on the hub, else a Forbidden error. Any
	// other error means that the right could not be checked.
	Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error
	// Namespaces returns the namespaces of the hub in which the user of ctx may do what, as far as
	// RBAC says. It is for users that may not do what in all namespaces.
	Namespaces func(ctx context.Context, what authorizationv1.ResourceAttributes) ([]string, error)
	// Fence returns the present Fence, or an error if it is not known yet.
	Fence func() (Fence, error)
	// Made returns when a namespace of the hub was created; false: the time is not known. Objects
	// that clusters had in the namespace before belonged to an earlier namespace of the name.
	Made func(namespace string) (time.Time, bool)
	// Grants returns a channel that is closed when the results of Authorize, Namespaces or Fence
	// may have changed. After that Grants returns another channel.
	Grants func() <-chan struct{}
	// UntoldRights is true if the hub has other authorizers than RBAC. Then rights may change
	// without a signal by Grants, and watches ask for the rights every few seconds.
	UntoldRights bool
	// Generation counts the changes of the clusters that a namespace of the hub may use, except
	// clusters that join or leave. The count changes after the result of Fence. nil: it never
	// changes.
	Generation func(namespace string) uint64
	// Live returns the member cluster with the name, for metrics; false if there is none.
	Live func(cluster string) (Live, bool)
	// Version returns the Kubernetes version of the hub, which the fleet reports as its own. Clients
	// compare it with theirs.
	Version func() (*version.Info, error)
}

// Names says how the names in an answer distinguish objects of several clusters: Merged or
// Qualified.
type Names bool

// With Merged, objects keep their names, and several may have the same name. This is for people.
// With Qualified, namespaces are NAMESPACE@CLUSTER, and names of cluster-scoped objects are
// NAME@CLUSTER. This is for programs, which need unique names.
const (
	Merged    Names = false
	Qualified Names = true
)

// of returns the name as answers show it: NAME@CLUSTER if n is Qualified, else unchanged. "" stays
// "".
func (n Names) of(name, cluster string) string {
	if n == Merged || name == "" {
		return name
	}
	return name + "@" + cluster
}

// qualify sets at.names. If names is Qualified, it also moves the cluster from the namespace or
// name in the path, such as shop@oak, to at.cluster. It returns false if the path names two
// clusters, or if the namespace or name has no cluster.
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

// unqualified splits NAME@CLUSTER into the name and the cluster. ok is false if one of them is
// missing.
func unqualified(qualified string) (name, cluster string, ok bool) {
	// Names of roles may contain @, names of clusters may not.
	i := strings.LastIndexByte(qualified, '@')
	if i <= 0 || i == len(qualified)-1 {
		return "", "", false
	}
	return qualified[:i], qualified[i+1:], true
}

// Search answers requests for the mirrored objects of all clusters. New returns one, and its
// exported methods may be called from several goroutines.
type Search struct {
	Options

	asker *asker
	// longest limits one query of the store for one page.
	longest time.Duration
	// slowest is the time after which a client that does not read its watch is disconnected.
	slowest time.Duration
	// lossy are kinds (schema.GroupVersionKind) with objects that lose fields in protobuf.
	lossy sync.Map
	// encoded is the JSON of objects that watches have sent, by sharing: most objects are sent by
	// several watches.
	encoded *lru.Cache

	predecessors *predecessors
}

// New returns a Search with the given options. It starts no goroutine.
func New(o Options) *Search {
	return &Search{Options: o, asker: newAsker(o.Live), slowest: time.Minute, longest: longestQuery, encoded: lru.New(mostShared), predecessors: newPredecessors()}
}

// Serve answers a request. path is its path below the root of the fleet, such as /api/v1/pods, with
// escapes. names says how names of clusters appear. A watch is served until it ends.
//
// If Serve returns an error, nothing was written, and the caller must answer with it. If an answer
// breaks off later, Serve panics with http.ErrAbortHandler. Until Ready is true, every request gets
// an error (503).
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

// documents has the functions that answer paths which are neither objects nor discovery, by the
// one segment of the path. A test checks for each that no part of the request is parsed before the
// caller is authorized.
var documents = map[string]func(s *Search, w http.ResponseWriter, r *http.Request, at location) error{
	"search":  (*Search).serveSearch,
	"graph":   (*Search).serveGraph,
	"healthz": (*Search).serveHealth,
	"livez":   (*Search).serveHealth,
	"readyz":  (*Search).serveHealth,
	"version": (*Search).serveVersion,
}

// serveVersion answers the path version with the Kubernetes version of the hub.
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

// authorizeDocument checks a request for the discovery or version of one cluster. It returns an
// error if the fleet does not have the cluster, or the caller may not know its types. It returns
// nil if the path has no cluster.
func (s *Search) authorizeDocument(ctx context.Context, at location) error {
	if at.cluster == "" {
		return nil
	}
	if err := s.authorizeCluster(ctx, at.cluster); err != nil {
		return err
	}
	return s.checkClusters(at, nil)
}

// authorizeCluster returns an error if the caller may not know the types of a cluster: if it may
// neither get the Cluster object nor list any type in all namespaces. The same rights are checked
// for a cluster that does not exist.
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

// authorizeGet returns an error if the caller may not get the Cluster object with the name.
func (s *Search) authorizeGet(ctx context.Context, name string) error {
	return s.Authorize(ctx, authorizationv1.ResourceAttributes{
		Verb: "get", Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters", Name: name,
	})
}

// location is a parsed path. It names objects if Resource is set, and else a document or discovery.
type location struct {
	cluster  string // "": all
	document string // "", api, apis, or one of documents
	schema.GroupVersionResource
	namespace, name, subresource string
	watch                        bool
	names                        Names
	shown                        *conversion // nil: objects are not converted
	// own is true if the request lists each API version of a type by itself. Otherwise a list also has
	// the objects in versions that differ only in the name.
	own bool
}

// locate parses a path below the root of the fleet. It does not check that the types exist, and
// ignores segments after the subresource. false: no path of the fleet has this form.
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
	// A path such as namespaces/shop/status names a Namespace, and not a type status in it: the
	// two subresources of Namespaces are status and finalize.
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

// split returns the segments of a path without their escapes; none for the root. Slashes at the
// ends are ignored. It returns false if a segment is empty or has an invalid escape.
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
