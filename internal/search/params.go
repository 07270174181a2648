package search

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/store"
)

// params are the parsed parameters of a request for objects. Most have the name of the parameter.
type params struct {
	clusters, namespaces, names []string
	labels                      labels.Selector
	fields                      []store.FieldRequirement
	limit                       int    // 0: no limit
	next                        string // continue
	watch                       bool
	// For a watch. initial: send the existing objects first. bookmarks: send the version from time
	// to time.
	initial, bookmarks bool
	initialSaid        bool          // sendInitialEvents is given
	timeout            time.Duration // for a watch; 0: the default
	version            string        // resourceVersion; "" and "0" are any
	exact              bool          // resourceVersionMatch is Exact: no later version will do
	match              string
	include            metav1.IncludeObjectPolicy
	asked              asked
	group              []grouping
	explain            bool
	tag                string // hash of the request, for continue tokens of several types

	grammar
	times
}

// parameters has the parsers of all known parameters of a request for objects, by name. A parameter
// with a nil parser is ignored.
var parameters = map[string]func(p *params, value string) error{
	"clusters":   func(p *params, v string) error { return names(&p.clusters, v) },
	"namespaces": func(p *params, v string) error { return names(&p.namespaces, v) },
	"names":      func(p *params, v string) error { return names(&p.names, v) },
	"labelSelector": func(p *params, v string) (err error) {
		if err := checkSelector(v); err != nil {
			return err
		}
		p.labels, err = labels.Parse(v)
		return err
	},
	"fieldSelector": func(p *params, v string) (err error) {
		p.fields, err = parseFields(v)
		return err
	},
	"limit": func(p *params, v string) (err error) {
		p.limit, err = strconv.Atoi(v)
		p.limit = max(p.limit, 0) // as API servers do
		return err
	},
	"continue": func(p *params, v string) error {
		p.next = v
		return nil
	},
	"watch": func(p *params, v string) (err error) {
		p.watch, err = strconv.ParseBool(v)
		return err
	},
	"includeObject": func(p *params, v string) error {
		p.include = metav1.IncludeObjectPolicy(v)
		if !slices.Contains([]metav1.IncludeObjectPolicy{metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject}, p.include) {
			return errors.New("must be None, Metadata or Object")
		}
		return nil
	},
	"resourceVersion": func(p *params, v string) error {
		if v != "0" && strings.Trim(v, "0123456789") != "" {
			return errors.New("must be a resourceVersion of the fleet, 0 or unset")
		}
		p.version = v
		return nil
	},
	"resourceVersionMatch": func(p *params, v string) error { p.match = v; return nil },
	"sendInitialEvents": func(p *params, v string) (err error) {
		p.initial, err = strconv.ParseBool(v)
		p.initialSaid = true
		return err
	},
	"allowWatchBookmarks": func(p *params, v string) (err error) {
		p.bookmarks, err = strconv.ParseBool(v)
		return err
	},
	"timeoutSeconds": func(p *params, v string) error {
		seconds, err := strconv.ParseUint(v, 10, 31)
		p.timeout = time.Duration(seconds) * time.Second
		return err
	},
	"q":      func(p *params, v string) error { return p.asked.parse(v) },
	"filter": func(p *params, v string) error { return p.asked.compile(v) },
	"group": func(p *params, v string) (err error) {
		p.group, err = parseGroupings(v)
		return err
	},
	"explain": func(p *params, v string) (err error) {
		p.explain, err = strconv.ParseBool(v)
		return err
	},
	"at":           func(p *params, v string) error { return p.moment(&p.at, v) },
	"changedSince": func(p *params, v string) error { return p.moment(&p.compared, v) },
	"history": func(p *params, v string) (err error) {
		p.history, err = strconv.ParseBool(v)
		return err
	},
	"deleted": func(p *params, v string) (err error) {
		p.deleted, err = strconv.ParseBool(v)
		return err
	},
	"allFields": func(p *params, v string) (err error) {
		p.all, err = strconv.ParseBool(v)
		return err
	},
	// The following parameters come from Clusterpedia, see grammar.go.
	"fuzzyName": func(p *params, v string) error { return names(&p.contains, v) },
	"since":     func(p *params, v string) (err error) { p.since, err = moment(v); return err },
	"before":    func(p *params, v string) (err error) { p.before, err = moment(v); return err },
	"orderby": func(p *params, v string) (err error) {
		p.order, err = parseOrder(v)
		p.ordered = true
		return err
	},
	"ownerUID":  func(p *params, v string) error { p.owner.uid = v; return nil },
	"ownerName": func(p *params, v string) error { p.owner.name = v; return nil },
	"ownerGR": func(p *params, v string) error {
		if p.owner.resource = schema.ParseGroupResource(v); p.owner.resource.Resource == "" {
			return errors.New("must be a type in the plural with its group, such as deployments.apps")
		}
		return nil
	},
	"ownerSeniority": whole(func(p *params, n int) { p.owner.steps = n }),
	"offset":         whole(func(p *params, n int) { p.offset = n }),
	"withContinue":   truth(func(p *params, v bool) error { p.noContinue = !v; return nil }),
	"withRemainingCount": truth(func(p *params, v bool) error {
		p.remaining = &v
		return nil
	}),
	"onlyMetadata": truth(func(p *params, v bool) error { p.onlyMetadata = v; return nil }),
	"injectEvents": truth(func(_ *params, v bool) error {
		if v {
			return errors.New(noEvents)
		}
		return nil
	}),
	"groups":                 func(p *params, v string) error { return sortedNames(&p.groups, v) },
	"resources":              func(p *params, v string) error { return sortedNames(&p.resources, v) },
	"whereSQL":               refused(noSQL),
	"whereSQLStatement":      refused(noSQL),
	"whereSQLParam":          refused(noSQL),
	"whereSQLJSONParams":     refused(noSQL),
	"x-clusterpedia-forward": refused("ask one cluster in its own context, which reaches it"),
	// Options of the connection do not affect the search. Clients apply timeouts themselves.
	"timeout": nil, "pretty": nil,
}

