package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

const credentialsExpiring = clusterv1alpha1.ConditionCredentialsExpiring

// landlord is a member's API server behind a recorder, with an administrator's client.
type landlord struct {
	*testenv.Recorder

	admin  kubernetes.Interface
	config *rest.Config // leads through the recorder
}

func newLandlord(t *testing.T, config *rest.Config) *landlord {
	t.Helper()
	r, err := testenv.NewRecorder(config)
	if err != nil {
		t.Fatal(err)
	}
	l := &landlord{Recorder: r, admin: kubernetes.NewForConfigOrDie(config), config: config}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		l.evict(t)
	})
	l.evict(t)
	return l
}

// evict removes the hub's account from the cluster, since no garbage collector runs there.
func (l *landlord) evict(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	err := l.admin.RbacV1().ClusterRoleBindings().Delete(ctx, AccountBinding, metav1.DeleteOptions{})
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	err = l.admin.CoreV1().ServiceAccounts(AccountNamespace).Delete(ctx, AccountName, metav1.DeleteOptions{})
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

// written returns the accepted writes since a mark.
func (l *landlord) written(after int) []string {
	var all []string
	for _, w := range l.Writes(after) {
		if w.Changed() {
			all = append(all, w.Verb+" "+w.Resource)
		}
	}
	return all
}

// tap sees the hub's requests for tokens. They change nothing in the cluster, so the recorder
// does not record them.
type tap struct {
	mu    sync.Mutex
	asked []int // status codes of the answers
	// before and after are called around each request, and dialled when a connection is opened.
	// nil: no call.
	before, after, dialled func()
}

func (p *tap) options(o Options) Options {
	o.Fence = func(next http.RoundTripper) http.RoundTripper { return &tapped{tap: p, next: next} }
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		p.call(func() func() { return p.dialled })
		return dialDirectly(ctx, network, address)
	}
	return o
}

func (p *tap) call(which func() func()) {
	p.mu.Lock()
	f := which()
	p.mu.Unlock()
	if f != nil {
		f()
	}
}

func (p *tap) set(before, after, dialled func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after, p.dialled = before, after, dialled
}

func (p *tap) codes() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

type tapped struct {
	tap  *tap
	next http.RoundTripper
}

func (w *tapped) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.URL.Path, "/token") {
		return w.next.RoundTrip(req)
	}
	w.tap.call(func() func() { return w.tap.before })
	resp, err := w.next.RoundTrip(req)
	if err == nil {
		w.tap.mu.Lock()
		w.tap.asked = append(w.tap.asked, resp.StatusCode)
		w.tap.mu.Unlock()
		w.tap.call(func() func() { return w.tap.after })
	}
	return resp, err
}

// user returns the user name that the cluster has for a token, or the error with which it
// refuses the token.
func (l *landlord) user(t *testing.T, token string) (string, error) {
	t.Helper()
	config := rest.AnonymousClientConfig(l.config)
	config.BearerToken = token
	reviews := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews()
	var name string
	var refused error
	eventually(t, "the cluster says who it is", func() (bool, string) {
		review, err := reviews.Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if apierrors.IsUnauthorized(err) {
			refused = err
			return true, ""
		}
		if err != nil {
			return false, err.Error()
		}
		name = review.Status.UserInfo.Username
		return true, ""
	})
	return name, refused
}

