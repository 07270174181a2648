package provision

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// sshServer accepts every login and records what it receives. It runs no commands.
type sshServer struct {
	port int32
	line string // of known_hosts

	mu    sync.Mutex
	saw   []string
	began time.Time       // the server started, or seen was called
	again map[string]bool // what was received a second time and is not in saw
}

// notef records what the server receives. A login that a busy machine does not answer in time is
// sent again, but not before SSH.KeepAlive has passed. After 10 s, one repetition is therefore left
// out.
func (s *sshServer) notef(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if time.Since(s.began) > 10*time.Second && slices.Contains(s.saw, text) && !s.again[text] {
		s.again[text] = true
		return
	}
	s.saw = append(s.saw, text)
}

// seen returns what the server recorded since the last call.
func (s *sshServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	saw := s.saw
	s.saw, s.began, s.again = nil, time.Now(), map[string]bool{}
	return saw
}

func newSSHServer(t *testing.T) *sshServer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	s := &sshServer{
		port: int32(listener.Addr().(*net.TCPAddr).Port), line: knownhosts.Line([]string{address}, signer.PublicKey()) + "\n",
		began: time.Now(), again: map[string]bool{},
	}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(c ssh.ConnMetadata, _ ssh.PublicKey) (*ssh.Permissions, error) {
			s.notef("%s offers a key", c.User())
			return nil, errors.New("no")
		},
		PasswordCallback: func(c ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			s.notef("%s says %s", c.User(), password)
			return nil, nil
		},
	}
	config.AddHostKey(signer)
	var open sync.WaitGroup
	t.Cleanup(func() { listener.Close(); open.Wait() })
	open.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.notef("connection")
			open.Go(func() {
				defer c.Close()
				if _, channels, requests, err := ssh.NewServerConn(c, config); err == nil {
					go ssh.DiscardRequests(requests)
					for opened := range channels {
						channel, requests, err := opened.Accept()
						if err == nil {
							go ssh.DiscardRequests(requests) // this refuses them
							channel.Close()
						}
					}
				}
			})
		}
	})
	return s
}

// on returns a Cluster with one host, which is this server.
func (s *sshServer) on(name, secret string) *clusterv1alpha1.Cluster {
	o := cluster(name, 1)
	h := &o.Spec.Provision.Hosts[0]
	h.Address, h.InternalAddress, h.Port, h.SecretRef = "127.0.0.1", "10.0.0.1", s.port, hostSecret(secret)
	return o
}

func hostSecret(name string) *clusterv1alpha1.SecretReference {
	return &clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
}

// credential returns a Secret with a password and known_hosts for a cluster. With an empty
// cluster it has no annotation for one.
func credential(name, cluster, knownHosts string) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: name},
		Data:       map[string][]byte{"password": []byte("open sesame"), "known_hosts": []byte(knownHosts)},
	}
	if cluster != "" {
		secret.Annotations = map[string]string{clusterv1alpha1.AnnotationForCluster: cluster}
	}
	return secret
}

// untilFailed waits until an Operation has failed and returns the reason.
func (h *hub) untilFailed(t *testing.T, operation string) string {
	t.Helper()
	return h.untilPhase(t, operation, lifecyclev1alpha1.PhaseFailed).Status.Message
}

