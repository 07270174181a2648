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
// parameters (checkLive). Objects carry the annotation fleet.orrery.dev/cluster, and tables have
// a column for it.
//
// The path graph (graph.go) returns an ObjectGraph: what objects use, and what uses them.
//
// The same paths answer for the past. With at=MOMENT, lists and reads answer for a moment. With
// history=true, deleted=true or changedSince=MOMENT, the answer is an ObjectHistory, for callers
// that may see the objects.
//
// Mirrored objects can be watched: resourceVersion is the version of the store, and the journal
// of the store has the changes since that version.
//
// The answer comes from the mirror. A Warning header says where the answer may differ from the
// clusters: a cluster is unreachable, a type is still being read, or a cluster has the type in
// another version or scope. Metrics (metrics.k8s.io) are not mirrored: the hub asks the clusters
// for them during the request (live.go, asker.go), and a Warning names the clusters that are
// left out.
//
// Permissions: the caller must be allowed to list (or get) the type on the hub, in the namespace
// of the request or in all namespaces. A right in namespace N of the hub is a right to see
// namespace N of every cluster that N may use (package access). A right in all namespaces shows
// every cluster. The types that a cluster serves are visible to callers that may get the Cluster
// or list some type in all namespaces. A caller that may see nothing is refused before the
// answer says anything about a cluster, also for a cluster that does not exist.
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
	// Types returns the mirrored types, by version and scope, each with its clusters.
	Types() []mirror.Type
	// Stored is false until the type was listed in the cluster and handed to the store.
	Stored(cluster string, gr schema.GroupResource) bool
	// Lost is true while the store has lost the objects of the type in the cluster.
	Lost(cluster string, gr schema.GroupResource) bool
	Incomplete(cluster string, gr schema.GroupResource) (partly, missing int)
	// Stale returns whether a cluster is unreachable, and since when.
	Stale(cluster string) (since time.Time, stale bool)
	// Freshness returns whether the mirrored objects of a type in a cluster are stale, and when
	// the cluster last reported about the type.
	Freshness(cluster string, gr schema.GroupResource) (seen time.Time, stale bool)
	// Silence returns why a type of a cluster is not watched, and whether it was listed.
	Silence(cluster string, gr schema.GroupResource) (why string, listed bool)
	// Partial reports whether only a part of the objects of a type is mirrored from a cluster.
	Partial(cluster string, gr schema.GroupResource) bool
	// WithoutData reports whether only the metadata of some or all Secrets of a cluster is known
	// to be mirrored.
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

// Fence decides which clusters the namespaces of the hub may use.
type Fence interface {
	Allowed(namespace, cluster string) bool
}

// Options of a Search. All fields are required, except those whose comments define the zero
// value.
type Options struct {
	Mirror Mirror
	Store  Store
	// Ready is false until Clusters and the Types of the Mirror include all that were known
	// before the process began. Until then a missing entry proves nothing. Once true, Ready
	// stays true.
	Ready func() bool
	// Clusters returns the names of the clusters of the fleet.
	Clusters func() []string
	// Authorize returns an error if the user of the request may not do this on the hub.
	Authorize func(ctx context.Context, what authorizationv1.ResourceAttributes) error
	// Namespaces returns the namespaces of the hub in which the user of the request may do this.
	// It is for users that may not do it in all namespaces.
	Namespaces func(ctx context.Context, what authorizationv1.ResourceAttributes) ([]string, error)
	// Fence returns the Fence, or an error if it is not known.
	Fence func() (Fence, error)
	// Made returns when a namespace of the hub was created. What clusters had in the namespace
	// before belonged to an earlier namespace of the name. false: the time is not known.
	Made func(namespace string) (time.Time, bool)
	// Grants returns a channel that is closed when the results of Authorize, Namespaces or Fence
	// may have changed. After that Grants returns another channel.
	Grants func() <-chan struct{}
	// UntoldRights is true if rights may change without Grants being closed. Then watches ask
	// for the rights every few seconds.
	UntoldRights bool
	// Generation counts the changes of the clusters that a namespace of the hub may use, except
	// clusters that join or leave. The count changes after the result of Fence. nil: it never
	// changes.
	Generation func(namespace string) uint64
	// Live returns the cluster to be asked directly; false if no cluster has the name.
	Live func(cluster string) (Live, bool)
	// Version returns the version that the fleet reports. Clients compare it with their own.
	Version func() (*version.Info, error)
}

// Names is how names distinguish objects of several clusters.
type Names bool

// With Merged, objects keep their names, and several may have the same name: this is for people.
// With Qualified, namespaces are NAMESPACE@CLUSTER, and names of objects without a namespace are
// NAME@CLUSTER: this is for programs, which take two objects with one namespace and name for
// one.
const (
	Merged    Names = false
	Qualified Names = true
)

// of returns the name, qualified with its cluster if n is Qualified.
func (n Names) of(name, cluster string) string {
	if n == Merged || name == "" {
		return name
	}
	return name + "@" + cluster
}

// qualify moves the cluster from the name in a path to at.cluster. It returns false if the path
// names two clusters, or no cluster where Qualified names need one.
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
	// Names of roles may contain @, names of clusters may not.
	i := strings.LastIndexByte(qualified, '@')
	if i <= 0 || i == len(qualified)-1 {
		return "", "", false
	}
	return qualified[:i], qualified[i+1:], true
}

// Search serves the mirrored objects.
type Search struct {
	Options

	asker *asker
	// longest limits one query of the store for one page.
	longest time.Duration
	// slowest is the time after which a client that reads nothing of its watch is disconnected.
	slowest time.Duration
	// lossy are kinds (schema.GroupVersionKind) with objects that lose fields in protobuf.
	lossy sync.Map
	// encoded is the JSON of objects that watches sent, by sharing: several watches send most.
	encoded *lru.Cache

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

// documents are the paths of one segment that are neither objects nor discovery. A test has a
// row for each of them, which checks that no part of the request is parsed before the caller is
// authorized.
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
// caller may not know the cluster.
func (s *Search) authorizeDocument(ctx context.Context, at location) error {
	if at.cluster == "" {
		return nil
	}
	if err := s.authorizeCluster(ctx, at.cluster); err != nil {
		return err
	}
	return s.checkClusters(at, nil)
}

// authorizeCluster returns an error if the caller may not know the contents of a cluster. The
// questions to the hub are the same for a cluster that does not exist.
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

// authorizeGet returns an error if the caller may not get a Cluster.
func (s *Search) authorizeGet(ctx context.Context, name string) error {
	return s.Authorize(ctx, authorizationv1.ResourceAttributes{
		Verb: "get", Group: clusterv1alpha1.GroupVersion.Group, Version: clusterv1alpha1.GroupVersion.Version, Resource: "clusters", Name: name,
	})
}

// location is what a path names: a document or, if Resource is set, objects.
type location struct {
	cluster  string // "": all
	document string // "", api, apis, or one of documents
	schema.GroupVersionResource
	namespace, name, subresource string
	watch                        bool
	names                        Names
	shown                        *conversion // nil: objects are shown in their own type
	// Interchangeable versions are not merged: the request lists each version separately.
	own bool
}

// locate parses a path. It does not check that the types exist. false: the path is invalid.
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
	// Namespaces are objects too. They have two subresources, with known names.
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

// split returns the unescaped segments of a path; false if one of them is empty or invalid.
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
