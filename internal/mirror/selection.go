package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// Types that the mirror treats specially. It needs nodes and pods for the capacity, namespaces for
// their labels, and CustomResourceDefinitions and APIServices to notice changes of the served APIs.
// Only some Secrets are stored with their data.
var (
	namespaces  = schema.GroupResource{Resource: "namespaces"}
	nodes       = schema.GroupResource{Resource: "nodes"}
	pods        = schema.GroupResource{Resource: "pods"}
	secrets     = schema.GroupResource{Resource: "secrets"}
	crds        = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	apiservices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
)

// The type and kind of ResourceQuotas, which limit the free capacity of a cluster. They are
// mirrored always only if Mirror.Require was called for them, because each type costs one watch for
// each cluster.
var (
	quotas    = schema.GroupResource{Resource: "resourcequotas"}
	quotaKind = corev1.SchemeGroupVersion.WithKind("ResourceQuota")
)

// The two types under which an API server returns the same Events, one in each API group.
var (
	coreEvents  = schema.GroupResource{Resource: "events"}
	groupEvents = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
)

// eventsLife is how long Events stay in the mirror after they last happened, unless settings say
// otherwise.
const eventsLife = time.Hour

// essential reports whether the mirror itself needs a type: namespaces, nodes, pods,
// customresourcedefinitions and apiservices. No setting excludes these.
func essential(gr schema.GroupResource) bool {
	switch gr {
	case namespaces, nodes, pods, crds, apiservices:
		return true
	default:
		return false
	}
}

// askedLive is the API group of usage metrics, which is never mirrored. Its metrics cover the last
// seconds, and requests of users for them are sent to the clusters. A mirrored copy would be a
// second, older answer.
const askedLive = "metrics.k8s.io"

// noise reports whether a type is mirrored only if settings select it by its name. Objects of such
// a type change all the time, as Leases do, or repeat other mirrored objects, as Endpoints do.
func noise(gr schema.GroupResource) bool {
	switch gr {
	case groupEvents,
		schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
		schema.GroupResource{Resource: "componentstatuses"},
		schema.GroupResource{Resource: "bindings"},
		schema.GroupResource{Resource: "endpoints"}:
		return true
	default:
		return strings.HasSuffix(gr.Resource, "reviews")
	}
}

// Select returns the mirror settings that select the named types; nil, without an error, for no
// names. The server's flag --mirror-resources has such names. A name is RESOURCE.GROUP, or RESOURCE
// for the core group, such as deployments.apps and pods. *.GROUP selects every type of a group. An
// invalid name is an error. Select does not check whether a cluster serves a type.
func Select(types []string) (*clusterv1alpha1.Mirror, error) {
	if len(types) == 0 {
		return nil, nil
	}
	s := &clusterv1alpha1.Mirror{}
	for _, name := range types {
		gr, err := ParseType(name)
		if err != nil {
			return nil, err
		}
		s.Resources = append(s.Resources, clusterv1alpha1.MirrorResources{Group: gr.Group, Resources: []string{gr.Resource}})
	}
	return s, nil
}

// ParseType parses the name of a type: RESOURCE.GROUP, or RESOURCE for the core group. RESOURCE is
// the plural in lower case. Any other text is an error.
func ParseType(name string) (schema.GroupResource, error) {
	gr := schema.ParseGroupResource(name)
	if gr.Resource == "" || strings.ContainsAny(name, "/ ") || gr.Resource != strings.ToLower(gr.Resource) {
		return gr, fmt.Errorf("%q is no type: name the plural and the group, such as deployments.apps or pods", name)
	}
	return gr, nil
}

// statement has the settings for the mirror of a cluster from one source: the Cluster's
// spec.mirror, a MirrorPolicy, or the server's flag --mirror-resources.
type statement struct {
	by       string // name of the source, for messages
	selects  bool   // the source selects types, perhaps invalid ones; the default then does not apply
	rules    []rule // what the source selects
	custom   bool   // selects every custom resource
	exclude  []clusterv1alpha1.MirrorExclusion
	life     time.Duration // how long Events stay mirrored; 0: the source does not say
	problems []string      // parts that cannot be parsed and are ignored
}

