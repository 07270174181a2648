package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

var (
	alice = &user.DefaultInfo{
		Name: "alice", UID: "a1", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string][]string{"example.com/team/ä": {"x", "y"}},
	}
	admin = &user.DefaultInfo{Name: "boss", Groups: []string{"system:masters", "system:authenticated"}}
)

type fakeMember struct {
	config      *rest.Config
	dial        member.Dial // nil: directly
	spec        clusterv1alpha1.ClusterSpec
	unreachable *metav1.Condition
}

func (m *fakeMember) Passage() *member.Passage {
	p, err := member.NewPassage(m.config, m.dial)
	if err != nil {
		panic(err)
	}
	return p
}

func (m *fakeMember) Reachable() bool { return m.unreachable == nil }
func (m *fakeMember) Cluster() *clusterv1alpha1.Cluster {
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}, Spec: m.spec}
	if m.unreachable != nil {
		c.Status.Conditions = []metav1.Condition{*m.unreachable}
	}
	return c
}

// front starts a hub with one cluster, oak, for which every client is the user who.
func front(t *testing.T, m *fakeMember, who user.Info) (*httptest.Server, *Proxy) {
	t.Helper()
	p := New(func(name string) (Member, bool) { return m, name == "oak" })
	server := httptest.NewServer(answer.Func(func(w http.ResponseWriter, r *http.Request) error {
		cluster, path, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
		return p.Serve(w, r.WithContext(request.WithUser(r.Context(), who)), cluster, "/"+path)
	}))
	t.Cleanup(server.Close)
	return server, p
}

// fake returns a member that handle serves instead of Kubernetes.
func fake(t *testing.T, path string, handle http.HandlerFunc) *fakeMember {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &fakeMember{config: &rest.Config{Host: server.URL + path, BearerToken: "hub", TLSClientConfig: rest.TLSClientConfig{CAData: ca}}}
}

// whoami returns the user whom the real member sees.
func whoami(t *testing.T, server *httptest.Server, headers http.Header) authenticationv1.UserInfo {
	t.Helper()
	var review authenticationv1.SelfSubjectReview
	testenv.Eventually(t, "the member says who it is", testenv.Patience, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/oak/apis/authentication.k8s.io/v1/selfsubjectreviews",
			strings.NewReader(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = headers.Clone()
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return json.Unmarshal(body, &review)
	})
	return review.Status.UserInfo
}

// TestIdentity: the member sees the user whom the hub authenticated, with any headers of the
// client.
func TestIdentity(t *testing.T) {
	member := &fakeMember{config: testenv.Config(0)}
	wantAlice := authenticationv1.UserInfo{
		Username: "alice", UID: "a1", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/team/ä": {"x", "y"}},
	}
	wantAdmin := authenticationv1.UserInfo{Username: "boss", Groups: []string{"orrery:admins", "system:authenticated"}}
	account := func(name string) user.Info {
		return &user.DefaultInfo{Name: name, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:team-b", "system:authenticated"}}
	}
	for name, c := range map[string]struct {
		who     user.Info
		headers http.Header
		want    authenticationv1.UserInfo
	}{
		"Caller":  {alice, http.Header{}, wantAlice},
		"Masters": {admin, http.Header{}, wantAdmin},
		"ServiceAccount": {account("system:serviceaccount:team-b:deployer"), http.Header{}, authenticationv1.UserInfo{
			Username: "orrery:sa:team-b:deployer", Groups: []string{"system:authenticated"},
		}},
		"OurGroups": {
			&user.DefaultInfo{Name: "eve", Groups: []string{"orrery:admins", "orrery:x", "system:nodes", "devs", "system:authenticated"}},
			http.Header{},
			authenticationv1.UserInfo{Username: "eve", Groups: []string{"devs", "system:authenticated"}},
		},
		"ClaimsUser": {alice, http.Header{"Impersonate-User": {"system:admin"}}, wantAlice},
		"ClaimsGroups": {alice, http.Header{
			"Impersonate-User": {"alice"}, "Impersonate-Group": {"system:masters"}, "Impersonate-Uid": {"0"}, "Impersonate-Extra-Scopes": {"all"},
		}, wantAlice},
		"ClaimsGroupsOnly":     {alice, http.Header{"impersonate-group": {"system:masters"}}, wantAlice},
		"ClaimsByFrontProxy":   {alice, http.Header{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}, wantAlice},
		"BringsCredentials":    {alice, http.Header{"Authorization": {"Bearer stolen"}}, wantAlice},
		"HasOurHeadersDropped": {alice, http.Header{"Connection": {"Impersonate-User, Impersonate-Group, Authorization"}}, wantAlice},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := front(t, member, c.who)
			if diff := cmp.Diff(c.want, whoami(t, server, c.headers)); diff != "" {
				t.Errorf("user (-want, +got):\n%s", diff)
			}
		})
	}
}

