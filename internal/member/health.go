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

// state is whether a cluster answers, by the results of its last probes.
type state int

const (
	undecided state = iota // not probed often enough to decide
	answering
	silent // it did not answer FailureThreshold times in a row, or cannot be asked
)

// contact is what the probes have found out about a cluster. Member.mu guards the field contact of
// a member.
type contact struct {
	state   state
	problem string // why it is silent
	// untrusted is true if it is silent because the hub does not trust its certificate.
	untrusted bool

	// The following is set while the cluster answers.
	proxied  bool     // the address is that of a hub's proxy, so it cannot be a member
	refused  bool     // the hub's credentials were refused
	unsure   bool     // the refusal may come from an API server that is starting
	message  string   // of the refusal
	missing  []string // permissions
	id       string   // UID of kube-system; "": refused, permissions missing, or not requested yet
	version  string
	admins   admins
	identity time.Time // when the identity was last requested
	dialled  int64     // number of opened connections when the identity was requested
}

// equal reports whether two contacts are the same for the status of a Cluster. It ignores unsure,
// identity (a time) and dialled (a count of connections).
func (c contact) equal(d contact) bool {
	return c.state == d.state && c.problem == d.problem && c.proxied == d.proxied && c.refused == d.refused && c.id == d.id &&
		c.version == d.version && c.admins == d.admins && c.message == d.message && slices.Equal(c.missing, d.missing)
}

const (
	// retryFirst is the least time between probes of a cluster that fails them, so that its recovery
	// is noticed soon. The time doubles with each failure, up to the interval between probes of a
	// healthy cluster.
	retryFirst = time.Second
	// refusalPatience is how long an API server that may be starting must refuse credentials before
	// they count as refused. It applies only if the cluster accepted the credentials before.
	refusalPatience = 30 * time.Second
)

// identityIntervals is how many times DiscoveryInterval may pass until the identity and version of
// a cluster and the hub's permissions are requested again. A new connection causes that at once. A
// load balancer may route the old connection to another server.
const identityIntervals = 5

// dialsAtOnce is the maximum number of probes that dial at the same time. At a start, or after an
// outage of the network, many clusters must be dialled. Without the limit, probes would measure a
// hub that is busy with a thousand TLS handshakes, all of which would time out and start again.
const dialsAtOnce = 128

