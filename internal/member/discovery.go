package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	// After a change of a CRD or an APIService, the API list is read after rediscoverSoon, and
	// twice more, because a server may need a moment, or some seconds under load, until its
	// API list has the change. Reads have a distance of at least rediscoverGap, so that the
	// installation of many CRDs causes few reads.
	rediscoverSoon = 100 * time.Millisecond
	rediscoverLate = time.Second
	rediscoverLast = 5 * time.Second
	rediscoverGap  = 400 * time.Millisecond
	// discoveryTimeout limits one read of a cluster's API list. Without aggregated discovery it limits
	// each request of the read. An API list may be large.
	discoveryTimeout = 30 * time.Second
	// discoveryRetry is the delay after a failed read of a cluster's API list.
	discoveryRetry = 2 * time.Second
	// discoveryFailures is how many reads of a cluster's API list must fail in a row before the list
	// counts as incomplete.
	discoveryFailures = 3
)

// Values of the Accept header for discovery documents, best first. aggregated is the part that both
// aggregated versions have. acceptedForm is the whole header; it ends with plain JSON, which
// servers without aggregated discovery send.
const (
	aggregated   = "as=APIGroupDiscoveryList"
	acceptedForm = "application/json;g=apidiscovery.k8s.io;v=v2;" + aggregated +
		",application/json;g=apidiscovery.k8s.io;v=v2beta1;" + aggregated + ",application/json"
)

// watchAPIs keeps the member's list of served types up to date until ctx ends. It reads the list
// every DiscoveryInterval and after a signal on m.look, while the cluster answers. Failures are
// logged. After discoveryFailures of them in a row, or if the list was never read, the list counts
// as incomplete. start runs it as a goroutine.
func (m *Member) watchAPIs(ctx context.Context) {
	var (
		d        discoverer
		failures int
		looked   time.Time
		next     = time.NewTimer(jitter(m.registry.options.DiscoveryInterval))
	)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.look:
			if !pause(ctx, rediscoverGap-time.Since(looked)) {
				return
			}
		case <-next.C:
		}
		looked = time.Now()
		interval := m.registry.options.DiscoveryInterval
		if c := m.current(); m.answers() {
			err := m.discover(ctx, c, &d)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				failures = 0
			} else {
				ctrl.LoggerFrom(ctx).V(1).Info("discovery failed", "cluster", m.name, "error", err.Error())
				if failures++; failures >= discoveryFailures || !m.asked() {
					m.discoveryFailed(err)
					d.etags = nil // a 304 answer would mean a list that is no longer trusted
				}
				interval = min(interval, discoveryRetry)
			}
		}
		next.Reset(jitter(interval))
	}
}

// pause waits for d. It returns false if ctx has ended, also if d is zero or less.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// rediscover makes watchAPIs read the API list three times in the next seconds: after
// rediscoverSoon, rediscoverLate and rediscoverLast. It does not block.
func (m *Member) rediscover() {
	for _, delay := range []time.Duration{rediscoverSoon, rediscoverLate, rediscoverLast} {
		time.AfterFunc(delay, func() { nudge(m.look) })
	}
}

// answers reports whether the cluster can be asked for its API list: its last probe was answered,
// and its identity is known.
func (m *Member) answers() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.contact.state == answering && m.contact.id != ""
}

// discover reads the API list of the cluster through c, and stores it in the member. If the agent's
// profile limits what the hub may read, the list has these limits. d is the state of the previous
// reads, which discover updates. An error means that the list could not be read; the member's list
// is then unchanged.
func (m *Member) discover(ctx context.Context, c *connection, d *discoverer) error {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	if d.connection != c {
		*d = discoverer{connection: c}
	}
	old := d.whole
	if old == nil {
		old = m.APIs()
	}
	apis, err := d.look(ctx, old)
	if err != nil {
		return err
	}
	d.whole = apis
	if spec := &m.Cluster().Spec; spec.Profile() != clusterv1alpha1.AgentProfileAll {
		rules, err := c.readable(ctx, spec.PlacementNamespaces())
		if err != nil {
			return err
		}
		apis = apis.bounded(rules, spec.PlacementNamespaces())
	}
	m.setAPIs(apis)
	return nil
}

// discoveryFailed keeps the last API list, but marks it as possibly incomplete because of cause. A
// list that is marked already keeps its first cause.
func (m *Member) discoveryFailed(cause error) {
	old := m.APIs()
	if m.asked() && old.failure != "" {
		return // the list is marked already
	}
	m.setAPIs(old.incomplete(cause.Error()))
}

// asked reports whether the cluster was asked for its API list at least once, successfully or
// not.
func (m *Member) asked() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.discovered
}

