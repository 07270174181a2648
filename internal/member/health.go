package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// state is whether a cluster answers.
type state int

const (
	undecided state = iota // not probed often enough to decide
	answering
	silent // it did not answer FailureThreshold times in a row, or cannot be asked
)

// contact is the result of the probes.
type contact struct {
	state   state
	problem string // why it is silent

	// The following is set while the cluster answers.
	proxied  bool     // the address is that of a hub's proxy, so it cannot be a member
	refused  bool     // the hub's credentials were refused
	unsure   bool     // the refusal may come from an API server that is starting
	message  string   // of the refusal
	missing  []string // permissions
	id       string   // UID of kube-system; "": refused, forbidden, or not requested yet
	version  string
	admins   admins
	identity time.Time // when the identity was last requested
	dialled  int64     // number of connections opened by then
}

// equal compares contacts, except for the time of the identity.
func (c contact) equal(d contact) bool {
	return c.state == d.state && c.problem == d.problem && c.proxied == d.proxied && c.refused == d.refused && c.id == d.id &&
		c.version == d.version && c.admins == d.admins && c.message == d.message && slices.Equal(c.missing, d.missing)
}

const (
	// retryFirst is the least time between probes of a cluster that fails them, so that its
	// recovery is noticed soon. The time doubles up to that between probes of a healthy cluster.
	retryFirst = time.Second
	// refusalPatience is how long a cluster that may be starting must refuse credentials that it
	// accepted before, until they count as refused.
	refusalPatience = 30 * time.Second
)

// identityIntervals is the number of discovery intervals after which identity, version and the
// hub's permissions are requested again, if no new connection was opened. A gateway may route the
// old connection to another server.
const identityIntervals = 5

// dialsAtOnce is the maximum number of probes that dial at the same time. At a start, or after an
// outage of the network, many clusters must be dialled. Without the limit, probes would measure a
// hub that is busy with a thousand TLS handshakes, all of which would time out and start again.
const dialsAtOnce = 128

// watchHealth probes the cluster until ctx ends.
func (m *Member) watchHealth(ctx context.Context) {
	var (
		probed   *connection
		failures int
		accepted bool      // the credentials of probed were accepted
		refused  time.Time // since when they are refused; zero: they are accepted, or that is unknown
		next     = time.NewTimer(0)
	)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
		case <-next.C:
		}
		c := m.current()
		dials := failures > 0
		if c != probed {
			probed, failures, dials = c, 0, true
			accepted, refused = false, time.Time{}
		}
		if c.problem != nil {
			// Without a connection there is nothing to probe until the Secret changes, which
			// sends a kick.
			next.Stop()
			continue
		}
		if m.awaitsAgents() {
			next.Reset(jitter(retryFirst))
			m.registry.options.probed(m.name)
			continue
		}
		if dials {
			select {
			case m.registry.options.dials <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		found, err := m.probe(ctx, c, failures > 0)
		if dials {
			<-m.registry.options.dials
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
		case !found.refused:
			accepted, refused = accepted || found.id != "", time.Time{}
		case found.unsure && accepted:
			if refused.IsZero() {
				refused = time.Now()
			}
			if time.Since(refused) < refusalPatience {
				err = errors.New(found.message)
			}
		}
		if err == nil {
			failures = 0
			m.found(c, found)
		} else if failures++; failures >= m.registry.options.FailureThreshold {
			m.fellSilent(ctx, c, err)
		} else {
			ctrl.LoggerFrom(ctx).V(1).Info("probe failed", "cluster", m.name, "failures", failures, "error", err.Error())
		}
		m.tend(ctx, c, found, err)
		next.Reset(m.pause(failures))
		m.registry.options.probed(m.name)
	}
}

// pause returns the time until the next probe.
func (m *Member) pause(failures int) time.Duration {
	interval := m.registry.options.ProbeInterval
	if failures == 0 {
		return jitter(interval)
	}
	backoff := retryFirst << min(max(failures-m.registry.options.FailureThreshold, 0), 6)
	return jitter(min(backoff, interval))
}

// jitter varies an interval, so that not all clusters are probed at the same time.
func jitter(d time.Duration) time.Duration {
	return d - d/20 + rand.N(d/10+1) //nolint:gosec // spreading needs no secrecy
}

// found records a successful probe on a connection.
func (m *Member) found(c *connection, found contact) {
	var changed, look bool
	m.update(func() {
		if m.connection != c {
			return // the result belongs to another address or other credentials
		}
		changed = !m.contact.equal(found)
		look = found.id != "" && (m.contact.id == "" || m.contact.version != found.version)
		m.contact = found
	})
	if look {
		nudge(m.look)
	}
	if changed {
		m.registry.enqueue(m.name, 0)
	}
}

