package enrollment

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

const notOpened = "the token opens no cluster of this name"

// TestRedeem: a token is exchanged for a certificate with which the cluster can be dialled, and the
// hub gets credentials for the cluster.
func TestRedeem(t *testing.T) {
	s := newSite(t)
	oak := s.cluster("oak")
	a := s.agent("oak")
	token := s.token("oak")
	a.redeem(token)
	want := []offered{{"oak", oak.UID, a.credentials, true}}
	if diff := cmp.Diff(want, s.takeOffers(), cmp.AllowUnexported(offered{})); diff != "" {
		t.Errorf("the hub got offers (-want +got):\n%s", diff)
	}
	c, err := x509.ParseCertificate(a.certificate)
	if err != nil {
		t.Fatal(err)
	}
	if life := time.Until(c.NotAfter); life > certificateLife || life < certificateLife-time.Hour {
		t.Errorf("the certificate ends in %s", life)
	}
	a.run()
	if err := echoes(s.dial("oak"), "hello"); err != nil {
		t.Error(err)
	}
	a.redeem(token) // its answer may have been lost
	s.joined(oak)
	agents := &corev1.Secret{}
	if err := s.hub.Get(t.Context(), client.ObjectKeyFromObject(secretOf("oak", agentSuffix)), agents); err != nil {
		t.Fatal(err)
	}
	if agents.Annotations[annotationKey] != fingerprint(c.RawSubjectPublicKeyInfo) || !ownedBy(agents, oak) {
		t.Errorf("%v", agents)
	}
}

// TestTokens: a token is valid for its cluster until it expires, for the key that its agents have,
// or the first key that uses it. Answers reveal no clusters to unauthenticated clients.
func TestTokens(t *testing.T) {
	s := newSite(t)
	s.cluster("oak")
	s.cluster("pine")
	token := s.token("oak")
	first := s.agent("oak")
	first.redeemRefused("", notOpened)
	first.redeemRefused(token+"x", notOpened)
	for _, other := range []string{"pine", "no-such-cluster", "oak.join", "../secrets", "", strings.Repeat("x", 300)} {
		s.agent(other).redeemRefused(token, notOpened)
	}
	first.redeem(token)
	s.agent("oak").redeemRefused(token, notOpened)
	first.redeem(token)

	replaced := s.token("oak")
	first.redeemRefused(token, notOpened)
	second := s.agent("oak")
	second.redeemRefused(replaced, "have another key")
	first.redeem(replaced)
	second.redeemRefused(replaced, notOpened)
	unbound := s.token("oak")
	replaced = s.replace("oak")
	second.redeemRefused(unbound, notOpened)
	second.redeem(replaced)
	first.refused("revoked")
	if w := second.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("%+v", w)
	}

	s.later(tokenLife)
	second.redeemRefused(replaced, notOpened)
	if n := len(s.takeOffers()); n != 4 {
		t.Errorf("the hub got offers %d times", n)
	}
}

// TestStolenRejoin: a thief of a token of a cluster with a working agent gets nothing, and cuts
// nothing off. The agent redeems the token with its key, without losing a connection. If it came
// after --replace, the token is for the first key, and the old agent is out.
func TestStolenRejoin(t *testing.T) {
	s := newSite(t)
	oak := s.cluster("oak")
	a := s.agent("oak")
	a.redeem(s.token("oak"))
	s.joined(oak)
	a.run()
	open := s.dial("oak")
	works := func(when string) {
		t.Helper()
		if err := echoes(open, "hello"); err != nil {
			t.Errorf("%s, an open connection: %v", when, err)
		}
		if w := a.welcome(); w != (tunnel.Welcome{}) {
			t.Errorf("%s, a new connection: %+v", when, w)
		}
	}
	s.takeOffers()
	token := s.token("oak")
	works("after a rejoin")
	thief := s.agent("oak")
	for range 3 {
		thief.redeemRefused(token, "--replace")
	}
	works("after the theft")
	if offers := s.takeOffers(); offers != nil {
		t.Errorf("the hub gets credentials of the thief: %v", offers)
	}
	a.redeem(token)
	works("after the agent's redemption")
	thief.redeemRefused(token, notOpened)
	if diff := cmp.Diff([]offered{{"oak", oak.UID, a.credentials, true}}, s.takeOffers(), cmp.AllowUnexported(offered{})); diff != "" {
		t.Errorf("the hub got offers (-want +got):\n%s", diff)
	}

	replaced := s.replace("oak")
	_ = open.SetReadDeadline(time.Time{})
	if _, err := open.Read(make([]byte, 1)); err == nil {
		t.Error("bytes that nobody sent")
	}
	a.refused("--replace")
	b := s.agent("oak")
	b.redeem(replaced)
	a.redeemRefused(replaced, notOpened)
	if w := b.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("%+v", w)
	}
}

