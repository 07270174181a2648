package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// TestRandomWork uses these namespaces of the hub. The members have all of them except
// ownNamespace before any template is placed.
const (
	ownNamespace       = "work-own"
	abortNamespace     = "work-abort"
	overwriteNamespace = "work-overwrite"
)

var workNamespaces = []string{ownNamespace, abortNamespace, overwriteNamespace}

// workKinds are the kinds that TestRandomWork places. Each has a policy of its own.
var workKinds = []spine.Kind{{APIVersion: "v1", Kind: "ConfigMap"}, {APIVersion: "batch/v1", Kind: "Job"}, {APIVersion: "apps/v1", Kind: "StatefulSet"}}

const (
	// segment is the maximum number of steps between two comparisons of the fleet.
	segment = 40
	// despite is how long clusters without faults may take to reach the wanted state while
	// others have faults.
	despite = time.Minute
)

// TestRandomWork does STEPS steps chosen by a seed, for SEEDS seeds from SEED on, with Jobs
// that end, objects that existed in a cluster before, deletions with each propagation policy,
// aggregated APIs that do not answer, and changing rights of the hub. It checks each write in a
// member against the invariants. Several times in a run it compares hub and members: first only
// the clusters without faults, then all after the faults have ended.
func TestRandomWork(t *testing.T) {
	first, count, n := testenv.Seed(t), testenv.Count(t, "SEEDS", 0, 20), testenv.Count(t, "STEPS", 32, 150)
	if count == 0 {
		t.Skip("make soak runs it, or SEEDS=1: its judge has not passed 20 seeds yet")
	}
	for seed := first; seed < first+uint64(count); seed++ {
		t.Run(fmt.Sprintf("Seed%d", seed), func(t *testing.T) {
			w := newRandomWork(t)
			defer func() {
				if t.Failed() {
					t.Logf("again with: SEED=%d SEEDS=1 STEPS=%d go test -count 1 -run 'TestRandomWork$' ./test/spine/hub\n%s", seed, n, strings.Join(w.did, "\n"))
				}
			}()
			w.run(workSteps(seed, n))
		})
	}
}

// randomWork is one run of TestRandomWork.
type randomWork struct {
	*spine.World
	admin   *testenv.API // of the hub, usable across restarts of the server
	history *history
	roles   map[string]map[string]any // the rules of cluster-admin, by member
	did     []string                  // the steps, and their results
	judged  map[string]int            // how many writes judgeCreations has judged, by member

	mu sync.Mutex
	// placed has the clusters in each policy, by NAMESPACE KIND.
	placed map[string][]string
	// deleted has the propagation policies with which each template was deleted.
	deleted map[types.UID][]metav1.DeletionPropagation
	// ended has the copies of Jobs that ended, with the times, by MEMBER TEMPLATE.
	ended map[string]map[types.UID]time.Time
	// created has the copies of Jobs in the order of their creation, by MEMBER TEMPLATE.
	created map[string][]types.UID
	// reruns counts the requested reruns of each template.
	reruns map[types.UID]int
	// before has the objects that were in a member before the hub, by MEMBER KIND
	// NAMESPACE/NAME.
	before map[string]types.UID
	// orphans has the pods that a deletion orphaned, by MEMBER NAMESPACE/POD.
	orphans map[string]types.UID
	// sick has the members with an API that does not answer.
	sick map[string]bool
	// denied has the kind whose objects the hub may not write, by member.
	denied map[string]string
	// cut has the members that do not answer.
	cut map[string]bool
	// forbidden has the members that do not grant the hub all the rights that it requires. The
	// hub does not use such a member.
	forbidden map[string]bool
	wrong     []string
}

func newRandomWork(t *testing.T) *randomWork {
	t.Helper()
	world := spine.Alone(t, workNamespaces[0])
	world.Others = workNamespaces[1:]
	cfg, err := world.Hub.Config()
	world.Must(err)
	d, err := dynamic.NewForConfig(cfg)
	world.Must(err)
	w := &randomWork{
		World: world, history: &history{resource: d.Resource(bindingResource), bindings: map[types.UID]*past{}},
		roles: map[string]map[string]any{}, judged: map[string]int{}, placed: map[string][]string{},
		deleted: map[types.UID][]metav1.DeletionPropagation{}, ended: map[string]map[types.UID]time.Time{}, created: map[string][]types.UID{}, reruns: map[types.UID]int{},
		before: map[string]types.UID{}, orphans: map[string]types.UID{}, sick: map[string]bool{}, denied: map[string]string{}, forbidden: map[string]bool{}, cut: map[string]bool{},
	}
	w.admin, err = testenv.NewAPI(cfg)
	w.Must(err)
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan struct{})
	go func() { w.history.follow(ctx); close(followed) }()
	var following sync.WaitGroup
	t.Cleanup(func() { cancel(); <-followed; following.Wait() })
	for _, m := range spine.Members.List {
		direct, err := dynamic.NewForConfig(m.DirectConfig())
		w.Must(err)
		following.Go(func() {
			w.followEnds(ctx, m, direct.Resource(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}))
		})
		w.judged[m.Name] = m.Mark()
		for _, ns := range workNamespaces {
			m.OnWriteIn(ns, func(r testenv.Write) { w.judge(m, r) })
		}
	}
	t.Cleanup(w.cleanUp)
	return w
}

