// Package graph computes the links of an object from its JSON: which objects it refers to by name,
// which pods it selects, which images it runs, and which owner it has. The store's index of
// references, the fleet's graph and the query term "uses" are built on these links.
//
// A link usually means that the object which has the link uses the other object. It is Inverse if
// the other object uses the object which has the link. Example: an owned object names its owner,
// and the owner counts as the user.
package graph

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	casejson "sigs.k8s.io/json"
)

// Relation says in which way one object uses another. Its values are names in the API of graphs.
type Relation string

// The relations. Each comment says what the object that uses does with the used object (it).
const (
	Owner     Relation = "owner"     // is its controller or, if it has none, its first owner
	Selector  Relation = "selector"  // selects the pod by labels
	Mount     Relation = "mount"     // has it as a volume of its pods
	Env       Relation = "env"       // has it in the environment of its containers
	Pull      Relation = "pull"      // pulls its images with the Secret
	Account   Relation = "account"   // runs its pods as the ServiceAccount
	Image     Relation = "image"     // runs the image in its containers
	Node      Relation = "node"      // runs on the node, or is attached to the node
	Class     Relation = "class"     // has the class, such as an IngressClass or PriorityClass
	Storage   Relation = "storage"   // has its data in the claim, volume or StorageClass
	Route     Relation = "route"     // sends requests to it, or gets them from it
	TLS       Relation = "tls"       // serves with the certificate in the Secret
	Scale     Relation = "scale"     // scales it
	Binding   Relation = "binding"   // binds the role, or binds a role to the ServiceAccount
	Webhook   Relation = "webhook"   // has requests answered by the Service
	Endpoints Relation = "endpoints" // has its endpoints in the EndpointSlice
	Event     Relation = "event"     // is an Event about it
)

// meanings has the meaning of each relation as a text for users, in order of presentation.
var meanings = []struct {
	relation Relation
	means    string
}{
	{Owner, "owns it, as the controller or else the first owner"},
	{Selector, "selects the pod: Services, PodDisruptionBudgets, NetworkPolicies"},
	{Mount, "has it as a volume of its pods: ConfigMaps, Secrets, claims, also projected"},
	{Env, "has it in the environment of its containers"},
	{Pull, "pulls its images with the Secret"},
	{Account, "runs its pods as the ServiceAccount"},
	{Image, "runs the image"},
	{Node, "runs on the node, or is attached to it"},
	{Class, "is of the class: of ingresses, gateways, priorities, runtimes"},
	{Storage, "has its data there: claims, volumes, StorageClasses"},
	{Route, "sends requests there: ingresses, routes of gateways, StatefulSets to their Service"},
	{TLS, "serves with the Secret's certificate"},
	{Scale, "scales it"},
	{Binding, "binds the role, or binds it to the ServiceAccount"},
	{Webhook, "has requests answered by the Service"},
	{Endpoints, "has its endpoints there"},
	{Event, "is an Event about it"},
}

// Relations returns all relations, in the order in which they are shown to users.
func Relations() (out []Relation) {
	for _, m := range meanings {
		out = append(out, m.relation)
	}
	return out
}

// Means returns, as a text for users, what an object with the relation does with the object that it
// uses. It is "" for an unknown relation.
func (r Relation) Means() string {
	for _, m := range meanings {
		if m.relation == r {
			return m.means
		}
	}
	return ""
}

// Images is the kind of container images in links and graphs. Images are not objects: they have a
// name, and no namespace and no cluster.
var Images = schema.GroupKind{Kind: "Image"}

// Link is a link that an object has. It leads to an object or image of a kind by its name. If
// Selector is set, it leads to the selected pods in the namespace of the object instead.
type Link struct {
	Relation Relation
	Inverse  bool // the object that the link leads to uses the object that has the link
	Kind     schema.GroupKind
	// Namespace of the object that the link leads to. "": it has the namespace of the object that
	// has the link, or none.
	Namespace string
	Name      string
	UID       types.UID       // of the object that the link leads to; "": any object with the name
	Selector  labels.Selector // instead of a name; nil: the link has a name
}

// Term returns the text KIND.GROUP/NAME. The store's index of references has an object under this
// text if a link of the object leads to the name, in any namespace.
func Term(kind schema.GroupKind, name string) string { return kind.String() + "/" + name }

// TermAcross returns the text KIND.GROUP/NAMESPACE/NAME. The store's index of references also has
// an object under this text if a link of the object names a namespace other than its own.
func TermAcross(kind schema.GroupKind, namespace, name string) string {
	return kind.String() + "/" + namespace + "/" + name
}

// Terms returns the texts of Term and TermAcross for links, each once: the store's index of
// references has their object under these. Links to owners and images and from Events give none,
// because they have other indexes. Selectors give none.
func Terms(links []Link) (out []string) {
	add := func(term string) {
		if !slices.Contains(out, term) {
			out = append(out, term)
		}
	}
	for _, l := range links {
		if l.Selector != nil || l.Kind == Images || l.Relation == Owner || l.Relation == Event {
			continue
		}
		add(Term(l.Kind, l.Name))
		if l.Namespace != "" {
			add(TermAcross(l.Kind, l.Namespace, l.Name))
		}
	}
	return out
}

// Links returns all links of an object of the type gr, from its JSON, including the link to its
// owner. It returns nil for invalid JSON. For a type without known links the result has only the
// owner.
func Links(gr schema.GroupResource, body []byte) []Link {
	var o object
	if !decode(body, &o) {
		return nil
	}
	var s said
	s.own = string(o.Metadata.Namespace)
	o.Metadata.owner(&s)
	if source, ok := sources[gr]; ok {
		source.read(body, &o, &s)
	}
	return s.links
}