// rule is one entry of the selected types in mirror settings: types of an API group, and which of
// their objects.
type rule struct {
	clusterv1alpha1.MirrorResources
	scope scope
}

// newStatement parses mirror settings. by is the name of their source in messages. Parts that
// cannot be parsed are ignored, and named in the problems of the result.
func newStatement(by string, m *clusterv1alpha1.Mirror) statement {
	custom := m.CustomResources == clusterv1alpha1.MirrorCustomResourcesAll
	s := statement{by: by, exclude: m.Exclude, custom: custom, selects: custom || len(m.Resources) > 0}
	if m.EventsLife != nil {
		s.life = m.EventsLife.Duration
	}
	for i, r := range m.Resources {
		scope, err := newScope(r.Namespaces, r.LabelSelector)
		if err != nil {
			s.problems = append(s.problems, fmt.Sprintf("%s: resources[%d].labelSelector counts for nothing: %v", by, i, err))
			continue
		}
		s.rules = append(s.rules, rule{r, scope})
	}
	return s
}

// policy is a parsed MirrorPolicy: a selector of clusters by their labels, and the settings for
// these clusters.
type policy struct {
	clusters labels.Selector
	said     statement
}

// newPolicy parses a MirrorPolicy. If its cluster selector is invalid, which the API server
// rejects, the result has no settings, and reports that problem for every cluster.
func newPolicy(p *configv1alpha1.MirrorPolicy) policy {
	by := "MirrorPolicy " + p.Name
	clusters, err := metav1.LabelSelectorAsSelector(p.Spec.ClusterSelector)
	if err != nil {
		return policy{labels.Everything(), statement{by: by, problems: []string{fmt.Sprintf("%s counts for nothing: clusterSelector: %v", by, err)}}}
	}
	return policy{clusters, newStatement(by, &p.Spec.Mirror)}
}

// statements returns the mirror settings that apply to a Cluster: its spec.mirror, and those of the
// policies that select it by labels, in no order. The settings of the server's flag are not among
// them.
func statements(c *clusterv1alpha1.Cluster, policies []policy) []statement {
	var said []statement
	if c.Spec.Mirror != nil {
		said = append(said, newStatement("spec.mirror", c.Spec.Mirror))
	}
	for _, p := range policies {
		if p.clusters.Matches(labels.Set(c.Labels)) {
			said = append(said, p.said)
		}
	}
	return said
}

// facts are the inputs of the func decide other than the settings of the Cluster and of the
// MirrorPolicies.
type facts struct {
	apis []member.API // that the cluster serves
	// Kinds for which Mirror.Require was called.
	required map[schema.GroupVersionKind]bool
	defaults *clusterv1alpha1.Mirror       // of the server's flag; nil: every type that is not noise
	custom   map[schema.GroupResource]bool // the cluster's custom resource types; nil: unknown yet
}

// decision says whether and how one type that a cluster serves is mirrored, and why.
type decision struct {
	api      member.API // the version to mirror
	mirrored bool
	needed   bool    // by placement or the mirror itself, so that no setting can exclude it
	filter   filter  // the objects that are mirrored
	data     *filter // the Secrets that are mirrored with data; nil: none
	// How long Events stay in the mirror after they last happened. 0, and for other types: as long
	// as the objects exist in the cluster.
	life   time.Duration
	reason string // a message: why the type is mirrored, or not
}

// selection says for all types that a cluster serves whether and how they are mirrored. The func
// decide returns it. It is immutable.
type selection struct {
	types    []decision // one for each type, in the order in which they are to be listed
	problems []string   // settings that have no effect, and why
	unsure   bool       // settings select all custom resource types, which are still unknown
}