// fellSilent records that a cluster has failed its probes.
func (m *Member) fellSilent(ctx context.Context, c *connection, err error) {
	var changed bool
	m.update(func() {
		if m.connection != c || m.contact.state == silent {
			return // the first message stays, because messages of one outage vary
		}
		changed = true
		m.contact = contact{state: silent, problem: err.Error()}
	})
	if !changed {
		return
	}
	ctrl.LoggerFrom(ctx).Info("cluster unreachable", "cluster", m.name, "error", err.Error())
	// Requests on the old connections fail now, so recovery does not depend on them.
	c.drop()
	m.registry.enqueue(m.name, 0)
}

// probe requests the cluster's readiness and, less often, its identity. An error means that the
// cluster did not answer, or that another server did. Each request has the whole timeout, so a
// cluster that takes seconds for an answer is slow, and not lost.
func (m *Member) probe(ctx context.Context, c *connection, dial bool) (contact, error) {
	if m.agentsAway() {
		return contact{}, errAway // fails at once, instead of a dial that would wait for them in vain
	}
	patience := m.registry.options.ProbeTimeout
	rt := c.transport
	if dial {
		rt = c.fresh
	}
	err := ready(ctx, rt, c, patience)
	if errors.Is(err, errThroughHub) {
		return contact{state: answering, proxied: true}, nil
	}
	if refusal := asRefusal(err); refusal != nil {
		return contact{state: answering, refused: true, unsure: refusal.unsure, message: refusal.explain(c)}, nil
	}
	if err != nil {
		return contact{}, describe(err)
	}

	m.mu.RLock()
	known, old := m.contact, m.connection != c
	m.mu.RUnlock()
	dialled := c.dialled.Load()
	if !old && known.state == answering && known.id != "" && known.dialled == dialled &&
		time.Since(known.identity) < identityIntervals*m.registry.options.DiscoveryInterval {
		m.welcomeAdmins(ctx, rt, c, &known)
		return known, nil
	}
	found, err := identify(ctx, rt, c, patience)
	if refusal := asRefusal(err); refusal != nil {
		return contact{state: answering, refused: true, message: refusal.explain(c)}, nil
	}
	if err != nil {
		return contact{}, describe(err)
	}
	found.dialled = dialled
	m.welcomeAdmins(ctx, rt, c, &found)
	return found, nil
}

// describe replaces the error of an expired context by a message about the missing answer.
func describe(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time; the API server may be hung, or packets to it are dropped")
	}
	return err
}

// refusal is the error of a cluster that does not accept the hub's credentials.
type refusal struct {
	message string
	unsure  bool // the API server may be starting: its readiness is unknown
}

// Error implements error.
func (r *refusal) Error() string { return r.message }

func asRefusal(err error) *refusal {
	r, _ := errors.AsType[*refusal](err)
	return r
}

func (r *refusal) explain(c *connection) string {
	if !c.expires.IsZero() && time.Now().After(c.expires) {
		return fmt.Sprintf("%s; the client certificate expired at %s", r.message, c.expires.UTC().Format(time.RFC3339))
	}
	if g := c.grant.Load(); g != nil {
		wayOut := "run orrery cluster join again with a kubeconfig of the cluster"
		if c.agent {
			wayOut = "its agent gives the hub another, if the account is there; else apply what orrery cluster rejoin prints"
		}
		return fmt.Sprintf("%s; they are a token of %s, which was deleted, or the token ended (at %s): %s", r.message, hubAccount, g.end().UTC().Format(time.RFC3339), wayOut)
	}
	return r.message
}

// errThroughHub refuses a cluster whose API server address is the proxy of a hub. The hub would
// connect to itself, with the credentials of one of its users.
var errThroughHub = errors.New("the address leads through the proxy of an Orrery hub; " +
	"use a kubeconfig that names the cluster's own API server, not a context of a hub's kubeconfig")

