package query

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"

	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/words"
)

// Object is an object of a cluster, as Matches and Values read it. Matches needs the fields that
// the terms of the query are about. Values needs only Body.
type Object struct {
	Cluster, Group, Resource, Kind, Namespace, Name string

	Aliases []string // other names of the kind: plural, singular, short ones
	Labels  map[string]string
	Created time.Time // zero: unknown
	Body    []byte    // the whole object as JSON
}

// details receives the fields of an object's JSON that terms are about and that Object does not
// have. A field of an unexpected JSON type counts as missing.
type details struct {
	Metadata struct {
		Annotations       map[string]words.Text `json:"annotations"`
		Finalizers        []any                 `json:"finalizers"`
		DeletionTimestamp any                   `json:"deletionTimestamp"`
		OwnerReferences   []struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Reason  words.Text `json:"reason"` // reason, message and note are fields of an Event
	Message words.Text `json:"message"`
	Note    words.Text `json:"note"`
	Spec    struct {
		NodeName string `json:"nodeName"`
		Replicas *int64 `json:"replicas"`
	} `json:"spec"`
	Status struct {
		Phase                 string           `json:"phase"`
		Conditions            graph.Conditions `json:"conditions"`
		ContainerStatuses     []container      `json:"containerStatuses"`
		InitContainerStatuses []container      `json:"initContainerStatuses"`
	} `json:"status"`
}

// container is the status of one container of a pod.
type container struct {
	RestartCount int64 `json:"restartCount"`
}

// Matches reports whether all terms of the query hold for an object. Ages are compared with the
// time now.
//
// An object may lack the field that a term is about, as a Service has no phase. Then the term does
// not hold, even if it is negated. The keys owner, label, text and has, and is:terminating, are
// exceptions: without the field their negation holds. An object without a creation time matches no
// query with age or created.
func (q Query) Matches(o Object, now time.Time) bool {
	var d *details
	body := func() *details {
		if d == nil {
			d = &details{}
			// An error is ignored: fields of an unexpected type stay empty.
			_ = json.UnmarshalCaseSensitivePreserveInts(pick(o.Body, q.fields()), d)
		}
		return d
	}
	if from, before := q.Between(now); !from.IsZero() && o.Created.Before(from) || !before.IsZero() && !o.Created.Before(before) ||
		(!from.IsZero() || !before.IsZero()) && o.Created.IsZero() {
		return false
	}
	for _, t := range q.Terms {
		if holds, known := t.holds(o, body); !known || holds == t.Not {
			return false
		}
	}
	return true
}

// holds reports whether the term without its minus (Not) holds for an object. known is false if the
// object lacks the field that the term is about. For age and created, holds is !Not, so that the
// caller Matches, which has checked them, accepts. body decodes the JSON of the object. It is
// called only if the term needs a field that Object does not have.
func (t Term) holds(o Object, body func() *details) (holds, known bool) {
	one := func(text string) bool {
		return slices.ContainsFunc(t.Values, func(v Value) bool { return v.Matches(text) })
	}
	switch t.Key {
	case Age, Created: // checked in Matches
		return !t.Not, true
	case Word:
		v := t.Values[0]
		if v.Glob {
			return v.Matches(o.Name), true
		}
		return strings.Contains(o.Name, v.Text), true
	case Kind:
		return t.IsKind(o.Group, append([]string{o.Kind}, o.Aliases...)), true
	case Cluster:
		return one(o.Cluster), true
	case Namespace:
		return one(o.Namespace), true
	case Name:
		return one(o.Name), true
	case Label:
		value, there := o.Labels[t.Label]
		return there && (len(t.Values) == 0 || one(value)), true
	case Node:
		n := body().Spec.NodeName
		return one(n), n != ""
	case Phase:
		phase := body().Status.Phase
		return one(phase), phase != ""
	case Image:
		images := graph.ImagesOf(o.Body)
		return slices.ContainsFunc(images, t.isImage), len(images) > 0
	case Text:
		text := body().text(o)
		return slices.ContainsFunc(t.phrases, func(p words.Phrase) bool { return p.In(text) }), true
	case Owner:
		return t.owned(body()), true
	case Uses:
		gr := schema.GroupResource{Group: o.Group, Resource: o.Resource}
		return slices.ContainsFunc(graph.Terms(graph.Referring(gr, o.Body)), one), graph.Refers(gr)
	case Restarts:
		all := slices.Concat(body().Status.InitContainerStatuses, body().Status.ContainerStatuses)
		var sum int64
		for _, c := range all {
			sum += c.RestartCount
		}
		return t.compare(sum), len(all) > 0
	case Replicas:
		if n := body().Spec.Replicas; n != nil {
			return t.compare(*n), true
		}
		return false, false
	case Has:
		return slices.ContainsFunc(t.Values, func(v Value) bool { return body().has(v.Text, o) }), true
	case Is:
		return t.is(body())
	default:
		return false, false
	}
}

// is evaluates a term with the key is. Its values are alternatives: terminating holds for an object
// with a deletion timestamp, ready if a condition Ready or Available is True. known is false if
// ready is the only value and the object has neither condition.
func (t Term) is(d *details) (holds, known bool) {
	for _, v := range t.Values {
		switch v.Text {
		case "terminating":
			holds, known = holds || d.Metadata.DeletionTimestamp != nil, true
		case "ready":
			ready, has := d.Status.Conditions.Ready()
			holds, known = holds || ready, known || has
		}
	}
	return holds, known
}

// IsKind reports whether a value of the term, which has the key kind, names a kind. group is the
// API group of the kind, "" for the core group. names are its kind, plural, singular and short
// names. A value may be NAME, NAME.GROUP or GROUP/NAME, each also as a pattern. Case does not
// matter, and an empty name matches nothing.
func (t Term) IsKind(group string, names []string) bool {
	group = strings.ToLower(group)
	return slices.ContainsFunc(t.Values, func(v Value) bool {
		v.Text = strings.ToLower(v.Text)
		if of, name, ok := strings.Cut(v.Text, "/"); ok {
			if !(Value{of, strings.Contains(of, "*") && v.Glob}).Matches(group) {
				return false
			}
			v.Text = name
		}
		return slices.ContainsFunc(names, func(name string) bool {
			name = strings.ToLower(name)
			return name != "" && (v.Matches(name) || group != "" && v.Matches(name+"."+group))
		})
	})
}

// isImage reports whether an image, such as docker.io/library/nginx:1.25, matches a value of the
// term. A pattern must match the whole image. A value without * must occur in the image as complete
// words, such as nginx or nginx:1.25.
func (t Term) isImage(image string) bool {
	text := words.Source{Name: image}.Text()
	phrases := t.phrases
	return slices.ContainsFunc(t.Values, func(v Value) bool {
		if v.Glob {
			return v.Matches(image)
		}
		p := phrases[0]
		phrases = phrases[1:]
		return strings.Contains(image, v.Text) && p.In(text)
	})
}

// owned reports whether an owner reference of the object matches a value of the term. A value is
// compared with NAME and with KIND/NAME.
func (t Term) owned(d *details) bool {
	for _, o := range d.Metadata.OwnerReferences {
		for _, v := range t.Values {
			if v.Matches(o.Name) || v.Matches(o.Kind+"/"+o.Name) {
				return true
			}
		}
	}
	return false
}

// compare reports whether n satisfies the term, such as restarts>3: its operator and its number.
func (t Term) compare(n int64) bool {
	switch t.Op {
	case Less:
		return n < t.number
	case AtMost:
		return n <= t.number
	case Greater:
		return n > t.number
	case AtLeast:
		return n >= t.number
	default:
		return n == t.number
	}
}

// text returns the words of an object that terms with the key text search, in the form of
// words.Source.Text. They come from its name, labels, annotations and images, and from the reason
// and message of an Event.
func (d *details) text(o Object) string {
	return words.Of(o.Group, o.Resource, o.Name, o.Labels, d.Metadata.Annotations, graph.ImagesOf(o.Body), d.Reason, cmp.Or(d.Message, d.Note)).Text()
}

// has reports whether an object has something: an annotation, finalizer, image, label, node or
// owner. what is one of hasValues. Any other text counts as owner.
func (d *details) has(what string, o Object) bool {
	switch what {
	case "annotation":
		return len(d.Metadata.Annotations) > 0
	case "finalizer":
		return len(d.Metadata.Finalizers) > 0
	case "image":
		return len(graph.ImagesOf(o.Body)) > 0
	case "label":
		return len(o.Labels) > 0
	case "node":
		return d.Spec.NodeName != ""
	default:
		return len(d.Metadata.OwnerReferences) > 0
	}
}

// Values returns the values by which an object is counted for a key. For Phase and Node it is one
// value, for Image the images, sorted and each once. An object without a value, and any other key,
// has the one value "". Fields of o other than Body are not used.
func (o Object) Values(key string) []string {
	var d details
	_ = json.UnmarshalCaseSensitivePreserveInts(o.Body, &d) // fields that cannot be read stay empty
	switch key {
	case Phase:
		return []string{d.Status.Phase}
	case Node:
		return []string{d.Spec.NodeName}
	case Image:
		if images := graph.ImagesOf(o.Body); len(images) > 0 {
			slices.Sort(images)
			return slices.Compact(images)
		}
	}
	return []string{""}
}
