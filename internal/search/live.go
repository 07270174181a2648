package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// Live is a cluster that is asked itself, for what is never mirrored.
type Live interface {
	// Reachable is false once the cluster has not answered for a while.
	Reachable() bool
	// Serves says whether it is known to have a type.
	Serves(gvr schema.GroupVersionResource) bool
	// Dynamic is a client of the cluster.
	Dynamic() dynamic.Interface
}

// metricsVersion is the API that kubectl top asks. What it says is of the last seconds and changes all the time, it cannot be watched, and
// so is not mirrored: the clusters are asked, all at once.
var metricsVersion = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

var metricsTypes = []member.API{
	{GroupVersionKind: metricsVersion.WithKind("NodeMetrics"), Resource: "nodes", Singular: "node"},
	{GroupVersionKind: metricsVersion.WithKind("PodMetrics"), Resource: "pods", Singular: "pod", Namespaced: true},
}

const (
	liveTime  = 5 * time.Second // a cluster may take to answer
	liveAtOne = 32              // clusters are asked at once for a request
)

// live says whether a location is of what clusters are asked for.
func (s *Search) live(at location) (member.API, bool) {
	i := slices.IndexFunc(metricsTypes, func(a member.API) bool { return a.GroupVersionResource() == at.GroupVersionResource })
	if i < 0 || s.mirrors(at.GroupVersionResource) {
		return member.API{}, false
	}
	return metricsTypes[i], true
}

// serves says whether a cluster is known to have a type.
func (s *Search) serves(cluster string, gvr schema.GroupVersionResource) bool {
	c, ok := s.Live(cluster)
	return ok && c.Serves(gvr)
}

// addLive adds what clusters are asked for, where one of them serves it.
func (c catalogue) addLive(s *Search, cluster string) {
	if c[metricsVersion.Group] != nil {
		return
	}
	clusters := s.Clusters()
	if cluster != "" {
		clusters = []string{cluster}
	}
	for _, api := range metricsTypes {
		if slices.ContainsFunc(clusters, func(name string) bool { return s.serves(name, api.GroupVersionResource()) }) {
			if c[metricsVersion.Group] == nil {
				c[metricsVersion.Group] = map[string][]member.API{}
			}
			c[metricsVersion.Group][metricsVersion.Version] = append(c[metricsVersion.Group][metricsVersion.Version], api)
		}
	}
}

// checkLive refuses what only the store can answer. A limit is taken, since clients page by one unasked, and as in a cluster the answer is whole.
func (p *params) checkLive(at location) error {
	if p.watch || at.watch || p.next != "" || p.version != "" && p.version != "0" || !p.asked.empty() || p.group != nil || p.explain ||
		p.moments() > 0 || p.all || p.ordered || p.offset > 0 || p.owner.uid != "" || p.owner.name != "" || p.owner.steps > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%s are not mirrored, the clusters are asked for them: they are listed and read by clusters, namespaces, names, "+
			"labels and fields, and not watched, ordered, counted or searched", at.GroupResource()))
	}
	return nil
}

