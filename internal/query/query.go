// Package query is the language in which people ask for objects of the fleet: 'kind:Pod phase:Pending cluster:eu-* age<1h nginx'.
//
// A query is terms, all of which must hold. A term is a word, which is a part of the name, or a key with a value:
//
//	kind:Pod  ns:shop  cluster:eu-*  name:web-*  phase:Pending,Failed  image:nginx  node:n1  owner:Deployment/web
//	text:"back-off restarting"  app=web  app!=web  label:app  age<1h  created>2026-11-20  restarts>3  replicas:0  has:owner  is:ready
//
// A minus before a term negates it, commas separate values of which one must be, * stands for anything, and quotes take everything
// in them as it is. What is not understood is an error.
package query

import (
	"slices"
	"strings"
	"time"

	"orrery.dev/orrery/internal/words"
)

// Keys of terms.
const (
	Word      = "" // a part of the name
	Kind      = "kind"
	Cluster   = "cluster"
	Namespace = "namespace"
	Name      = "name"
	Label     = "label"
	Node      = "node"
	Image     = "image"
	Text      = "text"
	Phase     = "phase"
	Owner     = "owner"
	Age       = "age"
	Created   = "created"
	Restarts  = "restarts"
	Replicas  = "replicas"
	Has       = "has"
	Is        = "is"
	Uses      = "uses"
)

// keys are what is known, with what each means.
var keys = []struct{ name, means string }{
	{Kind, "the kind, by its name, plural, short name or GROUP/KIND"},
	{Cluster, "the cluster"},
	{Namespace, "the namespace; also ns"},
	{Name, "the name"},
	{Label, "a label: label:KEY, label:KEY=VALUE or KEY=VALUE"},
	{Node, "the node of a pod"},
	{Image, "an image of a pod, or of the pods that a workload makes, or whole words of it"},
	{Text, "whole words, in name, labels, images, annotations and messages of Events; WORD* for a beginning"},
	{Phase, "status.phase"},
	{Owner, "an owner, by NAME or KIND/NAME"},
	{Age, "the time since creation: age<1h, age>7d"},
	{Created, "the time of creation: created>2026-11-20, created<2026-11-20T10:00Z"},
	{Restarts, "how often the containers of a pod were restarted"},
	{Replicas, "spec.replicas"},
	{Has, "what it has: annotation, finalizer, image, label, node, owner"},
	{Is, "what it is: ready, terminating"},
	{Uses, "what it refers to, as KIND/NAME: secret, configmap, persistentvolumeclaim, storageclass, service, …"},
}

// Keys are the keys of terms, each with what it means.
func Keys() map[string]string {
	out := make(map[string]string, len(keys))
	for _, k := range keys {
		out[k.name] = k.means
	}
	return out
}

// Values of the keys that have only these.
var (
	hasValues = []string{"annotation", "finalizer", "image", "label", "node", "owner"}
	isValues  = []string{"ready", "terminating"}
)

// ValuesOf are the values of a key that has only these; nil: it has any.
func ValuesOf(key string) []string {
	switch key {
	case Has:
		return slices.Clone(hasValues)
	case Is:
		return slices.Clone(isValues)
	default:
		return nil
	}
}

// Op is how a term compares.
type Op string

// Operators. Equal is written as a colon.
const (
	Equal   Op = ":"
	Less    Op = "<"
	AtMost  Op = "<="
	Greater Op = ">"
	AtLeast Op = ">="
)

// Value is text or, with Glob, a pattern in which each * stands for anything.
type Value struct {
	Text string
	Glob bool
}

// Pieces are the texts between the stars: of a text one, of a pattern at least two.
func (v Value) Pieces() []string {
	if !v.Glob {
		return []string{v.Text}
	}
	return strings.Split(v.Text, "*")
}

// Matches says whether a text is the value.
func (v Value) Matches(text string) bool { return matches(v.Pieces(), text) }

func matches(pieces []string, text string) bool {
	rest, ok := strings.CutPrefix(text, pieces[0])
	if !ok || len(pieces) == 1 {
		return ok && rest == ""
	}
	last := pieces[len(pieces)-1]
	for _, p := range pieces[1 : len(pieces)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, last)
}

// Term is one requirement.
type Term struct {
	Not    bool
	Key    string
	Label  string // of a term whose key is Label: the label's
	Op     Op
	Values []Value // one of which must hold; of a label none: it is there, whatever its value

	number int64         // of restarts and replicas
	age    time.Duration // of age
	moment time.Time     // of created

	phrases []words.Phrase // of text, and of images that are not patterns
}

// Phrases are the values of a term whose key is Text, and those of Image that are not patterns.
func (t Term) Phrases() []words.Phrase { return slices.Clone(t.phrases) }

// Query is terms, all of which must hold.
type Query struct{ Terms []Term }