// Referring returns all links of an object of the type gr except the link to its owner, from its
// JSON. It is nil for a type without known links, and for invalid JSON. Terms makes index entries
// of the result.
func Referring(gr schema.GroupResource, body []byte) []Link {
	source, ok := sources[gr]
	if !ok {
		return nil
	}
	var o object
	if source.meta && !decode(body, &o) {
		return nil
	}
	s := said{own: string(o.Metadata.Namespace)}
	source.read(body, &o, &s)
	return s.links
}

// said collects the links of one object, each once. A link that names the namespace own, which is
// the object's, gets no namespace.
type said struct {
	own   string // namespace of the object
	links []Link
}

// add adds a link, unless s has it or it has neither a name nor a selector. So callers need not
// check whether a field is set.
func (s *said) add(l Link) {
	if l.Name == "" && l.Selector == nil {
		return
	}
	if l.Namespace == s.own {
		l.Namespace = ""
	}
	if l.Selector == nil && slices.ContainsFunc(s.links, func(o Link) bool {
		return o.Relation == l.Relation && o.Kind == l.Kind && o.Namespace == l.Namespace && o.Name == l.Name && o.Inverse == l.Inverse && o.Selector == nil
	}) {
		return
	}
	s.links = append(s.links, l)
}

// to adds a link to a name in the object's namespace, or to a cluster-scoped object. An empty name
// adds nothing.
func (s *said) to(r Relation, kind schema.GroupKind, name Text) {
	s.add(Link{Relation: r, Kind: kind, Name: string(name)})
}

// across adds a link to a name in any namespace. "" is the object's own namespace, or no namespace
// for a cluster-scoped kind. An empty name adds nothing.
func (s *said) across(r Relation, kind schema.GroupKind, namespace, name Text) {
	s.add(Link{Relation: r, Kind: kind, Namespace: string(namespace), Name: string(name)})
}

// pods adds a link to the pods that the selector selects in the object's namespace.
func (s *said) pods(selector labels.Selector) {
	s.add(Link{Relation: Selector, Kind: podKind, Selector: selector})
}

// Text is a JSON string, number or boolean as text. Any other JSON value is decoded as "", without
// an error.
type Text string

// UnmarshalJSON implements json.Unmarshaler. A list, an object and null leave s unchanged, without
// an error.
func (s *Text) UnmarshalJSON(b []byte) error {
	switch {
	case len(b) == 0 || b[0] == '{' || b[0] == '[' || string(b) == "null":
	case b[0] == '"':
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		*s = Text(text)
	default:
		*s = Text(b)
	}
	return nil
}

// list is a JSON list. Any other JSON value is decoded as an empty list, without an error.
type list[T any] []T

// UnmarshalJSON implements json.Unmarshaler. Any other value than a list leaves l unchanged,
// without an error. Elements of another type than T stay empty.
func (l *list[T]) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '[' {
		return nil
	}
	err := casejson.UnmarshalCaseSensitivePreserveInts(b, (*[]T)(l))
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return err
	}
	return nil // elements of another type stay empty
}

// decode decodes JSON into a value, and leaves out fields of another type. It returns false for
// invalid JSON.
func decode(body []byte, into any) bool {
	err := casejson.UnmarshalCaseSensitivePreserveInts(body, into)
	_, mistyped := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || mistyped
}

// object has the metadata of an object, as far as links depend on them.
type object struct {
	Metadata metadata `json:"metadata"`
}

type metadata struct {
	Namespace       Text            `json:"namespace"`
	Labels          map[string]Text `json:"labels"`
	OwnerReferences list[owner]     `json:"ownerReferences"`
}

type owner struct {
	APIVersion Text `json:"apiVersion"`
	Kind       Text `json:"kind"`
	Name       Text `json:"name"`
	UID        Text `json:"uid"`
	Controller Text `json:"controller"`
}

// owner adds the inverse link to the controller or, if there is none, to the first owner. The store
// has an index of the UIDs of just these owners. Without owners it adds nothing.
func (m *metadata) owner(s *said) {
	if len(m.OwnerReferences) == 0 {
		return
	}
	one := m.OwnerReferences[0]
	for _, o := range m.OwnerReferences {
		if o.Controller == "true" {
			one = o
			break
		}
	}
	s.add(Link{Relation: Owner, Inverse: true, Kind: kindOf(one.APIVersion, one.Kind), Name: string(one.Name), UID: types.UID(one.UID)})
}

// kindOf returns the kind that an API version, such as v1 or apps/v1, and a kind name.
func kindOf(apiVersion, kind Text) schema.GroupKind {
	group, _, versioned := strings.Cut(string(apiVersion), "/")
	if !versioned {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: string(kind)}
}

// selecting returns the selector for the labels that a Service requires. It is nil if there are no
// labels, which selects nothing, or if they are invalid.
func selecting(set map[string]Text) labels.Selector {
	if len(set) == 0 {
		return nil
	}
	out := labels.Set{}
	for key, value := range set {
		out[key] = string(value)
	}
	selector, err := out.AsValidatedSelector()
	if err != nil {
		return nil
	}
	return selector
}

// selectingBy returns the selector for a LabelSelector; nil if by is nil or invalid. An empty
// LabelSelector selects everything.
func selectingBy(by *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil || by == nil {
		return nil
	}
	return selector
}
