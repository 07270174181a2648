package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"orrery.dev/orrery/internal/expression"
	"orrery.dev/orrery/internal/query"
	"orrery.dev/orrery/internal/store"
)

// asked is what a request selects by beside selectors: q, in the query language for people, and
// filter, a CEL expression.
//
// The terms that the store can evaluate become a part of the query of the store. The others are
// evaluated on the remaining objects, the candidates. A request reads at most mostCandidates.
type asked struct {
	text   string // of q
	query  query.Query
	filter *expression.Expression
	now    time.Time // the time with which ages are compared
	// budget is shared by all types of a request; nil: each query has its own.
	budget *expression.Budget
}

// mostCandidates is the maximum number of objects that a request reads to evaluate q or filter.
const mostCandidates = 10_000

// mostKept is the maximum number of bytes of matching objects that such a request keeps in
// memory. A page ends at mostCandidates or mostKept; a request without a limit fails there.
const mostKept = 256 << 20

func (a *asked) parse(text string) (err error) {
	a.text = text
	a.query, err = query.Parse(text)
	return err
}

func (a *asked) compile(text string) (err error) {
	a.filter, err = expression.Compile(text)
	return err
}

// empty reports whether neither q nor filter selects anything.
func (a *asked) empty() bool { return len(a.query.Terms) == 0 && a.filter == nil }

// tag returns a hash of q and filter for continue tokens; "" if both are empty.
func (a *asked) tag() string {
	if a.empty() {
		return ""
	}
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%q %q", a.query.String(), a.filter) // a hash takes everything
	return fmt.Sprintf("%08x~", h.Sum32())
}

// unlikeError is the error that the objects of a type do not have what a term selects by.
type unlikeError struct{ *apierrors.StatusError }

func unlike(format string, args ...any) error {
	return unlikeError{apierrors.NewBadRequest("parameter q: " + fmt.Sprintf(format, args...))}
}

// ofGroup makes an unlikeError name the parameter group instead of q.
func ofGroup(err error) error {
	e, ok := errors.AsType[unlikeError](err)
	if !ok {
		return err
	}
	return unlikeError{apierrors.NewBadRequest(strings.Replace(e.ErrStatus.Message, "parameter q:", "parameter group:", 1))}
}

// Unwrap returns the error for the client.
func (e unlikeError) Unwrap() error { return e.StatusError }

// fieldsOf are, by key of the query language, the field that a type must have for the key.
var fieldsOf = map[string]string{
	query.Phase:    "status.phase",
	query.Node:     "spec.nodeName",
	query.Replicas: "spec.replicas",
}

// about returns an unlikeError if the objects of a type cannot have what a key is about; nil if
// they may have it.
func (s *Search) about(ctx context.Context, at location, k kind, key string) error {
	switch field, ok := fieldsOf[key]; {
	case ok:
		path, err := store.ParseFieldPath(field)
		if err != nil {
			return err
		}
		whys, err := s.checkPaths(ctx, at, k, []store.FieldPath{path})
		if err != nil || whys[0] == "" {
			return err
		}
		return unlike("%s have no %s: %s", at.GroupResource(), key, whys[0])
	case key == query.Image && !store.FieldOf(at.Group, at.Resource, store.FieldImages):
		return unlike("%s have no images", at.GroupResource())
	case key == query.Uses && !store.FieldOf(at.Group, at.Resource, store.FieldReferences):
		return unlike("%s refer to nothing that is looked for", at.GroupResource())
	case key == query.Restarts && (at.Group != "" || at.Resource != "pods"):
		return unlike("%s are not restarted: only pods are", at.GroupResource())
	}
	return nil
}