func (f *fleet) lodge(t *testing.T, name string, kubeconfig []byte) *clusterv1alpha1.Cluster {
	t.Helper()
	f.joinWith(t, JoinOptions{Name: name, Kubeconfig: kubeconfig, Account: true})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := WaitReady(ctx, f.hub, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// untilRenewed waits until a Secret has another token, and returns the Secret.
func (f *fleet) untilRenewed(t *testing.T, old *corev1.Secret) *corev1.Secret {
	t.Helper()
	var s *corev1.Secret
	eventually(t, "the token was renewed", func() (bool, string) {
		s = f.secret(t, old.Name)
		return string(s.Data[keyToken]) != string(old.Data[keyToken]), s.ResourceVersion
	})
	return s
}

func TestAccount(t *testing.T) {
	f := startFleet(t, Options{})
	l := newLandlord(t, testenv.Config(1))
	c := f.lodge(t, "oak", l.Kubeconfig())

	// The namespace may exist before, and so may the administrators' binding, which is written
	// last.
	got := slices.DeleteFunc(l.written(0), func(w string) bool { return w == "create namespaces" })
	want := []string{"create clusterrolebindings", "create serviceaccounts", "create clusterrolebindings"}
	if diff := cmp.Diff(want[:max(2, min(len(got), 3))], got); diff != "" {
		t.Errorf("join wrote to the cluster (-want +got):\n%s", diff)
	}
	secret := f.secret(t, "oak")
	if keys := slices.Sorted(maps.Keys(secret.Data)); !slices.Equal(keys, []string{keyCA, keyGrant, keyToken}) {
		t.Errorf("the Secret has the keys %v", keys)
	}
	if user, err := l.user(t, string(secret.Data[keyToken])); err != nil || user != "system:serviceaccount:"+AccountNamespace+":"+AccountName {
		t.Errorf("the token is that of %q (%v)", user, err)
	}
	g := granted(secret.Data)
	if g == nil || g.grant.life() != tokenLife {
		t.Fatalf("the Secret says of the token %+v, want %s", g, tokenLife)
	}
	said := f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	if m := meta.FindStatusCondition(said.Status.Conditions, credentialsExpiring).Message; !strings.Contains(m, g.grant.end().Format(time.RFC3339)) {
		t.Errorf("the condition does not say when the token ends: %s", m)
	}
	if c.Status.ID == "" {
		t.Error("the cluster has no id")
	}

	// A second join stores another token and creates nothing in the cluster.
	mark := l.Mark()
	f.lodge(t, "oak", l.Kubeconfig())
	if got := l.written(mark); len(got) > 0 {
		t.Errorf("the second join wrote to the cluster: %v", got)
	}
	if s := f.secret(t, "oak"); string(s.Data[keyToken]) == string(secret.Data[keyToken]) || granted(s.Data) == nil {
		t.Error("the second join stored no other token")
	}

	// Leaving takes one call, and it is the last one in the cluster.
	account, err := l.admin.CoreV1().ServiceAccounts(AccountNamespace).Get(t.Context(), AccountName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding, err := l.admin.RbacV1().ClusterRoleBindings().Get(t.Context(), AccountBinding, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(account.OwnerReferences) != 1 || account.OwnerReferences[0].UID != binding.UID {
		t.Errorf("the account is owned by %v, want the binding %s", account.OwnerReferences, binding.UID)
	}
	if err := Unjoin(t.Context(), f.hub, "oak", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "oak")
	all := l.written(0)
	if last := all[len(all)-1]; last != "delete clusterrolebindings" {
		t.Errorf("the last write to the cluster was %s", last)
	}
	if _, err := l.admin.RbacV1().ClusterRoleBindings().Get(t.Context(), AccountBinding, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the binding is there still (%v)", err)
	}
	// The next account is a new one, not the one that waits for the garbage collector.
	f.lodge(t, "oak", l.Kubeconfig())
	if next, err := l.admin.CoreV1().ServiceAccounts(AccountNamespace).Get(t.Context(), AccountName, metav1.GetOptions{}); err != nil || next.UID == account.UID {
		t.Errorf("the account that was about to be deleted is used (%v)", err)
	}
}

// TestUnjoinKilledAfterTheAccount: the hub is killed right after it has given up its last
// permission in the cluster.
func TestUnjoinKilledAfterTheAccount(t *testing.T) {
	f := runFleet(t, Options{})
	l := newLandlord(t, testenv.Config(1))
	f.lodge(t, "oak", l.Kubeconfig())
	killed := make(chan struct{})
	l.OnWrite(func(w testenv.Write) {
		if w.Verb == "delete" && w.Name == AccountBinding {
			l.OnWrite(nil)
			l.Fail(testenv.Mute) // the write is applied, but its answer is lost
			go func() { f.stop(); close(killed) }()
		}
	})
	// A caller that waits for the deletion of workloads must not wait for ever.
	if err := Unjoin(t.Context(), f.hub, "oak", true); err != nil {
		t.Fatal(err)
	}
	<-killed
	l.Heal()
	f = startFleet(t, Options{})
	f.waitGone(t, "oak")
}

func TestTokenIsRenewed(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Now())
	tap := &tap{}
	f := startFleet(t, tap.options(Options{Clock: clock}))
	l := newLandlord(t, testenv.Config(1))
	f.lodge(t, "oak", l.Kubeconfig())
	first := f.secret(t, "oak")
	m := f.member(t, "oak")
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	watch, err := m.Dynamic().Resource(maps).Namespace("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	clock.SetTime(first.CreationTimestamp.Add(tokenLife/3 - time.Hour))
	f.afterProbes(t, "oak", 3)
	if s := f.secret(t, "oak"); s.ResourceVersion != first.ResourceVersion {
		t.Error("the token was renewed before a third of its life was over")
	}
	mark := l.Mark()
	for i := range 3 {
		before := f.secret(t, "oak")
		clock.SetTime(clock.Now().Add(tokenLife/3 + 2*time.Hour))
		now := f.untilRenewed(t, before)
		if g := granted(now.Data); g == nil || !g.grant.Issued.Equal(clock.Now().UTC().Truncate(time.Second)) {
			t.Fatalf("renewal %d: the Secret says of the token %+v", i, g)
		}
		if user, err := l.user(t, string(before.Data[keyToken])); err != nil {
			t.Errorf("renewal %d: the token before it is good no more: %q, %v", i, user, err)
		}
		token := string(now.Data[keyToken])
		eventually(t, "the new token is used", func() (bool, string) { return *m.current().ours.value.Load() == token, "" })
		f.afterProbes(t, "oak", 3)
		if again := f.secret(t, "oak"); again.ResourceVersion != now.ResourceVersion {
			t.Errorf("renewal %d: the Secret was written more than once", i)
		}
	}
	f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	if asked, wrote := tap.codes(), l.written(mark); !slices.Equal(asked, []int{201, 201, 201}) || len(wrote) > 0 {
		t.Errorf("the cluster was asked for tokens %v, and written to: %v; want three, and nothing", asked, wrote)
	}
	// Watches that were opened before continue.
	created, err := l.admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "renewed-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = l.admin.CoreV1().ConfigMaps("default").Delete(context.WithoutCancel(t.Context()), created.Name, metav1.DeleteOptions{})
	}()
	for {
		event, open := <-watch.ResultChan()
		if !open {
			t.Fatal("a watch ended when the token was renewed")
		}
		if o, ok := event.Object.(metav1.Object); ok && o.GetName() == created.Name {
			return
		}
	}
}

// TestRenewalKilled kills the hub at each step of a renewal. The Secret never holds a token
// that the cluster refuses.
func TestRenewalKilled(t *testing.T) {
	for name, arm := range map[string]func(p *tap, kill func()){
		"BeforeItIsAsked":      func(p *tap, kill func()) { p.set(kill, nil, nil) },
		"BeforeItIsAnswered":   func(p *tap, kill func()) { p.set(nil, kill, nil) },
		"WhileTheTokenIsTried": func(p *tap, kill func()) { p.set(nil, func() { p.set(nil, nil, kill) }, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.NewFakePassiveClock(time.Now())
			tap := &tap{}
			f := runFleet(t, tap.options(Options{Clock: clock}))
			l := newLandlord(t, testenv.Config(1))
			f.lodge(t, "oak", l.Kubeconfig())
			first := f.secret(t, "oak")
			seen := f.follow(t, "oak")
			killed := make(chan struct{})
			var once sync.Once
			arm(tap, func() {
				once.Do(func() {
					l.Fail(testenv.Cut) // no data passes, in either direction
					go func() { f.stop(); close(killed) }()
				})
			})
			clock.SetTime(time.Now().Add(tokenLife / 2))
			<-killed
			l.Heal()
			f = startFleet(t, Options{Clock: clock})
			second := f.untilRenewed(t, first)
			f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
			f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			for _, s := range append(seen(), first, second) {
				if user, err := l.user(t, string(s.Data[keyToken])); err != nil {
					t.Errorf("version %s of the Secret had a token that the cluster refuses: %q, %v", s.ResourceVersion, user, err)
				}
				if granted(s.Data) == nil {
					t.Errorf("version %s of the Secret had a token of which something else was said", s.ResourceVersion)
				}
			}
		})
	}
}

// follow watches a Secret, and returns a function that returns all versions seen so far.
func (f *fleet) follow(t *testing.T, name string) func() []*corev1.Secret {
	t.Helper()
	w, err := f.hub.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(clusterv1alpha1.SecretNamespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	var mu sync.Mutex
	var all []*corev1.Secret
	go func() {
		for event := range w.ResultChan() {
			if s, ok := event.Object.(*corev1.Secret); ok && s.Name == name {
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
			}
		}
	}()
	return func() []*corev1.Secret {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// TestTokenThatIsNotRenewed: the cluster is unreachable for as long as its token is valid, by a
// clock of the hub that is ahead of the cluster's.
func TestTokenThatIsNotRenewed(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Now())
	f := startFleet(t, losing(Options{Clock: clock}))
	l := newLandlord(t, testenv.Config(1))
	f.lodge(t, "oak", l.Kubeconfig())
	first := f.secret(t, "oak")
	f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	l.Fail(testenv.Cut)
	f.until(t, "oak", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	clock.SetTime(time.Now().Add(tokenLife / 2))
	c := f.until(t, "oak", credentialsExpiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon)
	if m := meta.FindStatusCondition(c.Status.Conditions, credentialsExpiring).Message; !strings.Contains(m, "does not answer") || !strings.Contains(m, "orrery cluster join oak") {
		t.Errorf("the condition does not say why, and the way out: %s", m)
	}
	clock.SetTime(time.Now().Add(tokenLife + time.Hour))
	c = f.until(t, "oak", credentialsExpiring, metav1.ConditionTrue, clusterv1alpha1.ReasonExpired)
	f.afterProbes(t, "oak", 3)
	if now := f.cluster(t, "oak"); now.ResourceVersion != c.ResourceVersion {
		t.Errorf("the status was written though nothing changed: %v", now.Status.Conditions)
	}
	f.untilEvent(t, "oak", "CredentialsExpiringSoon")
	f.untilEvent(t, "oak", "CredentialsExpired")
	l.Heal()
	f.untilRenewed(t, first)
	f.until(t, "oak", credentialsExpiring, metav1.ConditionFalse, clusterv1alpha1.ReasonValid)
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)

	// When the clock is set back, the age of the token is unknown, so the token is renewed.
	second := f.secret(t, "oak")
	clock.SetTime(time.Now())
	f.untilRenewed(t, second)
}

func (f *fleet) untilEvent(t *testing.T, cluster, reason string) {
	t.Helper()
	eventually(t, fmt.Sprintf("there is an event %s of %s", reason, cluster), func() (bool, string) {
		list := &eventsv1.EventList{}
		if err := f.hub.List(t.Context(), list); err != nil {
			return false, err.Error()
		}
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == reason && e.Regarding.Name == cluster
		}), fmt.Sprintf("%d events", len(list.Items))
	})
}

// TestShortLivedToken: the cluster issues a token with a shorter life than the hub requested.
func TestShortLivedToken(t *testing.T) {
	server := testenv.StartServer(t, "--service-account-max-token-expiration=2h")
	clock := testclock.NewFakePassiveClock(time.Now())
	f := startFleet(t, Options{Clock: clock})
	f.lodge(t, "oak", server.Kubeconfig())
	first := f.secret(t, "oak")
	if g := granted(first.Data); g == nil || g.grant.life() != 2*time.Hour {
		t.Fatalf("the Secret says of the token %+v, want 2h", g)
	}
	clock.SetTime(time.Now().Add(41 * time.Minute))
	f.untilRenewed(t, first)
}

// TestOthersSecretIsNotRewritten: the hub renews only tokens that join created, and stops when
// a user stores another token.
func TestOthersSecretIsNotRewritten(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Now())
	tap := &tap{}
	f := startFleet(t, tap.options(Options{Clock: clock}))
	l := newLandlord(t, testenv.Config(1))
	l2 := newLandlord(t, testenv.Config(2))
	f.lodge(t, "oak", l.Kubeconfig())
	f.joinReady(t, "elm", l2.Kubeconfig()) // without an account, as earlier versions did
	own, _ := serviceAccount(t, l.admin, "cluster-admin")
	s := f.secret(t, "oak")
	s.Data[keyToken] = []byte(own)
	if err := f.hub.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token of somebody else is used", func() (bool, string) { return f.member(t, "oak").current().grant.Load() == nil, "" })
	versions := map[string]string{"oak": s.ResourceVersion, "elm": f.secret(t, "elm").ResourceVersion}
	marks := []int{l.Mark(), l2.Mark()}
	clock.SetTime(time.Now().Add(10 * tokenLife))
	for name, version := range versions {
		f.afterProbes(t, name, 3)
		f.until(t, name, readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		eventually(t, "nothing is said of the token of "+name, func() (bool, string) {
			got := meta.FindStatusCondition(f.cluster(t, name).Status.Conditions, credentialsExpiring)
			return got == nil, fmt.Sprint(got)
		})
		if s := f.secret(t, name); s.ResourceVersion != version {
			t.Errorf("the Secret of %s was written", name)
		}
	}
	if w := append(l.written(marks[0]), l2.written(marks[1])...); len(w) > 0 || len(tap.codes()) > 0 {
		t.Errorf("written to the clusters: %v; asked for tokens: %v", w, tap.codes())
	}
}

// TestAccountDeletedByAnotherClient: if another client deletes the account, a new join repairs
// that.
func TestAccountDeletedByAnotherClient(t *testing.T) {
	f := startFleet(t, Options{})
	l := newLandlord(t, testenv.Config(1))
	f.lodge(t, "oak", l.Kubeconfig())
	l.evict(t)
	c := f.until(t, "oak", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonUnauthorized)
	if m := meta.FindStatusCondition(c.Status.Conditions, joined).Message; !strings.Contains(m, hubAccount+" was deleted") || !strings.Contains(m, "orrery cluster join") {
		t.Errorf("the condition does not say why, and the way out: %s", m)
	}
	f.lodge(t, "oak", l.Kubeconfig())
}

// TestLostClusterKeepsTheAccount: an event names an account that cannot be removed because its
// cluster is lost.
func TestLostClusterKeepsTheAccount(t *testing.T) {
	f := startFleet(t, losing(Options{}))
	l := newLandlord(t, testenv.Config(1))
	f.lodge(t, "lost", l.Kubeconfig())
	l.Fail(testenv.Cut)
	f.until(t, "lost", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	if err := Unjoin(t.Context(), f.hub, "lost", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "lost")
	f.untilEvent(t, "lost", "AccountLeft")
}

// TestAccountOfTwoHubs: the account is removed when the last hub leaves.
func TestAccountOfTwoHubs(t *testing.T) {
	l := newLandlord(t, testenv.Config(2))
	c := connectionTo(t, 2)
	a, err := newAccounts(c.transport, c, checkTimeout)
	if err != nil {
		t.Fatal(err)
	}
	for hub, added := range map[string]bool{"a": true, "b": true} {
		for range 2 {
			got, err := a.ensure(t.Context(), hub, "oak")
			if err != nil || got != added {
				t.Fatalf("hub %s: added %v, %v; want %v", hub, got, err, added)
			}
			added = false
		}
	}
	exists := func() bool {
		_, err := l.admin.RbacV1().ClusterRoleBindings().Get(t.Context(), AccountBinding, metav1.GetOptions{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, step := range []struct {
		hub, cluster string
		left         bool
	}{{"stranger", "", true}, {"a", "", true}, {"a", "", true}, {"b", "pine", true}, {"b", "oak", false}, {"b", "oak", false}} {
		if err := a.remove(t.Context(), step.hub, step.cluster, "", metav1.DeletePropagationBackground); err != nil || exists() != step.left {
			t.Errorf("hub %s left (%v): the binding is there: %v, want %v", step.hub, err, exists(), step.left)
		}
	}
}

// TestAccountOfTwoClusters: of two Clusters for the same cluster, one can leave, and the other
// keeps the account. The account is removed when the last one leaves.
func TestAccountOfTwoClusters(t *testing.T) {
	for name, tc := range map[string]struct {
		leave []string
		stays string // "": none
	}{
		"RefusedLeaves": {[]string{"alias"}, "oak"},
		"MemberLeaves":  {[]string{"oak"}, "alias"},
		"BothLeave":     {[]string{"oak", "alias"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, Options{})
			l, other := newLandlord(t, testenv.Config(1)), newLandlord(t, testenv.Config(1))
			f.lodge(t, "oak", l.Kubeconfig())
			// A join that did not see the ID of oak.
			cluster, secret, err := fromKubeconfig(JoinOptions{Name: "alias", Kubeconfig: other.Kubeconfig()})
			if err == nil {
				secret, _, err = openAccount(t.Context(), dialDirectly, hubID(t, f.hub), cluster, secret)
			}
			if err == nil {
				err = store(t.Context(), f.hub, nil, cluster, secret)
			}
			if err != nil {
				t.Fatal(err)
			}
			f.until(t, "alias", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonAlreadyJoined)
			bindings := l.admin.RbacV1().ClusterRoleBindings()
			leave := func(names ...string) {
				t.Helper()
				for _, name := range names {
					if err := Unjoin(t.Context(), f.hub, name, false); err != nil {
						t.Fatal(err)
					}
				}
				for _, name := range names {
					f.waitGone(t, name)
				}
			}
			leave(tc.leave...)
			if tc.stays != "" {
				binding, err := bindings.Get(t.Context(), AccountBinding, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := binding.Annotations[annotationUsedBy+hubID(t, f.hub)]; got != tc.stays {
					t.Errorf("the binding is that of %q, want %q", got, tc.stays)
				}
				f.afterProbes(t, tc.stays, 3)
				f.until(t, tc.stays, readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
				leave(tc.stays)
			}
			if _, err := bindings.Get(t.Context(), AccountBinding, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the last Cluster left the binding of the account (%v)", err)
			}
		})
	}
}

func TestAccountRefused(t *testing.T) {
	hub := newHub(t)
	l := newLandlord(t, testenv.Config(2))
	ctx := t.Context()
	labels := map[string]string{managedByLabel: managedByUs}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: AccountNamespace, Labels: labels}}
	if _, err := l.admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	foreign := func() {
		_, err := l.admin.CoreV1().ServiceAccounts(AccountNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: AccountName}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		prepare func()
		says    []string
	}{
		"AccountOfAStranger": {prepare: foreign, says: []string{hubAccount + " is there already", "--keep-credentials"}},
		"BindingOfAStranger": {
			prepare: func() {
				_, err := l.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: AccountBinding}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
			},
			says: []string{AccountBinding + " is there already", "--keep-credentials"},
		},
		"NoAccountMayBeMade": {
			prepare: func() {
				none := corev1.ResourceList{"count/serviceaccounts": resource.MustParse("0")}
				quotas := l.admin.CoreV1().ResourceQuotas(AccountNamespace)
				quota, err := quotas.Create(ctx, &corev1.ResourceQuota{
					ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = quotas.Delete(context.WithoutCancel(ctx), "none", metav1.DeleteOptions{}) })
				quota.Status.Hard, quota.Status.Used = none, none // no quota controller runs here
				if _, err := quotas.UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the quota is in force", func() (bool, string) {
					_, err := l.admin.CoreV1().ServiceAccounts(AccountNamespace).Create(ctx, &corev1.ServiceAccount{
						ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"},
					}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					return apierrors.IsForbidden(err), fmt.Sprint(err)
				})
			},
			says: []string{"exceeded quota", "--keep-credentials"},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			l.evict(t)
			tc.prepare()
			bindingBefore, _ := l.admin.RbacV1().ClusterRoleBindings().Get(ctx, AccountBinding, metav1.GetOptions{})
			_, err := Join(ctx, hub, JoinOptions{Name: "refused", Kubeconfig: l.Kubeconfig(), Account: true})
			var refused *JoinError
			if !errors.As(err, &refused) || refused.Reason != clusterv1alpha1.ReasonForbidden {
				t.Fatalf("join: %v, want it refused", err)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			secrets := &corev1.SecretList{}
			if err := hub.List(ctx, secrets, client.InNamespace(clusterv1alpha1.SecretNamespace)); err != nil || len(secrets.Items) > 0 {
				t.Errorf("%d Secrets were stored (%v)", len(secrets.Items), err)
			}
			binding, err := l.admin.RbacV1().ClusterRoleBindings().Get(ctx, AccountBinding, metav1.GetOptions{})
			if client.IgnoreNotFound(err) != nil || binding.GetUID() != bindingBefore.GetUID() {
				t.Errorf("a refused join left the binding %v (%v)", binding.GetUID(), err)
			}
		})
	}
}

// TestAccountBehindUnverifiedTLS: without verification, any server could get the token, so none
// is requested.
func TestAccountBehindUnverifiedTLS(t *testing.T) {
	cluster, secret, err := fromKubeconfig(JoinOptions{Name: "oak", Kubeconfig: testenv.Kubeconfig(2)})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Spec.TLSVerification = clusterv1alpha1.TLSSkip
	nobody := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialled") }
	_, _, err = openAccount(t.Context(), nobody, "hub", cluster, secret)
	if reasonOfJoin(err) != clusterv1alpha1.ReasonUnverifiedTLS || !strings.Contains(err.Error(), "--keep-credentials") {
		t.Errorf("%v", err)
	}
}

func TestGrant(t *testing.T) {
	issued := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	month := newCredential("t", issued, int64(tokenLife/time.Second))
	for name, tc := range map[string]struct {
		age    time.Duration
		due    bool
		status metav1.ConditionStatus
		reason string
	}{
		"New":            {0, false, metav1.ConditionFalse, clusterv1alpha1.ReasonValid},
		"NotYet":         {tokenLife/3 - time.Second, false, metav1.ConditionFalse, clusterv1alpha1.ReasonValid},
		"AThird":         {tokenLife / 3, true, metav1.ConditionFalse, clusterv1alpha1.ReasonValid},
		"Half":           {tokenLife / 2, true, metav1.ConditionTrue, clusterv1alpha1.ReasonExpiringSoon},
		"Ended":          {tokenLife, true, metav1.ConditionTrue, clusterv1alpha1.ReasonExpired},
		"ClockABitBack":  {-time.Minute, false, metav1.ConditionFalse, clusterv1alpha1.ReasonValid},
		"ClockFarBehind": {-tokenLife, true, metav1.ConditionFalse, clusterv1alpha1.ReasonValid},
	} {
		t.Run(name, func(t *testing.T) {
			now := issued.Add(tc.age)
			if got := month.grant.due(now); got != tc.due {
				t.Errorf("due %v, want %v", got, tc.due)
			}
			if c := month.grant.condition(now, &clusterv1alpha1.Cluster{}, ""); c.Status != tc.status || c.Reason != tc.reason {
				t.Errorf("%s %s, want %s %s", c.Status, c.Reason, tc.status, tc.reason)
			}
		})
	}
	data := map[string][]byte{}
	if err := month.write(data); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data[keyGrant]), `"t"`) || granted(data) == nil {
		t.Errorf("what is known of the token is %s", data[keyGrant])
	}
	for name, change := range map[string]func(*grant){
		"AnotherAccount": func(g *grant) { g.ServiceAccount = "default/orrery" },
		"AnotherToken":   func(g *grant) { g.SHA256 = fingerprint("u") },
		"NoLife":         func(g *grant) { g.Seconds = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			g := *month.grant
			change(&g)
			raw, err := json.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			if got := granted(map[string][]byte{keyToken: []byte("t"), keyGrant: raw}); got != nil {
				t.Errorf("it counts as a token of the hub's account: %+v", got.grant)
			}
		})
	}
}

// brokenBindings are ClusterRoleBindings of a cluster whose API server answers each read with the
// error fails.
type brokenBindings struct {
	rbacv1client.ClusterRoleBindingInterface

	fails error
}

func (b brokenBindings) Get(context.Context, string, metav1.GetOptions) (*rbacv1.ClusterRoleBinding, error) {
	return nil, b.fails
}

// TestErrorOfAnAccountThatStays: if the hub's account cannot be removed from a cluster that leaves,
// the error is that of the cluster, and not that the time is over.
func TestErrorOfAnAccountThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ fails, want error }{
			{errors.New("no leader"), errors.New("get ClusterRoleBinding orrery:hub: no leader")},
			{apierrors.NewForbidden(schema.GroupResource{}, AccountBinding, nil), nil},
			{apierrors.NewNotFound(schema.GroupResource{}, AccountBinding), nil},
		} {
			a := &accounts{bindings: brokenBindings{fails: c.fails}}
			if err := a.removeAtLeaving(t.Context(), "hub", ""); fmt.Sprint(err) != fmt.Sprint(c.want) {
				t.Errorf("after %v: %v, want %v", c.fails, err, c.want)
			}
		}
	})
}