// setAPIs stores the API list. If the list changed, it notifies the subscribers and enqueues the
// Cluster. The first call enqueues the Cluster even without a change.
func (m *Member) setAPIs(apis *APIs) {
	m.mu.Lock()
	changed, first := m.apis.fingerprint != apis.fingerprint, !m.discovered
	m.mu.Unlock()
	m.update(func() { m.discovered = true })
	if changed {
		apis = m.registry.share(apis)
		m.mu.Lock()
		m.apis = apis
		m.mu.Unlock()
		m.registry.notify(Event{Type: Changed, Name: m.name})
	}
	if changed || first {
		m.registry.enqueue(m.name, 0)
	}
}

// discoverer reads the API list of a cluster through one connection. It keeps the ETags of the
// discovery documents, so that unchanged documents are not sent again. Only one goroutine may use
// it.
type discoverer struct {
	connection *connection
	// The last list, before it is limited to what the hub may read. nil: not read yet.
	whole       *APIs
	etags       map[string]string // by path
	unavailable []string          // group versions whose APIService is not available
}

// look returns the API list of the cluster. It returns old, the last list, if nothing changed.
// Types of group versions that do not answer come from old, and are marked as stale. look updates
// d.etags and d.unavailable.
func (d *discoverer) look(ctx context.Context, old *APIs) (*APIs, error) {
	unavailable, err := d.unavailableServices(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(unavailable, d.unavailable) {
		d.etags = nil // group versions may have become stale or current
	}
	paths := []string{"/api", "/apis"}
	var groups []apidiscoveryv2.APIGroupDiscovery
	etags := map[string]string{}
	for attempt := range 2 {
		groups = nil
		unchanged := 0
		for _, path := range paths {
			list, etag, err := d.fetch(ctx, path, d.etags[path])
			switch {
			case errors.Is(err, errUnchanged):
				unchanged++
				etags[path] = d.etags[path]
			case errors.Is(err, errUnaggregated):
				return d.legacy(old, unavailable)
			case err != nil:
				return nil, err
			default:
				groups = append(groups, list...)
				etags[path] = etag
			}
		}
		if unchanged == len(paths) {
			return old, nil
		}
		if unchanged == 0 || attempt > 0 {
			break
		}
		d.etags = nil // one document changed, so both are read again
	}
	apis, err := snapshot(groups, old, unavailable)
	if err != nil {
		return nil, err
	}
	d.etags, d.unavailable = etags, unavailable
	return apis, nil
}

var (
	// Errors of fetch, which only look handles.
	errUnchanged    = errors.New("unchanged")
	errUnaggregated = errors.New("discovery is not aggregated")
)

// fetch reads a document of aggregated discovery, and returns its groups and its ETag. etag is that
// of the last read; "": none. The error is errUnchanged if the document still has that ETag, and
// errUnaggregated if the server sends another format.
func (d *discoverer) fetch(ctx context.Context, path, etag string) ([]apidiscoveryv2.APIGroupDiscovery, string, error) {
	header := http.Header{"Accept": {acceptedForm}}
	if etag != "" {
		header.Set("If-None-Match", etag)
	}
	resp, err := get(ctx, d.connection.transport, d.connection.base, path, header)
	if err != nil {
		return nil, "", err
	}
	body, err := readDocument(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	}
	switch {
	case resp.StatusCode == http.StatusNotModified:
		return nil, "", errUnchanged
	case resp.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("get %s: %s", path, apiMessage(resp, body))
	case !strings.Contains(resp.Header.Get("Content-Type"), aggregated):
		return nil, "", errUnaggregated
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	}
	return list.Items, resp.Header.Get("ETag"), nil
}

// unavailableServices returns the group versions, sorted, that an aggregated API server
// (APIService) serves and that are not available. Discovery may report such a version as current
// long after its server failed. The result is nil if there is none, or the cluster has no
// APIServices.
func (d *discoverer) unavailableServices(ctx context.Context) ([]string, error) {
	const path = "/apis/apiregistration.k8s.io/v1/apiservices"
	resp, err := get(ctx, d.connection.transport, d.connection.base, path, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return nil, err
	}
	body, err := readDocument(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil // no aggregator, so nothing is aggregated
	default:
		return nil, fmt.Errorf("list APIServices: %s", apiMessage(resp, body))
	}
	var list apiregistrationv1.APIServiceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("read APIServices: %w", err)
	}
	var unavailable []string
	for i := range list.Items {
		s := &list.Items[i]
		if s.Spec.Service == nil {
			continue // served by the API server itself
		}
		available := slices.ContainsFunc(s.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
			return c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue
		})
		if !available {
			unavailable = append(unavailable, schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}.String())
		}
	}
	slices.Sort(unavailable)
	return unavailable, nil
}