// narrow removes from a type the clusters that q and filter exclude. It returns an error if q
// names another kind, or a field that the type does not have.
func (s *Search) narrow(ctx context.Context, at location, k *kind, a asked, seen scope) error {
	only := func(in func(cluster string) bool) {
		out := func(cluster string) bool { return !in(cluster) }
		k.partial = true
		k.clusters = slices.DeleteFunc(k.clusters, out)
		for v := range k.others {
			k.others[v] = slices.DeleteFunc(k.others[v], out)
		}
		for namespaced := range k.scopes {
			k.scopes[namespaced] = slices.DeleteFunc(k.scopes[namespaced], out)
		}
	}
	said := map[string]bool{} // keys that about accepted for the type
	var clusters []string
	for _, t := range a.query.Terms {
		if t.Key == query.Kind && t.IsKind(at.Group, kindNames(*k)) == t.Not {
			return unlike("%s is not %s, of which the path is", t, at.GroupResource())
		}
		if !said[t.Key] {
			if err := s.about(ctx, at, *k, t.Key); err != nil {
				return err
			}
			said[t.Key] = true
		}
		if t.Key != query.Cluster {
			continue
		}
		if clusters == nil {
			clusters = s.Clusters()
		}
		for _, v := range t.Values {
			if !v.Glob && (!slices.Contains(clusters, v.Text) || seen.fence != nil && seen.closed(v.Text)) {
				// A search of every kind continues with the next kind, for a closed and for an
				// absent cluster.
				return closedError{noClusterIn("q", v.Text)}
			}
		}
		only(func(cluster string) bool {
			return slices.ContainsFunc(t.Values, func(v query.Value) bool { return v.Matches(cluster) }) != t.Not
		})
	}
	if a.filter != nil {
		for _, e := range a.filter.Equalities() {
			if e.Path == nil {
				only(func(cluster string) bool { return cluster == e.Value })
			}
		}
	}
	return nil
}

// kindNames returns the names by which a request may name a kind.
func kindNames(k kind) []string {
	return append([]string{k.GroupVersionKind.Kind, k.Resource, k.Singular}, k.ShortNames...)
}

// namespaces returns the namespaces if q selects them by exact names only; else nil.
func (a *asked) namespaces() []string {
	terms := a.query.Of(query.Namespace)
	if len(terms) != 1 || terms[0].Not || slices.ContainsFunc(terms[0].Values, func(v query.Value) bool { return v.Glob }) {
		return nil
	}
	return texts(terms[0])
}

func texts(t query.Term) (out []string) {
	for _, v := range t.Values {
		out = append(out, v.Text)
	}
	return out
}

// refine adds to a query the terms that the store can evaluate. It returns a filter for the
// rows, or nil if no term is left.
func (a *asked) refine(q *store.Query, k kind) (keep, error) {
	rest := false // whether terms are left
	if q.Labels == nil {
		q.Labels = labels.Everything()
	}
	// The appended slices must not be shared with the queries of other types.
	q.NameContains, q.Texts, q.Fields = slices.Clip(q.NameContains), slices.Clip(q.Texts), slices.Clip(q.Fields)
	var required labels.Requirements
	for _, t := range a.query.Terms {
		left, err := a.pushTerm(q, t, &required)
		if err != nil {
			return nil, err
		}
		rest = rest || left
	}
	q.CreatedFrom, q.CreatedBefore = a.query.Between(a.now)
	if a.filter != nil {
		for _, e := range a.filter.Equalities() {
			pushEquality(q, e, &required)
		}
	}
	if len(required) > 0 {
		q.Labels = q.Labels.Add(required...) // at once: each Add copies and sorts all
	}
	if !rest && a.filter == nil {
		return nil, nil //nolint:nilnil // there is nothing to look for
	}
	aliases, budget := kindNames(k), cmp.Or(a.budget, new(expression.Budget))
	return func(ctx context.Context, row *store.Row) (bool, error) {
		if row.Body == nil { // the journal has only the key of this state
			return true, nil
		}
		if rest && !a.query.Matches(query.Object{
			Cluster: row.Cluster, Group: row.Group, Resource: row.Resource, Kind: row.Kind, Namespace: row.Namespace, Name: row.Name,
			Aliases: aliases, Labels: row.Labels, Created: row.Created, Body: row.Body,
		}, a.now) {
			return false, nil
		}
		if a.filter == nil {
			return true, nil
		}
		ok, err := a.filter.Matches(ctx, row.Cluster, row.Body, budget)
		if errors.Is(err, expression.ErrCost) {
			return false, apierrors.NewBadRequest(fmt.Sprintf("parameter filter: %s %s/%s of cluster %s: %v", row.Resource, row.Namespace, row.Name, row.Cluster, err))
		}
		return ok, err
	}, nil
}

