package member

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

const connectedNow = clusterv1alpha1.ConditionAgentConnected

// fakeEndpoint does not resolve, so a cluster with it can only be reached through an agent.
const fakeEndpoint = "https://oak.invalid:6443"

// startPull runs a fleet with a tunnel gateway.
func startPull(t *testing.T, o Options) (*fleet, *tunneltest.Site) {
	t.Helper()
	site := tunneltest.New(t)
	o.Tunnel = site.Gateway
	f := startFleet(t, o)
	site.OnChange(f.registry.AgentsChanged)
	return f, site
}

// returning gives agents as long as a test lasts to reconnect, as if the hub had just started.
func (f *fleet) returning() {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	f.registry.began = time.Now().Add(time.Hour)
}

// account creates a ServiceAccount in a cluster and returns its name. Without rules it has all
// permissions.
func account(t *testing.T, cfg *rest.Config, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	api := clientset(t, cfg)
	ctx := t.Context()
	_, err := api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if rules == nil {
		rules = []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}, {NonResourceURLs: []string{"*"}, Verbs: []string{"*"}}}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + name}, Rules: rules}
	if _, err = api.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = api.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return name
}

func clientset(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// offered returns credentials with a new token of a ServiceAccount.
func offered(t *testing.T, cfg *rest.Config, account string) tunnel.Credentials {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
	got, err := clientset(t, cfg).CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca := cfg.CAData
	if len(ca) == 0 {
		t.Fatal("the test's configuration has no authority")
	}
	return tunnel.Credentials{Endpoint: fakeEndpoint, TLSServerName: "localhost", CA: ca, Token: got.Status.Token, Expires: got.Status.ExpirationTimestamp.Time}
}

// hostOf returns the address of an API server for dialling.
func hostOf(cfg *rest.Config) string { return strings.TrimPrefix(cfg.Host, "https://") }

// pull creates a Cluster that waits for its agent.
func (f *fleet) pull(t *testing.T, name string, agent *clusterv1alpha1.Agent) *clusterv1alpha1.Cluster {
	t.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, Agent: agent}}
	if err := f.hub.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fleet) offer(t *testing.T, c *clusterv1alpha1.Cluster, credentials tunnel.Credentials, redeemed bool) error {
	t.Helper()
	return f.registry.Offer(t.Context(), c.Name, c.UID, credentials, redeemed)
}

// pullReady joins server 1 with an agent.
func (f *fleet) pullReady(t *testing.T, site *tunneltest.Site, name string) (*clusterv1alpha1.Cluster, *tunneltest.Agent) {
	t.Helper()
	c := f.pull(t, name, nil)
	if err := f.offer(t, c, offered(t, testenv.Config(1), account(t, testenv.Config(1), "hub")), true); err != nil {
		t.Fatal(err)
	}
	agent := site.Run(name, "a", hostOf(testenv.Config(1)))
	return f.until(t, name, readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady), agent
}