// parseParams parses the query of a request for objects. An empty value counts as not given. It
// returns an error (400) for a parameter that is unknown, repeated, invalid or contradicts another
// one. The default of includeObject is Metadata.
func parseParams(query url.Values) (params, error) {
	p := params{labels: labels.Everything(), include: metav1.IncludeMetadata, asked: asked{now: time.Now()}}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, known := parameters[name]
		if !known {
			return p, apierrors.NewBadRequest(fmt.Sprintf("unknown parameter %q: the fleet knows %s",
				name, strings.Join(slices.Sorted(maps.Keys(parameters)), ", ")))
		}
		if len(query[name]) > 1 {
			return p, apierrors.NewBadRequest(fmt.Sprintf("parameter %s is given twice", name))
		}
		value := query.Get(name)
		if set == nil || value == "" {
			continue
		}
		if err := set(&p, value); err != nil {
			return p, apierrors.NewBadRequest(fmt.Sprintf("parameter %s=%q: %v", name, value, err))
		}
	}
	p.tag = tagOf(query)
	if err := p.takeLabels(query.Get("labelSelector"), func(name string) bool { return query.Get(name) != "" }); err != nil {
		return p, err
	}
	if err := p.checkGrammar(); err != nil {
		return p, err
	}
	return p, p.checkVersions()
}

// tagOf returns a hash, which ends with ~, of the parameters that select objects, for continue
// tokens of lists of several types. Parameters about the page and the form of the answer do not
// count.
func tagOf(query url.Values) string {
	query = maps.Clone(query)
	for _, name := range []string{"continue", "limit", "includeObject", "onlyMetadata", "explain", "pretty", "timeout"} {
		query.Del(name)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(query.Encode())) // a hash returns no error
	return fmt.Sprintf("%08x~", h.Sum32())
}

// checkVersions sets p.exact. It returns an error (400) if resourceVersion, continue, limit, watch
// and group contradict each other.
func (p *params) checkVersions() error {
	p.exact = p.match == string(metav1.ResourceVersionMatchExact)
	switch {
	case p.group != nil && (p.watch || p.limit != 0 || p.next != "" || p.version != "" && p.version != "0"):
		return apierrors.NewBadRequest("parameter group: counts have no watch, limit, continue or resourceVersion")
	case p.next != "" && p.version != "" && p.version != "0":
		return apierrors.NewBadRequest("parameter resourceVersion: a continue token has one already")
	}
	return nil
}

// names appends the names in a comma-separated list to *to, in their order, without duplicates and
// surrounding blanks. An empty name is an error; then *to has the names before it.
func names(to *[]string, list string) error {
	seen := sets.New(*to...)
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			return errors.New("must be a comma-separated list of names")
		}
		if !seen.Has(name) {
			seen.Insert(name)
			*to = append(*to, name)
		}
	}
	return nil
}

// sortedNames appends the names in a comma-separated list to *to, as names does, and sorts all of
// *to.
func sortedNames(to *[]string, list string) error {
	err := names(to, list)
	slices.Sort(*to)
	return err
}