// pushTerm adds a term to a query, as far as the store can evaluate it. left is true if rows
// must be compared with the term, too. Requirements on labels are added to required.
func (a *asked) pushTerm(q *store.Query, t query.Term, required *labels.Requirements) (left bool, err error) {
	globbed := slices.ContainsFunc(t.Values, func(v query.Value) bool { return v.Glob })
	pattern := func(namespace bool, values ...query.Value) {
		p := store.Pattern{Namespace: namespace, Not: t.Not}
		for _, v := range values {
			p.Globs = append(p.Globs, v.Pieces())
		}
		q.Patterns = append(q.Patterns, p)
	}
	switch t.Key {
	case query.Kind, query.Cluster, query.Age, query.Created: // narrow and refine handle these
	case query.Word:
		v := t.Values[0]
		if pushPrefix(q, t) {
			return false, nil
		}
		if !v.Glob {
			// For up to this number an index may help.
			if most := 10; !t.Not && len(q.NameContains) < most && len(v.Text) <= 253 {
				q.NameContains = append(q.NameContains, v.Text)
				return false, nil
			}
			q.Patterns = append(q.Patterns, store.Pattern{Globs: []store.Glob{{"", v.Text, ""}}, Not: t.Not})
			return false, nil
		}
		pattern(false, v)
	case query.Name:
		if !globbed && !t.Not && q.Names == nil {
			q.Names = texts(t)
			return false, nil
		}
		if pushPrefix(q, t) {
			return false, nil
		}
		pattern(false, t.Values...)
	case query.Namespace:
		if !slices.Equal(q.Namespaces, a.namespaces()) || len(q.Namespaces) == 0 {
			pattern(true, t.Values...)
		}
	case query.Label:
		return pushLabel(required, t, globbed)
	case query.Text:
		q.Texts = append(q.Texts, store.FullText{Any: t.Phrases(), Not: t.Not})
	case query.Phase:
		pushField(q, t, "status.phase")
		return true, nil
	case query.Node:
		pushField(q, t, "spec.nodeName")
		return true, nil
	case query.Image:
		if !globbed && !t.Not { // an object with these words in an image has them in its text
			q.Texts = append(q.Texts, store.FullText{Any: t.Phrases()})
		}
		pushField(q, t, store.FieldImages)
		return true, nil
	case query.Uses:
		pushField(q, t, store.FieldReferences)
		return true, nil
	case query.Is:
		state := rare(t)
		if state == "" || !store.FieldOf(q.Group, q.Resource, store.FieldIs) {
			return true, nil
		}
		q.Fields = append(q.Fields, store.FieldRequirement{Path: store.FieldIs, Operator: selection.Equals, Value: state})
	default:
		return true, nil
	}
	return false, nil
}

// rare returns the value of store.FieldIs that a term selects; "" if the term is another one.
func rare(t query.Term) string {
	switch {
	case len(t.Values) != 1:
	case t.Values[0].Text == "ready" && t.Not:
		return store.Unready
	case t.Values[0].Text == "terminating" && !t.Not:
		return store.Terminating
	}
	return ""
}

// pushPrefix sets the name prefix of a query if the term is the prefix of a name and the query
// has none yet. It returns false if it did not.
func pushPrefix(q *store.Query, t query.Term) bool {
	if t.Not || len(t.Values) != 1 || !t.Values[0].Glob || q.NamePrefix != "" {
		return false
	}
	pieces := t.Values[0].Pieces()
	if len(pieces) != 2 || pieces[0] == "" || pieces[1] != "" {
		return false
	}
	q.NamePrefix = pieces[0]
	return true
}