// serveLive answers with what the clusters say now. The hub asks them as itself, after the same rights on the hub as for what is mirrored: it
// shows the same namespaces of the same clusters.
func (s *Search) serveLive(w http.ResponseWriter, r *http.Request, at location, p params, api member.API) error {
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
	if err := s.qualifyLive(at, api, &p); err != nil {
		return err
	}
	seen, err := s.authorize(ctx, at, p, verb)
	if err != nil {
		return err
	}
	if err := seen.check(at, p); err != nil {
		return err
	}
	k := kind{API: api, others: map[string][]string{}, scopes: map[bool][]string{}}
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
	for _, cluster := range p.clusters {
		if s.serves(cluster, at.GroupVersionResource) {
			k.clusters = append(k.clusters, cluster)
		} else {
			without = append(without, cluster)
		}
	}
	k.scopes[api.Namespaced] = k.clusters
	if err := seen.narrow(&k); err != nil {
		return err
	}
	if seen.fence != nil {
		without = slices.DeleteFunc(without, seen.closed)
	}
	if len(k.clusters) == 0 {
		return notFound(at.Resource + " of " + at.GroupVersion().String())
	}
	q := store.Query{
		Group: at.Group, Version: at.Version, Resource: at.Resource, Namespaces: p.namespaces, Names: p.names, Clusters: k.clusters,
		Labels: p.labels, Fields: p.fields, Scopes: seen.scopes(at, k),
	}
	p.into(&q)
	rows, warnings, err := s.askClusters(ctx, k, q)
	if err != nil {
		return err
	}
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
		row, err := single(at, rows)
		if err != nil {
			return err
		}
		return enc.one(w, row)
	}
	return s.list(ctx, w, &given{rows: rows}, enc, at.Resource)
}

// qualifyLive takes the clusters out of names in field selectors.
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

// askClusters asks clusters for what a query selects. Those that do not answer are in the warnings; if none does, it is an error.
func (s *Search) askClusters(ctx context.Context, k kind, q store.Query) (rows []store.Row, warnings []string, err error) {
	type answer struct {
		rows []store.Row
		err  error
	}
	answers := make([]answer, len(k.clusters))
	slots := make(chan struct{}, liveAtOne)
	var asking sync.WaitGroup
	for i, cluster := range k.clusters {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			answers[i].rows, answers[i].err = s.askCluster(ctx, cluster, k.API, q)
		})
	}
	asking.Wait()
	for i, a := range answers {
		if a.err != nil {
			warnings = append(warnings, fmt.Sprintf("cluster %s is left out: %v", k.clusters[i], a.err))
		}
		rows = append(rows, a.rows...)
	}
	if len(warnings) == len(k.clusters) {
		return nil, nil, apierrors.NewServiceUnavailable(strings.Join(warnings[:min(len(warnings), named)], "; "))
	}
	return rows, warnings, nil
}

// askCluster asks one.
func (s *Search) askCluster(ctx context.Context, cluster string, api member.API, q store.Query) ([]store.Row, error) {
	c, ok := s.Live(cluster)
	if !ok || !c.Reachable() {
		return nil, errors.New("it is unreachable")
	}
	within, cancel := context.WithTimeout(ctx, liveTime)
	defer cancel()
	namespace := ""
	if len(q.Namespaces) == 1 && api.Namespaced {
		namespace = q.Namespaces[0]
	}
	list, err := c.Dynamic().Resource(api.GroupVersionResource()).Namespace(namespace).List(within, metav1.ListOptions{})
	switch {
	case err == nil:
	case within.Err() != nil:
		return nil, fmt.Errorf("it did not answer within %s", liveTime)
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return nil, fmt.Errorf("it answers with %s", apierrors.ReasonForError(err))
	default:
		return nil, errors.New("it did not answer")
	}
	var rows []store.Row
	for i := range list.Items {
		row, err := rowOf(cluster, api, &list.Items[i])
		if err != nil {
			return nil, err
		}
		if q.Selects(&row) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b store.Row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return rows, nil
}

func rowOf(cluster string, api member.API, o *unstructured.Unstructured) (store.Row, error) {
	body, err := o.MarshalJSON()
	gvk := api.GroupVersionKind
	return store.Row{
		Cluster: cluster, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Resource: api.Resource,
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Created: o.GetCreationTimestamp().Time, Labels: o.GetLabels(), Body: body,
	}, err
}

// given is a list of rows that are there.
type given struct{ rows []store.Row }

// next implements source.
func (g *given) next(context.Context) (store.Page, error) {
	page := store.Page{Rows: g.rows}
	g.rows = nil
	return page, nil
}

// tail implements source. What is not of the store has no version.
func (g *given) tail() (metav1.ListMeta, map[string]any) { return metav1.ListMeta{}, nil }