// TestPasswordsAreForTheirHostsOnly: an attacker may write Clusters, but not Secrets, and has an
// SSH server that the hub can reach. The server never receives a login.
func TestPasswordsAreForTheirHostsOnly(t *testing.T) {
	cases := map[string]struct {
		secret func(own, theirs *sshServer) *corev1.Secret
		// attack changes Cluster oak. Its host is own, and its Secret is ssh.
		attack func(o *clusterv1alpha1.Cluster, own, theirs *sshServer)
		err    string
		theirs []string // what their server receives
	}{
		"AnotherCluster": {
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) { *o = *theirs.on("evil", "ssh") },
			err:    "secret orrery-cluster/ssh is for another cluster",
		},
		"SecretOfNoCluster": {
			secret: func(_, theirs *sshServer) *corev1.Secret { return credential("ssh", "", theirs.line) },
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) { *o = *theirs.on("evil", "ssh") },
			err:    "kubectl annotate secret ssh -n orrery-cluster cluster.orrery.dev/for-cluster=evil",
		},
		"AnotherAddress": {
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) { o.Spec.Provision.Hosts[0].Port = theirs.port },
			err:    "key known_hosts of secret orrery-cluster/ssh has no key of [127.0.0.1]:",
		},
		"NoKeys": {
			secret: func(_, _ *sshServer) *corev1.Secret { return credential("ssh", "oak", "") },
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) { o.Spec.Provision.Hosts[0].Port = theirs.port },
			err:    "so it is not dialled; add what ssh-keyscan -p",
		},
		// The address belongs to a host, but another machine answers there: a bastion was removed, or DNS
		// points elsewhere.
		"AnotherMachineAtTheAddress": {
			secret: func(own, theirs *sshServer) *corev1.Secret {
				_, key, _ := strings.Cut(own.line, " ")
				address, _, _ := strings.Cut(theirs.line, " ")
				return credential("ssh", "oak", address+" "+key)
			},
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) { o.Spec.Provision.Hosts[0].Port = theirs.port },
			err:    "another machine may pose as it; if it was reinstalled, replace that line",
			theirs: []string{"connection"},
		},
		"Bastion": {
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) {
				o.Spec.Provision.Hosts[0].Bastion = &clusterv1alpha1.Bastion{Address: "127.0.0.1", Port: theirs.port}
			},
			err: "key known_hosts of secret orrery-cluster/ssh has no key of [127.0.0.1]:",
		},
		"AnotherUser": {
			secret: func(own, theirs *sshServer) *corev1.Secret {
				secret := credential("ssh", "oak", own.line+theirs.line)
				secret.Data["username"] = []byte("root\n")
				return secret
			},
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) {
				o.Spec.Provision.Hosts[0].Port, o.Spec.Provision.Hosts[0].User = theirs.port, "mallory"
			},
			err: "secret orrery-cluster/ssh is for another user than mallory",
		},
		"AnotherHost": {
			attack: func(o *clusterv1alpha1.Cluster, _, theirs *sshServer) {
				h := theirs.on("oak", "ssh").Spec.Provision.Hosts[0]
				h.Name, h.InternalAddress = "host-2", "10.0.0.2"
				o.Spec.Provision.Hosts = append(o.Spec.Provision.Hosts, h)
				o.Spec.Provision.RoleGroups[clusterv1alpha1.RoleWorker] = append(o.Spec.Provision.RoleGroups[clusterv1alpha1.RoleWorker], h.Name)
			},
			err: "host host-2: key known_hosts of secret orrery-cluster/ssh has no key of [127.0.0.1]:",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			h.real = true
			h.start(t)
			own, theirs := newSSHServer(t), newSSHServer(t)
			secret := credential("ssh", "oak", own.line)
			if tc.secret != nil {
				secret = tc.secret(own, theirs)
			}
			o := own.on("oak", "ssh")
			tc.attack(o, own, theirs)
			h.create(t, secret, o)
			if got := h.untilFailed(t, o.Name+"-1"); !strings.Contains(got, tc.err) || strings.Contains(got, "open sesame") {
				t.Errorf("the operation says %q, want %q", got, tc.err)
			}
			if diff := cmp.Diff(tc.theirs, theirs.seen()); diff != "" {
				t.Errorf("their server saw (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEditedClusterSendsNothing edits the address in a Cluster whose Secret is in use. Then a host
// moves in the correct way.
func TestEditedClusterSendsNothing(t *testing.T) {
	h := newHub(t)
	h.real = true
	h.start(t)
	own, theirs := newSSHServer(t), newSSHServer(t)
	h.create(t, credential("ssh", "oak", own.line), own.on("oak", "ssh"))
	h.untilFailed(t, "oak-1") // the server runs no commands
	login := []string{"connection", "root says open sesame"}
	if diff := cmp.Diff(login, own.seen()); diff != "" {
		t.Fatalf("the host of the Secret saw (-want +got):\n%s", diff)
	}
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.Hosts[0].Port = theirs.port })
	h.untilFailed(t, "oak-2")
	if got := theirs.seen(); got != nil {
		t.Errorf("their server saw %q", got)
	}

	// The host moves. Its new address goes first to the Secret, beside the old one, and then to the
	// Cluster. Both are valid until the old one is removed.
	secret := &corev1.Secret{}
	if err := h.Get(t.Context(), client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "ssh"}, secret); err != nil {
		t.Fatal(err)
	}
	moved := newSSHServer(t)
	secret.Data["known_hosts"] = append(secret.Data["known_hosts"], moved.line...)
	if err := h.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for i, s := range []*sshServer{own, moved} {
		h.change(t, "oak", func(spec *clusterv1alpha1.ClusterSpec) { spec.Provision.Hosts[0].Port = s.port })
		h.untilFailed(t, fmt.Sprintf("oak-%d", 3+i))
		if diff := cmp.Diff(login, s.seen()); diff != "" {
			t.Errorf("server %d saw (-want +got):\n%s", i, diff)
		}
	}
}