// pushLabel adds a term about a label. For a pattern the store only checks that the label
// exists, and left is true.
func pushLabel(required *labels.Requirements, t query.Term, globbed bool) (left bool, err error) {
	var op selection.Operator
	var values []string
	switch {
	case globbed && t.Not:
		return true, nil
	case len(t.Values) == 0 && t.Not:
		op = selection.DoesNotExist
	case len(t.Values) == 0 || globbed:
		op = selection.Exists
	case t.Not:
		op, values = selection.NotIn, texts(t)
	default:
		op, values = selection.In, texts(t)
	}
	r, err := labels.NewRequirement(t.Label, op, values)
	if err != nil {
		return false, apierrors.NewBadRequest(fmt.Sprintf("parameter q: %s: %v", t, err))
	}
	*required = append(*required, *r)
	return globbed, nil
}

// pushField adds the value that an indexed field must have or, for several values, patterns and
// images, the texts that the field must mention.
func pushField(q *store.Query, t query.Term, path string) {
	if t.Not || !store.FieldOf(q.Group, q.Resource, path) {
		return
	}
	if len(t.Values) == 1 && !t.Values[0].Glob && path != store.FieldImages {
		q.Fields = append(q.Fields, store.FieldRequirement{Path: path, Operator: selection.Equals, Value: t.Values[0].Text})
		return
	}
	var mentions []string
	for _, v := range t.Values {
		longest := slices.MaxFunc(v.Pieces(), func(a, b string) int { return len(a) - len(b) })
		mentions = append(mentions, store.Mention(longest, !v.Glob && path != store.FieldImages))
	}
	q.Mentions = append(q.Mentions, mentions)
}

// pushEquality adds a condition of an expression if the store can find it without reading
// objects.
func pushEquality(q *store.Query, e expression.Equality, required *labels.Requirements) {
	switch path := e.Path; {
	case len(path) == 2 && path[0] == "metadata" && path[1] == "name":
		if q.Names == nil {
			q.Names = []string{e.Value}
		}
	case len(path) == 2 && path[0] == "metadata" && path[1] == "namespace":
		q.Patterns = append(q.Patterns, store.Pattern{Namespace: true, Globs: []store.Glob{{e.Value}}})
	case len(path) == 3 && path[0] == "metadata" && path[1] == "labels":
		if r, err := labels.NewRequirement(path[2], selection.Equals, []string{e.Value}); err == nil {
			*required = append(*required, *r)
		}
	case e.Value != "" && store.FieldOf(q.Group, q.Resource, strings.Join(path, ".")):
		q.Fields = append(q.Fields, store.FieldRequirement{Path: strings.Join(path, "."), Operator: selection.Equals, Value: e.Value})
	}
}

// keep reports whether a row, which the query of the store selected, matches q and filter.
type keep func(ctx context.Context, row *store.Row) (bool, error)

// sift returns the indices of the rows that match. It uses several goroutines for many rows.
func (f keep) sift(ctx context.Context, rows []store.Row) (kept []int, err error) {
	const few = 50 // rows do not justify another goroutine
	workers := min(runtime.GOMAXPROCS(0), 1+len(rows)/few)
	found, failed := make([][]int, workers), make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			defer func() {
				if panicked := recover(); panicked != nil {
					failed[w] = unexpected(panicked)
				}
			}()
			for i := w * len(rows) / workers; i < (w+1)*len(rows)/workers && failed[w] == nil; i++ {
				var ok bool
				if ok, failed[w] = f(ctx, &rows[i]); ok {
					found[w] = append(found[w], i)
				}
			}
		})
	}
	running.Wait()
	return slices.Concat(found...), errors.Join(failed...)
}

// unexpected returns the error for a panic in a goroutine other than that of the request, where
// a panic would end the process.
func unexpected(panicked any) error {
	return fmt.Errorf("look for what is asked: panic: %v\n%s", panicked, debug.Stack())
}

// tooMany returns the error for a request that would have to read more than mostCandidates at
// once.
func tooMany(resource string) error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"what q or filter ask for is looked for in more than %d %s: set a limit to have the answer in pages (kubectl does), or narrow it by namespace, cluster, label, name, age, phase or node",
		mostCandidates, resource))
}
