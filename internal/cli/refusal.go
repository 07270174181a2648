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
	"orrery.dev/orrery/internal/fleetapi"
	"orrery.dev/orrery/internal/neutral"
)

// refusedError is the error of a request that RBAC forbids, on the hub or in a member. Its message
// names the missing right, where it is missing, and the role that contains it. It is an error of
// the transport, so that clients that ignore the text of a response, as in discovery, return it,
// too. Requests for a stream, such as exec, do not fail with it.
type refusedError struct{ *apierrors.StatusError }

// Unwrap returns the Status of the response, with the new message.
func (e refusedError) Unwrap() error { return e.StatusError }

// unknownClusterError is the error of a request about a cluster that does not exist, or that the
// caller may not see. Commands print its sentence in place of the hub's message.
type unknownClusterError struct {
	*apierrors.StatusError

	name string
	// names requests the names of the clusters of the fleet.
	names func(context.Context) ([]string, error)
	// object is true if the request was for the Cluster: the error then counts as NotFound. For
	// requests to the fleet and to a member it does not, because clients would conclude that the
	// API lacks the type.
	object bool
}

// Status implements apierrors.APIStatus. If the request was not for the Cluster itself, the result
// has no reason and code, so that the error does not count as NotFound.
func (e unknownClusterError) Status() metav1.Status {
	status := e.StatusError.Status()
	if !e.object {
		status.Reason, status.Code = metav1.StatusReasonUnknown, 0
	}
	return status
}

// Unwrap returns the Status of the response if the request was for the Cluster itself; otherwise
// nil, so that the error does not count as NotFound.
func (e unknownClusterError) Unwrap() error {
	if e.object {
		return e.StatusError
	}
	return nil
}

// namesTimeout limits the request for the names of all clusters that a message lists, to 10
// seconds.
const namesTimeout = 10 * time.Second

// sentence returns the message that the cluster does not exist, with the names of those that exist.
// It requests them for up to namesTimeout. If the caller may not list Clusters, the message says
// that the cluster may exist. If the cluster exists now, it is the message of the hub.
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

// answeredError returns an error for a response of the hub that a command explains better than
// client-go, and then closes the body. It is a refusedError if RBAC forbids the request r, and an
// unknownClusterError if the cluster does not exist. For every other response it returns nil, and
// the body can still be read. If r is for a stream, it replaces the message of a refusal in the
// response and returns nil. A body that cannot be read is another error. next sends further
// requests.
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
			// Clients of streams read the message of the response. They would drop the type of an error of
			// the transport.
			return replaceStatus(answer, status)
		}
		_ = answer.Body.Close() // the body was read
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
	_ = answer.Body.Close() // the body was read
	return unknownClusterError{StatusError: status, name: at.Name, object: !fleet, names: func(ctx context.Context) ([]string, error) {
		return listNames(ctx, r, root+clustersPath, next)
	}}
}

const (
	// clustersResource is the resource of Clusters in paths and details of a Status.
	clustersResource = "clusters"
	// streamProtocol is the header that only requests for a stream have, such as those of exec.
	streamProtocol = "X-Stream-Protocol-Version"
)

// clustersPath is the path of the Clusters on the hub.
var clustersPath = "/apis/" + clusterv1alpha1.GroupVersion.String() + "/" + clustersResource

// listNames requests the sorted names of the objects at a path, with the host and the credentials
// of the request as. Any status but 200 is an error.
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

// mostOfStatus is the maximum size of a response that is parsed as a Status, 1 MiB.
const mostOfStatus = 1 << 20

// statusIn returns the Status in a response if it reports a failure, otherwise nil. The body can
// still be read, unless an error is returned: then it could not be read and is closed.
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

// replaceStatus replaces the body of a response by a Status as JSON. It closes the old body.
func replaceStatus(answer *http.Response, status *apierrors.StatusError) error {
	said := status.ErrStatus
	said.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, err := json.Marshal(said)
	if err != nil {
		return fmt.Errorf("encode the hub's answer: %w", err)
	}
	_ = answer.Body.Close() // the body was read
	answer.Body = io.NopCloser(bytes.NewReader(body))
	answer.ContentLength = int64(len(body))
	answer.Header.Set("Content-Type", "application/json")
	answer.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// missingRight is a right that a user lacks, as an API server names it in the message of a refusal.
type missingRight struct {
	user, verb, group, resource string // the resource with its subresource, as in pods/log
	namespace, name             string
	path                        string // for requests without a resource
	reason                      string // from the API server; may be empty
}

// rbacResource and rbacPath match the messages of API servers when no RBAC rule allows a request to
// a resource or to another path. Other refusals, such as those of a quota, state their reason
// themselves.
var (
	rbacResource = regexp.MustCompile(`User ("(?:[^"\\]|\\.)*") cannot (\S+) resource ("(?:[^"\\]|\\.)*") in API group ("(?:[^"\\]|\\.)*") (?:at the cluster scope|in the namespace ("(?:[^"\\]|\\.)*"))(?: of the hub, whose roles say what of the fleet may be seen)?(?:: ((?s).*))?$`)
	rbacPath     = regexp.MustCompile(`User ("(?:[^"\\]|\\.)*") cannot (\S+) path ("(?:[^"\\]|\\.)*")(?:: ((?s).*))?$`)
)

// missingRightOf returns the right that is missing, from the Status of a response that forbids a
// request. ok is false if the message is not one of RBAC.
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

// text returns the message for the user about the missing right, on one line. member is the cluster
// in which the right is missing; "": on the hub.
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

// givenBy returns the ClusterRole of the hub that contains a right on a resource of Orrery's API
// groups, such as clusters/proxy. For other groups, and rights that no such role contains, it is
// "".
func givenBy(verb, group, resource string) string {
	const view, edit = "view", "edit"
	read := slices.Contains([]string{"get", "list", "watch"}, verb)
	switch group {
	case fleetv1alpha1.GroupVersion.Group:
		return fleetapi.RoleFor(resource)
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

// each returns the single errors of an error that joins several, at all levels. Every other error
// is the only element of the result, also one that wraps a joined error.
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

// explained returns the text of an error for a user: one line for each joined error, without
// duplicates. For an unknown cluster it requests the names of the clusters, until ctx ends.
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

// withoutRequests returns the text of an error. If the hub's response or an interruption explains
// the error, it leaves out the method and URL of the request, which do not help a user.
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

// isAnswer reports whether err is or wraps an error that explains a response of the hub: a
// refusedError, unknownClusterError or awayError.
func isAnswer(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	_, unknown := errors.AsType[unknownClusterError](err)
	_, away := errors.AsType[awayError](err)
	return refused || unknown || away
}

// leftOut collects the types that a command leaves out, because the caller may not list them. The
// zero value is empty.
type leftOut struct {
	types []string
	first error // the first refusal
}

// take reports whether err says that the caller may not list a type, and then records that type. It
// is false for nil and for every other error.
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

// err returns the error that names all recorded types, and wraps the first refusal; nil if there
// are none.
func (l *leftOut) err() error {
	switch len(l.types) {
	case 0:
		return nil
	case 1:
		return l.first
	}
	return fmt.Errorf("%w; nor may you list %s", l.first, some(l.types[1:]))
}
