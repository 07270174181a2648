// Package graph says what objects have to do with each other: what an object refers to, selects, runs and is owned by. It is the one place that says so:
// the store's index of references, the fleet's graph and the term "uses" of queries ask it.
//
// An object tells its links itself, and tells them of others by name. A link leads from what uses to what is used, unless it is Inverse: what is owned tells its owner,
// which uses it.
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
	Owner     Relation = "owner"     // it owns the other: it is the controller, or else the first owner
	Selector  Relation = "selector"  // its selector selects the pod
	Mount     Relation = "mount"     // as a volume of its pods
	Env       Relation = "env"       // in the environment of its containers
	Pull      Relation = "pull"      // to pull its images
	Account   Relation = "account"   // its pods run as the ServiceAccount
	Image     Relation = "image"     // its containers run the image
	Node      Relation = "node"      // it runs on the node
	Class     Relation = "class"     // it is of the class
	Storage   Relation = "storage"   // its data is there
	Route     Relation = "route"     // it sends requests there, or gets them from there
	TLS       Relation = "tls"       // it serves with the certificate
	Scale     Relation = "scale"     // it scales the other
	Binding   Relation = "binding"   // it binds the role, or binds it to the ServiceAccount
	Webhook   Relation = "webhook"   // its requests go to the Service
	Endpoints Relation = "endpoints" // the slice has its endpoints
	Event     Relation = "event"     // it is about the other
)

// meanings are what each relation means, in the order in which they are told.
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

// Relations are all of them.
func Relations() (out []Relation) {
	for _, m := range meanings {
		out = append(out, m.relation)
	}
	return out
}

// Means says what an object is to another that it has the relation to.
func (r Relation) Means() string {
	for _, m := range meanings {
		if m.relation == r {
			return m.means
		}
	}
	return ""
}

// Images are no objects, but in the graph they are of this kind.
var Images = schema.GroupKind{Kind: "Image"}

// Link is what an object says of another, or with Selector of all pods of its namespace that are selected.
type Link struct {
	Relation Relation
	Inverse  bool // the other uses this one
	Kind     schema.GroupKind
	// Namespace is another than the object's own; "": it is in the same, or its kind is in none.
	Namespace string
	Name      string
	UID       types.UID       // of the other; "": whatever has the name
	Selector  labels.Selector // instead of a name; nil: there is none
}

// Term is under what an index has all links that lead to a name: KIND.GROUP/NAME.
func Term(kind schema.GroupKind, name string) string { return kind.String() + "/" + name }

// TermAcross is under what an index has, besides, links that lead to another namespace.
func TermAcross(kind schema.GroupKind, namespace, name string) string {
	return kind.String() + "/" + namespace + "/" + name
}

// Terms are under what an index has an object's links, each once. Owners, images and what Events are about have indexes of their own, and selectors none.
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

// Links are what an object of a type says, by its JSON.
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

// Referring are the links of an object that an index has, by its JSON: all but those to its owner.
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
	own   string // the object's namespace
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

// to adds a link to a name in the object's own namespace, or in none.
func (s *said) to(r Relation, kind schema.GroupKind, name Text) {
	s.add(Link{Relation: r, Kind: kind, Name: string(name)})
}

func (s *said) across(r Relation, kind schema.GroupKind, namespace, name Text) {
	s.add(Link{Relation: r, Kind: kind, Namespace: string(namespace), Name: string(name)})
}

// pods adds a link to pods that a selector selects.
func (s *said) pods(selector labels.Selector) {
	s.add(Link{Relation: Selector, Kind: podKind, Selector: selector})
}

// Text is the text of a string, number or boolean of JSON, as fields are compared; of everything else it is "".
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

// list is a list, or of what is none, the empty one.
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
	return nil // elements of another type are empty
}

// decode reads JSON; fields of another type are as if they were not there. It says whether it is JSON at all.
func decode(body []byte, into any) bool {
	err := casejson.UnmarshalCaseSensitivePreserveInts(body, into)
	_, mistyped := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || mistyped
}

// object is what every object has.
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

// owner adds the one owner whose UID the index has: the controller, or else the first.
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

// kindOf is the kind of a reference by API version and kind.
func kindOf(apiVersion, kind Text) schema.GroupKind {
	group, _, versioned := strings.Cut(string(apiVersion), "/")
	if !versioned {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: string(kind)}
}

// selecting is a selector of a Service, whose selector is labels alone; nil: it selects nothing.
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

// selectingBy is a selector of everything else; nil: it is none that can be understood.
func selectingBy(by *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil || by == nil {
		return nil
	}
	return selector
}