// decide returns which types of a cluster are mirrored. said are the settings of the Cluster and of
// the MirrorPolicies that select it, in any order. The result has one decision, for one version,
// for each type that the cluster serves.
//
//  1. Types that placement or the mirror itself needs are mirrored completely, even if settings
//     exclude them or select only some of their objects.
//  2. Excluded types are not mirrored.
//  3. Selected types are mirrored: the objects that any of the settings selects.
//  4. If no settings select any type, the default in f applies.
func decide(said []statement, f facts) selection {
	said = slices.Clone(said)
	byDefault := !slices.ContainsFunc(said, func(s statement) bool { return s.selects })
	if byDefault && f.defaults != nil {
		byDefault, said = false, append(said, newStatement("--mirror-resources", f.defaults))
	}
	slices.SortFunc(said, func(a, b statement) int { return strings.Compare(a.by, b.by) })
	out := selection{problems: problems(said, f.apis)}
	out.unsure = f.custom == nil && slices.ContainsFunc(said, func(s statement) bool { return s.custom })
	life := time.Duration(0)
	for _, s := range said {
		life = max(life, s.life)
	}
	best := map[schema.GroupResource]candidate{}
	for _, api := range f.apis {
		if strings.Contains(api.Resource, "/") {
			continue
		}
		c := judge(api, said, byDefault, f)
		gr := resourceOf(api)
		if old, ok := best[gr]; !ok || c.before(old) {
			best[gr] = c
		}
	}
	for gr, c := range best {
		d := c.decision
		if d.mirrored && (gr == coreEvents || gr == groupEvents) {
			d.life = cmp.Or(life, eventsLife)
		}
		if d.needed && d.filter.narrow() {
			out.problems = append(out.problems, fmt.Sprintf("%s are mirrored whole, whatever namespaces and labels are selected: placement needs them", gr))
			d.filter = filter{}
		}
		d.bound()
		out.types = append(out.types, d)
	}
	order := func(d decision) int {
		switch {
		case essential(resourceOf(d.api)):
			return 0
		case d.needed:
			return 1
		default:
			return 2
		}
	}
	slices.SortFunc(out.types, func(a, b decision) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmpResource(resourceOf(a.api), resourceOf(b.api)))
	})
	slices.Sort(out.problems)
	return out
}

// bound limits the decision to the namespaces that the hub may read in the cluster. If the hub may
// read the objects in none of them, the type is not mirrored.
func (d *decision) bound() {
	if d.api.Within == nil || !d.mirrored {
		return
	}
	d.filter.within = d.api.Within
	if len(d.filter.asks()) == 0 {
		d.mirrored, d.reason = false, "the profile of the cluster's agent does not let the hub read it"
	}
}

// candidate is the decision for one version of a type. decide chooses the best candidate of each
// type.
type candidate struct {
	decision
	rank int // rankRequired, an index in a list of versions, or rankAny; the lowest is the best
}