// credentialID returns the ID of the token that the hub sends to a member, as the member sees
// it.
func credentialID(t *testing.T, m *Member) string {
	t.Helper()
	api, err := kubernetes.NewForConfig(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	var review *authenticationv1.SelfSubjectReview
	eventually(t, "the cluster says with which token the hub comes", func() (bool, string) {
		review, err = api.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return strings.Join(review.Status.UserInfo.Extra["authentication.kubernetes.io/credential-id"], "")
}

// tokenID returns the ID of a token in the form of credentialID.
func tokenID(t *testing.T, token string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil || claims.ID == "" {
		t.Fatalf("the token has no ID: %v", err)
	}
	return "JTI=" + claims.ID
}

// TestPull covers the life of a cluster with an agent.
func TestPull(t *testing.T) {
	f, site := startPull(t, losing(Options{}))
	hub := account(t, testenv.Config(1), "hub")
	c := f.pull(t, "oak", nil)
	f.until(t, "oak", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonWaitingForAgent)
	first := offered(t, testenv.Config(1), hub)
	if err := f.offer(t, c, first, true); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.registry.Member("oak"); ok || Built(f.cluster(t, "oak")) {
		t.Error("it is a member before its agent has come")
	}
	if s := f.secret(t, "oak"); len(s.Data) != 1 || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != c.UID {
		t.Errorf("the Secret has %d keys and owners %v, want a candidate that goes with the Cluster", len(s.Data), s.OwnerReferences)
	}
	agent := site.Run("oak", "a", hostOf(testenv.Config(1)))
	c = f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	f.until(t, "oak", connectedNow, metav1.ConditionTrue, clusterv1alpha1.ReasonAgentConnected)
	if c.Spec.APIEndpoint != fakeEndpoint || c.Spec.SecretRef.Name != "oak" || c.Status.ID == "" {
		t.Errorf("the Cluster has endpoint %q, Secret %q and id %q", c.Spec.APIEndpoint, c.Spec.SecretRef.Name, c.Status.ID)
	}
	if err := bound(f.secret(t, "oak"), c); err != nil {
		t.Error(err)
	}
	if a := f.cluster(t, "oak").Status.Agent; a == nil || a.Version != "v1.2.3" || a.Address != "127.0.0.1" || a.Replicas != 1 || a.ConnectedSince == nil || a.CertificateExpires == nil {
		t.Errorf("status.agent is %+v", a)
	}

	// A new token is used while a watch is open, and the watch continues.
	m := f.member(t, "oak")
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	w, err := m.Dynamic().Resource(namespaces).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	connection := m.current()
	second := offered(t, testenv.Config(1), hub)
	if err := f.offer(t, c, second, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new token is used", func() (bool, string) {
		id := credentialID(t, m)
		return id == tokenID(t, second.Token), id
	})
	if m.current() != connection {
		t.Error("the connection was replaced for a token")
	}
	made := testenv.Namespace(t, testenv.Config(1))
	for seen := false; !seen; {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch ended")
			}
			o, err := meta.Accessor(e.Object)
			seen = err == nil && o.GetName() == made
		case <-time.After(patience):
			t.Fatal("the watch brings nothing")
		}
	}
	before := f.secret(t, "oak").ResourceVersion
	if err := f.offer(t, c, second, false); err != nil || f.secret(t, "oak").ResourceVersion != before {
		t.Errorf("what is there already was written again: %v", err)
	}

	// The cluster is unknown while its agent is silent, and known again afterwards.
	f.returning()
	agent.Stop()
	f.until(t, "oak", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	// The hub has just started, so agents may still be on their way.
	f.until(t, "oak", connectedNow, metav1.ConditionTrue, clusterv1alpha1.ReasonAgentConnected)
	agent = site.Run("oak", "b", hostOf(testenv.Config(1)))
	f.until(t, "oak", reachable, metav1.ConditionTrue, clusterv1alpha1.ReasonAPIServerReady)
	agent.Swallow(true)
	f.until(t, "oak", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	if m.Reachable() || !m.Lost() || m.Leaving() {
		t.Error("the cluster is not unknown")
	}
	agent.Swallow(false)
	f.until(t, "oak", reachable, metav1.ConditionTrue, clusterv1alpha1.ReasonAPIServerReady)
	f.registry.mu.Lock()
	f.registry.began = time.Now().Add(-agentsReturn)
	f.registry.mu.Unlock()
	agent.Stop()
	f.until(t, "oak", connectedNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonNoAgent)

	// Without its agent, the cluster leaves as one that is unreachable.
	f.until(t, "oak", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	if err := Unjoin(t.Context(), f.hub, "oak", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "oak")
	events := &corev1.EventList{}
	eventually(t, "events tell of the agent", func() (bool, string) {
		if err := f.hub.List(t.Context(), events); err != nil {
			return false, err.Error()
		}
		reasons := map[string]bool{}
		for _, e := range events.Items {
			reasons[e.Reason] = true
		}
		return reasons["AgentConnected"] && reasons["AgentLost"], fmt.Sprint(reasons)
	})
}

// TestRestartAwaitsAgents: a hub that restarts reports no cluster as lost before its agents had
// time to reconnect.
func TestRestartAwaitsAgents(t *testing.T) {
	f, site := startPull(t, Options{})
	f.returning()
	before, _ := f.pullReady(t, site, "oak")
	f.until(t, "oak", connectedNow, metav1.ConditionTrue, clusterv1alpha1.ReasonAgentConnected)
	f.stop()
	again := tunneltest.New(t)
	g := runFleet(t, Options{Tunnel: again.Gateway})
	defer g.stop()
	g.returning()
	again.OnChange(g.registry.AgentsChanged)
	threshold := g.registry.options.FailureThreshold
	eventually(t, "the hub has looked for the agents more often than the threshold", func() (bool, string) {
		g.registry.AgentsChanged("oak") // the next probe begins at once
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.probes["oak"] > threshold, fmt.Sprintf("%d of %d", g.probes["oak"], threshold)
	})
	if m := g.member(t, "oak"); m.Lost() || m.Reachable() {
		t.Errorf("lost: %t, reachable: %t, want neither", m.Lost(), m.Reachable())
	}
	again.Run("oak", "a", hostOf(testenv.Config(1)))
	eventually(t, "the cluster is reachable", func() (bool, string) { return g.member(t, "oak").Reachable(), "" })
	after := g.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	for _, c := range after.Status.Conditions {
		if was := meta.FindStatusCondition(before.Status.Conditions, c.Type); was != nil && was.Status == c.Status && !was.LastTransitionTime.Equal(&c.LastTransitionTime) {
			t.Errorf("%s went and came again", c.Type)
		}
	}
}

// TestWaitingLeaves: a Cluster whose agent never came leaves at once, with or without an offer.
func TestWaitingLeaves(t *testing.T) {
	f, _ := startPull(t, Options{})
	for _, name := range []string{"never", "offered"} {
		c := f.pull(t, name, nil)
		f.until(t, name, reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonWaitingForAgent)
		if name == "offered" {
			if err := f.offer(t, c, offered(t, testenv.Config(1), account(t, testenv.Config(1), "hub")), true); err != nil {
				t.Fatal(err)
			}
		}
		if err := Unjoin(t.Context(), f.hub, name, true); err != nil {
			t.Fatal(err)
		}
		f.waitGone(t, name)
	}
}

// TestNoTunnel: if a hub accepts no agents, the conditions of waiting and of joined clusters
// say so.
func TestNoTunnel(t *testing.T) {
	f := startFleet(t, losing(Options{}))
	waits := f.pull(t, "waits", nil)
	c := f.until(t, waits.Name, reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonWaitingForAgent)
	if why := meta.FindStatusCondition(c.Status.Conditions, reachable).Message; !strings.Contains(why, "accepts no agents") {
		t.Errorf("it says %q", why)
	}
	cluster, secret, err := fromKubeconfig(JoinOptions{Name: "joined", Kubeconfig: testenv.Kubeconfig(1)})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Spec.SyncMode = clusterv1alpha1.Pull
	if err := store(t.Context(), f.hub, nil, cluster, secret); err != nil {
		t.Fatal(err)
	}
	c = f.until(t, "joined", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
	if why := meta.FindStatusCondition(c.Status.Conditions, reachable).Message; !strings.Contains(why, "accepts no agents") {
		t.Errorf("it says %q", why)
	}
}

// TestOfferRefused: an agent's offer replaces credentials only if it leads to the same cluster.
func TestOfferRefused(t *testing.T) {
	f, site := startPull(t, Options{HubID: ""})
	c, agent := f.pullReady(t, site, "oak")
	hub := account(t, testenv.Config(1), "hub")
	data := f.secret(t, "oak").Data
	one, two := testenv.Config(1), testenv.Config(2)
	otherCluster := account(t, two, "hub")
	strange := newHostile(t, nil)
	good := offered(t, one, hub)
	changed := func(change func(*tunnel.Credentials)) tunnel.Credentials {
		c := good
		change(&c)
		return c
	}
	for name, tc := range map[string]struct {
		credentials tunnel.Credentials
		redeemed    bool
		to          *rest.Config
		uid         string
		want        string
	}{
		"AnotherCluster":         {credentials: offered(t, two, otherCluster), redeemed: false, to: two, want: "the same in"},
		"UnknownUID":             {credentials: good, uid: "other", want: "created again"},
		"NoToken":                {credentials: changed(func(c *tunnel.Credentials) { c.Token = " " }), want: "no token"},
		"NoAuthority":            {credentials: changed(func(c *tunnel.Credentials) { c.CA = []byte("x") }), want: "authority"},
		"NoURL":                  {credentials: changed(func(c *tunnel.Credentials) { c.Endpoint = "http://oak" }), want: "https://"},
		"Password":               {credentials: changed(func(c *tunnel.Credentials) { c.Endpoint = "https://a:hunter2@oak" }), want: "https://"},
		"BadToken":               {credentials: changed(func(c *tunnel.Credentials) { c.Token = "a.b.c" }), want: "refuses the credentials"},
		"AuthorityOfItsOwn":      {credentials: changed(func(c *tunnel.Credentials) { c.CA = strange.ca() }), want: "does not publish"},
		"AuthorityBesideItsOwn":  {credentials: changed(func(c *tunnel.Credentials) { c.CA = append(append([]byte{}, c.CA...), strange.ca()...) }), want: "does not publish"},
		"AuthoritiesUnpublished": {credentials: changed(func(c *tunnel.Credentials) { c.CA = append([]byte("junk\n"), strange.ca()...) }), want: "does not publish"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.to != nil {
				agent.Lead(hostOf(tc.to))
				defer agent.Lead(hostOf(one))
			}
			if name == "AnotherCluster" {
				tc.want = "" // any of the checks may notice it first
			}
			ours := *c
			if tc.uid != "" {
				ours.UID = "other"
			}
			publish(t, one, one.CAData)
			err := f.offer(t, &ours, tc.credentials, tc.redeemed)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("offer: %v, want %q", err, tc.want)
			}
			if diff := cmp.Diff(data, f.secret(t, "oak").Data); diff != "" {
				t.Error("the credentials are others than before")
			}
		})
	}
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	f.afterProbes(t, "oak", 3)
	if !f.member(t, "oak").Reachable() {
		t.Error("the cluster is unreachable")
	}

	// A redeemed offer may replace the credentials, but not with those of another cluster.
	agent.Lead(hostOf(two))
	if err := f.offer(t, c, offered(t, two, otherCluster), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other cluster is refused", func() (bool, string) {
		s := f.secret(t, "oak")
		said := &tried{}
		_ = json.Unmarshal([]byte(s.Annotations[annotationTried]), said)
		return said.Reason == clusterv1alpha1.ReasonIdentityChanged && len(s.Data[keyNext]) == 0, said.Reason
	})
	agent.Lead(hostOf(one))
	if diff := cmp.Diff(data, f.secret(t, "oak").Data); diff != "" {
		t.Error("the credentials are others than before")
	}
}

// publish writes the certificate authorities of the API server to a cluster, as
// kube-controller-manager does.
func publish(t *testing.T, cfg *rest.Config, ca []byte) {
	t.Helper()
	maps := clientset(t, cfg).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rootCA}, Data: map[string]string{keyCA: string(ca)}}
	_, err := maps.Create(t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAuthorityRotates: a report may bring a certificate authority that the API server
// publishes. A redeemed offer may bring any.
func TestAuthorityRotates(t *testing.T) {
	f, site := startPull(t, Options{})
	c, _ := f.pullReady(t, site, "oak")
	one := testenv.Config(1)
	next := newHostile(t, nil).ca()
	publish(t, one, append(append([]byte{}, one.CAData...), next...))
	report := offered(t, one, account(t, one, "hub"))
	report.CA = append(append([]byte{}, one.CAData...), next...)
	if err := f.offer(t, c, report, false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(report.CA), string(f.secret(t, "oak").Data[keyCA])); diff != "" {
		t.Error("the published authorities are not taken")
	}
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}

// TestAlreadyJoined: the agent of a cluster that is joined under another name waits. It joins
// when the other Cluster has left.
func TestAlreadyJoined(t *testing.T) {
	f, site := startPull(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	c := f.pull(t, "oak", nil)
	site.Run("oak", "a", hostOf(testenv.Config(1)))
	if err := f.offer(t, c, offered(t, testenv.Config(1), account(t, testenv.Config(1), "hub")), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says which cluster it is", func() (bool, string) {
		said := meta.FindStatusCondition(f.cluster(t, "oak").Status.Conditions, reachable)
		return said != nil && strings.Contains(said.Message, "already joined as one"), fmt.Sprint(said)
	})
	if err := Unjoin(t.Context(), f.hub, "one", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "one")
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}

// TestOffersAtOnce: two replicas of an agent redeem and report concurrently, and the result is
// consistent.
func TestOffersAtOnce(t *testing.T) {
	f, site := startPull(t, Options{})
	one := testenv.Config(1)
	hub := account(t, one, "hub")
	c := f.pull(t, "oak", nil)
	var all sync.WaitGroup
	tokens := map[string]bool{}
	for i := range 6 {
		credentials := offered(t, one, hub)
		tokens[tokenID(t, credentials.Token)] = true
		all.Go(func() {
			if err := f.registry.Offer(context.WithoutCancel(t.Context()), c.Name, c.UID, credentials, i%2 == 0); err != nil {
				t.Logf("offer %d: %v", i, err) // one may have to try again
			}
		})
	}
	site.Run("oak", "a", hostOf(one))
	site.Run("oak", "b", hostOf(one))
	all.Wait()
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	eventually(t, "nothing waits any more", func() (bool, string) {
		s := f.secret(t, "oak")
		return len(s.Data[keyNext]) == 0 && bound(s, f.cluster(t, "oak")) == nil, fmt.Sprint(len(s.Data))
	})
	if id := credentialID(t, f.member(t, "oak")); !tokens[id] {
		t.Errorf("it comes with %s, which nobody offered", id)
	}
	eventually(t, "both agents are shown", func() (bool, string) {
		a := f.cluster(t, "oak").Status.Agent
		return a != nil && a.Replicas == 2, fmt.Sprint(a)
	})
}

// TestOfferKilled: a hub that was killed between any two writes of a first offer completes the
// offer after its restart.
func TestOfferKilled(t *testing.T) {
	one := testenv.Config(1)
	for name, half := range map[string]func(t *testing.T, hub client.Client, c *clusterv1alpha1.Cluster, next *candidate){
		"Proposed": func(*testing.T, client.Client, *clusterv1alpha1.Cluster, *candidate) {},
		"Accepted": func(_ *testing.T, _ client.Client, _ *clusterv1alpha1.Cluster, next *candidate) { next.Accepted = true },
		"Addressed": func(t *testing.T, hub client.Client, c *clusterv1alpha1.Cluster, next *candidate) {
			next.Accepted = true
			proposed := next.applied(c)
			proposed.Spec.SecretRef = clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: c.Name}
			if err := hub.Patch(t.Context(), proposed, client.MergeFrom(c)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, Options{}) // without a tunnel it tries no offer
			c := f.pull(t, "oak", nil)
			if err := f.offer(t, c, offered(t, one, account(t, one, "hub")), true); err != nil {
				t.Fatal(err)
			}
			f.stop()
			c = f.cluster(t, "oak")
			secret := f.secret(t, "oak")
			next := waiting(secret, "oak")
			half(t, f.hub, c, next)
			raw, err := json.Marshal(next)
			if err != nil {
				t.Fatal(err)
			}
			secret.Data[keyNext] = raw
			if err := f.hub.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			site := tunneltest.New(t)
			g := runFleet(t, Options{Tunnel: site.Gateway})
			defer g.stop()
			site.OnChange(g.registry.AgentsChanged)
			site.Run("oak", "a", hostOf(one))
			c = g.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			if s := g.secret(t, "oak"); bound(s, c) != nil || len(s.Data[keyNext]) > 0 {
				t.Errorf("the Secret has %d keys; %v", len(s.Data), bound(s, c))
			}
		})
	}
}

