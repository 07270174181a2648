package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/server"
	"orrery.dev/orrery/internal/testenv"
)

// These variables let a test run this binary as a server. They have its data directory and the
// kubeconfig of its hub.
const (
	serverDir  = "ORRERY_TEST_SERVER_DIR"
	kubeconfig = "ORRERY_TEST_SERVER_KUBECONFIG"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serverDir); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m, 1)
}

// serve runs a server until SIGTERM, as users do.
func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))
	o := server.Options{Hub: hub.Options{DataDir: dir, Kubeconfig: os.Getenv(kubeconfig), Lease: leaseTimes()}}
	return server.Run(ctx, o, log, func(*hub.Hub) error {
		return os.WriteFile(filepath.Join(dir, "ready"), []byte(time.Now().Format(time.RFC3339Nano)), 0o600)
	})
}

// leaseTimes returns the times of the servers of a test: the defaults under Soak. Otherwise a
// Lease lasts longer, so that no server loses it because the machine is busy.
func leaseTimes() hub.LeaseTimes {
	if testenv.Soak() {
		return hub.DefaultLeaseTimes
	}
	return hub.LeaseTimes{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 500 * time.Millisecond}
}

// replica is one of the servers of a hub. Each reaches the hub through its own recorder.
type replica struct {
	*testenv.Recorder
	dir, log, kubeconfig string

	cmd    *exec.Cmd
	exited chan struct{}
}

func startReplica(t *testing.T, target *rest.Config) *replica {
	t.Helper()
	recorder, err := testenv.NewRecorder(target)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{Recorder: recorder, dir: t.TempDir(), log: filepath.Join(t.TempDir(), "log"), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(r.kubeconfig, recorder.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	t.Cleanup(func() {
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
		_ = r.cmd.Process.Kill()
		<-r.exited
		_ = r.Close()
		if t.Failed() {
			t.Logf("log of a server:\n%s", r.text(t))
		}
	})
	return r
}

// start starts the server for the first time or again.
func (r *replica) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := os.Remove(filepath.Join(r.dir, "ready")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	cmd, exited := exec.Command(os.Args[0]), make(chan struct{})
	cmd.Env = append(os.Environ(), serverDir+"="+r.dir, kubeconfig+"="+r.kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(exited) }()
	r.cmd, r.exited = cmd, exited
}

func (r *replica) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (r *replica) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) ready(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "a server is ready", testenv.Patience, func() error {
		_, err := os.Stat(filepath.Join(r.dir, "ready"))
		return err
	})
}

// waits checks that the server waits: its log says so, it is not ready, and the hub has
// accepted no write of it.
func (r *replica) waits(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "the second server says that it waits", testenv.Patience, func() error {
		if text := r.text(t); !strings.Contains(text, "Another server works on this hub") {
			return errors.New(text)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(r.dir, "ready")); err == nil {
		t.Error("a server that waits says that it is ready")
	}
	for _, w := range r.Writes(0) {
		if w.Changed() {
			t.Errorf("a server that waits wrote: %s", w)
		}
	}
}

// end waits until the server has exited, and returns its exit code.
func (r *replica) end(t *testing.T) int {
	t.Helper()
	select {
	case <-r.exited:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(testenv.Patience):
		t.Fatal("a server did not end")
		return 0
	}
}

// external starts an API server and returns access to it as users give it to Orrery.
func external(t *testing.T) *rest.Config {
	t.Helper()
	h, err := hub.Start(t.Context(), hub.Options{DataDir: filepath.Join(t.TempDir(), "hub"), KubeBinary: testenv.KubeBinary(), UnsafeNoFsync: true}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Wait(); err != nil {
			t.Error(err)
		}
	})
	c, err := kubernetes.NewForConfig(h.Config())
	if err != nil {
		t.Fatal(err)
	}
	account := metav1.ObjectMeta{Namespace: "default", Name: "orrery"}
	if _, err := c.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: account}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "orrery"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "orrery", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(h.Config())
	config.BearerToken = token.Status.Token
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the API server knows of the rights", testenv.Patience, func() error {
		_, err := admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{Limit: 1})
		return err
	})
	return config
}