// before reports whether the version of c is better than another version of the same type. Mirrored
// comes first, then the lower rank, then the version that the cluster prefers, then the newer
// version.
func (c candidate) before(other candidate) bool {
	if c.mirrored != other.mirrored {
		return c.mirrored
	}
	preferred := func(c candidate) int {
		if c.api.Preferred {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(c.rank, other.rank), cmp.Compare(preferred(c), preferred(other)),
		-version.CompareKubeAwareVersionStrings(c.api.GroupVersionKind.Version, other.api.GroupVersionKind.Version)) < 0
}

// Ranks of versions of a type, the best first. A version that Mirror.Require named has
// rankRequired. A version in the list of a setting has its index there. All others have rankAny.
const (
	rankRequired = -1
	rankAny      = 1000
)

// judge decides whether one version of a type may be mirrored, with the reason. decide then chooses
// the best version. said are all settings, by their source. byDefault is true if they select no
// type, so that the default applies.
func judge(api member.API, said []statement, byDefault bool, f facts) candidate {
	gr := resourceOf(api)
	c := candidate{decision: decision{api: api}, rank: rankAny}
	if gr.Group == askedLive {
		c.reason = "the cluster is asked for it when somebody asks, as kubectl top does"
		return c
	}
	if !slices.Contains(api.Verbs, "list") || !slices.Contains(api.Verbs, "watch") {
		c.reason = "it cannot be listed and watched"
		return c
	}
	var selected, excluded []string
	var scopes []scope
	for _, s := range said {
		if s.excludes(gr) {
			excluded = append(excluded, s.by)
		}
		if at, found := s.find(api, f.custom); found != nil {
			selected, scopes, c.rank = append(selected, s.by), append(scopes, found...), min(c.rank, at)
		}
	}
	if gr == secrets {
		c.data = secretData(said)
	}
	c.filter = union(scopes)
	required := f.required[api.GroupVersionKind]
	if required {
		c.rank = rankRequired
	}
	c.needed = required || essential(gr)
	switch {
	case c.needed && len(excluded) > 0:
		c.mirrored, c.reason = true, "placement needs it, although "+strings.Join(excluded, ", ")+" excludes it"
	case c.needed:
		c.mirrored, c.reason = true, "placement needs it"
	case len(excluded) > 0:
		c.reason = "excluded by " + strings.Join(excluded, ", ")
	case len(selected) > 0:
		c.mirrored, c.reason = true, "selected by "+strings.Join(selected, ", ")
	case byDefault && !noise(gr):
		c.mirrored, c.reason = true, "the default"
	case byDefault:
		c.reason = "it changes all the time and says little: select it by name"
	default:
		c.reason = "nobody selects it"
	}
	return c
}

// excludes reports whether the settings of one source exclude a type. In them "*" stands for all
// groups or all resources.
func (s statement) excludes(gr schema.GroupResource) bool {
	return slices.ContainsFunc(s.exclude, func(e clusterv1alpha1.MirrorExclusion) bool {
		return (e.Group == "*" || e.Group == gr.Group) && (slices.Contains(e.Resources, "*") || slices.Contains(e.Resources, gr.Resource))
	})
}

// secretData returns which Secrets are mirrored with their data, by the settings of a cluster. nil
// means none: Secrets are mirrored without data, or not at all. The result does not depend on the
// types that the cluster serves.
func secretData(said []statement) *filter {
	var in []scope
	for _, s := range said {
		if s.excludes(secrets) {
			return nil
		}
		for _, r := range s.rules {
			if r.SecretData == clusterv1alpha1.MirrorSecretDataEncrypted && r.Group == secrets.Group && slices.Contains(r.Resources, secrets.Resource) {
				in = append(in, r.scope)
			}
		}
	}
	if in == nil {
		return nil
	}
	return new(union(in))
}

// find returns which objects of a version of a type the settings of one source select, as one scope
// for each rule that selects some. in is nil if the source selects none. at is the rank of the
// version: its best index in the rules' lists of versions, or rankAny. custom has the custom
// resource types of the cluster; nil: they are unknown.
func (s statement) find(api member.API, custom map[schema.GroupResource]bool) (at int, in []scope) {
	gr, v := resourceOf(api), api.GroupVersionKind.Version
	at = rankAny
	for _, r := range s.rules {
		place := slices.Index(r.Versions, v)
		named := slices.Contains(r.Resources, gr.Resource)
		all := slices.Contains(r.Resources, "*") && (r.Group != "*" || !noise(gr))
		if r.Group != "*" && r.Group != gr.Group || !named && !all || len(r.Versions) > 0 && place < 0 || len(r.Namespaces) > 0 && !api.Namespaced {
			continue
		}
		in = append(in, r.scope)
		if place >= 0 {
			at = min(at, place)
		}
	}
	if s.custom && custom[gr] {
		in = append(in, scope{})
	}
	return at, in
}

// problems returns messages for users: about parts of the settings that have no effect in a
// cluster, because of the APIs that it serves, and about parts that could not be parsed.
func problems(said []statement, apis []member.API) []string {
	var out []string
	served, scoped := map[schema.GroupResource][]string{}, map[schema.GroupResource]bool{}
	for _, api := range apis {
		gr := resourceOf(api)
		served[gr] = append(served[gr], api.GroupVersionKind.Version)
		scoped[gr] = api.Namespaced
	}
	for _, s := range said {
		out = append(out, s.problems...)
		for _, r := range s.rules {
			for _, name := range r.Resources {
				gr := schema.GroupResource{Group: r.Group, Resource: name}
				versions := served[gr]
				switch {
				case name == "*" || r.Group == "*":
				case len(versions) == 0:
					out = append(out, fmt.Sprintf("%s selects %s, which the cluster does not serve", s.by, gr))
				case len(r.Versions) > 0 && !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(r.Versions, v) }):
					out = append(out, fmt.Sprintf("%s selects %s in version %s, which the cluster serves in %s",
						s.by, gr, strings.Join(r.Versions, ", "), strings.Join(slices.Sorted(slices.Values(versions)), ", ")))
				case len(r.Namespaces) > 0 && !scoped[gr]:
					out = append(out, fmt.Sprintf("%s selects %s in namespaces, and they have none", s.by, gr))
				}
			}
		}
	}
	return out
}