// TestNamesThatAreRefused: names with another meaning in a member, and those reserved by Orrery,
// are not sent.
func TestNamesThatAreRefused(t *testing.T) {
	var asked int
	m := fake(t, "", func(http.ResponseWriter, *http.Request) { asked++ })
	for _, name := range []string{
		"system:anonymous", "system:kube-scheduler", "system:node:n1", "system:serviceaccount:team-b", "system:serviceaccount:a:b:c",
		"orrery:sa:team-b:deployer", "orrery:admins",
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := front(t, m, &user.DefaultInfo{Name: name, Groups: []string{"system:masters"}})
			resp, err := http.Get(server.URL + "/oak/api")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var status metav1.Status
			if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusForbidden || !strings.Contains(status.Message, name) || !strings.Contains(status.Message, "come ") {
				t.Errorf("%s: %s, want it refused with a way out", resp.Status, status.Message)
			}
		})
	}
	if asked > 0 {
		t.Errorf("the cluster got %d requests", asked)
	}
}

func TestMembersOwnErrorsPass(t *testing.T) {
	server, _ := front(t, &fakeMember{config: testenv.Config(0)}, alice)
	const want = `secrets is forbidden: User "alice" cannot list resource "secrets" in API group "" at the cluster scope`
	testenv.Eventually(t, "the member refuses", testenv.Patience, func() error {
		resp, err := http.Get(server.URL + "/oak/api/v1/secrets")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var status metav1.Status
		if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusForbidden || status.Message != want {
			return fmt.Errorf("%s: %s", resp.Status, status.Message)
		}
		return nil
	})
}

func TestUnavailable(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		cluster    string
		member     *fakeMember
		code       int
		retryAfter string
		says       []string
	}{
		"Unknown": {"oka", &fakeMember{}, 404, "", []string{`"oka" not found`}},
		"Unreachable": {"oak", &fakeMember{config: testenv.Config(0), unreachable: &metav1.Condition{
			Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown, Message: "no route", LastTransitionTime: metav1.NewTime(since),
		}}, 503, "", []string{`"oak"`, "2026-01-02T03:04:05Z", "no route"}},
		"NotListening": {"oak", &fakeMember{config: &rest.Config{Host: "https://127.0.0.1:1"}}, 503, "5", []string{`"oak"`, "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := front(t, c.member, alice)
			resp, err := http.Get(server.URL + "/" + c.cluster + "/api/v1/pods")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var status metav1.Status
			if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.code || resp.Header.Get("Retry-After") != c.retryAfter {
				t.Errorf("%s, retry after %q: %s", resp.Status, resp.Header.Get("Retry-After"), status.Message)
			}
			for _, s := range c.says {
				if !strings.Contains(status.Message, s) {
					t.Errorf("does not say %q: %s", s, status.Message)
				}
			}
		})
	}
}

// TestRequestsPassUnchanged: the member gets the request unchanged.
func TestRequestsPassUnchanged(t *testing.T) {
	var uri, agent, forwarded, encoding string
	member := fake(t, "/k8s/c1/", func(_ http.ResponseWriter, r *http.Request) {
		uri, agent, forwarded, encoding = r.RequestURI, r.UserAgent(), r.Header.Get("X-Forwarded-For"), r.Header.Get("Accept-Encoding")
	})
	server, _ := front(t, member, alice)
	for name, path := range map[string]string{
		"Plain":   "/api/v1/pods?limit=1",
		"Slash":   "/api/v1/namespaces/x/services/https:web:/proxy/",
		"Escaped": "/api/v1/namespaces/x/services/web/proxy/a%2Fb%20c?q=a+b;c&d=%zz",
		"Root":    "/",
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/oak"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("User-Agent", "kubectl")
			req.Header.Set("X-Forwarded-For", "192.0.2.1")
			req.Header.Set("Accept-Encoding", "identity")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if diff := cmp.Diff([]string{"/k8s/c1" + path, "kubectl", "192.0.2.1, 127.0.0.1", "identity"}, []string{uri, agent, forwarded, encoding}); diff != "" {
				t.Errorf("URI, user agent, forwarded for, encoding (-want, +got):\n%s", diff)
			}
		})
	}
}