// watchHealth probes the cluster (checks its health) until ctx ends: after each interval, and at
// once after a signal on m.kick. It records the results in the member, and renews the hub's token
// after a probe when the token is due. It does not probe while the connection has a problem. start
// runs it as a goroutine.
func (m *Member) watchHealth(ctx context.Context) {
	var (
		probed   *connection
		failures int
		accepted bool      // the credentials of probed were accepted
		refused  time.Time // since when the credentials are refused; zero: they are not, or it is unknown
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

// pause returns the time until the next probe, with jitter. failures is the number of failed probes
// in a row.
func (m *Member) pause(failures int) time.Duration {
	interval := m.registry.options.ProbeInterval
	if failures == 0 {
		return jitter(interval)
	}
	backoff := retryFirst << min(max(failures-m.registry.options.FailureThreshold, 0), 6)
	return jitter(min(backoff, interval))
}

// jitter varies an interval by up to 5 % in both directions, so that not all clusters are
// probed at the same time.
func jitter(d time.Duration) time.Duration {
	return d - d/20 + rand.N(d/10+1) //nolint:gosec // spreading needs no secrecy
}

// found records a successful probe through the connection c. The result is ignored if c was
// replaced meanwhile. If the contact changed, the Cluster is enqueued. A new identity or version
// also causes a read of the API list.
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

// fellSilent records that the cluster failed FailureThreshold probes in a row, closes the
// connections, and enqueues the Cluster. err is the error of the last probe. It does nothing if the
// cluster is silent already, or if c is no longer its connection.
func (m *Member) fellSilent(ctx context.Context, c *connection, err error) {
	var changed bool
	m.update(func() {
		if m.connection != c || m.contact.state == silent {
			return // the first message stays, because messages of one outage vary
		}
		changed = true
		m.contact = contact{state: silent, problem: err.Error(), untrusted: untrusted(err)}
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
// cluster did not answer or is not ready; the returned contact is then empty. If the cluster
// refuses the hub's credentials, or its address is the proxy of a hub, the contact has that,
// without an error.
//
// dial makes probe open a new connection for each request. Each request has the whole ProbeTimeout,
// so a cluster that takes seconds for an answer is slow, and not lost. probe also gives
// the hub's administrators all rights in the cluster, see welcomeAdmins.
func (m *Member) probe(ctx context.Context, c *connection, dial bool) (contact, error) {
	if m.agentsAway() {
		return contact{}, errAway // fails at once; a dial would wait for agents in vain
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

// describe replaces an error of an expired context by the message that the cluster did not answer
// in time. It returns any other error as it is.
func describe(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time; the API server may be hung, or packets to it are dropped")
	}
	return err
}

// refusal is the error of a request to a cluster that does not accept the hub's credentials.
type refusal struct {
	message string
	unsure  bool // the API server may be starting: its readiness is unknown
}

// Error implements error.
func (r *refusal) Error() string { return r.message }

// asRefusal returns the *refusal in err: the cluster does not accept the hub's credentials. It is
// nil if err has none.
func asRefusal(err error) *refusal {
	r, _ := errors.AsType[*refusal](err)
	return r
}

// explain returns the message of the refusal with its probable cause, for a user. The cause is an
// expired client certificate of c, or a token of the hub's ServiceAccount that expired or whose
// ServiceAccount was deleted. The message has no cause if neither applies.
func (r *refusal) explain(c *connection) string {
	if !c.expires.IsZero() && time.Now().After(c.expires) {
		return fmt.Sprintf("%s; the client certificate expired at %s", r.message, c.expires.UTC().Format(time.RFC3339))
	}
	if g := c.grant.Load(); g != nil {
		wayOut := "run orrery cluster join again with a kubeconfig of the cluster"
		if c.agent {
			wayOut = "the cluster's agent gets a new token for the hub if the account exists; otherwise apply the manifest that orrery cluster rejoin prints"
		}
		return fmt.Sprintf("%s; either %s was deleted, or the hub's token for it has expired (valid until %s): %s", r.message, hubAccount, g.end().UTC().Format(time.RFC3339), wayOut)
	}
	return r.message
}

// errThroughHub refuses a cluster whose API server address is the proxy of a hub. The hub would
// connect to itself, with the credentials of one of its users.
var errThroughHub = errors.New("the address leads through the proxy of an Orrery hub; " +
	"use a kubeconfig that names the cluster's own API server, not a context of a hub's kubeconfig")

// throughHub reports whether base, the address of a cluster, is the proxy of a hub: its path is
// below the fleet API.
func throughHub(base *url.URL) bool {
	return strings.Contains(base.Path+"/", "/apis/"+fleetv1alpha1.GroupVersion.Group+"/")
}

// ready requests /readyz and waits up to patience. nil means that the API server is ready. The
// error is errThroughHub for an address of a hub's proxy. A refusal of the credentials is checked
// again without credentials, because an API server that is starting refuses all tokens. If that
// answer is "not ready", the error is a *notReadyError, else a *refusal.
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

// readyz requests /readyz of an API server once, through rt. The error is a *notReadyError if the
// server is not ready or overloaded, and a *refusal if it refuses the credentials. It wraps
// errThroughHub if a hub's proxy answers.
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

// apiMessage returns the message in body, if that is the error (Status) of an API server. Otherwise
// it returns the HTTP status.
func apiMessage(resp *http.Response, body []byte) string {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}
	return resp.Status
}

// identify requests the hub's missing permissions in the cluster, and then the cluster's version
// and identity. It waits up to patience for each answer. If permissions are missing, the contact
// has these but no version and identity, without an error. The error is a *refusal if the
// credentials are refused.
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
	if found.missing, err = missingPermissions(ctx, authorization, c.required); err != nil {
		return contact{}, err
	}
	if len(found.missing) > 0 {
		return found, nil // the other requests may need the missing permissions
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

// serverVersion returns the version of the API server, such as v1.33.1.
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

// permission is a right that Orrery needs in a cluster. words is its name in messages, such as
// "list nodes".
type permission struct {
	words      string
	attributes authorizationv1.ResourceAttributes
}

// permissions returns the permissions that Orrery needs in a cluster. By default it places objects
// of any type, and acts in the name of its users, so it needs all. If the agent has a profile that
// limits the hub's rights, Orrery needs to list four types everywhere, and all rights in the
// profile's namespaces.
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
	required := []permission{
		may("list namespaces", "list", "", "namespaces", ""),
		may("list nodes", "list", "", "nodes", ""),
		may("list pods", "list", "", "pods", ""),
		may("list custom resource definitions", "list", "apiextensions.k8s.io", "customresourcedefinitions", ""),
	}
	for _, namespace := range spec.PlacementNamespaces() {
		required = append(required, may("do anything with every resource in namespace "+namespace, "*", "*", "*", namespace))
	}
	return required
}

// rightsOf returns a text for the rights that the profile of the cluster's agent gives the hub,
// equal for equal rights. It is part of the hash that identifies a connection. It is "" for all
// rights, which is also the default.
func rightsOf(spec *clusterv1alpha1.ClusterSpec) string {
	if spec.Profile() == clusterv1alpha1.AgentProfileAll {
		return ""
	}
	return string(spec.Profile()) + " " + strings.Join(slices.Sorted(slices.Values(spec.PlacementNamespaces())), ",")
}

// missingPermissions returns the names of those permissions in required that the hub lacks in the
// cluster, such as "list nodes". It is nil if none is missing. The error is a *refusal if the
// credentials are refused.
func missingPermissions(ctx context.Context, authorization authorizationv1client.AuthorizationV1Interface, required []permission) ([]string, error) {
	var missing []string
	for _, p := range required {
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

// forbidden returns the message for a cluster in which the hub lacks the permissions in missing. It
// says what the user can do, which differs for a cluster with an agent.
func forbidden(spec *clusterv1alpha1.ClusterSpec, missing []string) string {
	wayOut := "bind their user to the ClusterRole cluster-admin"
	if spec.SyncMode == clusterv1alpha1.Pull {
		wayOut = fmt.Sprintf("apply the manifest of the agent's profile (%s) in the cluster: orrery cluster rejoin prints it", spec.Profile())
	}
	return "the credentials do not allow to " + strings.Join(missing, ", ") + "; " + wayOut
}
