package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/kubernetes/scheme"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

// refusedError is a response of the hub that forbids a request. The message names the missing
// right, its place, and the role that contains it. Every forbidden request to the hub fails with
// refusedError, also if the client does not read the response, as in discovery.
type refusedError struct{ *apierrors.StatusError }

// Unwrap returns the Status of the response.
func (e refusedError) Unwrap() error { return e.StatusError }

// unknownClusterError is the response that no cluster of a name exists for this caller.
type unknownClusterError struct {
	*apierrors.StatusError

	name string
	// names lists the clusters of the fleet.
	names func(context.Context) ([]string, error)
	// object is true if the request was for the Cluster: the error then counts as NotFound. For
	// requests to the fleet and to a member it does not, because clients would conclude that the
	// API lacks the type.
	object bool
}

// Status implements apierrors.APIStatus.
func (e unknownClusterError) Status() metav1.Status {
	status := e.StatusError.Status()
	if !e.object {
		status.Reason, status.Code = metav1.StatusReasonUnknown, 0
	}
	return status
}

// Unwrap returns the Status of the response if the error counts as NotFound.
func (e unknownClusterError) Unwrap() error {
	if e.object {
		return e.StatusError
	}
	return nil
}

// namesTimeout limits the request for the names of clusters that an error shows.
const namesTimeout = 10 * time.Second

// sentence returns the message that the cluster does not exist, with the clusters of the fleet.
// A caller that may not list clusters does not learn whether the cluster exists.
func (e unknownClusterError) sentence(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	names, err := e.names(ctx)
	switch {
	case err != nil:
		return fmt.Sprintf("no cluster is named %s, or you may not see it; %q counts what you see in each", e.name, programName+" search --group cluster")
	case slices.Contains(names, e.name):
		return e.Error()
	}
	return fmt.Sprintf("no cluster is named %s; the fleet has %s", e.name, some(names))
}

// answeredError returns the error for a response of the hub that forbids the request or reports
// that the cluster does not exist. For every other response it returns nil, and the response can
// still be read. next sends further requests with the credentials of r.
func answeredError(r *http.Request, answer *http.Response, next http.RoundTripper) error {
	member := answer.Header.Get(fleetv1alpha1.ProxiedHeader)
	switch answer.StatusCode {
	case http.StatusForbidden:
	case http.StatusNotFound, http.StatusBadRequest:
		if member != "" {
			return nil // the response of the member itself
		}
	default:
		return nil
	}
	status, err := statusIn(answer)
	if err != nil || status == nil {
		return err
	}
	if answer.StatusCode == http.StatusForbidden {
		missing, ok := missingRightOf(status.ErrStatus)
		if !ok {
			return nil
		}
		status.ErrStatus.Message = missing.text(member)
		if r.Header.Get(streamProtocol) != "" {
			// These clients read the response, and lose the types of other errors.
			return replaceStatus(answer, status)
		}
		_ = answer.Body.Close() // it was read
		return refusedError{status}
	}
	at := status.ErrStatus.Details
	if at == nil || at.Group != clusterv1alpha1.GroupVersion.Group || at.Kind != clustersResource || at.Name == "" {
		return nil
	}
	root, _, fleet := strings.Cut(r.URL.Path, "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
	if !fleet {
		var named bool
		if root, named = strings.CutSuffix(r.URL.Path, clustersPath+"/"+at.Name); !named {
			return nil
		}
	}
	_ = answer.Body.Close() // it was read
	return unknownClusterError{StatusError: status, name: at.Name, object: !fleet, names: func(ctx context.Context) ([]string, error) {
		return listNames(ctx, r, root+clustersPath, next)
	}}
}

const (
	clustersResource = "clusters"
	// streamProtocol is the header of requests for a stream, such as exec.
	streamProtocol = "X-Stream-Protocol-Version"
)

// clustersPath is the path of the Clusters below the root of the hub.
var clustersPath = "/apis/" + clusterv1alpha1.GroupVersion.String() + "/" + clustersResource

// listNames lists the names of the objects at a path, with the credentials of the request as.
func listNames(ctx context.Context, as *http.Request, path string, next http.RoundTripper) ([]string, error) {
	at := *as.URL
	at.Path, at.RawPath, at.RawQuery = path, "", ""
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil) //nolint:gosec // the host is that of the command's own request
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	r.Header = as.Header.Clone()
	r.Header.Del("Content-Type")
	r.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	answer, err := next.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list %s: %s", path, answer.Status)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// mostOfStatus is the maximum number of bytes of a response that is parsed as a Status.
const mostOfStatus = 1 << 20

// statusIn returns the Status in a response; nil if it has none. The response can still be read.
func statusIn(answer *http.Response) (*apierrors.StatusError, error) {
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostOfStatus))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the hub's answer: %w", err), answer.Body.Close())
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), answer.Body), answer.Body}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil) // it may be protobuf
	status, ok := o.(*metav1.Status)
	if err != nil || !ok || status.Status != metav1.StatusFailure {
		return nil, nil //nolint:nilerr,nilnil // documented
	}
	return &apierrors.StatusError{ErrStatus: *status}, nil
}