// TestBodiesAreStreams: a line of a log arrives before the member writes the next one. The member
// reads the beginning of a body before the client sends the end.
func TestBodiesAreStreams(t *testing.T) {
	more, received := make(chan struct{}), make(chan string)
	member := fake(t, "", func(w http.ResponseWriter, r *http.Request) {
		body := bufio.NewReader(r.Body)
		for {
			line, err := body.ReadString('\n')
			if err != nil {
				break
			}
			received <- line
		}
		for i := range 2 {
			fmt.Fprintf(w, "line %d\n", i)
			http.NewResponseController(w).Flush()
			<-more
		}
	})
	server, _ := front(t, member, alice)
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/oak/upload", reader)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan *http.Response, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
		}
		answered <- resp
	}()
	for _, line := range []string{"a\n", "b\n"} {
		if _, err := io.WriteString(writer, line); err != nil {
			t.Fatal(err)
		}
		if got := <-received; got != line {
			t.Fatalf("the member received %q, want %q", got, line)
		}
	}
	writer.Close()
	resp := <-answered
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range 2 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		more <- struct{}{}
	}
}

// TestUpgrades: exec and port-forward are upgrades. After the answer, bytes pass in both directions
// at once.
func TestUpgrades(t *testing.T) {
	var impersonated string
	member := fake(t, "", func(w http.ResponseWriter, r *http.Request) {
		impersonated = r.Header.Get("Impersonate-User")
		if strings.HasSuffix(r.URL.Path, "/forbidden") {
			http.Error(w, "no exec for you", http.StatusForbidden)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Stream-Protocol-Version: %s\r\n\r\n",
			r.Header.Get("Upgrade"), r.Header.Get("X-Stream-Protocol-Version"))
		_, _ = io.Copy(conn, buffered)
	})
	direct, _ := front(t, member, alice)
	site := tunneltest.New(t)
	site.Run("oak", "a", strings.TrimPrefix(member.config.Host, "https://"))
	byAgent := *member
	byAgent.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return site.Gateway.Dial(ctx, "oak", tunnel.APIServer)
	}
	through, _ := front(t, &byAgent, alice)
	for name, c := range map[string]struct{ method, protocol, path, status, answer string }{
		"SPDY":      {"POST", "SPDY/3.1", "/exec", "101 Switching Protocols", ""},
		"Websocket": {"GET", "websocket", "/exec", "101 Switching Protocols", ""},
		"Refused":   {"POST", "SPDY/3.1", "/forbidden", "403 Forbidden", "no exec for you\n"},
	} {
		upgrade := func(t *testing.T, server *httptest.Server) {
			t.Helper()
			conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s /oak%s HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nImpersonate-User: system:admin\r\n\r\n",
				c.method, c.path, c.protocol)
			reader := bufio.NewReader(conn)
			resp, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Status != c.status || impersonated != "alice" {
				t.Fatalf("%s as %q", resp.Status, impersonated)
			}
			if resp.StatusCode != http.StatusSwitchingProtocols {
				body, err := io.ReadAll(resp.Body)
				if err != nil || string(body) != c.answer {
					t.Errorf("%q, %v", body, err)
				}
				return
			}
			if got := resp.Header.Get("Upgrade") + " " + resp.Header.Get("X-Stream-Protocol-Version"); got != c.protocol+" v4.channel.k8s.io" {
				t.Errorf("upgraded to %s", got)
			}
			for _, said := range []string{"ping\n", "\x00\x80 pong\n"} {
				if _, err := io.WriteString(conn, said); err != nil {
					t.Fatal(err)
				}
				if heard, err := reader.ReadString('\n'); err != nil || heard != said {
					t.Fatalf("%q, %v; want %q", heard, err, said)
				}
			}
		}
		t.Run(name, func(t *testing.T) { upgrade(t, direct) })
		t.Run(name+"ByAgent", func(t *testing.T) { upgrade(t, through) })
	}
}