// scope is a set of objects of one type: those in some namespaces that also match a label selector.
// The zero value is all objects.
type scope struct {
	namespaces []string        // sorted; nil: all
	labels     labels.Selector // nil: all
}

// newScope returns the scope of some namespaces and a label selector. No namespaces mean all
// namespaces; a nil or empty selector means all labels. An invalid selector is an error.
func newScope(namespaces []string, selector *clusterv1alpha1.MirrorLabelSelector) (scope, error) {
	s := scope{namespaces: slices.Sorted(slices.Values(namespaces))}
	if selector == nil {
		return s, nil
	}
	meta := metav1.LabelSelector{MatchLabels: make(map[string]string, len(selector.MatchLabels))}
	for k, v := range selector.MatchLabels {
		meta.MatchLabels[k] = string(v)
	}
	for _, e := range selector.MatchExpressions {
		requirement := metav1.LabelSelectorRequirement{Key: e.Key, Operator: e.Operator}
		for _, v := range e.Values {
			requirement.Values = append(requirement.Values, string(v))
		}
		meta.MatchExpressions = append(meta.MatchExpressions, requirement)
	}
	parsed, err := metav1.LabelSelectorAsSelector(&meta)
	if err != nil {
		return s, err
	}
	if !parsed.Empty() {
		s.labels = parsed
	}
	return s, nil
}

// everything reports whether the scope contains all objects.
func (s scope) everything() bool { return len(s.namespaces) == 0 && s.labels == nil }

// selector returns the labels of the scope as the text of a label selector; "": all labels.
func (s scope) selector() string {
	if s.labels == nil {
		return ""
	}
	return s.labels.String()
}

// String returns the scope as a text for users and for comparison; "": all objects. Equal scopes
// have equal texts.
func (s scope) String() string {
	var parts []string
	if len(s.namespaces) > 0 {
		parts = append(parts, "namespaces "+strings.Join(s.namespaces, ", "))
	}
	if s.labels != nil {
		parts = append(parts, "labels "+s.labels.String())
	}
	return strings.Join(parts, " with ")
}

// has reports whether the scope contains an object, by its namespace and labels.
func (s scope) has(namespace string, l map[string]string) bool {
	return (len(s.namespaces) == 0 || slices.Contains(s.namespaces, namespace)) && (s.labels == nil || s.labels.Matches(labels.Set(l)))
}

// filter says which objects of a type are mirrored: those in any of its scopes, a set of namespaces
// and labels each. The zero value selects all objects.
type filter struct {
	scopes []scope  // empty: all objects
	within []string // the namespaces that the hub may read; nil: all
}

// union returns the filter that selects the objects in any of the scopes. It selects all objects if
// there are no scopes, or one of them contains all.
func union(scopes []scope) filter {
	if slices.ContainsFunc(scopes, scope.everything) {
		return filter{}
	}
	distinct := map[string]scope{}
	for _, s := range scopes {
		distinct[s.String()] = s
	}
	var f filter
	for _, text := range slices.Sorted(maps.Keys(distinct)) {
		f.scopes = append(f.scopes, distinct[text])
	}
	return f
}

// narrow reports whether some objects may be left out: the filter has scopes, or the hub may not
// read all namespaces.
func (f filter) narrow() bool { return len(f.scopes) > 0 || f.within != nil }

// readable reports whether the hub may read a namespace; "" stands for all namespaces.
func (f filter) readable(namespace string) bool {
	return f.within == nil || slices.Contains(f.within, namespace)
}

