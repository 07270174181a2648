package search

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
)

// metricsVersion is the API of kubectl top, metrics.k8s.io. Its values describe the last seconds
// and cannot be watched. So the hub does not mirror them, but asks all clusters in parallel during
// a request.
var metricsVersion = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

// metricsTypes are the types of metrics.k8s.io.
var metricsTypes = []member.API{
	{GroupVersionKind: metricsVersion.WithKind("NodeMetrics"), Resource: "nodes", Singular: "node"},
	{GroupVersionKind: metricsVersion.WithKind("PodMetrics"), Resource: "pods", Singular: "pod", Namespaced: true},
}

// metricsShapes has the Go types of metrics, from which checkFields knows the fields that can be
// selected.
var metricsShapes = map[schema.GroupVersionKind]reflect.Type{
	metricsVersion.WithKind("NodeMetrics"): reflect.TypeFor[struct {
		usage
		Timestamp metav1.Time     `json:"timestamp"`
		Window    metav1.Duration `json:"window"`
	}](),
	metricsVersion.WithKind("PodMetrics"): reflect.TypeFor[struct {
		Timestamp  metav1.Time     `json:"timestamp"`
		Window     metav1.Duration `json:"window"`
		Containers []struct {
			usage
			Name string `json:"name"`
		} `json:"containers"`
	}](),
}

type usage struct {
	Usage corev1.ResourceList `json:"usage"`
}

// live returns the type of a location if it is one of metrics, which the hub requests from the
// clusters and does not mirror. It returns false for any other type.
func (s *Search) live(at location) (*member.API, bool) {
	i := slices.IndexFunc(metricsTypes, func(a member.API) bool { return a.GroupVersionResource() == at.GroupVersionResource })
	if i < 0 {
		return nil, false
	}
	return &metricsTypes[i], true
}

// serves returns whether a cluster has a type: Present, Absent or Unknown. It is Unknown for a
// cluster that is not in the fleet, and before the cluster has reported about the type.
func (s *Search) serves(cluster string, gvr schema.GroupVersionResource) presence.Presence {
	c, ok := s.Live(cluster)
	if !ok {
		return presence.Unknown
	}
	return c.Serves(gvr)
}

// addLive replaces the types of the group metrics.k8s.io in c by those that the cluster, or any for
// "", may serve. A type is left out only if all these clusters are known to lack it: clients do not
// ask for types that discovery lacks.
func (c catalogue) addLive(s *Search, cluster string) {
	delete(c, metricsVersion.Group)
	clusters := s.Clusters()
	if cluster != "" {
		clusters = []string{cluster}
	}
	for _, api := range metricsTypes {
		if slices.ContainsFunc(clusters, func(name string) bool { return s.serves(name, api.GroupVersionResource()) != presence.Absent }) {
			if c[metricsVersion.Group] == nil {
				c[metricsVersion.Group] = map[string][]member.API{}
			}
			c[metricsVersion.Group][metricsVersion.Version] = append(c[metricsVersion.Group][metricsVersion.Version], api)
		}
	}
}

// checkLive returns an error (400) if a request for metrics has parameters that only mirrored types
// take. The same holds for parameters with names or namespaces that the path has already, and for
// names that cannot be part of a path. limit is accepted, because clients send it by default, and
// has no effect.
func (p *params) checkLive(at location) error {
	if p.watch || at.watch || p.next != "" || p.version != "" && p.version != "0" || !p.asked.empty() || p.group != nil || p.explain ||
		p.moments() > 0 || p.all || p.ordered || p.offset > 0 || p.remaining != nil && *p.remaining || p.owner.uid != "" || p.owner.name != "" || p.owner.steps > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%s are not mirrored, the clusters are asked for them: they are listed and read by clusters, namespaces, names, "+
			"labels and fields, and not watched, ordered, counted or searched", at.GroupResource()))
	}
	if at.name != "" && p.names != nil {
		return apierrors.NewBadRequest("parameter names: the path names the object already")
	}
	if at.namespace != "" && p.namespaces != nil {
		return apierrors.NewBadRequest("parameter namespaces: the path names the namespace already")
	}
	for _, segment := range append([]string{at.name}, append(slices.Clone(p.namespaces), at.namespace)...) {
		// Names and namespaces become parts of a path.
		if why := content.IsPathSegmentName(segment); segment != "" && len(why) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("%q is no name: it %s", segment, strings.Join(why, ", ")))
		}
	}
	return nil
}