// TestTokensOfWebSockets: a bearer token in the WebSocket subprotocols is not sent to the member. A
// hub that authenticated the client by its certificate leaves the token in the request.
func TestTokensOfWebSockets(t *testing.T) {
	const token = "base64url.bearer.authorization.k8s.io.c2VjcmV0"
	var sent http.Header
	member := fake(t, "", func(_ http.ResponseWriter, r *http.Request) { sent = r.Header.Clone() })
	server, _ := front(t, member, alice)
	for name, c := range map[string]struct{ given, want []string }{
		"WithToken":    {[]string{token + ", v5.channel.k8s.io,v4.channel.k8s.io"}, []string{"v5.channel.k8s.io, v4.channel.k8s.io"}},
		"OtherCase":    {[]string{"v5.channel.k8s.io, Base64URL" + strings.TrimPrefix(token, "base64url")}, []string{"v5.channel.k8s.io"}},
		"OwnHeader":    {[]string{"v5.channel.k8s.io", token}, []string{"v5.channel.k8s.io"}},
		"OnlyToken":    {[]string{token}, nil},
		"WithoutToken": {[]string{"v5.channel.k8s.io"}, []string{"v5.channel.k8s.io"}},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/oak/api/v1/namespaces/a/pods/b/exec", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": c.given}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if diff := cmp.Diff(c.want, sent["Sec-Websocket-Protocol"]); diff != "" {
				t.Errorf("subprotocols (-want, +got):\n%s", diff)
			}
		})
	}
}

// TestProfiles: if the agent's profile does not let the hub act for users, the error says so, and
// nothing is sent.
func TestProfiles(t *testing.T) {
	asked := false
	m := fake(t, "", func(http.ResponseWriter, *http.Request) { asked = true })
	server, _ := front(t, m, alice)
	get := func(t *testing.T) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/oak/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for profile, want := range map[clusterv1alpha1.AgentProfile]int{
		"": http.StatusOK, clusterv1alpha1.AgentProfileAll: http.StatusOK,
		clusterv1alpha1.AgentProfilePlacement: http.StatusForbidden, clusterv1alpha1.AgentProfileMirror: http.StatusForbidden,
	} {
		t.Run("Profile"+string(profile), func(t *testing.T) {
			asked = false
			m.spec = clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, Agent: &clusterv1alpha1.Agent{Profile: profile}}
			status, body := get(t)
			if status != want || asked != (want == http.StatusOK) {
				t.Errorf("%d %s, want %d; the member was asked: %t", status, body, want, asked)
			}
			says := strings.Contains(body, "oak") && strings.Contains(body, string(profile)) && strings.Contains(body, "rejoin")
			if want == http.StatusForbidden && !says {
				t.Errorf("%s names not the cluster, the profile and the way out", body)
			}
		})
	}
}

