package members

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
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
	"orrery.dev/orrery/test/spine"
)

// atOnce is the maximum number of concurrent writes of the hub to one member.
const atOnce = 16

// TestMembersInTrouble causes every fault of members, while workloads with overrides and their
// dependencies are placed and changed. A member without faults gets exactly one write for each
// change. Nothing moves, nothing is deleted. No copy reaches a member without its override, or
// in an older version than before. When its faults end, a member gets all copies in the wanted
// version.
func TestMembersInTrouble(t *testing.T) {
	testenv.Rotate(t, 2, "TestAgentsInTrouble", "TestMembersInTrouble")
	w := spine.Start(t, "trouble")
	p := w.Placing(1, spine.Members.List...)
	value := 1
	change := func() { value++; p.Override(0, value) }
	p.Override(0, value)
	p.Put(0, "app-0", "app-1", "conf-0")
	p.Have(spine.Members.List...)
	p.AllApplied()
	all := len(p.Wanted())
	for _, m := range spine.Members.List {
		p.Exactly(m, all)
	}
	phase := func(name string, do func(t *testing.T)) {
		t.Helper()
		whole := w.T
		if !t.Run(name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			do(t)
			w.Moved("ResourceBinding", "app-0-deployment", spine.ClusterNames...)
			p.Close()
		}) {
			t.FailNow() // the fleet may have faults left
		}
	}

	phase("KilledAndHung", func(t *testing.T) {
		// No template is newly placed in a cluster that is known not to answer. So the clusters
		// of app-2 are decided before the faults.
		held := make(chan struct{})
		letGo := sync.OnceFunc(func() { close(held) })
		t.Cleanup(letGo)
		for _, m := range []*testenv.Member{w.Oak, w.Pine} {
			m.OnWriteIn(w.Namespace, func(testenv.Write) { <-held })
		}
		change()
		p.Put(0, "app-2")
		w.Moved("ResourceBinding", "app-2-deployment", spine.ClusterNames...)
		w.Oak.Fail(testenv.Cut) // ends with Heal
		w.Must(w.Oak.SignalAPIServer(syscall.SIGKILL))
		w.Pine.Fail(testenv.Hang)
		for _, m := range []*testenv.Member{w.Oak, w.Pine} {
			m.OnWriteIn(w.Namespace, nil)
		}
		letGo()
		all = len(p.Wanted())
		p.Have(w.Birch)
		w.Lost(w.Oak)
		w.Lost(w.Pine)
		w.Binding("Deployment", "app-0", "FullyApplied=False/ClusterUnreachable")
		w.Binding("Secret", "app-2", "FullyApplied=False/ClusterUnreachable")
		w.Moved("ResourceBinding", "app-0-deployment", spine.ClusterNames...)
		p.Exactly(w.Birch, all)
		p.Exactly(w.Oak, 0)
		w.Oak.Heal()
		w.Pine.Heal()
		p.Have(spine.Members.List...)
		p.AllApplied()
		p.Exactly(w.Birch, 0)
		p.Exactly(w.Oak, all)
		p.AtMost(w.Pine, 4*all) // requests that hung are done afterwards
	})

	phase("FlappingAndExpired", func(t *testing.T) {
		w.Pine.Fail(testenv.Expired)
		// After every fifth write all connections end, and no answer to a write in progress arrives.
		var mu sync.Mutex
		writes, blips, blipping := 0, 0, true
		w.Oak.OnWriteIn(w.Namespace, func(r testenv.Write) {
			mu.Lock()
			defer mu.Unlock()
			if r.Namespace != w.Namespace || !blipping {
				return
			}
			if writes++; writes%5 == 0 {
				blips++
				w.Oak.Fail(testenv.Cut)
				w.Oak.Heal()
			}
		})
		for range 3 {
			change()
			p.Have(w.Birch, w.Oak)
			p.Exactly(w.Birch, all)
		}
		w.Oak.OnWriteIn(w.Namespace, nil)
		// Stop that first, so that a late write does not heal the faults below.
		mu.Lock()
		blipping = false
		mu.Unlock()
		// Then oak is cut off twice, each time long enough for the hub to notice.
		for i := range 2 {
			w.Oak.Fail(testenv.Cut)
			change()
			p.Have(w.Birch)
			w.Lost(w.Oak)
			p.Exactly(w.Birch, all)
			if i == 0 {
				w.Oak.Heal()
				p.Have(w.Oak)
			}
		}
		p.AtMost(w.Oak, 4*all+blips*atOnce)
		w.Lost(w.Pine)
		message(w, "cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Reachable", "certificate has expired")
		p.Exactly(w.Pine, 0)
		w.Pine.Heal()
		p.Have(w.Pine)
		p.Exactly(w.Pine, all)
	})

	// Oak comes back and takes half a second for each answer. Pine refuses the hub's credentials.
	phase("SlowAndRefusing", func(t *testing.T) {
		token, revoke := account(w, w.Pine)
		w.Eventually("join pine with the token", func() error { return joinAs(w, w.Pine, token) })
		w.Ready(w.Pine)
		log := w.Hub.LogSize()
		revoke()
		w.Oak.Slow(500 * time.Millisecond)
		w.Condition("cluster.orrery.dev/v1alpha1", "Cluster", "", "oak", "Reachable=True")
		w.Condition("cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Joined=False/Unauthorized")
		message(w, "cluster.orrery.dev/v1alpha1", "Cluster", "", "pine", "Joined", "refuses the credentials")
		for range 2 {
			change()
			p.Have(w.Birch)
			p.Exactly(w.Birch, all)
		}
		p.Exactly(w.Pine, 0)
		w.Join(w.Pine) // with other credentials
		p.Have(w.Pine, w.Oak)
		p.Exactly(w.Pine, all)
		// A slow cluster may skip versions.
		if writes, twice := p.Counted(w.Oak); writes > 3*all || len(twice) > 0 {
			t.Errorf("oak was written %d times; again and again: %v", writes, twice)
		}
		for line := range strings.Lines(w.Hub.LogSince(log)) {
			if strings.Contains(line, "cluster unreachable") && strings.Contains(line, "oak") {
				t.Errorf("one that answers counted as unreachable: %s", line)
			}
		}
		w.Oak.Heal()
		p.AllApplied()
	})

	phase("WithoutAnAPI", func(*testing.T) {
		w.Hub.Apply(w, widgets(true))
		t.Cleanup(func() {
			w.Hub.Remove(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
		})
		for _, m := range spine.Members.List {
			m.Apply(w, widgets(true))
			t.Cleanup(func() {
				m.Remove(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
			})
		}
		w.Hub.Apply(w, fmt.Sprintf("apiVersion: spine.example.org/v1\nkind: Widget\nmetadata: {name: w, namespace: %s, labels: {group: \"0\"}, annotations: {over: %s, edit: \"0\"}}\n", w.Namespace, spine.Without))
		uid := map[string]types.UID{}
		for _, m := range spine.Members.List {
			uid[m.Name] = widget(p, m, value)
			p.Exactly(m, 1)
		}
		// Oak no longer serves the kind, and birch has lost its definition with all its
		// objects.
		w.Oak.Apply(w, widgets(false))
		w.Birch.Remove(w, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "widgets.spine.example.org")
		for _, m := range []*testenv.Member{w.Oak, w.Birch} {
			message(w, work, "ResourceBinding", w.Namespace, widgetBinding, workv1alpha2.ConditionFullyApplied, m.Name+" does not serve spine.example.org/v1 Widget")
		}
		w.Condition(work, "ResourceBinding", w.Namespace, widgetBinding, "FullyApplied=False/"+workv1alpha2.ReasonAPINotServed)
		change()
		p.Have(spine.Members.List...)
		widget(p, w.Pine, value)
		p.Exactly(w.Oak, all)
		p.Exactly(w.Birch, all)
		p.Exactly(w.Pine, all+1)
		w.Moved("ResourceBinding", widgetBinding, spine.ClusterNames...)
		w.Oak.Apply(w, widgets(true))
		w.Birch.Apply(w, widgets(true))
		if is := widget(p, w.Oak, value); is != uid["oak"] {
			w.Errorf("it is another object than before: %s, not %s", is, uid["oak"])
		}
		widget(p, w.Birch, value)
		p.AllApplied()
		p.Exactly(w.Oak, 1)
		p.Exactly(w.Birch, 1)
		p.Exactly(w.Pine, 0)
	})

	phase("ChangedByAWebhook", func(t *testing.T) {
		w.Oak.Apply(w, strings.ReplaceAll(changing, "NAMESPACE", w.Namespace))
		t.Cleanup(func() {
			for _, kind := range []string{"MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"} {
				w.Oak.Remove(t, "admissionregistration.k8s.io/v1", kind, "", "spine-changing")
			}
		})
		w.Eventually("it changes what is written", func() error {
			o, err := testenv.Parse(spine.ConfigMap(w.Namespace, "probe", "value"))
			w.Must(err)
			err = w.Oak.Create(t.Context(), o[0])
			// The probe may exist although there was no answer.
			w.Oak.Remove(w, "v1", "ConfigMap", w.Namespace, "probe")
			if err != nil {
				return err
			}
			if data, _ := o[0].Object["data"].(map[string]any); data["key"] != "theirs" {
				return fmt.Errorf("data: %v", data)
			}
			return nil
		})
		for range 3 {
			change()
			p.Have(spine.Members.List...)
			p.AllApplied()
			for _, m := range spine.Members.List {
				p.Exactly(m, all+1) // and the Widget
			}
		}
		message(w, work, "ResourceBinding", w.Namespace, "app-0-configmap", workv1alpha2.ConditionFullyApplied, "data.key")
		w.Data(w.Oak, "app-0", "theirs")
		w.Data(w.Pine, "app-0", "value")
		w.CaughtUp(time.Second)
		for _, m := range spine.Members.List {
			p.Exactly(m, 0)
		}
	})
}

// account creates a ServiceAccount that may do everything in a member. It returns a token of
// the account, and a function that deletes the account.
func account(w *spine.World, m *testenv.Member) (token string, end func()) {
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
	w.Must(err)
	var asked *authenticationv1.TokenRequest
	w.Eventually("get a token of "+name, func() (err error) {
		asked, err = c.CoreV1().ServiceAccounts("default").CreateToken(w.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err
	})
	return asked.Status.Token, func() { m.Remove(w, "v1", "ServiceAccount", "default", name) }
}

// joinAs joins a member with a token, also if it is already joined.
func joinAs(w *spine.World, m *testenv.Member, token string) error {
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
	// The hub keeps these credentials, so that the test can make the member refuse them later.
	_, err = w.Hub.Orrery("cluster", "join", m.Name, "--cluster-kubeconfig", file, "--keep-credentials")
	return err
}

const (
	work          = "work.orrery.dev/v1alpha2"
	widgetBinding = "w-widget.spine.example.org"
)

// message waits until the message of a condition of an object on the hub contains part.
func message(w *spine.World, apiVersion, kind, namespace, name, condition, part string) {
	w.Helper()
	w.Eventually(fmt.Sprintf("%s of %s %s says %q", condition, kind, name, part), func() error {
		o, err := w.Hub.Find(w.Context(), apiVersion, kind, namespace, name)
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

// messageOf returns the message of a condition.
func messageOf(o *unstructured.Unstructured, condition string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok && c["type"] == condition {
			return fmt.Sprint(c["message"])
		}
	}
	return ""
}

// widget waits until a member has the Widget with that value of the override, and returns its
// UID.
func widget(p *spine.Placements, m *testenv.Member, value int) (uid types.UID) {
	p.Helper()
	p.Eventually(m.Name+" has the Widget as it is wanted now", func() error {
		o, err := m.Find(p.Context(), "spine.example.org/v1", "Widget", p.Namespace, "w")
		if err != nil {
			return err
		}
		uid = o.GetUID()
		if v, err := spine.VersionIn(o.Object); err != nil || v.Over != value {
			return fmt.Errorf("it is %+v, %w", v, err)
		}
		return nil
	})
	return uid
}

// widgets returns the definition of a kind. Members may not serve the API of this kind.
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

// changing makes a member change every ConfigMap of the test.
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

// TestRebuiltEmpty joins an empty cluster under the name of a lost one. All templates are
// placed there in the wanted version, never without their override, and the lost cluster is not
// touched.
func TestRebuiltEmpty(t *testing.T) {
	testenv.Rotate(t, 2, "TestRejoin", "TestEditedWhileAway", "TestRebuilt", "TestRebuiltEmpty")
	w := spine.Start(t, "rebuilt-empty")
	as := func(m *testenv.Member) *testenv.Member {
		w.Unjoin(m)
		elm, err := testenv.NewMember(t.TempDir(), "elm", m.DirectConfig())
		w.Must(err)
		t.Cleanup(func() {
			if err := elm.Close(); err != nil {
				t.Error(err)
			}
		})
		return elm
	}
	old, rebuilt := as(w.Pine), as(w.Birch)
	w.Join(old)
	t.Cleanup(func() {
		old.Heal()
		_ = w.Hub.Unjoin(old) // unjoins the cluster that has the name then
	})
	p := w.Placing(2, old, rebuilt)
	p.Override(0, 1)
	p.Put(0, "app-0", "app-1", "conf-0")
	p.Have(old)
	p.AllApplied()
	w.Available(old, "app-0", 2)
	all := len(p.Wanted())
	p.Exactly(old, all)
	before := w.Content(old)
	old.Fail(testenv.Cut)
	w.Lost(old)
	p.Override(0, 2)
	w.Eventually("another cluster of the name is refused", func() error {
		err := w.Hub.Join(rebuilt)
		if err == nil {
			t.Fatal("it joined while the one that it replaces had not left")
		}
		if !strings.Contains(err.Error(), "another cluster is joined as elm") {
			return err
		}
		return nil
	})
	w.Unjoin(old)
	w.Join(rebuilt)
	p.Have(rebuilt)
	p.AllApplied()
	w.Available(rebuilt, "app-0", 2)
	p.Exactly(rebuilt, all)
	p.Exactly(old, 0)
	w.Stays(old, before)
	p.Close()
}
