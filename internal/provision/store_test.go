package provision

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

func newStore(t *testing.T, holder string) *Store {
	t.Helper()
	h := newHub(t)
	return &Store{Client: h, Cached: h, Logs: t.TempDir(), Holder: holder, Lost: func(string) {}}
}

// Record returns the spec that a user changed meanwhile. It fails if another server runs the
// Operation.
func TestRecord(t *testing.T) {
	h := newHub(t)
	s := &Store{Client: h}
	op := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
	h.create(t, op)
	op.Status.Phase, op.Status.Attempt, op.Status.Message = lifecyclev1alpha1.PhaseRunning, 1, "begins"
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	h.control(t, "oak-1", func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true })
	op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhasePaused, ""
	if err := s.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if !op.Spec.Paused {
		t.Error("the spec is not brought back")
	}
	kept, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	if kept.Status.Phase != lifecyclev1alpha1.PhasePaused || kept.Status.Message != "" {
		t.Errorf("the record is %v: want what was recorded last, and nothing of what was before", kept.Status)
	}
	kept.Status.Attempt = 2
	if err := h.Status().Update(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	if err := s.Record(t.Context(), op); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("error %v, want one that says that another server has it", err)
	}
}

func TestFit(t *testing.T) {
	status := &lifecyclev1alpha1.OperationStatus{}
	for i := range 4000 {
		r := lifecyclev1alpha1.StepRecord{Host: "host", ID: fmt.Sprint(i), State: lifecyclev1alpha1.StepChanged}
		if i%2 == 0 {
			r.State, r.Message = lifecyclev1alpha1.StepFailed, strings.Repeat("x", 1000)
		}
		status.Steps = append(status.Steps, r)
	}
	fit(status, maxRecord)
	size, failed := 0, 0
	for _, r := range status.Steps {
		size += recordSize(r)
		if r.State == lifecyclev1alpha1.StepFailed {
			failed++
		}
	}
	if size > maxRecord || failed != 2000 {
		t.Errorf("%d bytes with %d failures are left, want at most %d with all 2000", size, failed, maxRecord)
	}
}

// TestRecordOfManyHosts: the record of a run that failed on every host and at many steps can be
// stored, and the next one too.
func TestRecordOfManyHosts(t *testing.T) {
	h := newHub(t)
	s := &Store{Client: h}
	op := operation("oak-1", lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate})
	h.create(t, op)
	long := strings.Repeat("ü", 2048)
	op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhaseFailed, strings.Repeat("x", 32768)
	for i := range 1001 {
		op.Status.Hosts = append(op.Status.Hosts, lifecyclev1alpha1.HostRun{
			Name: fmt.Sprintf("%063d", i), Stage: "control-plane", State: lifecyclev1alpha1.StepFailed, Done: 12, Total: 80, RoundTrips: 9, Message: long,
		})
		op.Status.Plan = append(op.Status.Plan, lifecyclev1alpha1.PlannedChanges{
			Hosts: []string{fmt.Sprintf("%063d", i)}, Changes: []string{"~ File /etc/kubernetes/a"}, Left: 9,
		})
	}
	for i := range 4000 {
		op.Status.Steps = append(op.Status.Steps, lifecyclev1alpha1.StepRecord{
			Host: fmt.Sprintf("%063d", i), ID: "controller-manager/kubeconfig", State: lifecyclev1alpha1.StepFailed, Attempt: 3, Message: long,
			Started: metav1.NowMicro(), Finished: metav1.NowMicro(), InputHash: strings.Repeat("0", 32),
		})
	}
	for range 2 {
		if err := s.Record(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := s.Operation(t.Context(), "oak-1")
	if err != nil {
		t.Fatal(err)
	}
	last := kept.Status.Steps[len(kept.Status.Steps)-1]
	hosts, plan := kept.Status.Hosts, kept.Status.Plan
	if len(hosts) != 1001 || len(plan) != 1001 || !strings.HasSuffix(hosts[0].Message, "ü…") || last.Host != fmt.Sprintf("%063d", 3999) {
		t.Errorf("%d hosts, %d of the plan and %d steps are kept, the last of %s", len(hosts), len(plan), len(kept.Status.Steps), last.Host)
	}
}

// Only one of two servers works on a cluster. A killed server does not keep the lock for long.
func TestLock(t *testing.T) {
	one := newStore(t, "one")
	two := &Store{Client: one.Client, Holder: "two", Lost: func(string) {}}
	unlock, err := one.Lock(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Lock(t.Context(), "oak"); err == nil {
		t.Error("the same server locks it twice")
	}
	held := lease("oak")
	if err := one.Client.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
		t.Fatal(err)
	}
	if holder := held.Spec.HolderIdentity; holder == nil || *holder != "one" {
		t.Fatal("Lock returned, and the Lease is not held by one")
	}
	// The Lease is renewed just before: on a busy machine the one of Lock may be over.
	if _, err := one.acquire(t.Context(), "oak"); err != nil {
		t.Fatal(err)
	}
	if holder, err := two.acquire(t.Context(), "oak"); err != nil || holder != "one" {
		t.Errorf("holder %q, error %v: want one to have it", holder, err)
	}
	unlock()
	unlock, err = two.Lock(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	unlock()

	// A killed server left this lease.
	past := metav1.NewMicroTime(metav1.Now().Add(-2 * leaseTime))
	l := lease("oak")
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("dead"), RenewTime: &past}
	if err := one.Client.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if unlock, err = one.Lock(t.Context(), "oak"); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := one.Client.Get(t.Context(), client.ObjectKeyFromObject(l), l); err == nil {
		t.Error("the Lease is left behind")
	}
}

func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	first, err := identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := identity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if first != again || first == other {
		t.Errorf("identities %q, %q and %q: want the first two the same", first, again, other)
	}
}