// TestCredentialsOfTheDay: new credentials are used as soon as the proxy has them.
func TestCredentialsOfTheDay(t *testing.T) {
	var token string
	member := fake(t, "", func(_ http.ResponseWriter, r *http.Request) { token = r.Header.Get("Authorization") })
	server, _ := front(t, member, alice)
	ask := func() string {
		resp, err := http.Get(server.URL + "/oak/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return token
	}
	before := ask()
	member.config.BearerToken = "rotated"
	if diff := cmp.Diff([]string{"Bearer hub", "Bearer rotated"}, []string{before, ask()}); diff != "" {
		t.Errorf("credentials (-want, +got):\n%s", diff)
	}
}

// bindAdmins gives the hub's administrators their rights, as a join does.
func bindAdmins(t *testing.T) {
	t.Helper()
	bindings := kubernetes.NewForConfigOrDie(testenv.Config(0)).RbacV1().ClusterRoleBindings()
	_, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "orrery:admins"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "orrery:admins"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testenv.Eventually(t, "delete the binding", testenv.Patience, func() error {
			err := bindings.Delete(context.WithoutCancel(t.Context()), "orrery:admins", metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
	config := testenv.Config(0)
	config.Impersonate = rest.ImpersonationConfig{UserName: "boss", Groups: []string{"orrery:admins"}}
	testenv.Eventually(t, "the API server knows of the rights", testenv.Patience, func() error {
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 1})
		return err
	})
}

// TestKubectl: kubectl works through the proxy as directly on the cluster.
func TestKubectl(t *testing.T) {
	server, _ := front(t, &fakeMember{config: testenv.Config(0)}, admin)
	namespace := testenv.Namespace(t, testenv.Config(0))
	bindAdmins(t)
	home := t.TempDir()
	config := filepath.Join(home, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "oak",
		Clusters:       map[string]*clientcmdapi.Cluster{"oak": {Server: server.URL + "/oak"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"me": {}},
		Contexts:       map[string]*clientcmdapi.Context{"oak": {Cluster: "oak", AuthInfo: "me", Namespace: namespace}},
	}, config); err != nil {
		t.Fatal(err)
	}
	kubectl := func(ctx context.Context, stdin string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", config}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		cmd.Stdin = strings.NewReader(stdin)
		return cmd
	}
	const manifest = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"1"}}`
	for _, step := range []struct{ stdin, args, want string }{
		{manifest, "apply -f -", "configmap/settings created\n"},
		{manifest, "apply -f -", "configmap/settings unchanged\n"},
		{strings.Replace(manifest, `"1"`, `"2"`, 1), "apply --server-side --force-conflicts -f -", "configmap/settings serverside-applied\n"},
		{"", "get configmap settings -o jsonpath={.data.a}", "2"},
		{"", "delete configmap settings", fmt.Sprintf("configmap \"settings\" deleted from %s namespace\n", namespace)},
	} {
		testenv.Eventually(t, "kubectl "+step.args, testenv.Patience, func() error {
			out, err := kubectl(t.Context(), step.stdin, strings.Fields(step.args)...).CombinedOutput()
			if err == nil && string(out) != step.want {
				t.Fatalf("kubectl %s: %s", step.args, out)
			}
			if err != nil { // the member does not answer for a moment
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}

	// A watch shows events while it is open.
	watch := kubectl(t.Context(), "", "get", "configmaps", "--watch-only", "-o", "name")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	seen := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		seen <- line
	}()
	// The watch may start after the first event; then it shows a later one.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		err := client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("configmaps").
			Body([]byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made-%d"}}`, i))).Do(ctx).Error()
		select {
		case line := <-seen:
			if !strings.HasPrefix(line, "configmap/made-") {
				t.Errorf("the watch shows %q", line)
			}
			_ = watch.Process.Kill()
			_ = watch.Wait()
			return
		case <-ctx.Done():
			t.Fatalf("the watch shows nothing; the last ConfigMap: %v", err)
		case <-tick.C:
		}
	}
}

// TestProxied: every answer has the header of the proxy, even if the member is unreachable.
func TestProxied(t *testing.T) {
	reached := fake(t, "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for name, m := range map[string]*fakeMember{
		"Reached":     reached,
		"Unreachable": {unreachable: &metav1.Condition{Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionUnknown}},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := front(t, m, alice)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/oak/readyz", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got := resp.Header.Get(fleetv1alpha1.ProxiedHeader); got != "oak" {
				t.Errorf("header is %q, want the cluster's name", got)
			}
		})
	}
}

// TestHungMember: a read ends, and a request that may take long continues.
func TestHungMember(t *testing.T) {
	release := make(chan struct{})
	m := fake(t, "", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusTeapot)
	})
	server, p := front(t, m, alice)
	p.patience = 100 * time.Millisecond
	do := func(method, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/oak"+path, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	long := []struct{ method, path string }{
		{http.MethodGet, "/api/v1/pods?watch=true"},
		{http.MethodGet, "/api/v1/namespaces/a/pods/b/log?follow=true"},
		{http.MethodGet, "/api/v1/namespaces/a/services/b/proxy/events"},
		{http.MethodPost, "/api/v1/namespaces"},
	}
	codes := make(chan int, len(long))
	for _, request := range long {
		go func() { codes <- do(request.method, request.path) }()
	}
	if got := do(http.MethodGet, "/api/v1/namespaces"); got != http.StatusServiceUnavailable {
		t.Errorf("a read of a hung cluster ends with %d", got)
	}
	close(release)
	for range long {
		if got := <-codes; got != http.StatusTeapot {
			t.Errorf("what may take long ended with %d, want the cluster's answer", got)
		}
	}
}