// serveLive answers a request for metrics of the type api with the present values from the
// clusters. The hub asks them with its own credentials. The caller needs the same rights on the hub
// as for mirrored objects, and sees the same namespaces of the same clusters.
//
// Clusters that fail or have no metrics server are left out with a warning. The error is 503 if no
// cluster answers, or if a cluster that failed may have the one requested object. It is 404 if no
// cluster has a metrics server.
func (s *Search) serveLive(w http.ResponseWriter, r *http.Request, at location, p params, api *member.API) error {
	if err := p.checkLive(at); err != nil {
		return err
	}
	as, err := formsOf(r).first(func(f form) bool { return p.form(f).can(api.GroupVersionKind) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchTimeout)
	defer cancel()
	verb := "list"
	if at.name != "" {
		verb, p.names = "get", []string{at.name}
	}
	if err := s.qualifyLive(at, *api, &p); err != nil {
		return err
	}
	seen, err := s.authorize(ctx, at, p, verb)
	if err != nil {
		return err
	}
	if err := seen.check(at, p); err != nil {
		return err
	}
	k := kind{API: *api, others: map[string][]string{}, scopes: map[bool][]string{}}
	if err := s.checkClusters(at, p.clusters); err != nil {
		return err
	}
	switch {
	case at.namespace != "" && !api.Namespaced:
		return notFound(at.Resource + " in a namespace")
	case at.namespace == "" && at.name != "" && api.Namespaced:
		return notFound(at.Resource + " outside of namespaces")
	case at.namespace != "":
		p.namespaces = []string{at.namespace}
	}
	if err := s.checkFields(ctx, at, k, p.fields); err != nil {
		return err
	}
	if at.cluster != "" {
		p.clusters = []string{at.cluster}
	} else if p.clusters == nil {
		p.clusters = s.Clusters()
	}
	var without []string
	for _, cluster := range slices.Compact(slices.Sorted(slices.Values(p.clusters))) {
		if s.serves(cluster, at.GroupVersionResource) == presence.Absent {
			without = append(without, cluster)
		} else {
			k.clusters = append(k.clusters, cluster)
		}
	}
	k.scopes[api.Namespaced] = k.clusters
	if err := seen.narrow(&k); err != nil {
		return err
	}
	if seen.fence != nil {
		without = slices.DeleteFunc(without, seen.closed)
	}
	q := store.Query{
		Group: at.Group, Version: at.Version, Resource: at.Resource, Namespaces: p.namespaces, Names: p.names, Clusters: k.clusters,
		Labels: p.labels, Fields: p.fields, Scopes: seen.scopes(at, k),
	}
	p.into(&q)
	found := s.askClusters(ctx, api, q)
	defer s.asker.held.Add(-found.size)
	if err := r.Context().Err(); err != nil {
		return err // the client has disconnected
	}
	without = append(without, found.without...)
	switch {
	case len(found.failed) > 0 && (len(found.failed)+len(found.without) == len(k.clusters) || at.name != "" && len(found.rows) < 2):
		return notKnown(at, found.failed)
	case len(found.without) == len(k.clusters):
		return noMetrics(at)
	}
	warnings := found.failed
	if len(without) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s are served by no metrics server in %s", at.GroupResource(), enumerate(without)))
	}
	if seen.refused != nil {
		warnings = append(s.warnings(at, kind{}, seen), warnings...)
	}
	tell(w, warnings)
	enc, err := s.encoder(ctx, p.form(as), at, k, p.include, shown{names: at.names})
	if err != nil {
		return err
	}
	if at.name != "" {
		row, err := single(at, found.rows)
		if err != nil {
			return err
		}
		return enc.one(w, row)
	}
	return s.list(ctx, w, &given{rows: found.rows}, enc, at.Resource)
}

// notKnown returns the error (503) that the answer is unknown, because clusters that may have the
// objects did not answer. failed has a reason for each; the first are in the message, and the
// others are counted.
func notKnown(at location, failed []string) error {
	if len(failed) > named {
		failed = append(failed[:named:named], fmt.Sprintf("%d more are left out", len(failed)-named))
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("%s are asked of the clusters: %s. Ask again in a moment, or a cluster that answers (kubectl --context NAME)",
		at.GroupResource(), strings.Join(failed, "; ")))
}