// snapshot converts discovery documents to an API list. A group version is marked as stale if it is
// in unavailable or the documents call it stale. Types of a stale version that the documents lack
// come from old. It is an error if an element of unavailable is no group version.
func snapshot(groups []apidiscoveryv2.APIGroupDiscovery, old *APIs, unavailable []string) (*APIs, error) {
	var all []API
	stale := map[schema.GroupVersion]bool{}
	for _, name := range unavailable {
		gv, err := schema.ParseGroupVersion(name)
		if err != nil {
			return nil, fmt.Errorf("parse APIService: %w", err)
		}
		stale[gv] = true
	}
	listed := map[schema.GroupVersionResource]bool{}
	for _, group := range groups {
		preferred := map[string]bool{} // resources that a version before this one has
		for _, version := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version.Version}
			if version.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				stale[gv] = true
			}
			for _, resource := range version.Resources {
				api, ok := apiOf(gv, resource)
				if !ok {
					continue
				}
				api.Stale = stale[gv]
				api.Preferred = !preferred[api.Resource]
				preferred[api.Resource] = true
				listed[api.GroupVersionResource()] = true
				all = append(all, api)
			}
		}
	}
	for _, api := range old.all {
		if stale[api.GroupVersionKind.GroupVersion()] && !listed[api.GroupVersionResource()] {
			api.Stale = true
			all = append(all, api)
		}
	}
	return newAPIs(all, slices.Collect(maps.Keys(stale)), ""), nil
}

// apiOf converts a resource of a discovery document to an API. It returns false for a resource that
// has only subresources, and no objects of its own.
func apiOf(gv schema.GroupVersion, r apidiscoveryv2.APIResourceDiscovery) (API, bool) {
	if r.ResponseKind == nil || r.ResponseKind.Kind == "" {
		return API{}, false // only its subresources are served
	}
	api := API{
		GroupVersionKind: gv.WithKind(r.ResponseKind.Kind), Resource: r.Resource, Singular: r.SingularResource,
		Namespaced: r.Scope == apidiscoveryv2.ScopeNamespace,
		Verbs:      r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
	}
	for _, sub := range r.Subresources {
		api.Subresources = append(api.Subresources, sub.Subresource)
	}
	return api, true
}

// legacy reads the API list of a server without aggregated discovery, one group version after
// another. Versions that cannot be read, and those in unavailable, are marked as stale; their
// missing types come from old. It is only an error if the groups cannot be read. legacy has no
// context: discoveryTimeout limits each of its requests.
func (d *discoverer) legacy(old *APIs, unavailable []string) (*APIs, error) {
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{
		Host: d.connection.base.String(), Transport: d.connection.transport, QPS: -1, Timeout: discoveryTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	client.UseLegacyDiscovery = true
	groups, lists, err := client.ServerGroupsAndResources()
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return nil, fmt.Errorf("discover: %w", err)
	}
	for gv := range failed {
		unavailable = append(unavailable, gv.String())
	}
	resources := map[string][]apidiscoveryv2.APIResourceDiscovery{}
	for _, list := range lists {
		resources[list.GroupVersion] = aggregate(list.APIResources)
	}
	document := make([]apidiscoveryv2.APIGroupDiscovery, 0, len(groups))
	for _, g := range groups {
		var group apidiscoveryv2.APIGroupDiscovery
		group.Name = g.Name
		for _, v := range g.Versions {
			group.Versions = append(group.Versions, apidiscoveryv2.APIVersionDiscovery{
				Version: v.Version, Resources: resources[v.GroupVersion],
			})
		}
		document = append(document, group)
	}
	return snapshot(document, old, unavailable)
}

// aggregate converts the resources of a group version from the old form of discovery, where
// subresources are separate entries, to the aggregated form. A subresource whose resource is
// missing or comes later in the list is left out.
func aggregate(list []metav1.APIResource) []apidiscoveryv2.APIResourceDiscovery {
	var out []apidiscoveryv2.APIResourceDiscovery
	index := map[string]int{}
	for _, r := range list {
		name, sub, isSub := strings.Cut(r.Name, "/")
		if isSub {
			if i, ok := index[name]; ok {
				out[i].Subresources = append(out[i].Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: sub})
			}
			continue
		}
		scope := apidiscoveryv2.ScopeCluster
		if r.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		index[name] = len(out)
		out = append(out, apidiscoveryv2.APIResourceDiscovery{
			Resource: r.Name, SingularResource: r.SingularName, Scope: scope, Verbs: r.Verbs,
			ShortNames: r.ShortNames, Categories: r.Categories, ResponseKind: &metav1.GroupVersionKind{Kind: r.Kind},
		})
	}
	return out
}