// TestReplacedDuringRedemption: a key that --replace revokes stays revoked, and the next key joins,
// even if the hub was about to store the revoked key.
func TestReplacedDuringRedemption(t *testing.T) {
	s := newSite(t)
	s.server.stop()
	hub := &pausing{Client: s.hub}
	s.changes = hub
	s.start()
	for name, before := range map[string]func(old *agent) (token string){
		"NoKey":      func(*agent) string { return s.token("oak") },
		"KeyRevoked": func(*agent) string { return s.replace("oak") },
		"SameKey": func(old *agent) string {
			old.redeem(s.token("oak"))
			return s.token("oak")
		},
	} {
		for next, redeemed := range map[string]bool{"": false, "AndRedeemed": true} {
			t.Run(name+next, func(t *testing.T) {
				c := s.cluster("oak")
				defer func() {
					s.remove(c)
					s.remove(secretOf("oak", agentSuffix))
				}()
				old, replacement := s.agent("oak"), s.agent("oak")
				body := old.redemption(before(old))
				reached, release := hub.pause("oak" + agentSuffix)
				var status int
				var receipt tunnel.Receipt
				var posting sync.WaitGroup
				posting.Go(func() { status, receipt = old.post(bytes.NewReader(body)) })
				<-reached
				token := s.replace("oak")
				if redeemed {
					replacement.redeem(token)
				}
				close(release)
				posting.Wait()
				if status != http.StatusForbidden || !strings.Contains(receipt.Refused, notOpened) || receipt.Certificate != nil {
					t.Errorf("the revoked key: %d, %+v", status, receipt)
				}
				replacement.redeem(token)
				if w := replacement.welcome(); w != (tunnel.Welcome{}) {
					t.Errorf("the next key: %+v", w)
				}
				if old.certificate != nil {
					old.refused("revoked")
				}
			})
		}
	}
}

// pausing is a client of the hub that holds one write of an object.
type pausing struct {
	client.Client

	mu      sync.Mutex
	name    string // of the object; "": none
	reached chan struct{}
	release chan struct{}
}

// pause holds the next write of the object with this name, until release is closed. reached is
// closed when the write begins.
func (p *pausing) pause(name string) (reached <-chan struct{}, release chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.reached, p.release = name, make(chan struct{}), make(chan struct{})
	return p.reached, p.release
}

func (p *pausing) wait(o client.Object) {
	p.mu.Lock()
	if o.GetName() != p.name {
		p.mu.Unlock()
		return
	}
	p.name = ""
	reached, release := p.reached, p.release
	p.mu.Unlock()
	close(reached)
	<-release
}

func (p *pausing) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	p.wait(o)
	return p.Client.Create(ctx, o, opts...)
}

func (p *pausing) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	p.wait(o)
	return p.Client.Update(ctx, o, opts...)
}