// throughHub reports whether the path of an address is below the fleet API.
func throughHub(base *url.URL) bool {
	return strings.Contains(base.Path+"/", "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
}

// ready requests /readyz and waits up to patience. An API server that is starting cannot verify
// tokens yet and refuses them, but reports even to unauthenticated clients that it is not ready.
// The error is then a notReadyError.
func ready(ctx context.Context, rt http.RoundTripper, c *connection, patience time.Duration) error {
	if throughHub(c.base) {
		return errThroughHub
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := readyz(ctx, rt, c.base)
	refusal := asRefusal(err)
	if refusal == nil {
		return err
	}
	anonymously := readyz(ctx, c.anonymous, c.base)
	if isNotReady(anonymously) {
		return anonymously
	}
	refusal.unsure = anonymously != nil
	return refusal
}

// readyz requests the readiness of an API server. The error is a notReadyError if the server
// reports that it is not ready.
func readyz(ctx context.Context, rt http.RoundTripper, base *url.URL) error {
	resp, err := get(ctx, rt, base, "/readyz", nil)
	if err != nil {
		return err
	}
	if resp.Header.Get(fleetv1alpha1.ProxiedHeader) != "" {
		return errors.Join(errThroughHub, resp.Body.Close())
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return &refusal{message: "the API server refuses the credentials: " + apiMessage(resp, body)}
	case err != nil:
		return fmt.Errorf("read /readyz: %w", err)
	case passingStatus(resp.StatusCode):
		return &notReadyError{fmt.Errorf("get %s/readyz: %s", base.Redacted(), apiMessage(resp, nil))}
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("get %s/readyz: %s", base.Redacted(), apiMessage(resp, nil))
	default:
		return nil
	}
}

// apiMessage returns the message of an API server's error, or the HTTP status.
func apiMessage(resp *http.Response, body []byte) string {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}
	return resp.Status
}

// identify requests the cluster's identity and the hub's missing permissions, and waits up to
// patience for each answer.
func identify(ctx context.Context, rt http.RoundTripper, c *connection, patience time.Duration) (contact, error) {
	config := &rest.Config{Host: c.base.String(), QPS: -1}
	httpClient := &http.Client{Transport: rt, Timeout: patience}
	core, err := corev1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return contact{}, fmt.Errorf("make client: %w", err)
	}
	authorization, err := authorizationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return contact{}, fmt.Errorf("make client: %w", err)
	}
	found := contact{state: answering, identity: time.Now()}
	if found.missing, err = missingPermissions(ctx, authorization, c.needs); err != nil {
		return contact{}, err
	}
	if len(found.missing) > 0 {
		return found, nil // the missing ones may be needed for the other requests
	}
	if found.version, err = serverVersion(ctx, core); err != nil {
		return contact{}, err
	}
	system, err := core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return contact{}, fmt.Errorf("get namespace %s: %w", metav1.NamespaceSystem, err)
	}
	found.id = string(system.UID)
	return found, nil
}

func serverVersion(ctx context.Context, core corev1client.CoreV1Interface) (string, error) {
	raw, err := core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("get /version: %w", err)
	}
	var info version.Info
	if err := json.Unmarshal(raw, &info); err != nil {
		return "", fmt.Errorf("read /version: %w", err)
	}
	return info.GitVersion, nil
}

// permission is one that Orrery needs in a cluster, with its name in messages.
type permission struct {
	words      string
	attributes authorizationv1.ResourceAttributes
}

// permissions returns those that Orrery needs in a cluster. By default it places objects of any
// type, and acts in the name of its users. With a profile of an agent it needs less.
func permissions(spec *clusterv1alpha1.ClusterSpec) []permission {
	may := func(words, verb, group, resource, namespace string) permission {
		return permission{words, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Namespace: namespace}}
	}
	if spec.Profile() == clusterv1alpha1.AgentProfileAll {
		return []permission{
			may("do anything with every resource", "*", "*", "*", ""),
			may("impersonate users", "impersonate", "", "users", ""),
			may("impersonate groups", "impersonate", "", "groups", ""),
		}
	}
	needs := []permission{
		may("list namespaces", "list", "", "namespaces", ""),
		may("list nodes", "list", "", "nodes", ""),
		may("list pods", "list", "", "pods", ""),
		may("list custom resource definitions", "list", "apiextensions.k8s.io", "customresourcedefinitions", ""),
	}
	for _, namespace := range spec.PlacementNamespaces() {
		needs = append(needs, may("do anything with every resource in namespace "+namespace, "*", "*", "*", namespace))
	}
	return needs
}

// rightsOf returns the canonical text of the rights that an agent gives; "": all.
func rightsOf(spec *clusterv1alpha1.ClusterSpec) string {
	if spec.Profile() == clusterv1alpha1.AgentProfileAll {
		return ""
	}
	return string(spec.Profile()) + " " + strings.Join(slices.Sorted(slices.Values(spec.PlacementNamespaces())), ",")
}

// missingPermissions returns the permissions that the hub lacks in the cluster.
func missingPermissions(ctx context.Context, authorization authorizationv1client.AuthorizationV1Interface, needs []permission) ([]string, error) {
	var missing []string
	for _, p := range needs {
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &p.attributes},
		}
		review, err := authorization.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		// Every authenticated client may send this review. Where anonymous requests are accepted,
		// a client with an invalid certificate or token counts as anonymous.
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			return nil, &refusal{message: "the API server refuses the credentials: " + err.Error()}
		}
		if err != nil {
			return nil, fmt.Errorf("review access: %w", err)
		}
		if !review.Status.Allowed {
			missing = append(missing, p.words)
		}
	}
	return missing, nil
}

// forbidden returns the message for missing permissions.
func forbidden(spec *clusterv1alpha1.ClusterSpec, missing []string) string {
	wayOut := "bind their user to the ClusterRole cluster-admin"
	if spec.SyncMode == clusterv1alpha1.Pull {
		wayOut = fmt.Sprintf("apply the manifest of the agent's profile (%s) in the cluster: orrery cluster rejoin prints it", spec.Profile())
	}
	return "the credentials do not allow to " + strings.Join(missing, ", ") + "; " + wayOut
}