// String is the query as Parse reads it.
func (q Query) String() string {
	parts := make([]string, len(q.Terms))
	for i, t := range q.Terms {
		parts[i] = t.String()
	}
	return strings.Join(parts, " ")
}

// String is the term as Parse reads it.
func (t Term) String() string {
	var out strings.Builder
	if t.Not {
		out.WriteByte('-')
	}
	switch t.Key {
	case Word:
		v := t.Values[0]
		if strings.ContainsAny(v.Text, ":=<>") || strings.HasPrefix(v.Text, "-") && !t.Not && !v.Glob {
			v.quote(&out)
		} else {
			v.write(&out)
		}
		return out.String()
	case Label:
		out.WriteString("label:" + t.Label)
		if len(t.Values) > 0 {
			out.WriteByte('=')
		}
	default:
		out.WriteString(t.Key + string(t.Op))
	}
	for i, v := range t.Values {
		if i > 0 {
			out.WriteByte(',')
		}
		v.write(&out)
	}
	return out.String()
}

func (v Value) write(out *strings.Builder) {
	if !v.Glob && (v.Text == "" || strings.ContainsFunc(v.Text, special)) {
		v.quote(out)
		return
	}
	out.WriteString(v.Text)
}

func (v Value) quote(out *strings.Builder) {
	out.WriteByte('"')
	for _, r := range v.Text {
		if r == '"' || r == '\\' {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	out.WriteByte('"')
}

// Of returns the terms of a key.
func (q Query) Of(key string) (out []Term) {
	for _, t := range q.Terms {
		if t.Key == key {
			out = append(out, t)
		}
	}
	return out
}

// Without returns the query without the terms of a key.
func (q Query) Without(key string) Query {
	return Query{slices.DeleteFunc(slices.Clone(q.Terms), func(t Term) bool { return t.Key == key })}
}

// Between is when an object must have been created for the terms of age and creation to hold, to the second: from and before; zero: whenever.
func (q Query) Between(now time.Time) (from, before time.Time) {
	for _, t := range q.Terms {
		var at time.Time
		op := t.Op
		switch t.Key {
		case Created:
			at = t.moment
		case Age: // who is younger was created later
			at = now.Add(-t.age)
			op = map[Op]Op{Less: Greater, AtMost: AtLeast, Greater: Less, AtLeast: AtMost}[op]
		default:
			continue
		}
		if t.Not {
			op = map[Op]Op{Less: AtLeast, AtMost: Greater, Greater: AtMost, AtLeast: Less}[op]
		}
		// Creation is known to the second: what compares with a moment within one compares with the seconds around it.
		second := at.Truncate(time.Second)
		up := second
		if at.After(second) {
			up = second.Add(time.Second)
		}
		var f, b time.Time
		switch op {
		case Greater:
			f = second.Add(time.Second)
		case AtLeast:
			f = up
		case Less:
			b = up
		case AtMost:
			b = second.Add(time.Second)
		case Equal: // not of these keys
		}
		if !f.IsZero() && (from.IsZero() || f.After(from)) {
			from = f
		}
		if !b.IsZero() && (before.IsZero() || b.Before(before)) {
			before = b
		}
	}
	return from, before
}

// Means says in words what a term wants.
func (t Term) Means() string {
	values := make([]string, len(t.Values))
	for i, v := range t.Values {
		values[i] = v.Text
		if v.Glob {
			values[i] = "like " + v.Text
		} else if v.Text == "" {
			values[i] = "empty"
		}
	}
	is, list := " is ", strings.Join(values, " or ")
	if t.Not {
		is = " is not "
	}
	switch t.Key {
	case Word:
		if t.Values[0].Glob {
			return "the name" + is + list
		}
		return map[bool]string{false: "the name has ", true: "the name does not have "}[t.Not] + list + " in it"
	case Label:
		if len(t.Values) == 0 {
			return map[bool]string{false: "there is a label ", true: "there is no label "}[t.Not] + t.Label
		}
		return "the label " + t.Label + is + list
	case Has, Is:
		return map[bool]string{false: "it ", true: "not: it "}[t.Not] + t.Key + " " + list
	case Image:
		return map[bool]string{false: "an image", true: "no image"}[t.Not] + " is, or has as whole words, " + list
	case Text:
		return map[bool]string{false: "its text has ", true: "its text does not have "}[t.Not] + list
	case Uses:
		return map[bool]string{false: "it refers to ", true: "it does not refer to "}[t.Not] + list
	case Owner:
		return map[bool]string{false: "an owner is ", true: "no owner is "}[t.Not] + list
	}
	if t.Op != Equal {
		compared := map[Op]string{Less: "less than ", AtMost: "at most ", Greater: "more than ", AtLeast: "at least "}
		if t.Key == Created {
			compared = map[Op]string{Less: "before ", AtMost: "up to ", Greater: "after ", AtLeast: "from "}
		}
		return t.Key + is + compared[t.Op] + list
	}
	return "the " + t.Key + is + list
}