// TestTokenOfAnotherCluster: a token is not valid for a Cluster that was created again under the
// same name.
func TestTokenOfAnotherCluster(t *testing.T) {
	s := newSite(t)
	c := s.cluster("oak")
	token := s.token("oak")
	a := s.agent("oak")
	a.redeem(token)
	s.remove(c)
	a.redeemRefused(token, notOpened)
	s.cluster("oak")
	a.redeemRefused(token, notOpened)
	a.refused("the hub knows no cluster oak")
	if _, _, err := NewToken(t.Context(), s.hub, "pine"); !apierrors.IsNotFound(err) {
		t.Errorf("a token of no cluster: %v", err)
	}
}

// TestKilled: a process that ends between any two writes leaves a state in which the agent can
// continue, and no certificate that the hub does not know.
func TestKilled(t *testing.T) {
	for step, after := range []string{"NoWrite", "TheKeyIsBound", "TheKeyIsKnown"} {
		t.Run(after, func(t *testing.T) {
			s := newSite(t)
			s.cluster("oak")
			token := s.token("oak")
			a := s.agent("oak")
			s.server.stop()
			dying := &dying{Client: s.server.hub, left: step}
			s.changes = dying
			s.start()
			a.address, a.roots = s.server.address, s.server.roots
			dying.armed.Store(true)
			status, receipt := a.post(bytes.NewReader(a.redemption(token)))
			if died := step < 2; died != (status != http.StatusOK) || died != (receipt.Certificate == nil) {
				t.Errorf("%d, %+v", status, receipt)
			}
			s.server.stop()
			s.changes = nil
			s.start()
			a.address, a.roots = s.server.address, s.server.roots
			if step > 0 {
				other := s.agent("oak")
				other.redeemRefused(token, notOpened)
			}
			a.redeem(token)
			if w := a.welcome(); w != (tunnel.Welcome{}) {
				t.Errorf("%+v", w)
			}
		})
	}
}

// dying is a client of the hub that fails after a number of writes once it is armed.
type dying struct {
	client.Client

	armed atomic.Bool
	left  int
}

func (d *dying) die() error {
	if !d.armed.Load() {
		return nil
	}
	if d.left == 0 {
		return errors.New("killed")
	}
	d.left--
	return nil
}

func (d *dying) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := d.die(); err != nil {
		return err
	}
	return d.Client.Create(ctx, o, opts...)
}

func (d *dying) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := d.die(); err != nil {
		return err
	}
	return d.Client.Update(ctx, o, opts...)
}

