//go:build bench

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

const (
	clientWorkers     = 32 // of the plain client, and of the user who creates templates on the hub
	controllerWorkers = 8  // of each member's deployment controller
	repetitions       = 2
	rootCA            = "kube-root-ca.crt" // the ConfigMap that every namespace gets
)

// BenchmarkPropagation places Deployments, each with a ConfigMap, in two members. It compares
// that with a plain client-go loop that creates the same objects there, in the order A B A B.
// No hub runs in A, the plain loop. SIZES (1000,5000) are the numbers of Deployments. The
// benchmark measures the time until all objects are present in both members, and until all
// statuses are settled. It counts writes, memory, bytes in etcd, and the cost of a restart with
// all these objects placed.
func BenchmarkPropagation(b *testing.B) {
	var first struct {
		size    int
		seconds float64
	}
	for _, size := range sizes(b) {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			for range b.N {
				settled := propagate(b, size)
				if first.size == 0 {
					first.size, first.seconds = size, settled
					continue
				}
				report(b, settled/float64(size)/(first.seconds/float64(first.size)), fmt.Sprintf("times-as-long-each-as-of-%d", first.size))
			}
		})
	}
}

// sizes returns the numbers of Deployments in SIZES.
func sizes(b *testing.B) []int {
	b.Helper()
	text := os.Getenv("SIZES")
	if text == "" {
		return []int{1000, 5000}
	}
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			b.Fatalf("SIZES=%s: want positive numbers with commas between them", text)
		}
		all = append(all, n)
	}
	return all
}

// took is the time until all objects were present, and until all statuses were settled.
type took struct{ present, settled time.Duration }

// propagate measures one number of Deployments in a fleet of its own. It returns the seconds
// until all placed objects were settled, in the slowest round.
func propagate(b *testing.B, size int) (settled float64) {
	b.Helper()
	f := startFleet(b, 2)
	f.still(b)
	var plain, placed [repetitions]took
	for round := range repetitions {
		before := f.objects(b)
		f.stopServer(b)
		plain[round] = f.plainly(b, fmt.Sprintf("plain-%d", round), size)
		if round == 0 {
			f.startServer(b)
		} else {
			f.restarted(b, before)
		}
		f.still(b)
		var counted writesOf
		placed[round], counted = f.placed(b, fmt.Sprintf("placed-%d", round), size)
		b.Logf("round %d: plain client: present after %s, settled after %s; placed: present after %s, settled after %s",
			round, plain[round].present, plain[round].settled, placed[round].present, placed[round].settled)
		b.Logf("round %d: %s", round, counted.what)
		if round == 0 {
			counted.report(b)
			_, each := pss(b, f.server.Process.Pid)
			b.Log("a minute after everything was settled: ", each)
		}
	}
	for what, of := range map[string]func(took) time.Duration{
		"present": func(t took) time.Duration { return t.present },
		"settled": func(t took) time.Duration { return t.settled },
	} {
		var ratios []float64
		for i := range repetitions {
			ratios = append(ratios, of(placed[i]).Seconds()/of(plain[i]).Seconds())
			settled = max(settled, placed[i].settled.Seconds())
		}
		report(b, slices.Max(ratios), "times-a-plain-client-until-"+what)
		report(b, max(of(placed[0]), of(placed[1])).Seconds(), "s-until-"+what)
	}
	report(b, f.bytesPerPlacement(b, "placed-0", size), "etcd-bytes/Deployment/cluster")
	return settled
}