// TestFailedJoinLeavesNoAccount: if the hub does not store the Cluster of a join, the join removes
// the hub's administrator account from the cluster again.
func TestFailedJoinLeavesNoAccount(t *testing.T) {
	l := newLandlord(t, testenv.Config(2))
	l.evict(t)
	full := errors.New("etcdserver: mvcc: database space exceeded")
	hub := interceptor.NewClient(newHub(t), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, ok := o.(*clusterv1alpha1.Cluster); ok {
				return full
			}
			return c.Create(ctx, o, options...)
		},
	})
	if _, err := Join(t.Context(), hub, JoinOptions{Name: "full", Kubeconfig: l.Kubeconfig(), Account: true}); !errors.Is(err, full) {
		t.Fatalf("join: %v, want %v", err, full)
	}
	if _, err := l.admin.RbacV1().ClusterRoleBindings().Get(t.Context(), AccountBinding, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the failed join left the binding of the account (%v)", err)
	}
}

// TestSettleAccount: after a join that failed, the hub's account is removed from the cluster unless
// this or another join may have given the hub a token of it.
func TestSettleAccount(t *testing.T) {
	failed := errors.New("no route to the hub")
	notConfirmed := refuse(ReasonNotConfirmed, "the hub did not try the new credentials")
	unreadable := errors.New("the hub does not answer")
	inUse := map[string][]byte{}
	if err := newCredential("secret", time.Now(), 3600).write(inUse); err != nil {
		t.Fatal(err)
	}
	onTrial, err := json.Marshal(candidate{Cluster: "oak", Data: inUse})
	if err != nil {
		t.Fatal(err)
	}
	others, err := json.Marshal(candidate{Cluster: "oak", Data: map[string][]byte{keyToken: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err    error
		stored map[string][]byte // nil: there is no Secret
		read   error
		undone bool
		says   bool // that the account stays, and the way out
	}{
		"NothingStored":      {err: failed, undone: true},
		"PersonsCredentials": {err: failed, stored: map[string][]byte{keyToken: []byte("x"), keyNext: others}, undone: true},
		"InUse":              {err: failed, stored: inUse},
		"OnTrial":            {err: notConfirmed, stored: map[string][]byte{keyNext: onTrial}},
		"Withdrawn":          {err: notConfirmed, stored: map[string][]byte{keyToken: []byte("x")}, undone: true},
		"Refused":            {err: refuse(clusterv1alpha1.ReasonForbidden, "no"), stored: map[string][]byte{keyNext: onTrial}, undone: true},
		"RefusedAnotherUses": {err: refuse(clusterv1alpha1.ReasonForbidden, "no"), stored: inUse},
		"AnotherJoin":        {err: apierrors.NewAlreadyExists(schema.GroupResource{Resource: "clusters"}, "oak"), says: true},
		"Unreadable":         {err: failed, read: unreadable, says: true},
	} {
		t.Run(name, func(t *testing.T) {
			key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "oak"}
			builder := fake.NewClientBuilder()
			if c.stored != nil {
				builder.WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: c.stored})
			}
			hub := interceptor.NewClient(builder.Build(), interceptor.Funcs{
				Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					if c.read != nil {
						return c.read
					}
					return w.Get(ctx, key, o, options...)
				},
			})
			undone, stays := false, errors.New("the account stays")
			undo := func() error { undone = true; return stays }
			err := settleAccount(t.Context(), hub, key, undo, c.err)
			if !errors.Is(err, c.err) || undone != c.undone || errors.Is(err, stays) != c.undone {
				t.Errorf("undone: %v, want %v; error: %v", undone, c.undone, err)
			}
			if c.read != nil && !errors.Is(err, c.read) {
				t.Errorf("the error %q does not say what was not read", err)
			}
			if says := strings.Contains(err.Error(), accountLeft); says != c.says {
				t.Errorf("the error %q says that the account stays: %v, want %v", err, says, c.says)
			}
			if err := settleAccount(t.Context(), hub, key, nil, c.err); !errors.Is(err, c.err) || strings.Contains(err.Error(), accountLeft) {
				t.Errorf("without an account of this join: %v", err)
			}
		})
	}
}