// replaceStatus replaces the body of a response by a Status.
func replaceStatus(answer *http.Response, status *apierrors.StatusError) error {
	said := status.ErrStatus
	said.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, err := json.Marshal(said)
	if err != nil {
		return fmt.Errorf("encode the hub's answer: %w", err)
	}
	_ = answer.Body.Close() // it was read
	answer.Body = io.NopCloser(bytes.NewReader(body))
	answer.ContentLength = int64(len(body))
	answer.Header.Set("Content-Type", "application/json")
	answer.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// missingRight is a right that RBAC does not give the caller.
type missingRight struct {
	user, verb, group, resource string // the resource with its subresource, as in pods/log
	namespace, name             string
	path                        string // for requests without a resource
	reason                      string // from the API server; may be empty
}

// rbacRefusals are the messages of API servers if no rule allows a request. Other refusals, such
// as those of a quota, state the reason themselves.
var (
	rbacResource = regexp.MustCompile(`User ("(?:[^"\\]|\\.)*") cannot (\S+) resource ("(?:[^"\\]|\\.)*") in API group ("(?:[^"\\]|\\.)*") (?:at the cluster scope|in the namespace ("(?:[^"\\]|\\.)*"))(?: of the hub, whose roles say what of the fleet may be seen)?(?:: ((?s).*))?$`)
	rbacPath     = regexp.MustCompile(`User ("(?:[^"\\]|\\.)*") cannot (\S+) path ("(?:[^"\\]|\\.)*")(?:: ((?s).*))?$`)
)

// missingRightOf returns the missing right from a response that forbids a request; false if a
// missing right is not the reason.
func missingRightOf(status metav1.Status) (m missingRight, ok bool) {
	unquoted := func(text string) string {
		plain, err := strconv.Unquote(text)
		if err != nil {
			return text
		}
		return plain
	}
	if status.Details != nil {
		m.name = status.Details.Name
	}
	if found := rbacResource.FindStringSubmatch(status.Message); found != nil {
		m.user, m.verb, m.resource, m.group, m.namespace, m.reason = unquoted(found[1]), found[2], unquoted(found[3]), unquoted(found[4]), unquoted(found[5]), found[6]
		return m, true
	}
	if found := rbacPath.FindStringSubmatch(status.Message); found != nil {
		m.user, m.verb, m.path, m.reason = unquoted(found[1]), found[2], unquoted(found[3]), found[4]
		return m, true
	}
	return m, false
}

// text returns the message about the missing right; member is "" for a right on the hub.
func (m missingRight) text(member string) string {
	what := "path " + m.path
	if m.path == "" {
		resource, sub, _ := strings.Cut(m.resource, "/")
		what = schema.GroupResource{Group: m.group, Resource: resource}.String()
		if m.group == fleetv1alpha1.GroupVersion.Group {
			what = resource
		}
		if sub != "" {
			what += "/" + sub
		}
		switch {
		case m.name != "" && m.group == fleetv1alpha1.GroupVersion.Group && resource == clustersResource:
			what += " of cluster " + m.name
		case m.name != "":
			what += " " + strconv.Quote(m.name)
		}
	}
	if m.namespace != "" {
		what += " in namespace " + m.namespace
	}
	text := fmt.Sprintf("you may not %s %s on the hub, as user %q", m.verb, what, m.user)
	role := givenBy(m.verb, m.group, m.resource)
	switch {
	case member != "":
		text = fmt.Sprintf("you may not %s %s in cluster %s, where you are user %q; a role in that cluster gives the right", m.verb, what, member, m.user)
	case m.path == "" && role != "":
		text += "; its ClusterRole " + role + " gives the right"
	}
	if m.reason != "" {
		text += " (" + m.reason + ")"
	}
	return neutral.Line(text)
}

// givenBy returns the ClusterRole of the hub that contains a right; "" if there is none.
func givenBy(verb, group, resource string) string {
	const view, edit = "view", "edit"
	read := slices.Contains([]string{"get", "list", "watch"}, verb)
	switch group {
	case fleetv1alpha1.GroupVersion.Group:
		return map[string]string{
			"clusters/proxy": "orrery:proxy", "clusters/mirror": view, "consolelinks": "orrery:console", "metrics": "orrery:metrics",
			"resources/proxy": "orrery:search", "placements": "orrery:search", "works": "orrery:search", "access": "orrery:search", "placementreviews": "orrery:search",
		}[resource]
	case "policy.orrery.dev", "work.orrery.dev", "apps.orrery.dev", "cluster.orrery.dev", "lifecycle.orrery.dev", "config.orrery.dev":
		switch {
		case read:
			return view
		case slices.Contains([]string{"propagationpolicies", "overridepolicies", "websites"}, resource) && verb != "deletecollection":
			return edit
		}
	}
	return ""
}

// each returns the single errors of an error that may have several.
func each(err error) (all []error) {
	var parts []error
	switch several := err.(type) { //nolint:errorlint // one that is wrapped is shown with what wraps it
	case utilerrors.Aggregate:
		parts = several.Errors()
	case interface{ Unwrap() []error }:
		parts = several.Unwrap()
	default:
		return []error{err}
	}
	for _, part := range parts {
		all = append(all, each(part)...)
	}
	return all
}

// explained returns the text of an error for a user, with one line for each single error and no
// duplicates. It requests the names of the clusters if one is unknown.
func explained(ctx context.Context, err error) string {
	var lines []string
	for _, part := range each(err) {
		text := withoutRequests(part)
		if unknown, ok := errors.AsType[unknownClusterError](part); ok {
			text = unknown.sentence(ctx)
		}
		if !slices.Contains(lines, text) {
			lines = append(lines, text)
		}
	}
	return strings.Join(lines, "\n")
}

// withoutRequests returns the text of an error without the URLs of failed requests, if the
// response or the interruption explains the error: a URL does not help a user.
func withoutRequests(err error) string {
	text := err.Error()
	var visit func(error)
	visit = func(err error) {
		switch e := err.(type) { //nolint:errorlint // all that it wraps is visited
		case nil:
		case *url.Error:
			if isAnswer(e.Err) || errors.Is(e.Err, context.Canceled) {
				text = strings.ReplaceAll(text, e.Error(), e.Err.Error())
			}
		case interface{ Unwrap() error }:
			visit(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				visit(part)
			}
		}
	}
	visit(err)
	return text
}

// isAnswer reports whether an error is a response of the hub that explains the failure.
func isAnswer(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	_, unknown := errors.AsType[unknownClusterError](err)
	_, away := errors.AsType[awayError](err)
	return refused || unknown || away
}

// leftOut are types that a command leaves out, because the caller may not list them.
type leftOut struct {
	types []string
	first error // the first refusal
}

// take records a type if err says that the caller may not list it. It reports whether it did.
func (l *leftOut) take(of schema.GroupResource, err error) bool {
	if !apierrors.IsForbidden(err) {
		return false
	}
	if !slices.Contains(l.types, of.String()) {
		l.types = append(l.types, of.String())
	}
	if l.first == nil {
		l.first = err
	}
	return true
}

// err returns one error for all types; nil if there are none.
func (l *leftOut) err() error {
	switch len(l.types) {
	case 0:
		return nil
	case 1:
		return l.first
	}
	return fmt.Errorf("%w; nor may you list %s", l.first, some(l.types[1:]))
}