// cleanUp restores the members for other tests.
func (w *randomWork) cleanUp() {
	if w.Failed() {
		w.Explain()
	}
	w.Hub.Kill()
	ctx := context.Background()
	for _, m := range spine.Members.List {
		for _, ns := range workNamespaces {
			m.OnWriteIn(ns, nil)
		}
		w.heal(m)
		for _, ns := range workNamespaces {
			m.Remove(w, "v1", "Namespace", "", ns)
		}
	}
	for _, m := range spine.Members.List {
		for _, ns := range workNamespaces {
			testenv.Eventually(w, "namespace "+ns+" is gone from "+m.Name, spine.Patience, func() error {
				_, err := m.Find(ctx, "v1", "Namespace", "", ns)
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(err, errors.New("it is there"))
			})
		}
	}
}

// run does the steps in segments, and compares after each segment.
func (w *randomWork) run(all []workStep) {
	begin := time.Now()
	for _, ns := range workNamespaces {
		w.Must(w.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ns + "}\n"))
		for _, k := range workKinds {
			w.Must(w.place(ns, k, spine.ClusterNames...))
		}
		if ns != ownNamespace {
			for _, m := range spine.Members.List {
				m.Apply(w, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
			}
		}
	}
	worked := 0
	for i, s := range all {
		at := time.Since(begin)
		err := s.do(w)
		line := fmt.Sprintf("%3d %6.2fs %s", i, at.Seconds(), s.what)
		if err != nil {
			line += ": " + strings.SplitN(err.Error(), "\n", 2)[0]
		} else {
			worked++
		}
		w.did = append(w.did, line)
		if (i+1)%min(segment, max(1, len(all)/2)) == 0 || i == len(all)-1 {
			w.calm(fmt.Sprintf("after step %d", i))
			if w.Failed() {
				return
			}
		}
	}
	w.Logf("%d of %d steps worked in %.1fs", worked, len(all), time.Since(begin).Seconds())
	if worked < len(all)/3 {
		w.Errorf("of %d steps only %d worked: the hub was hardly tried", len(all), worked)
	}
}

// whys logs the status of each copy that differs, from the hub and from the cluster.
func (w *randomWork) whys(differ error) {
	for line := range strings.SplitSeq(differ.Error(), "\n") {
		cluster, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		what, _, _ := strings.Cut(rest, " ")
		parts := strings.Split(what, "/")
		if len(parts) != 3 {
			continue
		}
		out, err := w.Hub.Orrery("why", parts[1]+"/"+parts[2], "--namespace", parts[0])
		w.Logf("orrery why %s: %v\n%s", what, err, out)
		for _, m := range spine.Members.List {
			if m.Name == cluster {
				for _, k := range spine.Kinds {
					if k.Kind == parts[1] {
						o, err := m.Find(context.Background(), k.APIVersion, k.Kind, parts[0], parts[2])
						w.Logf("%s has %v %v", cluster, o, err)
					}
				}
			}
		}
	}
}

// calm compares the clusters without faults, then ends all faults and compares all.
func (w *randomWork) calm(when string) {
	w.Helper()
	if !w.Hub.Running() {
		w.Restart()
	}
	begin := time.Now()
	if differ := pollFor(despite, func() error { return w.compare(false) }); differ != nil {
		w.Errorf("%s, clusters that are well differ from the hub while sick=%v denied=%v forbidden=%v cut=%v:\n%v", when, w.sick, w.denied, w.forbidden, w.cut, differ)
	}
	well := time.Since(begin)
	for _, m := range spine.Members.List {
		w.heal(m)
	}
	differ := pollFor(converging, func() error { return w.compare(true) })
	if differ == nil {
		w.Quiet(time.Second)
		differ = w.compare(true) // no write was pending
	}
	if differ != nil {
		w.Errorf("%s, hub and members differ:\n%v", when, differ)
		w.whys(differ)
	}
	w.did = append(w.did, fmt.Sprintf("    compared %s: others in trouble %.1fs, all %.1fs", when, well.Seconds(), (time.Since(begin)-well).Seconds()))
	w.judgeCreations()
	w.judgeOrphans()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, wrong := range w.wrong {
		w.Error(wrong)
	}
	w.wrong = nil
}