// plainly creates the objects in both members with a plain client, without a hub, and deletes
// them.
func (f *fleet) plainly(b *testing.B, ns string, size int) took {
	b.Helper()
	for _, cfg := range f.members {
		namespace(b, clientset(b, cfg), ns)
	}
	members := f.follow(b, ns, size)
	start := time.Now()
	var g errgroup.Group
	for _, cfg := range f.members {
		g.Go(func() error { return createPairs(cfg, ns, size, clientWorkers/len(f.members)) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	t := members.wait(b, start)
	for _, cfg := range f.members {
		g.Go(func() error {
			c, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			ctx := context.Background()
			return errors.Join(
				c.AppsV1().Deployments(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
				c.CoreV1().ConfigMaps(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return t
}

// placed creates the objects on the hub, under a policy that places them in both members. It
// counts writes until a minute after everything is settled.
func (f *fleet) placed(b *testing.B, ns string, size int) (took, writesOf) {
	b.Helper()
	hub := clientset(b, f.cfg)
	namespace(b, hub, ns)
	f.policy(b, ns, "apps/v1 Deployment", "v1 ConfigMap")
	f.still(b) // writes for the namespace itself do not count
	counted := writesOf{size: size, hub: writes(b, f.cfg)}
	for _, cfg := range f.members {
		counted.members = append(counted.members, writes(b, cfg))
	}
	members, statuses := f.follow(b, ns, size), f.followHub(b, ns, size)
	start := time.Now()
	var g errgroup.Group
	g.Go(func() error { return createPairs(f.cfg, ns, size, clientWorkers) })
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	t := members.wait(b, start)
	t.settled = max(t.settled, statuses.wait(b, start))
	total, _ := pss(b, f.server.Process.Pid)
	counted.pss = float64(total) / (1 << 20)
	time.Sleep(time.Minute) // late writes happen within this time
	total, _ = pss(b, f.server.Process.Pid)
	counted.pssLater = float64(total) / (1 << 20)
	counted.end(b, f, members, statuses)
	return t, counted
}

// writesOf holds the writes of a round, and the memory for its objects.
type writesOf struct {
	size    int
	hub     map[string]int
	members []map[string]int

	ofMember                   float64 // for each object, in the member with the most
	ofHub                      float64 // for each object, without the creation of the template
	ofDeployment, ofConfigMap  float64 // the same by kind, only of writes that changed something
	deploymentMost, configMost int64
	pss, pssLater              float64 // MiB
	what                       string
}

// end counts the writes since the round began. It subtracts the writes of the members'
// controllers and the creation of the templates, which are no work of the hub. Each member has
// one object more, the namespace.
func (w *writesOf) end(b *testing.B, f *fleet, members watches, statuses *hubWatch) {
	b.Helper()
	objects := float64(2 * w.size)
	var what []string
	for i, cfg := range f.members {
		n, names := since(w.members[i], writes(b, cfg))
		w.ofMember = max(w.ofMember, float64(n-int(members[i].written.Load()))/(objects+1))
		what = append(what, fmt.Sprintf("member %d: %s", i, names))
	}
	n, names := since(w.hub, writes(b, f.cfg))
	w.ofHub = float64(n)/objects - 1
	what = append(what, "hub: "+names)
	w.what = strings.Join(what, "; ")
	w.ofDeployment, w.deploymentMost = statuses.writes("-deployment")
	w.ofConfigMap, w.configMost = statuses.writes("-configmap")
}

func (w *writesOf) report(b *testing.B) {
	b.Helper()
	report(b, w.ofMember, "writes/object/member")
	report(b, w.ofHub, "hub-writes/object")
	report(b, w.ofDeployment, "hub-writes/Deployment")
	report(b, float64(w.deploymentMost), "hub-writes/Deployment-at-most")
	report(b, w.ofConfigMap, "hub-writes/ConfigMap")
	report(b, float64(w.configMost), "hub-writes/ConfigMap-at-most")
	report(b, w.pss, "MiB-PSS")
	report(b, w.pssLater, "MiB-PSS-a-minute-later")
}

// restarted starts the server again while objects are placed, and counts the writes that this
// causes. before is the result of objects before the server was stopped.
func (f *fleet) restarted(b *testing.B, before map[string][]byte) {
	b.Helper()
	var members []map[string]int
	for _, cfg := range f.members {
		members = append(members, writes(b, cfg))
	}
	report(b, f.startServer(b).Seconds(), "s-to-ready-by-restart")
	own := writes(b, f.cfg)
	time.Sleep(30 * time.Second) // writes of a restart happen within this time
	var total int
	for i, cfg := range f.members {
		n, what := since(members[i], writes(b, cfg))
		total += n
		b.Logf("member %d by the restart: %s", i, what)
	}
	report(b, float64(total), "writes-to-members-by-restart")
	// The API server's counters begin with the restart, and the hub writes objects of its own
	// before it is ready. The comparison of the objects below finds writes to our objects in
	// that time.
	n, what := since(own, writes(b, f.cfg))
	b.Log("hub by the restart: ", what)
	report(b, float64(n), "writes-to-hub-by-restart")
	changed := 0
	for name, now := range f.objects(b) {
		was := before[name]
		delete(before, name)
		if bytes.Equal(was, now) {
			continue
		}
		if changed++; changed <= 3 {
			b.Logf("the restart changed %s:\nwas %s\nis  %s", name, was, now)
		}
	}
	report(b, float64(changed+len(before)), "hub-objects-changed-by-restart")
}

// objects returns the placed templates of the hub and their bindings as JSON.
func (f *fleet) objects(b *testing.B) map[string][]byte {
	b.Helper()
	all := map[string][]byte{}
	for _, kind := range []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("DeploymentList"), corev1.SchemeGroupVersion.WithKind("ConfigMapList"),
		workv1alpha2.GroupVersion.WithKind("ResourceBindingList"),
	} {
		var l unstructured.UnstructuredList
		l.SetGroupVersionKind(kind)
		if err := f.hub.List(context.Background(), &l); err != nil {
			b.Fatal(err)
		}
		for _, o := range l.Items {
			if !strings.HasPrefix(o.GetNamespace(), "placed-") {
				continue
			}
			text, err := o.MarshalJSON()
			if err != nil {
				b.Fatal(err)
			}
			all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = text
		}
	}
	return all
}

// createPairs creates ConfigMaps, and after each ConfigMap its Deployment.
func createPairs(cfg *rest.Config, ns string, count, workers int) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var g errgroup.Group
	g.SetLimit(workers)
	for i := range count {
		g.Go(func() error {
			config, d := pair(ns, fmt.Sprintf("d%04d", i))
			if _, err := c.CoreV1().ConfigMaps(ns).Create(ctx, config, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := c.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// pair returns a Deployment and its ConfigMap.
func pair(ns, name string) (*corev1.ConfigMap, *appsv1.Deployment) {
	d := deployment(ns, name)
	d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": name}},
		Data:       map[string]string{"LOG_LEVEL": "info", "GREETING": "hello from " + name},
	}, d
}

// patience is the timeout for that many Deployments.
func patience(size int) time.Duration {
	return 2*time.Minute + time.Duration(size)*250*time.Millisecond
}

// memberWatch watches a namespace of a member. It acts as the deployment controller of the
// member, and reports every replica as available at once.
type memberWatch struct {
	written          atomic.Int64 // statuses
	present, settled time.Time
	done             chan error
}

type watches []*memberWatch

// follow starts to watch the namespace in each member, until count Deployments with their
// ConfigMaps are present and settled.
func (f *fleet) follow(b *testing.B, ns string, count int) watches {
	b.Helper()
	var all watches
	for _, cfg := range f.members {
		c := protobuf(b, cfg)
		ctx, cancel := context.WithTimeout(b.Context(), patience(count))
		b.Cleanup(cancel)
		m := &memberWatch{done: make(chan error, 1)}
		all = append(all, m)
		events := stream(ctx, b, c.AppsV1().Deployments(ns).Watch, c.CoreV1().ConfigMaps(ns).Watch)
		go func() { m.done <- m.run(ctx, c, count, events) }()
	}
	return all
}

func (m *memberWatch) run(ctx context.Context, c *kubernetes.Clientset, count int, events <-chan watch.Event) error {
	jobs := make(chan *appsv1.Deployment, count) // large enough that no event waits for the controller
	controller, ctx := errgroup.WithContext(ctx)
	for range controllerWorkers {
		controller.Go(func() error {
			for o := range jobs {
				if err := m.observe(c, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := m.see(ctx, count, events, jobs)
	close(jobs)
	return errors.Join(err, controller.Wait())
}

// see records when count Deployments with their ConfigMaps are present, and returns when all
// Deployments have a status, too. It sends each Deployment without a status to jobs.
func (m *memberWatch) see(ctx context.Context, count int, events <-chan watch.Event, jobs chan<- *appsv1.Deployment) error {
	present, observed, begun := map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]int64{}
	for len(observed) < count || len(present) < 2*count {
		var e watch.Event
		select {
		case e = <-events:
		case <-ctx.Done():
		}
		if e.Object == nil || e.Type == watch.Error {
			return fmt.Errorf("the watch ended (%v, %w): %d of %d objects are present, %d of %d Deployments observed",
				e.Object, context.Cause(ctx), len(present), 2*count, len(observed), count)
		}
		switch o := e.Object.(type) {
		case *corev1.ConfigMap:
			if o.Name != rootCA {
				present[o.UID] = true
			}
		case *appsv1.Deployment:
			present[o.UID] = true
			if o.Status.ObservedGeneration == o.Generation {
				observed[o.UID] = true
			} else if begun[o.UID] != o.Generation {
				begun[o.UID] = o.Generation
				jobs <- o
			}
		}
		if len(present) == 2*count && m.present.IsZero() {
			m.present = time.Now()
		}
	}
	m.settled = time.Now()
	return nil
}

// observe writes the final status that the deployment controller would write.
func (m *memberWatch) observe(c *kubernetes.Clientset, o *appsv1.Deployment) error {
	ctx := context.Background()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		replicas := *o.Spec.Replicas
		o.Status = appsv1.DeploymentStatus{
			ObservedGeneration: o.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable", Message: "ReplicaSet has successfully progressed."},
			},
		}
		_, err := c.AppsV1().Deployments(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
		if err == nil {
			m.written.Add(1)
			return nil
		}
		newer, getErr := c.AppsV1().Deployments(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if getErr != nil {
			return errors.Join(err, getErr)
		}
		o = newer
		return err
	})
}

// wait waits until all members are settled.
func (w watches) wait(b *testing.B, start time.Time) (t took) {
	b.Helper()
	for i, m := range w {
		if err := <-m.done; err != nil {
			b.Fatalf("member %d: %v", i, err)
		}
		t.present, t.settled = max(t.present, m.present.Sub(start)), max(t.settled, m.settled.Sub(start))
	}
	return t
}

// hubWatch watches the templates and bindings of a namespace of the hub.
type hubWatch struct {
	settled time.Time
	done    chan error
	stop    func()
	ended   chan struct{}
	// changes counts, by the name of the binding, changes of the binding and of its template.
	// Read it only after stop.
	changes map[string]int64
}

// followHub starts to watch the namespace on the hub. count Deployments with their ConfigMaps are
// settled when the binding of each is fully applied at its own generation, and each Deployment has
// a status of its own generation in which all replicas are ready. Each member has that many,
// because the members get copies.
func (f *fleet) followHub(b *testing.B, ns string, count int) *hubWatch {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience(count)+2*time.Minute)
	b.Cleanup(cancel)
	events := stream(ctx, b, protobuf(b, f.cfg).AppsV1().Deployments(ns).Watch, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return f.hub.Watch(ctx, &workv1alpha2.ResourceBindingList{}, client.InNamespace(ns), &client.ListOptions{Raw: &o})
	})
	w := &hubWatch{done: make(chan error, 1), stop: cancel, ended: make(chan struct{}), changes: map[string]int64{}}
	go func() {
		defer close(w.ended)
		w.run(ctx, 3*count, events)
	}()
	return w
}

// run reads events until ctx ends. It sends nil to done when the wanted number of objects is
// settled for the first time, or an error if the watch ends before that.
func (w *hubWatch) run(ctx context.Context, wanted int, events <-chan watch.Event) {
	settled := map[string]bool{}
	for {
		var e watch.Event
		select {
		case e = <-events:
		case <-ctx.Done():
		}
		if e.Object == nil || e.Type == watch.Error {
			if w.settled.IsZero() {
				w.done <- fmt.Errorf("the watch of the hub ended (%v, %w): %d of %d templates and bindings are settled", e.Object, context.Cause(ctx), len(settled), wanted)
			}
			return
		}
		name, is := settledOnHub(e.Object)
		if is {
			settled[name] = true
		} else {
			delete(settled, name)
		}
		switch e.Object.(type) {
		case *appsv1.Deployment:
			if e.Type != watch.Added {
				w.changes[strings.TrimPrefix(name, "template ")+"-deployment"]++
			}
		default:
			w.changes[strings.TrimPrefix(name, "binding ")]++
		}
		if len(settled) == wanted && w.settled.IsZero() {
			w.settled = time.Now()
			w.done <- nil
		}
	}
}

func settledOnHub(o runtime.Object) (name string, is bool) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return "template " + o.Name, o.Status.ObservedGeneration == o.Generation && o.Status.ReadyReplicas == *o.Spec.Replicas
	case *workv1alpha2.ResourceBinding:
		applied := meta.FindStatusCondition(o.Status.Conditions, workv1alpha2.ConditionFullyApplied)
		return "binding " + o.Name, applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == o.Generation
	}
	return "", false
}

func (w *hubWatch) wait(b *testing.B, start time.Time) time.Duration {
	b.Helper()
	if err := <-w.done; err != nil {
		b.Fatal(err)
	}
	return w.settled.Sub(start)
}

// writes ends the watch. It returns how often the bindings of a kind and their templates
// changed, on average and at most.
func (w *hubWatch) writes(kind string) (mean float64, most int64) {
	w.stop()
	<-w.ended
	var total, objects int64
	for name, n := range w.changes {
		if strings.HasSuffix(name, kind) {
			total, most, objects = total+n, max(most, n), objects+1
		}
	}
	return float64(total) / float64(max(1, objects)), most
}

// stream opens watches and forwards their events until ctx ends. An API server ends the watch
// of a client that is slow for a moment. stream then resumes the watch at its last
// resourceVersion.
func stream(ctx context.Context, b *testing.B, opens ...func(context.Context, metav1.ListOptions) (watch.Interface, error)) <-chan watch.Event {
	b.Helper()
	events := make(chan watch.Event, 1000)
	for _, open := range opens {
		w, err := open(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			for last := ""; ; {
				for e := range w.ResultChan() {
					if o, err := meta.Accessor(e.Object); err == nil {
						last = o.GetResourceVersion()
					}
					if e.Type == watch.Bookmark {
						continue
					}
					select {
					case events <- e:
					case <-ctx.Done():
						w.Stop()
						return
					}
				}
				if w, err = open(ctx, metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: last}); err != nil {
					if ctx.Err() == nil {
						events <- watch.Event{Type: watch.Error, Object: &metav1.Status{Message: err.Error()}}
					}
					return
				}
			}
		}()
	}
	return events
}

// protobuf returns a client whose watches are as cheap as those of controllers.
func protobuf(b *testing.B, cfg *rest.Config) *kubernetes.Clientset {
	b.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType, cfg.QPS = runtime.ContentTypeProtobuf, -1
	return clientset(b, cfg)
}

// policy creates a policy that places the objects of the kinds, such as "apps/v1 Deployment",
// of the namespace in every cluster.
func (f *fleet) policy(b *testing.B, ns string, kinds ...string) {
	b.Helper()
	p := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all"}}
	for _, k := range kinds {
		version, kind, _ := strings.Cut(k, " ")
		p.Spec.ResourceSelectors = append(p.Spec.ResourceSelectors, policyv1alpha1.ResourceSelector{APIVersion: version, Kind: kind})
	}
	if err := f.hub.Create(context.Background(), p); err != nil {
		b.Fatal(err)
	}
}