// TestHasDots: HasDots finds dots in every escaped form, and a path that is twice as long costs
// at most about twice as much.
func TestHasDots(t *testing.T) {
	for path, want := range map[string]bool{
		"": false, "/": false, "/api": false, "/..": true, "..": true, "/a/./b": true, "/a../b": false, "/...": false, "/..;x/a": true, `\..\a`: true, "/%2e%2E": true, "/%252e%252e": true,
		"/a%2f..%2fb": true, "/%25252525252e%2e": true, "/100%": false, "/100%/..": true, "/%zz/%2e%2e": true, "/%2%35%32e.": true, "/a%2": false, "/%2f%2f": false, "/.%5c": true,
	} {
		if got := HasDots(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
	for name, path := range map[string]func(n int) string{
		"Nested": func(n int) string { return "%" + strings.Repeat("25", n/2) }, "Many": func(n int) string { return strings.Repeat("%252525", n/7) },
		"Segments": func(n int) string { return strings.Repeat("/a", n/2) }, "Semicolons": func(n int) string { return strings.Repeat(";", n) },
	} {
		bytes := func(n int) uint64 {
			text := path(n)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			HasDots(text)
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}
		if once, twice := bytes(4000), bytes(8000); twice > 5*once/2+64<<10 {
			t.Errorf("%s: %d bytes for 4000, %d for 8000", name, once, twice)
		}
	}
}

// TestDotSegmentsAreRefused: paths that lead out of the cluster's part of a front end are refused,
// in every spelling.
func TestDotSegmentsAreRefused(t *testing.T) {
	var seen []string
	m := fake(t, "/base/c-1", func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.RequestURI) })
	server, _ := front(t, m, alice)
	for _, path := range []string{
		"/../c-2/api/v1/secrets", "/%2e%2e/c-2/api/v1/secrets", "/..%2fc-2/api/v1/secrets", "/.%2E%2Fc-2", "/api/%2e./%2e%2e/c-2",
		"/api/v1/..", "/./api", "/%252e%252e/c-2", "/..%5cc-2", "/..;/c-2",
	} {
		t.Run(path, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.URL.Opaque = "//" + req.URL.Host + "/oak" + path
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s", resp.Status)
			}
		})
	}
	if len(seen) > 0 {
		t.Errorf("the cluster was asked for %v", seen)
	}
	for _, path := range []string{"/api/v1/namespaces/x/services/web/proxy/a..b/...", "/.well-known/x%2Fy"} {
		resp, err := http.Get(server.URL + "/oak" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// TestRedirects: redirects stay in the cluster, behind the hub. Clients would follow others with
// their credentials.
func TestRedirects(t *testing.T) {
	for name, c := range map[string]struct {
		location string // %s is the member's own address
		code     int
		leads    string // from the hub's root
	}{
		"ToAPath":       {"/k8s/c1/api/?q=1#x", 302, "/oak/api/?q=1#x"},
		"Relative":      {"pods/", 302, "/oak/api/v1/pods/"},
		"ToItself":      {"%s/k8s/c1/a%%2Fb", 302, "/oak/a%2Fb"},
		"Away":          {"https://evil.example/k8s/c1/", 502, ""},
		"AwayQuietly":   {"//evil.example/k8s/c1/", 502, ""},
		"ToAnotherBase": {"/k8s/c2/api", 502, ""},
		"Upwards":       {"../../../../../apis", 502, ""},
		"Escaped":       {"/k8s/c1/%%2e%%2e/c2", 502, ""},
		"ToPlainHTTP":   {"http://127.0.0.1/k8s/c1/", 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var m *fakeMember
			m = fake(t, "/k8s/c1", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", strings.ReplaceAll(strings.ReplaceAll(c.location, "%s", strings.TrimSuffix(m.config.Host, "/k8s/c1")), "%%", "%"))
				w.WriteHeader(http.StatusFound)
			})
			server, _ := front(t, m, alice)
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			resp, err := client.Get(server.URL + "/oak/api/v1/nodes")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("Location"); resp.StatusCode != c.code || got != c.leads {
				t.Errorf("%s to %q, want %d to %q", resp.Status, got, c.code, c.leads)
			}
		})
	}
}
