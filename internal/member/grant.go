package member

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// keyGrant is the key of the grant in a Secret with credentials. A grant describes a token that the
// cluster issued for the hub's own ServiceAccount, at the request of the hub or of the cluster's
// agent. It has the hash of that token. If a user writes another token into the Secret, the grant
// no longer matches, and the hub does not renew the token.
const keyGrant = "grant"

// grant describes a token of the hub's ServiceAccount: when it was issued and how long it lives. A
// grant does not change.
type grant struct {
	// ServiceAccount is NAMESPACE/NAME.
	ServiceAccount string `json:"serviceAccount"`
	// Issued is the hub's time when it got the token. Seconds is the life of the token by the
	// cluster's clock. So a difference between the two clocks does not matter.
	Issued  time.Time `json:"issued"`
	Seconds int64     `json:"seconds"`
	// SHA256 is the hash of the token, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// life returns the time from the issue of the token to its expiry.
func (g *grant) life() time.Duration { return time.Duration(g.Seconds) * time.Second }

// end returns when the token expires, by the hub's clock.
func (g *grant) end() time.Time { return g.Issued.Add(g.life()) }

// due reports whether the token must be renewed at now: a third of its life is over. It is also
// true if the clock was set back by that much, since the age of the token is then unknown.
func (g *grant) due(now time.Time) bool {
	return now.Sub(g.Issued).Abs() >= g.life()/3
}

// retry returns the time between two attempts to renew the token: a hundredth of its life, at least
// 10 seconds and at most 10 minutes. Each attempt creates a token, which is lost if the attempt
// fails.
func (g *grant) retry() time.Duration { return min(max(g.life()/100, 10*time.Second), 10*time.Minute) }

// condition returns the condition CredentialsExpiring for the token: True from half of its life on,
// since the token should have been renewed before. problem is why it was not renewed; "": unknown.
// problem is ignored for a cluster with an agent, because the agent renews the token.
func (g *grant) condition(now time.Time, cluster *clusterv1alpha1.Cluster, problem string) metav1.Condition {
	end := g.end().UTC().Format(time.RFC3339)
	said := metav1.Condition{
		Type: clusterv1alpha1.ConditionCredentialsExpiring, Status: metav1.ConditionFalse, Reason: clusterv1alpha1.ReasonValid,
		Message: "the hub's token ends at " + end + " and is renewed before",
	}
	wayOut := "%s; it is tried again, and orrery cluster join %s with a kubeconfig of the cluster gives the hub another one"
	if pulls(cluster) {
		wayOut = "%s: see the log of the cluster's agents, or apply what orrery cluster rejoin %s prints"
		problem = "the agent that is to renew it has not"
	}
	if problem == "" {
		problem = "it was not renewed yet"
	}
	switch {
	case !now.Before(g.end()):
		said.Status, said.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonExpired
		said.Message = fmt.Sprintf("the hub's token has ended at %s: "+wayOut, end, problem, cluster.Name)
	case now.Sub(g.Issued) >= g.life()/2:
		said.Status, said.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon
		said.Message = fmt.Sprintf("the hub's token ends at %s: "+wayOut, end, problem, cluster.Name)
	}
	return said
}

// credential is a token of the hub's ServiceAccount in a member, with the record of its issue and
// life.
type credential struct {
	token string
	grant *grant
}

// newCredential returns a token of the hub's ServiceAccount with its grant. issued is the hub's
// time when it got the token, seconds the life of the token.
func newCredential(token string, issued time.Time, seconds int64) *credential {
	return &credential{token: token, grant: &grant{
		ServiceAccount: accountUser, Issued: issued.UTC().Truncate(time.Second), Seconds: seconds, SHA256: fingerprint(token),
	}}
}

// fingerprint returns the SHA-256 of a token, in hexadecimal.
func fingerprint(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// write stores the token and its grant in data, the data of a Secret with credentials. data must
// not be nil.
func (c *credential) write(data map[string][]byte) error {
	raw, err := json.Marshal(c.grant)
	if err != nil {
		return fmt.Errorf("encode what is known of the token: %w", err)
	}
	data[keyToken], data[keyGrant] = []byte(c.token), raw
	return nil
}

// granted returns the token in the data of a Secret with its grant (the record of its issue and
// life). It is nil if the grant is missing or invalid, or belongs to another ServiceAccount or
// another token.
func granted(data map[string][]byte) *credential {
	g := &grant{}
	token := string(data[keyToken])
	if len(data[keyGrant]) == 0 || json.Unmarshal(data[keyGrant], g) != nil ||
		g.ServiceAccount != accountUser || g.Seconds <= 0 || g.SHA256 != fingerprint(token) {
		return nil
	}
	return &credential{token: token, grant: g}
}

// grantOf returns the grant (issue and life) of the token in a Secret. nil means that the token
// does not belong to the hub's ServiceAccount, or that there is no token.
func grantOf(secret *corev1.Secret) *grant {
	if c := granted(secret.Data); c != nil {
		return c.grant
	}
	return nil
}

// tokens is the state of the renewal of the hub's token in one member. Only the goroutine of the
// probes uses it.
type tokens struct {
	of    string    // SHA-256 of the token
	tried time.Time // last attempt to renew it
	// The first error since the last successful renewal. Later errors of one outage differ only in
	// words, and are not stored.
	problem string
}

// tend renews the hub's token in the cluster when the token is due, and updates the condition
// CredentialsExpiring and the metrics. The probes call it after each probe: found is the result,
// and unanswered its error. tend only removes the condition and the metric if the token does not
// belong to the hub's ServiceAccount. It does not renew the token of a cluster with an agent, which
// does that. A failure is part of the condition; the first one of a series is logged.
func (m *Member) tend(ctx context.Context, c *connection, found contact, unanswered error) {
	g := c.grant.Load()
	if g == nil {
		if m.said(metav1.Condition{}) {
			tokenExpiry.DeleteLabelValues(m.name)
		}
		return
	}
	t := &m.tokens
	if t.of != g.SHA256 {
		*t = tokens{of: g.SHA256}
	}
	now := m.registry.options.Clock.Now()
	tokenExpiry.WithLabelValues(m.name).Set(float64(g.end().Unix()))
	if m.Cluster().Spec.SyncMode == clusterv1alpha1.Push && g.due(now) && now.Sub(t.tried).Abs() >= g.retry() {
		err := m.mayRenew(found, unanswered)
		if err == nil {
			t.tried = now
			if err = m.registry.renewToken(ctx, m, c, now); ctx.Err() != nil {
				return
			}
			tokenRenewals.WithLabelValues(map[bool]string{true: "renewed", false: "failed"}[err == nil]).Inc()
		}
		switch {
		case err == nil:
			t.problem = ""
		case t.problem == "":
			t.problem = err.Error()
			ctrl.LoggerFrom(ctx).Info("the hub's token could not be renewed", "cluster", m.name, "ends", g.end(), "error", err.Error())
		}
	}
	if m.said(g.condition(now, m.Cluster(), t.problem)) {
		m.registry.enqueue(m.name, 0)
	}
}

// said stores c, the condition CredentialsExpiring of the member, and reports whether it changed.
// An empty c means that there is no such condition.
func (m *Member) said(c metav1.Condition) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	news = m.expiring != c
	m.expiring = c
	return news
}

// mayRenew returns why no token can be requested from the cluster now; nil: it can. found is the
// result of the last probe, and unanswered its error. mayRenew sends no request.
func (m *Member) mayRenew(found contact, unanswered error) error {
	switch {
	case unanswered != nil:
		return errors.New("the cluster does not answer")
	case found.refused:
		return errors.New("the cluster refuses it")
	case found.id == "" || !m.isMember(found.id):
		return errors.New("the cluster is not the one that was joined, or is leaving")
	}
	return nil
}

// errNotOurs means that a renewed token must not be written into the Secret now. The Secret has
// another token or new credentials on trial (a candidate), or is not bound to the Cluster.
var errNotOurs = errors.New("the Secret with the credentials was changed meanwhile")

// renewToken requests a new token of the hub's ServiceAccount from the cluster, with the present
// token. It tests the new token, and then writes it into the Secret. That write makes connect
// switch to the new token. If renewToken is interrupted, the present token stays, and the next
// attempt requests another. It returns errNotOurs if the Secret was changed meanwhile. now is the
// hub's time.
func (r *Registry) renewToken(ctx context.Context, m *Member, c *connection, now time.Time) error {
	cluster := m.Cluster()
	ref := cluster.Spec.SecretRef
	secret := &corev1.Secret{}
	if err := r.reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
		return fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	present := granted(secret.Data)
	if bound(secret, cluster) != nil || waiting(secret, cluster.Name) != nil || present == nil || present.grant.SHA256 != c.grant.Load().SHA256 {
		return errNotOurs
	}
	a, err := newAccounts(r.options.Fence(c.transport), c, r.options.ProbeTimeout)
	if err != nil {
		return err
	}
	next, err := a.token(ctx, now)
	if err != nil {
		return err
	}
	if err := next.write(secret.Data); err != nil {
		return err
	}
	found, err := examine(ctx, r.dialer(cluster), cluster, secret)
	if err != nil {
		return fmt.Errorf("try the new token: %w", err)
	}
	if !m.isMember(found.id) {
		return fmt.Errorf("try the new token: another cluster answers at %s, or this one is leaving", Redacted(cluster.Spec.APIEndpoint))
	}
	if err := r.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write the new token to secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("the hub's token was renewed", "cluster", m.name, "ends", next.grant.end())
	return nil
}

// credentialsExpiring sets the condition CredentialsExpiring in the status of o. It records a
// warning Event when the token should have been renewed or has expired. It removes the condition if
// the token does not belong to the hub's ServiceAccount.
func (c *clusters) credentialsExpiring(o *clusterv1alpha1.Cluster, m *Member) {
	m.mu.RLock()
	said, known := m.expiring, m.connection.grant.Load()
	m.mu.RUnlock()
	if known == nil {
		meta.RemoveStatusCondition(&o.Status.Conditions, clusterv1alpha1.ConditionCredentialsExpiring)
		return
	}
	if said.Type == "" {
		return // the first probe is running
	}
	before := meta.FindStatusCondition(o.Status.Conditions, said.Type)
	if said.Status == metav1.ConditionTrue && (before == nil || before.Reason != said.Reason) {
		c.recorder.Eventf(o, nil, corev1.EventTypeWarning, "Credentials"+said.Reason, "RenewToken", "%s", said.Message)
	}
	reconciler.SetCondition(&o.Status.Conditions, said, o.Generation)
}

var (
	// Metrics of the hub's tokens in members.
	tokenExpiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "orrery_member_token_expiry_timestamp_seconds",
		Help: "When the hub's token in a cluster ends that it renews itself.",
	}, []string{"cluster"})
	tokenRenewals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_member_token_renewals_total",
		Help: "Tries to renew the hub's tokens in clusters, by what came of them.",
	}, []string{"result"})
)

func init() { //nolint:gochecknoinits // where controller-runtime's own metrics register
	ctrlmetrics.Registry.MustRegister(tokenExpiry, tokenRenewals)
}