// TestModeChanges changes how a working cluster is dialled, from Push to Pull and back. The
// cluster stays reachable, and no workload is touched. At any time the credentials are bound to
// the Cluster, or an accepted candidate is about to bind them.
func TestModeChanges(t *testing.T) {
	// These options notice if a change of the mode loses the cluster for a minute. They
	// tolerate an answer that is half a minute late.
	f, site := startPull(t, Options{ProbeTimeout: 15 * time.Second, FailureThreshold: 3})
	recorder, err := testenv.NewRecorder(testenv.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() })
	one := recorder.Config()
	hub := account(t, testenv.Config(1), "hub")
	credentials := offered(t, testenv.Config(1), hub)
	credentials.CA = one.CAData
	f.joinReady(t, "oak", recorder.Kubeconfig())
	f.member(t, "oak")
	eventually(t, "the administrators are bound", func() (bool, string) {
		return f.member(t, "oak").current().admins.asked, ""
	})
	mark := recorder.Mark()

	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			c, s := &clusterv1alpha1.Cluster{}, &corev1.Secret{}
			if f.hub.Get(ctx, client.ObjectKey{Name: "oak"}, c) != nil ||
				f.hub.Get(ctx, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "oak"}, s) != nil {
				continue
			}
			again := &clusterv1alpha1.Cluster{}
			if f.hub.Get(ctx, client.ObjectKey{Name: "oak"}, again) != nil || again.Generation != c.Generation {
				continue // the Cluster changed between the two reads
			}
			next := waiting(s, "oak")
			if err := bound(s, c); err != nil && (next == nil || !next.Accepted) {
				t.Errorf("the credentials are bound to nothing that holds: %v", err)
				return
			}
		}
	})
	steady := func(t *testing.T) {
		t.Helper()
		f.afterProbes(t, "oak", 3)
		f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		if f.member(t, "oak").Lost() {
			t.Error("the cluster was lost")
		}
	}

	c := f.cluster(t, "oak")
	if err := f.offer(t, c, credentials, true); err != nil {
		t.Fatal(err)
	}
	if mode := f.cluster(t, "oak").Spec.SyncMode; mode != clusterv1alpha1.Push {
		t.Errorf("the mode is %s before an agent has come", mode)
	}
	steady(t)
	site.Run("oak", "a", hostOf(one))
	eventually(t, "the agent is used", func() (bool, string) {
		c = f.cluster(t, "oak")
		return c.Spec.SyncMode == clusterv1alpha1.Pull && c.Spec.APIEndpoint == fakeEndpoint, fmt.Sprint(c.Spec)
	})
	f.until(t, "oak", connectedNow, metav1.ConditionTrue, clusterv1alpha1.ReasonAgentConnected)
	steady(t)

	f.join(t, "oak", recorder.Kubeconfig())
	eventually(t, "the hub dials again", func() (bool, string) {
		c = f.cluster(t, "oak")
		return c.Spec.SyncMode == clusterv1alpha1.Push && c.Status.Agent == nil && meta.FindStatusCondition(c.Status.Conditions, connectedNow) == nil, fmt.Sprint(c.Spec)
	})
	steady(t)
	stop()
	watching.Wait()
	for _, w := range recorder.Writes(mark) {
		if w.Resource != "selfsubjectaccessreviews" {
			t.Errorf("the cluster was written to: %s", w)
		}
	}

	// A report while the mode is Push is ignored. The mode alone, changed by hand, makes the
	// Secret unbound. The next report binds it again.
	before := f.secret(t, "oak").ResourceVersion
	if err := f.offer(t, c, credentials, false); err != nil || f.secret(t, "oak").ResourceVersion != before {
		t.Errorf("the report of an agent that is not used was written: %v", err)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"syncMode":"Pull"}}`))
	if err := f.hub.Patch(t.Context(), c, patch); err != nil {
		t.Fatal(err)
	}
	f.until(t, "oak", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretNotBound)
	if err := f.offer(t, c, credentials, false); err != nil {
		t.Fatal(err)
	}
	f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}