// TestReport: an agent renews its certificate and the hub's credentials. The first report completes
// a join and ends the token, so that a recorded redemption is useless.
func TestReport(t *testing.T) {
	s := newSite(t)
	oak := s.cluster("oak")
	a := s.agent("oak")
	token := s.token("oak")
	recorded := a.redemption(token)
	if status, receipt := a.post(bytes.NewReader(recorded)); status != http.StatusOK {
		t.Fatalf("%+v", receipt)
	} else {
		a.certificate = receipt.Certificate
	}
	s.takeOffers()

	a.credentials.Token = "another"
	if receipt := a.report(tunnel.Report{Sealed: a.seal("oak", a.credentials)}); receipt.Refused != "" || receipt.Certificate != nil {
		t.Errorf("%+v", receipt)
	}
	// The hub has not reached the cluster yet, so the report counts as a redemption.
	if diff := cmp.Diff([]offered{{"oak", oak.UID, a.credentials, true}}, s.takeOffers(), cmp.AllowUnexported(offered{})); diff != "" {
		t.Errorf("the hub got offers (-want +got):\n%s", diff)
	}
	s.joined(oak)
	old := a.certificate
	receipt := a.report(tunnel.Report{Request: a.request(), Sealed: a.seal("oak", a.credentials)})
	if receipt.Refused != "" || bytes.Equal(receipt.Certificate, old) {
		t.Fatalf("%+v", receipt)
	}
	a.certificate = receipt.Certificate
	if w := a.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("%+v", w)
	}
	s.takeOffers()
	if status, receipt := a.post(bytes.NewReader(recorded)); status != http.StatusForbidden {
		t.Errorf("a replayed redemption: %d, %+v", status, receipt)
	}
	a.report(tunnel.Report{Sealed: a.seal("oak", a.credentials)})
	if diff := cmp.Diff([]offered{{"oak", oak.UID, a.credentials, false}}, s.takeOffers(), cmp.AllowUnexported(offered{})); diff != "" {
		t.Errorf("the hub got offers (-want +got):\n%s", diff)
	}

	for name, tc := range map[string]struct {
		report tunnel.Report
		want   string
	}{
		"AnotherKey":     {tunnel.Report{Request: s.agent("oak").request(), Sealed: a.seal("oak", a.credentials)}, "for the key that it has"},
		"NoRequest":      {tunnel.Report{Request: []byte("x"), Sealed: a.seal("oak", a.credentials)}, "cannot be read"},
		"ForAnother":     {tunnel.Report{Sealed: a.seal("pine", a.credentials)}, "not sealed for this hub and this cluster"},
		"NothingSealed":  {tunnel.Report{}, "not sealed"},
		"NotCredentials": {tunnel.Report{Sealed: a.seal("oak", "hello")}, "not understood"},
	} {
		t.Run(name, func(t *testing.T) {
			if receipt := a.report(tc.report); !strings.Contains(receipt.Refused, tc.want) || receipt.Certificate != nil {
				t.Errorf("%+v, want %q", receipt, tc.want)
			}
		})
	}
	if offers := s.takeOffers(); offers != nil {
		t.Errorf("the hub got %v", offers)
	}
	s.refuse(errors.New("another cluster answers"))
	receipt = a.report(tunnel.Report{Request: a.request(), Sealed: a.seal("oak", a.credentials)})
	if receipt.Refused != "another cluster answers" || receipt.Certificate == nil {
		t.Errorf("%+v: the certificate does not wait for the credentials", receipt)
	}
}

