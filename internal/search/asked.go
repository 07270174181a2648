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

// asked is the part of a request that selects objects by q, a query in the language of package
// query, and by filter, a CEL expression. Selectors and names are in params.
//
// The store evaluates the terms that it can, as a part of its own query. The other terms and the
// filter are evaluated here, on the objects that the store returns: the candidates. One request
// reads at most mostCandidates of them.
type asked struct {
	text   string // the parameter q
	query  query.Query
	filter *expression.Expression
	now    time.Time // ages in q are relative to this time
	// budget limits the cost of filter. All types of a request share it; nil: each type has its own.
	budget *expression.Budget
}

// mostCandidates is the maximum number of objects that a request reads to evaluate q or filter.
const mostCandidates = 10_000

// mostKept is the number of bytes of matching objects after which a request with q or filter stops
// reading. A page ends at mostCandidates or mostKept. A request without a limit then fails.
const mostKept = 256 << 20

// parse parses the parameter q. The error wraps query.ErrSyntax, and its text is for users.
func (a *asked) parse(text string) (err error) {
	a.text = text
	a.query, err = query.Parse(text)
	return err
}

// compile compiles the parameter filter. The error is for users.
func (a *asked) compile(text string) (err error) {
	a.filter, err = expression.Compile(text)
	return err
}

// empty reports whether the request has neither terms of q nor a filter.
func (a *asked) empty() bool { return len(a.query.Terms) == 0 && a.filter == nil }

// tag returns a hash of q and filter, which ends with ~, for continue tokens: a token must not be
// used with another q or filter. It is "" if the request has neither.
func (a *asked) tag() string {
	if a.empty() {
		return ""
	}
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%q %q", a.query.String(), a.filter) // writes to a hash do not fail
	return fmt.Sprintf("%08x~", h.Sum32())
}

// unlikeError means that no object of a type can match a term of q: the term names another kind, or
// a field that the type does not have. A search of every kind skips the type. A list of one type
// returns the error to the client (400).
type unlikeError struct{ *apierrors.StatusError }

// unlike returns an unlikeError (400) with a message that begins with "parameter q: ".
func unlike(format string, args ...any) error {
	return unlikeError{apierrors.NewBadRequest("parameter q: " + fmt.Sprintf(format, args...))}
}

// ofGroup returns an unlikeError whose message names the parameter group instead of q. It returns
// any other error unchanged.
func ofGroup(err error) error {
	e, ok := errors.AsType[unlikeError](err)
	if !ok {
		return err
	}
	return unlikeError{apierrors.NewBadRequest(strings.Replace(e.ErrStatus.Message, "parameter q:", "parameter group:", 1))}
}

// Unwrap returns the error for the client, with status 400.
func (e unlikeError) Unwrap() error { return e.StatusError }

// fieldsOf has the paths of the fields that the keys phase, node and replicas of the query language
// are about. A term with such a key cannot match a type without the field.
var fieldsOf = map[string]string{
	query.Phase:    "status.phase",
	query.Node:     "spec.nodeName",
	query.Replicas: "spec.replicas",
}

// about returns an unlikeError if objects of the type at cannot have what terms with the key are
// about, such as images. It returns nil if they may have it. k has the clusters whose definitions
// of the type are read. Any other error is that of the store.
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

// narrow removes from k the clusters that q and filter exclude, and sets k.partial if they name
// clusters. It returns an unlikeError if q names another kind than that at the path, or a field
// that the type does not have. It returns a closedError if q names a cluster that the fleet does
// not have, or in which the caller (seen) may see nothing.
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
	said := map[string]bool{} // keys of terms that about has accepted for the type
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
				// A closedError lets a search of every kind continue with the next kind. It does so
				// for a hidden cluster and for one that does not exist, so that the caller learns
				// nothing.
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

// kindNames returns the names by which a request may name the kind k: kind, plural, singular and
// short names.
func kindNames(k kind) []string {
	return append([]string{k.GroupVersionKind.Kind, k.Resource, k.Singular}, k.ShortNames...)
}