func TestLog(t *testing.T) {
	s := &Store{Logs: t.TempDir()}
	path := filepath.Join(s.Logs, "oak-1", "host-1.log")
	for _, line := range []string{"one\n", strings.Repeat("x", maxLog), "three\n"} {
		w, err := s.Log("oak-1", "host-1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "three\n" {
		t.Errorf("the log has %d bytes, error %v: want what was written since it was full", len(content), err)
	}
	if err := s.removeLogs("oak-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("stat %v, want the log gone", err)
	}
}

func TestCredentials(t *testing.T) {
	h := newHub(t)
	forOak := func(name string, data map[string]string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterv1alpha1.SecretNamespace, Name: name, Annotations: map[string]string{clusterv1alpha1.AnnotationForCluster: "oak"},
			},
			StringData: data,
		}
	}
	h.create(t,
		forOak("ssh", map[string]string{
			"username": "root", "password": "open sesame\n", "sudoPassword": "please", "ssh-privatekey": "KEY\n", "known_hosts": "10.0.0.1 KEY\n",
		}),
		forOak("jump", map[string]string{"password": "over", "known_hosts": "192.0.2.1 KEY\n"}),
		forOak("empty", nil),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "anybodys"},
			StringData: map[string]string{"password": "p", "tls.key": "k"},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterv1alpha1.SecretNamespace, Name: "pine-ssh", Annotations: map[string]string{clusterv1alpha1.AnnotationForCluster: "pine"},
			},
			Data: map[string][]byte{"password": []byte("pine")},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: clusterv1alpha1.SecretNamespace, Name: "member", Annotations: map[string]string{
					clusterv1alpha1.AnnotationForCluster: "oak", clusterv1alpha1.AnnotationForAddress: "https://10.0.0.1:6443",
				},
			},
			Data: map[string][]byte{"password": []byte("p"), "tls.key": []byte("k")},
		},
	)
	ref := func(name string) *clusterv1alpha1.SecretReference {
		return &clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: name}
	}
	c := credentials{reader: h, cluster: "oak"}
	cases := map[string]struct {
		host clusterv1alpha1.Host
		want string // name, password, sudo password, key and known keys of the host and of its bastion
		err  string
	}{
		"Direct": {
			host: clusterv1alpha1.Host{Name: "host-1", Address: "10.0.0.1", Port: 22, User: "root", SecretRef: ref("ssh")},
			want: "root@10.0.0.1:22 open sesame please KEY\n 10.0.0.1 KEY\n",
		},
		"BastionWithItsOwn": {
			host: clusterv1alpha1.Host{
				Name: "host-1", Address: "10.0.0.1", Port: 22, User: "root", SecretRef: ref("ssh"),
				Bastion: &clusterv1alpha1.Bastion{Address: "192.0.2.1", Port: 2222, User: "jumper", SecretRef: ref("jump")},
			},
			want: "root@10.0.0.1:22 open sesame please KEY\n 10.0.0.1 KEY\n by jumper@192.0.2.1:2222 over   192.0.2.1 KEY\n",
		},
		"BastionWithTheHosts": {
			host: clusterv1alpha1.Host{
				Name: "host-1", Address: "10.0.0.1", Port: 22, User: "root", SecretRef: ref("ssh"),
				Bastion: &clusterv1alpha1.Bastion{Address: "192.0.2.1", Port: 22},
			},
			want: "root@10.0.0.1:22 open sesame please KEY\n 10.0.0.1 KEY\n by root@192.0.2.1:22 open sesame please KEY\n 10.0.0.1 KEY\n",
		},
		"AnotherUser":     {host: clusterv1alpha1.Host{Name: "host-1", User: "mallory", SecretRef: ref("ssh")}, err: "is for another user than mallory"},
		"NoClusters":      {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("anybodys")}, err: "kubectl annotate secret anybodys"},
		"AnotherClusters": {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("pine-ssh")}, err: "is for another cluster"},
		"OfAnAPIServer":   {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("member")}, err: "name another"},
		"NoneIsRefused":   {host: clusterv1alpha1.Host{Name: "host-1"}, err: "secretRef is not set"},
		"MissingSecret":   {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("none")}, err: "secretRef: secret orrery-cluster/none does not exist"},
		"EmptySecret":     {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("empty")}, err: "secret orrery-cluster/empty has neither password nor ssh-privatekey"},
		"MissingBastion":  {host: clusterv1alpha1.Host{Name: "host-1", SecretRef: ref("ssh"), Bastion: &clusterv1alpha1.Bastion{Address: "b", SecretRef: ref("none")}}, err: "bastion.secretRef: secret"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			target, err := c.Target(t.Context(), tc.host)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s@%s:%d %s %s %s %s", target.User, target.Address, target.Port, string(target.Password), string(target.SudoPassword), string(target.PrivateKey), target.KnownHosts)
			if b := target.Bastion; b != nil {
				got += fmt.Sprintf(" by %s@%s:%d %s %s %s %s", b.User, b.Address, b.Port, string(b.Password), string(b.SudoPassword), string(b.PrivateKey), b.KnownHosts)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("target (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExternalEtcdSecret: the keys of an etcd are for one cluster only, because they are written to
// its hosts.
func TestExternalEtcdSecret(t *testing.T) {
	h := newHub(t)
	h.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: clusterv1alpha1.SecretNamespace, Name: "etcd", Annotations: map[string]string{clusterv1alpha1.AnnotationForCluster: "oak"},
		},
		StringData: map[string]string{"tls.key": "KEY"},
	})
	etcd := clusterv1alpha1.ExternalEtcd{SecretRef: &clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: "etcd"}}
	for cluster, want := range map[string]string{"oak": "KEY", "evil": ""} {
		keys, err := credentials{reader: h, cluster: cluster}.ExternalEtcd(t.Context(), etcd)
		if want == "" && (err == nil || !strings.Contains(err.Error(), "etcd.external.secretRef: secret orrery-cluster/etcd is for another cluster")) {
			t.Errorf("cluster %s: error %v", cluster, err)
		}
		if want != "" && (err != nil || string(keys.Key) != want) {
			t.Errorf("cluster %s: keys %v, error %v", cluster, keys, err)
		}
	}
}
