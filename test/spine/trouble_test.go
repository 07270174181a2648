package spine

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// atOnce is how many requests the hub has on their way in one member at most when it writes.
const atOnce = 16

// TestMembersInTrouble has all that can happen to a member happen while workloads with overrides, and what follows them, are placed and changed. Members that are
// well are written to exactly as often as something changes; nothing moves, nothing is deleted, nothing reaches any member without its override or in an older
// version than before; and whoever was in trouble has everything as it is wanted once that ends.
func TestMembersInTrouble(t *testing.T) {
	w := start(t, "trouble")
	p := w.placing(1, members.List...)
	value := 1
	change := func() { value++; p.override(0, value) }
	p.override(0, value)
	p.put(0, "app-0", "app-1", "conf-0")
	p.have(members.List...)
	p.told()
	all := len(p.wanted())
	for _, m := range members.List {
		p.exactly(m, all)
	}
	phase := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
			w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
			p.close()
		}) {
			t.FailNow() // it may have left a fleet that is not whole
		}
	}

	phase("KilledAndHung", func(*testing.T) {
		w.oak.Fail(testenv.Cut) // until it may come back
		w.must(w.oak.SignalAPIServer(syscall.SIGKILL))
		w.pine.Fail(testenv.Hang)
		change()
		p.put(0, "app-2")
		all = len(p.wanted())
		p.have(w.birch)
		w.lost(w.oak)
		w.lost(w.pine)
		w.binding("Deployment", "app-0", "FullyApplied=False/ClusterUnreachable")
		w.binding("Secret", "app-2", "FullyApplied=False/ClusterUnreachable")
		w.moved("ResourceBinding", "app-0-deployment", clusterNames...)
		p.exactly(w.birch, all)
		p.exactly(w.oak, 0)
		w.oak.Heal()
		w.pine.Heal()
		p.have(members.List...)
		p.told()
		p.exactly(w.birch, 0)
		p.exactly(w.oak, all)
		p.atMost(w.pine, 4*all) // what it was asked for while it hung it does afterwards
	})

	phase("FlappingAndExpired", func(t *testing.T) {
		w.pine.Fail(testenv.Expired)
		// Now and then every connection ends, and what is asked for is done without an answer.
		var writes, blips atomic.Int64
		w.oak.OnWrite(func(r testenv.Write) {
			if r.Namespace == w.ns && writes.Add(1)%5 == 0 {
				blips.Add(1)
				w.oak.Fail(testenv.Cut)
				w.oak.Heal()
			}
		})
		for range 3 {
			change()
			p.have(w.birch, w.oak)
			p.exactly(w.birch, all)
		}
		w.oak.OnWrite(nil)
		// Then it is away for long enough that the hub notices, again and again.
		for i := range 2 {
			w.oak.Fail(testenv.Cut)
			change()
			p.have(w.birch)
			w.lost(w.oak)
			p.exactly(w.birch, all)
			if i == 0 {
				w.oak.Heal()
				p.have(w.oak)
			}
		}
		p.atMost(w.oak, 4*all+int(blips.Load())*atOnce)
		w.lost(w.pine)
		w.message("cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Reachable", "certificate has expired")
		p.exactly(w.pine, 0)
		w.pine.Heal()
		p.have(w.pine)
		p.exactly(w.pine, all)
	})

	// Oak comes back, and takes two seconds for each answer; pine takes the hub's credentials no more.
	phase("SlowAndRefusing", func(t *testing.T) {
		token, revoke := w.account(w.pine)
		w.must(w.joinAs(w.pine, token))
		w.ready(w.pine)
		log := w.hub.LogSize()
		revoke()
		w.oak.Slow(2 * time.Second)
		w.condition("cluster.orrery.dev/v1alpha1", "Cluster", "", "oak", "Reachable=True")
		w.condition("cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Joined=False/Unauthorized")
		w.message("cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Joined", "refuses the credentials")
		for range 2 {
			change()
			p.have(w.birch)
			p.exactly(w.birch, all)
		}
		p.exactly(w.pine, 0)
		w.must(w.hub.Join(w.pine)) // with others
		p.have(w.pine, w.oak)
		p.exactly(w.pine, all)
		if writes, twice := p.counted(w.oak); writes > 3*all || len(twice) > 0 { // it may leave out versions
			t.Errorf("oak was written %d times; again and again: %v", writes, twice)
		}
		if strings.Contains(w.hub.LogSince(log), "cluster unreachable") {
			t.Error("one that answers counted as unreachable")
		}
		w.oak.Heal()
		p.told()
	})

	phase("WithoutAnAPI", func(*testing.T) {
		w.hub.Apply(w, widgets(true))
		t.Cleanup(func() {
			w.hub.Remove(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
		})
		for _, m := range members.List {
			m.Apply(w, widgets(true))
			t.Cleanup(func() {
				m.Remove(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
			})
		}
		w.hub.Apply(w, fmt.Sprintf("apiVersion: spine.example.org/v1\nkind: Widget\nmetadata: {name: w, namespace: %s, labels: {group: \"0\"}, annotations: {over: %s, edit: \"0\"}}\n", w.ns, without))
		uid := map[string]types.UID{}
		for _, m := range members.List {
			uid[m.Name] = p.widget(m, value)
			p.exactly(m, 1)
		}
		// One serves the kind no more, another has lost it with all there was of it.
		w.oak.Apply(w, widgets(false))
		w.birch.Remove(w, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
		for _, m := range []*testenv.Member{w.oak, w.birch} {
			w.message(work, "ResourceBinding", w.ns, widgetBinding, workv1alpha2.ConditionFullyApplied, m.Name+" does not serve spine.example.org/v1 Widget")
		}
		w.condition(work, "ResourceBinding", w.ns, widgetBinding, "FullyApplied=False/"+workv1alpha2.ReasonAPINotServed)
		change()
		p.have(members.List...)
		p.widget(w.pine, value)
		p.exactly(w.oak, all)
		p.exactly(w.birch, all)
		p.exactly(w.pine, all+1)
		w.moved("ResourceBinding", widgetBinding, clusterNames...)
		w.oak.Apply(w, widgets(true))
		w.birch.Apply(w, widgets(true))
		if is := p.widget(w.oak, value); is != uid["oak"] {
			w.Errorf("it is another object than before: %s, not %s", is, uid["oak"])
		}
		p.widget(w.birch, value)
		p.told()
		p.exactly(w.oak, 1)
		p.exactly(w.birch, 1)
		p.exactly(w.pine, 0)
	})

	phase("ChangedByAWebhook", func(t *testing.T) {
		w.oak.Apply(w, strings.ReplaceAll(changing, "NAMESPACE", w.ns))
		t.Cleanup(func() {
			for _, kind := range []string{"MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"} {
				w.oak.Remove(t, "admissionregistration.k8s.io/v1", kind, "", "spine-changing")
			}
		})
		w.eventually("it changes what is written", func() error {
			o, err := testenv.Parse(configMap(w.ns, "probe", "value"))
			w.must(err)
			if err := w.oak.Create(t.Context(), o[0]); err != nil {
				return err
			}
			w.must(w.oak.Delete(t.Context(), o[0]))
			if data, _ := o[0].Object["data"].(map[string]any); data["key"] != "theirs" {
				return fmt.Errorf("data: %v", data)
			}
			return nil
		})
		for range 3 {
			change()
			p.have(members.List...)
			p.told()
			for _, m := range members.List {
				p.exactly(m, all+1) // and the Widget
			}
		}
		w.message(work, "ResourceBinding", w.ns, "app-0-configmap", workv1alpha2.ConditionFullyApplied, "data.key")
		w.data(w.oak, "app-0", "theirs")
		w.data(w.pine, "app-0", "value")
		w.quiet(time.Second)
		for _, m := range members.List {
			p.exactly(m, 0)
		}
	})
}

// account makes a ServiceAccount that may do everything in a member, and returns a token of it, and what ends it.
func (w *world) account(m *testenv.Member) (token string, end func()) {
	w.Helper()
	const name = "spine-hub"
	m.Apply(w, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: default}]
`, name))
	w.Cleanup(func() { m.Remove(w, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", name) })
	c, err := kubernetes.NewForConfig(m.DirectConfig())
	w.must(err)
	asked, err := c.CoreV1().ServiceAccounts("default").CreateToken(w.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	return asked.Status.Token, func() { m.Remove(w, "v1", "ServiceAccount", "default", name) }
}

// joinAs joins a member, or joins it again, with a token.
func (w *world) joinAs(m *testenv.Member, token string) error {
	cfg, err := clientcmd.Load(m.Kubeconfig())
	if err != nil {
		return err
	}
	for _, user := range cfg.AuthInfos {
		user.Token = token
	}
	file := filepath.Join(w.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		return err
	}
	_, err = w.hub.Orrery("cluster", "join", m.Name, "--cluster-kubeconfig", file, "--keep-credentials") // which are to be refused later
	return err
}

const (
	work          = "work.orrery.dev/v1alpha2"
	widgetBinding = "w-widget.spine.example.org"
)

// message waits until a condition of an object on the hub says something.
func (w *world) message(apiVersion, kind, namespace, name, condition, part string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s of %s %s says %q", condition, kind, name, part), func() error {
		o, err := w.hub.Find(w.Context(), apiVersion, kind, namespace, name)
		if err != nil {
			return err
		}
		said := messageOf(o, condition)
		if !strings.Contains(said, part) {
			return errors.New(said)
		}
		return nil
	})
}

// messageOf is that of a condition.
func messageOf(o *unstructured.Unstructured, condition string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok && c["type"] == condition {
			return fmt.Sprint(c["message"])
		}
	}
	return ""
}

// widget waits until a member has the Widget with a value of the override, and returns its UID.
func (p *placements) widget(m *testenv.Member, value int) (uid types.UID) {
	p.Helper()
	p.eventually(m.Name+" has the Widget as it is wanted now", func() error {
		o, err := m.Find(p.Context(), "spine.example.org/v1", "Widget", p.ns, "w")
		if err != nil {
			return err
		}
		uid = o.GetUID()
		if v, err := versionIn(o.Object); err != nil || v.over != value {
			return fmt.Errorf("it is %+v, %w", v, err)
		}
		return nil
	})
	return uid
}

// widgets is the definition of a kind of which members may be without the API.
func widgets(served bool) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.spine.example.org}
spec:
  group: spine.example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions: [{name: v1, served: %t, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, served)
}

// changing is what a member does to every ConfigMap of the test.
const changing = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: spine-changing}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "replace", path: "/data/key", value: "theirs"}]'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: spine-changing}
spec:
  policyName: spine-changing
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`

// TestRebuiltEmpty joins another cluster, with nothing in it, under the name of one that is lost: everything is placed there as it is wanted now, never without
// its override, and the lost one is left alone.
func TestRebuiltEmpty(t *testing.T) {
	w := start(t, "rebuilt-empty")
	as := func(m *testenv.Member) *testenv.Member {
		w.must(w.hub.Unjoin(m))
		elm, err := testenv.NewMember(t.TempDir(), "elm", m.DirectConfig())
		w.must(err)
		t.Cleanup(func() {
			if err := elm.Close(); err != nil {
				t.Error(err)
			}
		})
		return elm
	}
	old, rebuilt := as(w.pine), as(w.birch)
	w.must(w.hub.Join(old))
	t.Cleanup(func() {
		old.Heal()
		_ = w.hub.Unjoin(old) // whichever has the name
	})
	p := w.placing(2, old, rebuilt)
	p.override(0, 1)
	p.put(0, "app-0", "app-1", "conf-0")
	p.have(old)
	p.told()
	w.available(old, "app-0", 2)
	all := len(p.wanted())
	p.exactly(old, all)
	before := w.content(old)
	old.Fail(testenv.Cut)
	w.lost(old)
	p.override(0, 2)
	if err := w.hub.Join(rebuilt); err == nil || !strings.Contains(err.Error(), "another cluster is joined as elm") {
		t.Errorf("it joined while the one that it replaces had not left: %v", err)
	}
	w.must(w.hub.Unjoin(old))
	w.must(w.hub.Join(rebuilt))
	p.have(rebuilt)
	p.told()
	w.available(rebuilt, "app-0", 2)
	p.exactly(rebuilt, all)
	p.exactly(old, 0)
	w.stays(old, before)
	p.close()
}