// lease returns the holder of the Lease and the time of the last renewal. holder is empty if no
// server has the Lease.
func lease(t *testing.T, api *testenv.API) (holder string, renewed time.Time) {
	t.Helper()
	var found *unstructured.Unstructured
	testenv.Eventually(t, "read the Lease", testenv.Patience, func() (err error) {
		found, err = api.Find(t.Context(), "coordination.k8s.io/v1", "Lease", "orrery-cluster", "orrery-server")
		return client.IgnoreNotFound(err)
	})
	if found == nil {
		return "", renewed
	}
	var lease coordinationv1.Lease
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &lease); err != nil {
		t.Fatal(err)
	}
	spec := lease.Spec
	return ptr.Deref(spec.HolderIdentity, ""), ptr.Deref(spec.RenewTime, metav1.MicroTime{}).Time
}

func holder(t *testing.T, api *testenv.API) string {
	t.Helper()
	holder, _ := lease(t, api)
	return holder
}

// takenOver waits until a server other than was, the previous holder, has the Lease. Unless the
// Lease was given up, it must have run out before. The times are those of the requests at their
// recorders, since the wall clock, which the Lease has, may be set between two renewals.
func takenOver(t *testing.T, api *testenv.API, old, next *replica, was string, givenUp bool) {
	t.Helper()
	begin := time.Now()
	testenv.Eventually(t, "the Lease is taken over", testenv.Patience, func() error {
		if now := holder(t, api); now == was || now == "" {
			return fmt.Errorf("it is %q's", now)
		}
		if len(changesOfLease(next)) == 0 {
			return errors.New("the answer to the server that takes it is on its way")
		}
		return nil
	})
	times := leaseTimes()
	renewals := changesOfLease(old)
	if len(renewals) == 0 {
		t.Fatal("the Lease was never renewed")
	}
	renewed, taken := renewals[len(renewals)-1], changesOfLease(next)[0]
	// Servers compare Leases with renewTime in whole seconds. Of several renewals in one second, the
	// server that waits sees only the first, and so does the fence of the server that renews.
	if lasted := taken.Time.Sub(renewed.Time); !givenUp && lasted < times.Duration-time.Second {
		t.Errorf("the Lease was taken %s after it was renewed, and lasts %s: %s, %s", lasted, times.Duration, renewed, taken)
	}
	// A retry happens after 1 to 2.2 periods.
	most := times.Duration + 4*times.RetryPeriod
	if givenUp {
		most = 4 * times.RetryPeriod
	}
	if took := time.Since(begin); testenv.Soak() && took > most {
		t.Errorf("the Lease was taken over after %s, want %s at most", took, most)
	}
}

// joins makes a member join the hub, and tries again while the member does not answer in time.
func joins(t *testing.T, api *testenv.API, hubClient client.Client, m *testenv.Member) {
	t.Helper()
	system := api.Object(t, "v1", "Namespace", "", "kube-system")
	testenv.Eventually(t, m.Name+" joins", testenv.Patience, func() error {
		_, err := member.Join(t.Context(), hubClient, member.JoinOptions{Name: m.Name, Kubeconfig: m.Kubeconfig(), HubID: string(system.GetUID())})
		refused, ok := errors.AsType[*member.JoinError](err)
		if err != nil && (!ok || refused.Reason != clusterv1alpha1.ReasonUnreachable && refused.Reason != member.ReasonNotConfirmed) {
			t.Fatal(err)
		}
		return err
	})
}

// changesOfLease returns the writes with which a server took, renewed and gave up the Lease, if
// they are known to be applied.
func changesOfLease(r *replica) []testenv.Write {
	return slices.DeleteFunc(r.Writes(0), func(w testenv.Write) bool { return w.Resource != "leases" || !w.Changed() })
}

const world = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: everything, namespace: shop}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]
  placement: {}