// TestAdmit: an agent is admitted, refused for now, or instructed to remove itself.
func TestAdmit(t *testing.T) {
	s := newSite(t)
	oak := s.cluster("oak")
	a := s.agent("oak")
	a.redeem(s.token("oak"))

	certified := func(by pki.KeyPair, who identity, change func(*pkix.Name)) []byte {
		t.Helper()
		subject := pkix.Name{CommonName: who.cluster, Organization: []string{agents}, SerialNumber: string(who.uid)}
		change(&subject)
		der, err := by.Certify(subject, &a.key.PublicKey, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	ours := s.server.keeper.Load().signer
	other, err := pki.NewAuthority("agents", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	same := func(*pkix.Name) {}
	who := identity{cluster: "oak", uid: oak.UID}
	for name, tc := range map[string]struct {
		certificate []byte
		want        string
	}{
		"Good":             {certified(ours, who, same), ""},
		"AnotherAuthority": {certified(other, who, same), "not one of this hub's"},
		"NotAnAgents":      {certified(ours, who, func(n *pkix.Name) { n.Organization = []string{"system:masters"} }), "not one of this hub's"},
		"NoUID":            {certified(ours, who, func(n *pkix.Name) { n.SerialNumber = "" }), "not one of this hub's"},
		"AnotherUID":       {certified(ours, who, func(n *pkix.Name) { n.SerialNumber = "x" }), "knows no cluster oak"},
		"UnknownCluster":   {certified(ours, who, func(n *pkix.Name) { n.CommonName = "elm" }), "knows no cluster elm"},
	} {
		t.Run(name, func(t *testing.T) {
			b := *a
			b.t, b.certificate = t, tc.certificate
			if w := b.welcome(); w.Gone || (w.Refused == "") != (tc.want == "") || !strings.Contains(w.Refused, tc.want) {
				t.Errorf("%+v, want %q", w, tc.want)
			}
		})
	}

	// The agent of one cluster cannot connect as that of another: pine has another key.
	pine := s.cluster("pine")
	b := s.agent("pine")
	b.redeem(s.token("pine"))
	claim := *a
	claim.certificate = certified(ours, identity{cluster: "pine", uid: pine.UID}, same)
	claim.refused("revoked")

	// A hub that was restored without the Cluster makes no agent remove itself, even with an
	// expired certificate.
	s.remove(oak)
	a.refused("knows no cluster oak")
	if err := s.server.Leave(t.Context(), oak); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Leave(t.Context(), oak); err != nil { // the write is repeated after a crash
		t.Fatal(err)
	}
	if w := a.welcome(); !w.Gone {
		t.Errorf("the hub says %+v of a cluster that has left", w)
	}
	s.later(2 * certificateLife)
	certificate, err := x509.ParseCertificate(a.certificate)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.server.Admit(t.Context(), certificate); !errors.Is(err, gateway.ErrGone) {
		t.Errorf("of a certificate that has ended: %v", err)
	}
	if certificate, err = x509.ParseCertificate(b.certificate); err != nil {
		t.Fatal(err)
	}
	if _, err := s.server.Admit(t.Context(), certificate); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("of a certificate that has ended, and whose cluster is there: %v", err)
	}

	s.later(tombstoneLife)
	if err := s.server.forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.refused("knows no cluster oak")
}

// TestLeave: only a cluster that has, or had, agents gets a tombstone.
func TestLeave(t *testing.T) {
	s := newSite(t)
	left := func(c *clusterv1alpha1.Cluster) bool {
		t.Helper()
		if err := s.server.Leave(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		there, err := s.server.get(t.Context(), client.ObjectKey{Namespace: namespace, Name: leftPrefix + string(c.UID)}, &corev1.ConfigMap{})
		if err != nil {
			t.Fatal(err)
		}
		return there
	}
	oak := s.cluster("oak")
	if !left(oak) {
		t.Error("no tombstone of a cluster whose agent has not come yet")
	}
	pushed := func(name string) *clusterv1alpha1.Cluster {
		return &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{
			SyncMode: clusterv1alpha1.Push, APIEndpoint: "https://10.0.0.1", SecretRef: clusterv1alpha1.SecretReference{Namespace: namespace, Name: name},
		}}
	}
	elm, fir := pushed("elm"), pushed("fir")
	if err := errors.Join(s.hub.Create(t.Context(), elm), s.hub.Create(t.Context(), fir)); err != nil {
		t.Fatal(err)
	}
	if left(elm) {
		t.Error("a tombstone of a cluster that never had an agent")
	}
	s.agent("fir").redeem(s.token("fir"))
	if !left(fir) {
		t.Error("no tombstone of a cluster that is dialled and had an agent")
	}
}

// TestRevocation: open connections end when the agent is no longer admitted; those of other
// clusters stay.
func TestRevocation(t *testing.T) {
	s := newSite(t)
	pine := s.cluster("pine")
	stays := s.agent("pine")
	stays.redeem(s.token("pine"))
	stays.run()
	kept := s.dial("pine")
	for name, revoke := range map[string]func(*clusterv1alpha1.Cluster){
		"Replaced": func(*clusterv1alpha1.Cluster) {
			s.replace("oak")
		},
		"KeyDeleted":   func(*clusterv1alpha1.Cluster) { s.remove(secretOf("oak", agentSuffix)) },
		"Deleted":      func(c *clusterv1alpha1.Cluster) { s.remove(c) },
		"RedeemedAnew": func(*clusterv1alpha1.Cluster) { s.agent("oak").redeem(s.replace("oak")) },
		"Left": func(c *clusterv1alpha1.Cluster) {
			if err := s.server.Leave(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			s.remove(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			oak := s.cluster("oak")
			a := s.agent("oak")
			a.redeem(s.token("oak"))
			ended := a.run()
			open := s.dial("oak")
			if err := echoes(open, "hello"); err != nil {
				t.Fatal(err)
			}
			revoke(oak)
			_ = open.SetReadDeadline(time.Time{})
			if _, err := open.Read(make([]byte, 1)); err == nil {
				t.Error("bytes that nobody sent")
			}
			s.eventually("no spare is left", func() bool { return len(s.server.Gateway().Agents("oak")) == 0 })
			if name == "Left" {
				if err := <-ended; !errors.Is(err, tunnel.ErrGone) {
					t.Errorf("the agent ended with %v", err)
				}
				return
			}
			select {
			case err := <-ended:
				t.Errorf("the agent gave up: %v", err)
			default:
			}
			if err := client.IgnoreNotFound(s.hub.Delete(t.Context(), oak)); err != nil {
				t.Fatal(err)
			}
			if err := client.IgnoreNotFound(s.hub.Delete(t.Context(), secretOf("oak", agentSuffix))); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := echoes(kept, "hello"); err != nil {
		t.Errorf("another cluster's connection: %v", err)
	}
	// A new process decides by the present state.
	s.server.stop()
	s.start()
	stays.address, stays.roots = s.server.address, s.server.roots
	if w := stays.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("%+v", w)
	}
	s.remove(pine)
	stays.refused("knows no cluster pine")
}

// TestRevocationAtOnce: a revocation closes all connections, also with a stolen certificate, and
// admits none of them again. It does so before the retry after a second: the clock of retries
// stands still.
func TestRevocationAtOnce(t *testing.T) {
	s := newSite(t)
	s.server.stop()
	still := testingclock.NewFakeClock(time.Now())
	start := still.Now()
	s.retries = still
	s.start()
	s.cluster("oak")
	a := s.agent("oak")
	a.redeem(s.token("oak"))
	a.run()
	open := s.dial("oak")
	stolen, welcome := a.introduce(tunnel.Path)
	if err := echoes(open, "hello"); err != nil || welcome != (tunnel.Welcome{}) {
		t.Fatalf("%v, %+v", err, welcome)
	}
	order := make(chan string, 8)
	var ends sync.WaitGroup
	ends.Go(func() {
		_ = open.SetReadDeadline(time.Time{})
		if _, err := open.Read(make([]byte, 1)); err != nil {
			order <- "an open connection ends"
		}
	})
	ends.Go(func() {
		if _, _, err := stolen.ReadMessage(); err != nil {
			order <- "an open connection ends"
		}
	})
	order <- "revoked"
	token := s.replace("oak")
	ends.Wait()
	if w := a.welcome(); strings.Contains(w.Refused, "revoked") {
		order <- "the old key is refused"
	}
	b := s.agent("oak")
	b.redeem(token)
	b.run()
	if err := echoes(s.dial("oak"), "hello"); err == nil {
		order <- "the new key comes in"
	}
	if w := a.welcome(); strings.Contains(w.Refused, "revoked") {
		order <- "the old key is refused"
	}
	order <- fmt.Sprintf("the clock has moved by %s", still.Since(start))
	close(order)
	want := []string{
		"revoked", "an open connection ends", "an open connection ends", "the old key is refused", "the new key comes in", "the old key is refused",
		"the clock has moved by 0s",
	}
	var got []string
	for event := range order {
		got = append(got, event)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

// TestAuthorityIsReplaced: an authority gets a successor when a third of its life is left, and is
// trusted until it expires.
func TestAuthorityIsReplaced(t *testing.T) {
	s := newSite(t)
	s.cluster("oak")
	s.later(pki.AuthorityLifetime/3*2 - 24*time.Hour)
	a := s.agent("oak")
	a.redeem(s.token("oak", s.ahead()))
	first := s.server.keeper.Load()
	a.run()
	open := s.dial("oak")

	s.later(48 * time.Hour)
	s.server.queue.Add(everybody)
	s.eventually("there is another authority", func() bool { return !s.server.keeper.Load().signer.Equal(first.signer) })
	second := s.server.keeper.Load()
	if w := a.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("an agent of the old authority: %+v", w)
	}
	receipt := a.report(tunnel.Report{Request: a.request(), Sealed: a.seal("oak", a.credentials)})
	if receipt.Refused != "" {
		t.Errorf("what was sealed before: %s", receipt.Refused)
	}
	if err := echoes(open, "hello"); err != nil {
		t.Error(err)
	}
	if err := s.server.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !s.server.keeper.Load().signer.Equal(second.signer) {
		t.Error("each look makes another authority")
	}
	renewed, err := x509.ParseCertificate(receipt.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	old, err := x509.ParseCertificate(a.certificate)
	if err != nil {
		t.Fatal(err)
	}
	s.later(pki.AuthorityLifetime / 3)
	if err := s.server.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := s.server.keeper.Load()
	if _, err := third.identify(old, s.server.now()); err == nil {
		t.Error("an authority that has ended is trusted")
	}
	if _, err := third.identify(renewed, s.server.now()); err != nil {
		t.Errorf("what its successor signed: %v", err)
	}
}

// TestAuthorityIsDeleted: deleting the authority revokes all agents.
func TestAuthorityIsDeleted(t *testing.T) {
	s := newSite(t)
	s.cluster("oak")
	a := s.agent("oak")
	a.redeem(s.token("oak"))
	a.run()
	open := s.dial("oak")
	first := s.server.keeper.Load()
	s.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: authoritySecret}})
	if _, err := open.Read(make([]byte, 1)); err == nil {
		t.Error("bytes that nobody sent")
	}
	s.eventually("there is another authority", func() bool { return !s.server.keeper.Load().signer.Equal(first.signer) })
	a.refused("not one of this hub's")
	b := s.agent("oak")
	if !bytes.Equal(b.sealing, s.server.keeper.Load().sealing.PublicKey().Bytes()) {
		t.Error("what is published is not the new key")
	}
	b.redeem(s.replace("oak"))
	if w := b.welcome(); w != (tunnel.Welcome{}) {
		t.Errorf("%+v", w)
	}
}

// TestPublished: the command line gets the address of the hub for agents, or the name of the
// missing flag of orrery server.
func TestPublished(t *testing.T) {
	s := newSite(t)
	url, ca, key, err := Published(t.Context(), s.hub)
	if err != nil || url != "https://"+s.server.address || len(key) == 0 || !x509.NewCertPool().AppendCertsFromPEM(ca) {
		t.Errorf("%q, %q, %q, %v", url, ca, key, err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: listenerConfigMap}}
	if err := s.hub.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"url":""}}`))); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err = Published(t.Context(), s.hub); err == nil || !strings.Contains(err.Error(), "--public-url") {
		t.Errorf("without a URL: %v", err)
	}
	if err := s.server.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, _, _, err := Published(t.Context(), s.hub); again != url || err != nil {
		t.Errorf("what somebody changed stays: %q, %v", again, err)
	}
	s.remove(m)
	if _, _, _, err = Published(t.Context(), s.hub); err == nil || !strings.Contains(err.Error(), "--public-address") {
		t.Errorf("of a hub that says nothing: %v", err)
	}
	for url, want := range map[string]bool{
		"https://127.0.0.1:1": true, "https://localhost": true, "https://[::1]:1": true, "https://10.0.0.1:1": false, "https://orrery.example.com": false,
	} {
		if OnlyLocal(url) != want {
			t.Errorf("OnlyLocal(%q) is not %v", url, want)
		}
	}
}

// TestHostileBodies: hostile requests are refused at low cost, and others are not affected.
func TestHostileBodies(t *testing.T) {
	s := newSite(t)
	s.cluster("oak")
	token := s.token("oak")
	a := s.agent("oak")
	body := func(r tunnel.Redemption) string {
		t.Helper()
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	sealed := a.seal("oak", tunnel.Proof{Token: token, Credentials: a.credentials})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaRequest, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curveRequest, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, curve)
	if err != nil {
		t.Fatal(err)
	}
	unsigned := a.request()
	unsigned[len(unsigned)-1] ^= 1
	for name, tc := range map[string]struct {
		body   io.Reader
		status int
	}{
		"Empty":        {strings.NewReader(""), http.StatusBadRequest},
		"Garbage":      {strings.NewReader("{"), http.StatusBadRequest},
		"Nested":       {strings.NewReader(strings.Repeat("[", 200_000)), http.StatusBadRequest},
		"Huge":         {io.LimitReader(zeros{}, 64<<20), http.StatusBadRequest},
		"NoRequest":    {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Sealed: sealed})), http.StatusForbidden},
		"RSA":          {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: rsaRequest, Sealed: sealed})), http.StatusForbidden},
		"AnotherCurve": {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: curveRequest, Sealed: sealed})), http.StatusForbidden},
		"NotSigned":    {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: unsigned, Sealed: sealed})), http.StatusForbidden},
		"NotSealed":    {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: a.request(), Sealed: []byte("x")})), http.StatusForbidden},
		"SealedForAnother": {
			strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: a.request(), Sealed: a.seal("pine", tunnel.Proof{Token: token})})), http.StatusForbidden,
		},
		"NoProof": {strings.NewReader(body(tunnel.Redemption{Cluster: "oak", Request: a.request(), Sealed: a.seal("oak", 1)})), http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+a.address+tunnel.RedeemPath, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := a.client().Do(request)
			// The connection may be cut before the answer is read.
			if name == "Huge" {
				notTaken(t, response, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			var receipt tunnel.Receipt
			if err := json.NewDecoder(response.Body).Decode(&receipt); err != nil || response.StatusCode != tc.status || receipt.Refused == "" || receipt.Certificate != nil {
				t.Errorf("%d, %+v, %v, want %d", response.StatusCode, receipt, err, tc.status)
			}
		})
	}
	response, err := a.client().Get("https://" + a.address + tunnel.RedeemPath)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", response.Status)
	}
	if offers := s.takeOffers(); offers != nil {
		t.Errorf("the hub got %v", offers)
	}
	a.redeem(token)
}

// notTaken fails the test if a request succeeded. Its connection may have been cut.
func notTaken(t *testing.T, response *http.Response, err error) {
	t.Helper()
	if err == nil {
		_ = response.Body.Close()
		err = errors.New(response.Status)
	}
	if strings.Contains(err.Error(), "200") {
		t.Error(err)
	}
}

// TestSlowBody: a client that does not send its body is not waited for.
func TestSlowBody(t *testing.T) {
	s := newSite(t)
	s.server.stop()
	s.bodyTime = 200 * time.Millisecond
	s.start()
	s.cluster("oak")
	a := s.agent("oak")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+a.address+tunnel.RedeemPath, &slow{})
	if err != nil {
		t.Fatal(err)
	}
	response, err := a.client().Do(request)
	notTaken(t, response, err)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// slow is a body that sends one byte, and the next when the client gives up.
type slow struct{ began bool }

func (s *slow) Read(p []byte) (int, error) {
	if !s.began {
		s.began = true
		p[0] = '{'
		return 1, nil
	}
	select {}
}

// TestLimits: redemptions are limited for each address, so that other addresses can redeem, and
// in total.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits()
		taken := func(address string) int {
			n := 0
			for l.rates.Allow(address) {
				n++
			}
			return n
		}
		if n := taken("192.0.2.1:1"); n < rateOfAddress.Burst || n > rateOfAddress.Burst+10 {
			t.Errorf("%d from one address", n)
		}
		if l.rates.Allow("192.0.2.1:2") {
			t.Error("another port is another address")
		}
		if !l.rates.Allow("192.0.2.2:1") || !l.rates.Allow("[2001:db8::1]:1") {
			t.Error("an address pays for another")
		}
		if taken("[2001:db8::2]:1"); l.rates.Allow("[2001:db8::ffff]:1") {
			t.Error("a host with many addresses comes as often as it likes")
		}
		for i := range 2 * rateOfAll.Burst {
			l.rates.Allow(fmt.Sprintf("[2001:db8:%x::1]:1", i))
		}
		if l.rates.Allow("garbage") {
			t.Error("more than all may")
		}
	})
}