// String returns the filter as a text for users and for comparison; "": all objects. Equal filters
// have equal texts.
func (f filter) String() string {
	texts := make([]string, 0, len(f.scopes))
	for _, s := range f.scopes {
		texts = append(texts, s.String())
	}
	if f.within != nil {
		return strings.TrimPrefix(strings.Join(texts, "; or ")+"; of namespaces "+strings.Join(f.within, ", ")+" alone", "; ")
	}
	return strings.Join(texts, "; or ")
}

// has reports whether the filter selects an object, by its namespace and labels, and the hub may
// read it.
func (f filter) has(namespace string, l map[string]string) bool {
	return f.readable(namespace) && (len(f.scopes) == 0 || slices.ContainsFunc(f.scopes, func(s scope) bool { return s.has(namespace, l) }))
}

// hasAny reports whether the filter selects an object of a namespace regardless of its labels, and
// the hub may read it. It is for deleted objects, because their labels are unknown.
func (f filter) hasAny(namespace string) bool {
	return f.readable(namespace) && (len(f.scopes) == 0 || slices.ContainsFunc(f.scopes, func(s scope) bool { return s.labels == nil && s.has(namespace, nil) }))
}

// dataOf returns, for comparison, the text of a filter of the Secrets that are mirrored with data.
// It is "" for nil, which selects no Secret, and "all" for a filter that selects all.
func dataOf(f *filter) string {
	if f == nil {
		return ""
	}
	return cmp.Or(f.String(), "all")
}

// mostNamespaces is the largest number of selected namespaces for which each has its own list and
// watch of a type. With more, one list and watch covers all namespaces of the cluster.
const mostNamespaces = 16

// ask describes one list or watch request to an API server: a namespace, "" for all, and a label
// selector, "" for all labels.
type ask struct{ namespace, selector string }

// asks returns the requests that together return all objects of the filter: one for each of a few
// namespaces, or one for all namespaces. They may return further objects, which the caller drops by
// f.has. The result is empty only if the hub may read none of the objects.
func (f filter) asks() []ask {
	if f.within != nil {
		return f.asksWithin()
	}
	var all []string
	for _, s := range f.scopes {
		if len(s.namespaces) == 0 {
			return []ask{{selector: selectorOf(f.scopes)}}
		}
		all = append(all, s.namespaces...)
	}
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	if len(all) == 0 || len(all) > mostNamespaces {
		return []ask{{selector: selectorOf(f.scopes)}}
	}
	asks := make([]ask, 0, len(all))
	for _, namespace := range all {
		asks = append(asks, ask{namespace, selectorOf(slices.DeleteFunc(slices.Clone(f.scopes), func(s scope) bool { return !slices.Contains(s.namespaces, namespace) }))})
	}
	return asks
}

// asksWithin returns the requests of asks if the hub may read only the namespaces f.within: one for
// each of them that can have selected objects.
func (f filter) asksWithin() []ask {
	asks := make([]ask, 0, len(f.within))
	for _, namespace := range f.within {
		if scopes := f.in(namespace); len(f.scopes) == 0 || len(scopes) > 0 {
			asks = append(asks, ask{namespace, selectorOf(scopes)})
		}
	}
	return asks
}

// in returns the scopes of the filter that can contain objects of a namespace, whether or not the
// hub may read the namespace.
func (f filter) in(namespace string) []scope {
	return slices.DeleteFunc(slices.Clone(f.scopes), func(s scope) bool { return len(s.namespaces) > 0 && !slices.Contains(s.namespaces, namespace) })
}

// selectorOf returns the label selector that all scopes have; "": they differ, select all labels,
// or there are none.
func selectorOf(scopes []scope) string {
	if len(scopes) == 0 || slices.ContainsFunc(scopes, func(s scope) bool { return s.selector() != scopes[0].selector() }) {
		return ""
	}
	return scopes[0].selector()
}

// resourceOf returns the group and resource of a type, without its version.
func resourceOf(api member.API) schema.GroupResource {
	return schema.GroupResource{Group: api.GroupVersionKind.Group, Resource: api.Resource}
}