`

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: shop}\ndata: {value: %s}\n", name, value)
}

// TestTwoServersOnOneHub attacks the Lease that keeps two servers on one API server apart. At
// any time only one of them writes to the hub and to members. A server that was stopped while
// it wrote does not write again without the Lease.
func TestTwoServersOnOneHub(t *testing.T) {
	target := external(t)
	api, err := testenv.NewAPI(target)
	if err != nil {
		t.Fatal(err)
	}
	oak, err := testenv.NewMember(t.TempDir(), "oak", testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = oak.Close() })
	first := startReplica(t, target)
	first.ready(t)
	one := holder(t, api)
	if one == "" {
		t.Fatal("a server works without the Lease")
	}
	second := startReplica(t, target)
	second.waits(t)

	join, err := client.New(target, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	joins(t, api, join, oak)
	const count = 40
	placed := func(value string) {
		t.Helper()
		testenv.Eventually(t, "all is placed", testenv.Patience, func() error {
			for i := range count {
				o, err := oak.Find(t.Context(), "v1", "ConfigMap", "shop", fmt.Sprintf("c-%d", i))
				if err != nil {
					return err
				}
				if got, _, _ := unstructured.NestedString(o.Object, "data", "value"); got != value {
					return fmt.Errorf("c-%d is %q, want %q", i, got, value)
				}
			}
			return nil
		})
	}
	edit := func(value string) {
		t.Helper()
		for i := range count {
			api.Apply(t, configMap(fmt.Sprintf("c-%d", i), value))
		}
	}
	api.Apply(t, world)
	edit("first")
	placed("first")

	// The first server is stopped during its work, and continues when the second has done that
	// work.
	api.Apply(t, configMap("c-0", "second"))
	first.signal(t, syscall.SIGSTOP)
	takenOver(t, api, first, second, one, false)
	second.ready(t)
	edit("second")
	placed("second")
	two := holder(t, api)
	edit("third") // work for the first when it continues
	placed("third")
	second.signal(t, syscall.SIGSTOP) // later writes to the member come from the first
	testenv.Eventually(t, "nothing of the second is on its way", testenv.Patience, nothingUnderWay(oak))
	hubMark, memberMark := first.Mark(), oak.Mark()
	first.signal(t, syscall.SIGCONT)
	if code := first.end(t); code == 0 {
		t.Error("the first server has lost the Lease and ends as if all were well")
	}
	if text := first.text(t); !strings.Contains(text, "lost Lease orrery-cluster/orrery-server") {
		t.Errorf("it does not say why it ended: %s", text)
	}
	for _, w := range first.Writes(hubMark) {
		if w.Resource != "leases" || w.Changed() {
			t.Errorf("the first server wrote to the hub without the Lease: %s", w)
		}
	}
	for _, w := range oak.Writes(memberMark) {
		t.Errorf("the first server wrote to a member without the Lease: %s", w)
	}
	if now := holder(t, api); now != two {
		t.Errorf("the Lease is %s's, want %s", now, two)
	}
	second.signal(t, syscall.SIGCONT)
	edit("fourth")
	placed("fourth")

	// A server that is stopped properly gives up the Lease, so no server waits until it runs
	// out.
	third := startReplica(t, target)
	third.waits(t)
	second.signal(t, syscall.SIGTERM)
	if code := second.end(t); code != 0 {
		t.Errorf("exit code %d: %s", code, second.text(t))
	}
	takenOver(t, api, second, third, two, true)
	third.ready(t)

	// A waiting server also exits properly. A killed server is replaced.
	fourth := startReplica(t, target)
	fourth.waits(t)
	fourth.signal(t, syscall.SIGTERM)
	if code := fourth.end(t); code != 0 {
		t.Errorf("exit code %d of one that waited: %s", code, fourth.text(t))
	}
	fifth := startReplica(t, target)
	fifth.waits(t)
	three := holder(t, api)
	third.signal(t, syscall.SIGKILL)
	takenOver(t, api, third, fifth, three, false)
	fifth.ready(t)
	edit("fifth")
	placed("fifth")

	// A server that cannot reach the hub for longer than the Lease lasts continues if no other
	// server has taken the Lease.
	five := holder(t, api)
	fifth.Fail(testenv.Cut)
	testenv.Eventually(t, "the Lease is over, and its holder says that it cannot renew it", testenv.Patience, func() error {
		if text := fifth.text(t); !strings.Contains(text, "The Lease cannot be renewed") {
			return errors.New(text)
		}
		_, renewed := lease(t, api)
		if left := leaseTimes().Duration - time.Since(renewed); left > 0 {
			return fmt.Errorf("it lasts for %s still", left)
		}
		return nil
	})
	fifth.Heal()
	edit("sixth")
	placed("sixth")
	if now := holder(t, api); now != five {
		t.Errorf("the Lease is %s's, want %s", now, five)
	}
	select {
	case <-fifth.exited:
		t.Errorf("the server has ended: %s", fifth.text(t))
	default:
	}
}

// nothingUnderWay returns a check that holds when all writes to the member are answered and no
// write came since the previous check.
func nothingUnderWay(oak *testenv.Member) func() error {
	mark := -1
	return func() error {
		before := mark
		mark = oak.Mark()
		for _, w := range oak.Writes(0) {
			if w.Code == 0 {
				return fmt.Errorf("it is not answered yet: %s", w)
			}
		}
		if mark != before {
			return errors.New("a write came just now")
		}
		return nil
	}
}