// namespaces returns the namespaces of q if exactly one term selects namespaces, by exact names and
// without a minus; else nil. Then the request counts as one for these namespaces.
func (a *asked) namespaces() []string {
	terms := a.query.Of(query.Namespace)
	if len(terms) != 1 || terms[0].Not || slices.ContainsFunc(terms[0].Values, func(v query.Value) bool { return v.Glob }) {
		return nil
	}
	return texts(terms[0])
}

// texts returns the texts of the values of a term.
func texts(t query.Term) (out []string) {
	for _, v := range t.Values {
		out = append(out, v.Text)
	}
	return out
}

// refine adds to the query q of the store what the store can evaluate of a. It returns a function
// that evaluates the rest on rows; nil if nothing is left. The function accepts rows without a
// body. It returns an error (400) if the filter costs too much. k has the names of the kind.
func (a *asked) refine(q *store.Query, k kind) (keep, error) {
	rest := false // whether rows must be compared with terms
	if q.Labels == nil {
		q.Labels = labels.Everything()
	}
	// Queries of other types share these slices: without Clip, append could overwrite theirs.
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
		q.Labels = q.Labels.Add(required...) // in one call: each Add copies and sorts all
	}
	if !rest && a.filter == nil {
		return nil, nil //nolint:nilnil // there is nothing to look for
	}
	aliases, budget := kindNames(k), cmp.Or(a.budget, new(expression.Budget))
	return func(ctx context.Context, row *store.Row) (bool, error) {
		if row.Body == nil { // only the key of this state is known, so it may match
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

// pushTerm adds to the query q of the store as much of the term t as the store can evaluate. left
// is true if rows must be compared with the term, too. Requirements on labels go to required and
// not to q. An invalid label is an error (400).
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
			// The store can use an index for up to this number of texts.
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
		if !globbed && !t.Not { // the full text of an object has the words of its images
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

// rare returns the state of store.FieldIs that a term with the key is selects: Unready for
// -is:ready, Terminating for is:terminating. It is "" for any other term. Few objects have these
// states, so the store has an index of them.
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

// pushPrefix sets q.NamePrefix if the term is a prefix such as web-*, and q has no prefix yet. It
// returns false if it did nothing.
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

// pushLabel adds to required what the store can check of a term about a label. globbed means that a
// value is a pattern: then the store only checks that the label exists, or nothing if the term is
// negated. left is true if rows must be compared with the term, too. An invalid label or value is
// an error (400).
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

// pushField adds to q what the store's index of a field, at path, can check of a term. One exact
// value is required. Several values, patterns and images only require that the field contains
// certain texts. It adds nothing for a negated term or without an index. The caller must compare
// rows with the term, too.
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

// pushEquality adds an equality that the filter requires to q or, for a label, to required, if the
// store can find it without reading objects. It adds nothing otherwise. The caller must evaluate
// the filter on rows, too.
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

// keep reports whether a row, which the query of the store selected, also matches the rest of q and
// filter. refine makes it.
type keep func(ctx context.Context, row *store.Row) (bool, error)

// sift returns the indices of the rows for which f returns true, in order. For many rows it uses
// several goroutines, so f is called concurrently. Errors of f are joined, and a panic of f becomes
// an error.
func (f keep) sift(ctx context.Context, rows []store.Row) (kept []int, err error) {
	const few = 50 // fewer rows do not justify another goroutine
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

// unexpected returns the error for a panic that a goroutine has recovered. Without recovery, a
// panic in a goroutine other than that of the request would end the process.
func unexpected(panicked any) error {
	return fmt.Errorf("look for what is asked: panic: %v\n%s", panicked, debug.Stack())
}

// tooMany returns the error (400) for a request with q or filter that reads too many objects
// (mostCandidates) or keeps too many bytes (mostKept). It advises to set a limit or to narrow the
// search.
func tooMany(resource string) error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"what q or filter ask for is looked for in more than %d %s: set a limit to have the answer in pages (kubectl does), or narrow it by namespace, cluster, label, name, age, phase or node",
		mostCandidates, resource))
}
