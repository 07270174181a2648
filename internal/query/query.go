// Package query is the language for searching objects of the fleet: 'kind:Pod phase:Pending
// cluster:eu-* age<1h nginx'.
//
// A query is a list of terms, and all must hold. A term is a word, which matches a part of the
// name, or a key with a value:
//
//	kind:Pod  ns:shop  cluster:eu-*  name:web-*  phase:Pending,Failed  image:nginx  node:n1
//	owner:Deployment/web  text:"back-off restarting"  app=web  app!=web  label:app  age<1h
//	created>2026-11-20  restarts>3  replicas:0  has:owner  is:ready
//
// A minus before a term negates it. Commas separate alternative values. * matches any text, and
// quotes take all characters literally. An invalid query is an error.
package query

import (
	"slices"
	"strings"
	"time"

	"orrery.dev/orrery/internal/words"
)

// Keys of terms; the variable keys has their meanings.
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

// keys has all keys with their meaning, as a text for users.
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

// Keys returns the meaning of each key, as a text for users, by the key.
func Keys() map[string]string {
	out := make(map[string]string, len(keys))
	for _, k := range keys {
		out[k.name] = k.means
	}
	return out
}

// The values that the keys has and is accept.
var (
	hasValues = []string{"annotation", "finalizer", "image", "label", "node", "owner"}
	isValues  = []string{"ready", "terminating"}
)

// ValuesOf returns the values that a key accepts, as a new slice. Only has and is have a fixed set.
// For any other key the result is nil, and users write values of their own.
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

// Op is the operator of a term. A term about a label always has Equal: != is stored as Not.
type Op string

// Operators. Equal is written as a colon, or as = for labels.
const (
	Equal   Op = ":"
	Less    Op = "<"
	AtMost  Op = "<="
	Greater Op = ">"
	AtLeast Op = ">="
)

// Value is a text that must be equal or, if Glob is true, a pattern in which each * stands for any
// text.
type Value struct {
	Text string
	Glob bool
}

// Pieces returns the texts between the stars of a pattern, at least two. For a value that is no
// pattern it returns the text itself.
func (v Value) Pieces() []string {
	if !v.Glob {
		return []string{v.Text}
	}
	return strings.Split(v.Text, "*")
}

// Matches reports whether the text matches the value.
func (v Value) Matches(text string) bool { return matches(v.Pieces(), text) }

// matches reports whether a text consists of the pieces in their order, with any texts between
// them. There must be at least one piece. One piece must be the whole text.
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

// Term is one condition of a query: a key, an operator and alternative values, such as
// phase:Pending,Failed. If Not is true, no value may match. Parse makes terms; the zero value is
// invalid.
type Term struct {
	Not    bool
	Key    string
	Label  string // if Key is Label: the key of the label
	Op     Op
	Values []Value // alternatives; none for a label means: any value

	number int64         // for restarts and replicas
	age    time.Duration // for age
	moment time.Time     // for created

	phrases []words.Phrase // for text, and for images without a pattern
}

// Phrases returns the words to search for, one Phrase for each value: of a term with the key Text,
// or Image. Patterns of images have none. Other terms have none.
func (t Term) Phrases() []words.Phrase { return slices.Clone(t.phrases) }

// Query is a list of terms, all of which must hold for an object. The zero value has no terms, and
// every object matches it.
type Query struct{ Terms []Term }

// String returns the query in the syntax of Parse, with the terms in their order.
func (q Query) String() string {
	parts := make([]string, len(q.Terms))
	for i, t := range q.Terms {
		parts[i] = t.String()
	}
	return strings.Join(parts, " ")
}

// String returns the term in the syntax of Parse.
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

// write writes the value in the syntax of Parse. It quotes an empty text, and a text with
// characters that Parse would take for syntax.
func (v Value) write(out *strings.Builder) {
	if !v.Glob && (v.Text == "" || strings.ContainsFunc(v.Text, special)) {
		v.quote(out)
		return
	}
	out.WriteString(v.Text)
}

// quote writes the value in quotes, with a backslash before quotes and backslashes.
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

// Of returns the terms with a key, in their order; nil if there are none.
func (q Query) Of(key string) (out []Term) {
	for _, t := range q.Terms {
		if t.Key == key {
			out = append(out, t)
		}
	}
	return out
}

// Without returns a query without the terms that have a key. It does not change q.
func (q Query) Without(key string) Query {
	return Query{slices.DeleteFunc(slices.Clone(q.Terms), func(t Term) bool { return t.Key == key })}
}

// Between returns the range of creation times in which all terms with the keys age and created
// hold. from is inclusive and before exclusive, both in whole seconds; zero: no limit. Ages are
// relative to now. If before is not after from, no object matches.
func (q Query) Between(now time.Time) (from, before time.Time) {
	for _, t := range q.Terms {
		var at time.Time
		op := t.Op
		switch t.Key {
		case Created:
			at = t.moment
		case Age: // a smaller age is a later creation
			at = now.Add(-t.age)
			op = map[Op]Op{Less: Greater, AtMost: AtLeast, Greater: Less, AtLeast: AtMost}[op]
		default:
			continue
		}
		if t.Not {
			op = map[Op]Op{Less: AtLeast, AtMost: Greater, Greater: AtMost, AtLeast: Less}[op]
		}
		// Creation times have a precision of a second. If the moment at is within a second, the
		// range begins or ends at the whole second before or after it.
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
		case Equal: // not allowed for these keys
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

// Means returns the meaning of a term as an English clause, such as "the name has web in it". The
// explanation of a search shows it to users.
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
