// Package graph computes the links between objects: what an object refers to, selects, runs and is
// owned by. It is the only place for that. The store's index of references, the fleet's graph and
// the query term "uses" are built on it.
//
// The links are in the object itself, by name. A link leads from the object that uses another to
// the used one, unless it is Inverse. An example of an inverse link: an owned object names its
// owner, which uses it.
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

// Relation is how an object uses another.
type Relation string

// The relations.
const (
	Owner     Relation = "owner"     // the controller, or else the first owner, of the other
	Selector  Relation = "selector"  // the selector selects the pod
	Mount     Relation = "mount"     // as a volume of the pods
	Env       Relation = "env"       // in the environment of the containers
	Pull      Relation = "pull"      // to pull the images
	Account   Relation = "account"   // the pods run as the ServiceAccount
	Image     Relation = "image"     // the containers run the image
	Node      Relation = "node"      // runs on the node
	Class     Relation = "class"     // has the class
	Storage   Relation = "storage"   // the data is there
	Route     Relation = "route"     // sends requests there, or gets them from there
	TLS       Relation = "tls"       // serves with the certificate
	Scale     Relation = "scale"     // scales the other
	Binding   Relation = "binding"   // binds the role, or binds it to the ServiceAccount
	Webhook   Relation = "webhook"   // requests go to the Service
	Endpoints Relation = "endpoints" // the slice has the Service's endpoints
	Event     Relation = "event"     // is about the other
)

// meanings has the meaning of each relation, in order of presentation.
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

// Relations returns all relations.
func Relations() (out []Relation) {
	for _, m := range meanings {
		out = append(out, m.relation)
	}
	return out
}

// Means returns what an object with the relation does to the other, for users; "" for an unknown
// relation.
func (r Relation) Means() string {
	for _, m := range meanings {
		if m.relation == r {
			return m.means
		}
	}
	return ""
}

// Images is the kind of images in the graph, which are not objects.
var Images = schema.GroupKind{Kind: "Image"}

// Link is a reference of an object to another or, with Selector, to the selected pods of its
// namespace.
type Link struct {
	Relation Relation
	Inverse  bool // the other uses this object
	Kind     schema.GroupKind
	// Namespace of the other; "": the same namespace, or a cluster-scoped kind.
	Namespace string
	Name      string
	UID       types.UID       // of the other; "": any object with the name
	Selector  labels.Selector // instead of a name; nil: there is none
}

// Term returns the index entry for all links to a name: KIND.GROUP/NAME.
func Term(kind schema.GroupKind, name string) string { return kind.String() + "/" + name }

// TermAcross returns the additional index entry for links to another namespace.
func TermAcross(kind schema.GroupKind, namespace, name string) string {
	return kind.String() + "/" + namespace + "/" + name
}

// Terms returns the index entries for an object's links, each once. Owners, images and the objects
// of Events have their own indexes, and selectors have none.
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

// Links returns all links of an object of a type, from its JSON; nil for invalid JSON.
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

// Referring returns the links of an object that are in the index, from its JSON: all except the
// owner.
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

// said collects links, each once.
type said struct {
	own   string // namespace of the object
	links []Link
}

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

// to adds a link to a name in the object's namespace, or to a cluster-scoped object.
func (s *said) to(r Relation, kind schema.GroupKind, name Text) {
	s.add(Link{Relation: r, Kind: kind, Name: string(name)})
}

func (s *said) across(r Relation, kind schema.GroupKind, namespace, name Text) {
	s.add(Link{Relation: r, Kind: kind, Namespace: string(namespace), Name: string(name)})
}

// pods adds a link to the pods that a selector selects.
func (s *said) pods(selector labels.Selector) {
	s.add(Link{Relation: Selector, Kind: podKind, Selector: selector})
}

// Text is the text of a JSON string, number or boolean; "" for everything else.
type Text string

// UnmarshalJSON implements json.Unmarshaler.
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

// list is a JSON list; empty for everything else.
type list[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
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

// decode decodes JSON and ignores fields of another type. It returns false for invalid JSON.
func decode(body []byte, into any) bool {
	err := casejson.UnmarshalCaseSensitivePreserveInts(body, into)
	_, mistyped := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || mistyped
}

// object is the common part of all objects.
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

// owner adds the owner whose UID is indexed: the controller, or else the first owner.
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

// kindOf returns the kind for an API version and a kind.
func kindOf(apiVersion, kind Text) schema.GroupKind {
	group, _, versioned := strings.Cut(string(apiVersion), "/")
	if !versioned {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: string(kind)}
}

// selecting returns the selector of a Service, which has labels only; nil if it selects nothing.
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

// selectingBy returns the selector for a LabelSelector; nil if it is missing or invalid.
func selectingBy(by *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil || by == nil {
		return nil
	}
	return selector
}
