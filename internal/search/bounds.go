package search

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"orrery.dev/orrery/internal/store"
)

// Limits on what is parsed of a request. They are in docs/search.md. The time to parse a request
// grows linearly up to the limits, and BenchmarkBounds measures that time.
const (
	// LongestURL is the maximum number of bytes of the path and query of a request, escaped.
	LongestURL = 64 << 10
	// LongestAccept is the maximum number of bytes of each of the headers Accept and
	// Accept-Encoding.
	LongestAccept = 8 << 10
	// mostLabelValues is the maximum number of values in the lists of a label selector together. The
	// parser of Kubernetes concatenates one error for each invalid value, which takes quadratic time.
	mostLabelValues = 500
)

// CheckSize returns an error (400) for a request whose URL or headers exceed LongestURL or
// LongestAccept. It parses nothing.
func CheckSize(r *http.Request) error {
	if n := len(r.URL.EscapedPath()) + len(r.URL.RawQuery); n > LongestURL {
		return apierrors.NewBadRequest(fmt.Sprintf("the path and the query of the request have %d bytes, and at most %d are read: name fewer objects, or select them by a label", n, LongestURL))
	}
	for _, name := range []string{"Accept", "Accept-Encoding"} {
		n := 0
		for _, value := range r.Header.Values(name) {
			n += len(value)
		}
		if n > LongestAccept {
			return apierrors.NewBadRequest(fmt.Sprintf("header %s has %d bytes, and at most %d are read: name fewer media types or encodings", name, n, LongestAccept))
		}
	}
	return nil
}

// checkSelector returns an error for a label selector with more requirements than the store
// answers, or with more than mostLabelValues values in lists. The text is not parsed, and its
// syntax not checked.
func checkSelector(text string) error {
	requirements, values, inList := 1, 0, false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '(' || c == ',' && inList:
			inList = true
			values++
		case c == ')':
			inList = false
		case c == ',':
			requirements++
		}
	}
	switch {
	case requirements > store.MostTerms+len(labelParameters):
		return fmt.Errorf("%d requirements on labels, and at most %d can be answered; write several values of a label as KEY in (A,B)", requirements, store.MostTerms)
	case values > mostLabelValues:
		return fmt.Errorf("%d values in lists, and at most %d can be answered; select by a label that they have in common, or ask several times", values, mostLabelValues)
	}
	return nil
}

// verbOf returns the verb that the caller needs on the hub for a request: watch, get or list. An
// invalid parameter watch counts as false.
func verbOf(at location, query url.Values) string {
	watching, _ := strconv.ParseBool(query.Get("watch")) // invalid values are refused later
	switch {
	case at.watch || watching && at.name == "": // API servers ignore the parameter for one object
		return "watch"
	case at.name != "":
		return "get"
	default:
		return "list"
	}
}

// admit refuses, before the parameters of a request are parsed, a caller that may do verb with no
// object at the path. The error is Forbidden, or that of a failed check. Later authorize decides
// which objects the caller may see.
//
// A right in all namespaces is enough. So is a right in the namespace of the path or, without one,
// in named, which is a namespace from a parameter. Without both, a right in any namespace is
// enough, unless the path names one object or the type is Namespace. These namespaces come from
// RBAC, because other authorizers cannot list them.
func (s *Search) admit(ctx context.Context, at location, named, verb string) error {
	asked := at.asked()
	what := authorizationv1.ResourceAttributes{Verb: verb, Group: asked.Group, Version: asked.Version, Resource: asked.Resource, Name: at.name}
	refused := s.Authorize(ctx, what)
	if !apierrors.IsForbidden(refused) {
		return refused
	}
	switch {
	case at.namespace != "":
		what.Namespace = at.namespace
	case at.name != "" && isNamespaces(at):
		what.Namespace = at.name
	case named != "":
		what.Namespace = named
	case at.name != "" || isNamespaces(at):
		return refused
	default:
		namespaces, err := s.Namespaces(ctx, what)
		if err == nil && len(namespaces) == 0 {
			err = refused
		}
		return err
	}
	return s.Authorize(ctx, what)
}

// firstNamespace returns the first name in the parameter namespaces, without parsing the rest; ""
// if there is none.
func firstNamespace(query url.Values) string {
	named, _, _ := strings.Cut(query.Get("namespaces"), ",")
	return strings.TrimSpace(named)
}

// admitAny refuses, before the parameters of a request about several types are parsed, a caller
// that may list no mirrored type. named is a namespace in which the right is required; "": in any.
// The error is Forbidden, or that of a failed check. If no type is mirrored, every caller is
// admitted.
func (s *Search) admitAny(ctx context.Context, named string) error {
	var refused error
	for _, t := range s.Mirror.Types() {
		err := s.admit(ctx, location{GroupVersionResource: t.GroupVersionResource()}, named, "list")
		if !apierrors.IsForbidden(err) {
			return err
		}
		if refused == nil {
			refused = err
		}
	}
	return refused
}