// noMetrics returns the error (404) that none of the requested clusters has a metrics server.
func noMetrics(at location) error {
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find the requested resource: %s are asked of the clusters, and no cluster asked for has a metrics server", at.GroupResource()))
}

// qualifyLive removes the clusters from names NAME@CLUSTER in the field selector of a request for
// metrics, and sets p.clusters to them. It does nothing for Merged names. Its errors are those of
// qualifyNamed (400).
func (s *Search) qualifyLive(at location, api member.API, p *params) error {
	if at.names == Merged {
		return nil
	}
	named := "metadata.name"
	if api.Namespaced {
		named = "metadata.namespace"
	}
	return s.qualifyNamed(at, p, func(path string) bool { return path == named })
}

// gathered is what askClusters got from the clusters.
type gathered struct {
	rows    []store.Row
	size    int64    // bytes of the rows, which count in asker.held
	failed  []string // for each cluster that failed, a text with the reason
	without []string // clusters without a metrics server
}

// askClusters asks all q.Clusters in parallel for metrics of the type api, and returns the rows
// that q selects. It takes at most liveBudget; clusters without an answer until then are in failed.
// The caller must subtract the size of the result from asker.held when the rows are no longer used.
func (s *Search) askClusters(ctx context.Context, api *member.API, q store.Query) (g gathered) {
	ctx, cancel := context.WithTimeout(ctx, liveBudget)
	defer cancel()
	asked := make([][]*inquiry, len(q.Clusters))
	for i, cluster := range q.Clusters {
		for _, namespace := range namespacesOf(q, api, cluster) {
			asked[i] = append(asked[i], s.asker.ask(ctx, question{cluster: cluster, api: api, namespace: namespace}))
		}
	}
	for i, cluster := range q.Clusters {
		rows, size, err := s.answersOf(ctx, asked[i], q)
		if err == nil && g.size+size > s.asker.most.request {
			err = errTooMuch
		}
		switch {
		case errors.Is(err, errNotServed):
			g.without = append(g.without, cluster)
		case err != nil:
			g.failed = append(g.failed, fmt.Sprintf("cluster %s is left out: %v", cluster, err))
		}
		if err != nil {
			s.asker.held.Add(-size)
			continue
		}
		g.rows, g.size = append(g.rows, rows...), g.size+size
	}
	return g
}

// answersOf waits for all inquiries to one cluster and returns the rows that q selects. After an
// error the rows are incomplete; err is the first error. size is the number of bytes added to
// asker.held, also after an error. The caller subtracts it.
func (s *Search) answersOf(ctx context.Context, asked []*inquiry, q store.Query) (rows []store.Row, size int64, err error) {
	for _, r := range asked {
		found, failed := s.asker.wait(ctx, r)
		if err == nil {
			err = failed
		}
		if err != nil {
			continue // and not return: wait must be called for every inquiry
		}
		for _, row := range found {
			if !q.Selects(&row) {
				continue
			}
			rows, size = append(rows, row), size+int64(len(row.Body))
			if s.asker.held.Add(int64(len(row.Body))) > s.asker.most.together {
				err = errFull
				break
			}
		}
	}
	return rows, size, err
}

// namespacesOf returns the namespaces for which a cluster is asked one by one, sorted. It returns
// [""], which is one question for all namespaces, if the type has no namespaces, the query names
// none, or more than liveNamespaces.
func namespacesOf(q store.Query, api *member.API, cluster string) []string {
	namespaces := q.Namespaces
	if q.Scopes != nil {
		namespaces = q.Scopes[cluster]
	}
	if !api.Namespaced || len(namespaces) == 0 || len(namespaces) > liveNamespaces {
		return []string{""}
	}
	return slices.Compact(slices.Sorted(slices.Values(namespaces)))
}

// given is a source of rows that are all in memory: those of metrics.
type given struct{ rows []store.Row }

// next implements source. The first page has all rows.
func (g *given) next(context.Context) (store.Page, error) {
	page := store.Page{Rows: g.rows}
	g.rows = nil
	return page, nil
}

// tail implements source. The list has no version, because the rows are not from the store.
func (g *given) tail() (metav1.ListMeta, map[string]any) { return metav1.ListMeta{}, nil }
