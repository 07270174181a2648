package mirror

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/testenv"
)

func requesting(requests corev1.ResourceList) *scheduler.Claim {
	return scheduler.NewClaim(&interpreter.Requirements{Requests: requests})
}

func cpu(q string) *scheduler.Claim {
	return requesting(corev1.ResourceList{"cpu": resource.MustParse(q)})
}

// setUp adds a node, pod or quota to a capacity as the mirror does, and reports whether that
// changed the capacity.
func setUp(t testing.TB, c *capacity, gr schema.GroupResource, name, body string) (changed bool) {
	t.Helper()
	var err error
	switch gr {
	case nodes:
		var n *node
		n, err = newNode([]byte(body))
		changed = c.setNode(name, n)
	case pods:
		var p *pod
		p, err = newPod([]byte(body))
		changed = c.setPod(key{"shop", name}, p)
	case quotas:
		var q *quota
		q, err = newQuota(name, []byte(body))
		changed = c.setQuota(key{"shop", name}, q)
	}
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// nodeBody returns a node with 4 CPUs and a limit of 10 pods.
func nodeBody(name, labels, taints string) string {
	return `{"metadata": {"name": "` + name + `", "labels": {` + labels + `}}, "spec": {"taints": [` + taints + `]},
		"status": {"allocatable": {"cpu": "4", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]}}`
}

// podBody returns a pod that requests cpu. more is added to its spec.
func podBody(cpu, more string) string {
	return `{"spec": {"containers": [{"resources": {"requests": {"cpu": "` + cpu + `"}}}]` + more + `}}`
}

func fitsAll(t *testing.T, what string, r *FreeCapacity, claims []*scheduler.Claim, want ...int64) {
	t.Helper()
	for i, claim := range claims {
		if got, _ := r.Fits(claim, false); got != want[i] {
			t.Errorf("%s: %d fit of claim %d, want %d", what, got, i, want[i])
		}
	}
}

// TestFreeCapacityWithout: replicas that are on their way to a cluster, and pods that have no node
// yet, each take capacity of one node.
func TestFreeCapacityWithout(t *testing.T) {
	c := newCapacity()
	for _, name := range []string{"n1", "n2"} {
		setUp(t, c, nodes, name, nodeBody(name, "", ""))
	}
	claims := []*scheduler.Claim{cpu("3"), cpu("1"), nil}
	empty := c.measure()
	fitsAll(t, "empty", empty, claims, 2, 8, 20)
	taken := []scheduler.Taken{
		{Claim: requesting(corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}), Replicas: 5}, {Claim: cpu("1"), Replicas: 1}, {Replicas: 3}, {Claim: cpu("1"), Replicas: 1},
	}
	fitsAll(t, "taken", empty.Without(taken), claims, 1, 6, 15)
	fitsAll(t, "more is taken than there is", empty.Without([]scheduler.Taken{{Claim: cpu("3"), Replicas: 9}}), claims, 0, 2, 18)
	fitsAll(t, "empty as before", empty, claims, 2, 8, 20)

	setUp(t, c, pods, "p1", podBody("1", ""))
	setUp(t, c, pods, "p2", podBody("1", ""))
	setUp(t, c, pods, "huge", podBody("9", ""))
	fitsAll(t, "pods wait", c.measure(), claims, 1, 6, 18)
	setUp(t, c, pods, "p1", podBody("1", `, "nodeName": "n2"`))
	fitsAll(t, "one has a node", c.measure(), claims, 2, 6, 18)
	c.setPod(key{"shop", "p2"}, nil)
	c.setPod(key{"shop", "huge"}, nil)
	fitsAll(t, "the others are gone", c.measure(), claims, 2, 7, 19)
	if len(c.waiting) > 0 {
		t.Errorf("%d kinds of pods wait", len(c.waiting))
	}
	c.setNode("n2", nil)
	fitsAll(t, "a node is gone", c.measure(), claims, 1, 4, 10)
}

// TestFreeCapacityOnNodesThatTakeThem: replicas fit only on nodes that their selectors, affinity
// and tolerations allow, and take capacity only there. The same holds for pods that have no node
// yet.
func TestFreeCapacityOnNodesThatTakeThem(t *testing.T) {
	c := newCapacity()
	gpu := nodeBody("gpu", `"pool": "b", "zone": "y"`, `{"key": "gpu", "value": "yes", "effect": "NoExecute"}`)
	for name, body := range map[string]string{
		"control": nodeBody("control", `"pool": "a"`, `{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}`),
		"plain":   nodeBody("plain", `"pool": "a", "zone": "x"`, `{"key": "slow", "effect": "PreferNoSchedule"}`),
		"gpu":     gpu,
	} {
		if !setUp(t, c, nodes, name, body) || setUp(t, c, nodes, name, body) {
			t.Errorf("%s is no news, or news twice", name)
		}
	}
	one := corev1.ResourceList{"cpu": resource.MustParse("1")}
	tolerating := func(key string) []corev1.Toleration {
		return []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
	affinity := func(key string, operator corev1.NodeSelectorOperator, values ...string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}},
		}}}
	}
	plain, all := scheduler.NewClaim(&interpreter.Requirements{Requests: one}), scheduler.NewClaim(&interpreter.Requirements{Requests: one, Tolerations: tolerating("")})
	onGPU := scheduler.NewClaim(&interpreter.Requirements{Requests: one, Tolerations: tolerating("gpu"), NodeSelector: map[string]string{"pool": "b"}})
	free := c.measure()
	fitsAll(t, "empty", free, []*scheduler.Claim{
		plain, all, onGPU,
		scheduler.NewClaim(&interpreter.Requirements{Requests: one, Tolerations: tolerating("gpu")}),
		scheduler.NewClaim(&interpreter.Requirements{Requests: one, NodeSelector: map[string]string{"pool": "c"}}),
		scheduler.NewClaim(&interpreter.Requirements{Requests: one, Tolerations: tolerating("gpu"), NodeAffinity: affinity("zone", corev1.NodeSelectorOpNotIn, "x")}),
		scheduler.NewClaim(&interpreter.Requirements{Requests: one, NodeAffinity: affinity("zone", "Wrong", "x")}),
		scheduler.NewClaim(&interpreter.Requirements{Requests: one, NodeAffinity: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"plain"}}},
		}}}}),
	}, 4, 12, 4, 8, 0, 4, 0, 4)

	claims := []*scheduler.Claim{plain, onGPU, all}
	fitsAll(t, "three are bound for the gpu", free.Without([]scheduler.Taken{{Claim: onGPU, Replicas: 3}}), claims, 4, 1, 9)
	setUp(t, c, pods, "waits", podBody("1", `, "nodeSelector": {"pool": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]`))
	setUp(t, c, pods, "waits for ever", podBody("1", `, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
		{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["c"]}]}]}}}`))
	fitsAll(t, "a pod waits for the gpu, and one for no node", c.measure(), claims, 4, 3, 11)
	if !setUp(t, c, pods, "waits", podBody("1", `, "nodeSelector": {"pool": "a"}`)) {
		t.Error("that a pod waits for another node is no news")
	}
	fitsAll(t, "it waits for another node", c.measure(), claims, 3, 4, 11)
	setUp(t, c, nodes, "gpu", nodeBody("gpu", `"pool": "b", "zone": "y"`, ""))
	c.setPod(key{"shop", "waits"}, nil)
	fitsAll(t, "the taint is gone", c.measure(), claims, 8, 4, 12)
	fitsAll(t, "the free capacity does not change", free, claims, 4, 4, 12)
}

// TestFreeCapacityRemembersSomeClaims: the result for a claim is right although the capacity caches
// only mostTakers claims.
func TestFreeCapacityRemembersSomeClaims(t *testing.T) {
	c := newCapacity()
	setUp(t, c, nodes, "n", nodeBody("n", `"pool": "p7"`, ""))
	free := c.measure()
	for range 2 {
		for i := range mostTakers + 10 {
			want := int64(0)
			if i == 7 {
				want = 10
			}
			claim := scheduler.NewClaim(&interpreter.Requirements{NodeSelector: map[string]string{"pool": fmt.Sprint("p", i)}})
			if got, _ := free.Fits(claim, false); got != want {
				t.Fatalf("%d fit of %d, want %d", got, i, want)
			}
		}
	}
	if n := len(free.places.taker); n > mostTakers {
		t.Errorf("%d claims are remembered", n)
	}
}

// TestFreeCapacityWithinQuotas: ResourceQuotas of the namespace limit what fits, if they count the
// pods.
func TestFreeCapacityWithinQuotas(t *testing.T) {
	web := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l["cpu"] = resource.MustParse(cpu)
		}
		if memory != "" {
			l["memory"] = resource.MustParse(memory)
		}
		return l
	}
	claim := func(change func(*interpreter.Requirements)) *scheduler.Claim {
		r := &interpreter.Requirements{
			Kind: web, Namespace: "shop", Requests: list("500m", "1Mi"), Limits: list("1", ""),
			Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort},
		}
		if change != nil {
			change(r)
		}
		return scheduler.NewClaim(r)
	}
	classy := claim(func(r *interpreter.Requirements) { r.PriorityClassName = "high" })
	const unlimited = 80 // by the nodes alone
	status := func(hard, used string) string { return `{"status": {"hard": {` + hard + `}, "used": {` + used + `}}}` }
	scoped := func(spec string) string {
		return `{"spec": {` + spec + `}, "status": {"hard": {"pods": "3"}, "used": {"pods": "1"}}}`
	}
	selector := func(operator, values string) string {
		return scoped(`"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "` + operator + `", "values": [` + values + `]}]}`)
	}
	for name, tc := range map[string]struct {
		quotas []string
		claim  *scheduler.Claim
		there  bool
		taken  []scheduler.Taken
		want   int64
	}{
		"None":         {claim: claim(nil), want: unlimited},
		"CPU":          {quotas: []string{status(`"requests.cpu": "4"`, `"requests.cpu": "1200m"`)}, claim: claim(nil), want: 5},
		"CPUByItsName": {quotas: []string{status(`"cpu": "4"`, `"cpu": "1"`)}, claim: claim(nil), want: 6},
		"Memory":       {quotas: []string{status(`"requests.memory": "7Mi"`, `"requests.memory": "5000Ki"`)}, claim: claim(nil), want: 2},
		"Limits":       {quotas: []string{status(`"limits.cpu": "4", "limits.memory": "1"`, `"limits.cpu": "1", "limits.memory": "1"`)}, claim: claim(nil), want: 3},
		"Pods":         {quotas: []string{status(`"pods": "9"`, `"pods": "2"`)}, claim: claim(nil), want: 7},
		"CountOfPods":  {quotas: []string{status(`"count/pods": "9"`, `"count/pods": "3"`)}, claim: claim(nil), want: 6},
		"Exceeded":     {quotas: []string{status(`"pods": "1"`, `"pods": "2"`)}, claim: claim(nil), want: 0},
		"SeveralQuotas": {
			quotas: []string{status(`"pods": "9"`, `"pods": "2"`), status(`"requests.cpu": "1"`, `"requests.cpu": "0"`)}, claim: claim(nil), want: 2,
		},
		"NotUsedYet":       {quotas: []string{status(`"pods": "9"`, ``)}, claim: claim(nil), want: unlimited},
		"WhatItLacks":      {quotas: []string{status(`"requests.example.com/gpu": "0", "services": "0", "count/secrets": "0"`, `"requests.example.com/gpu": "0", "services": "0", "count/secrets": "0"`)}, claim: claim(nil), want: unlimited},
		"OtherNamespace":   {quotas: []string{status(`"pods": "1"`, `"pods": "1"`)}, claim: claim(func(r *interpreter.Requirements) { r.Namespace = "other" }), want: unlimited},
		"NothingIsKnown":   {quotas: []string{status(`"pods": "1"`, `"pods": "1"`)}, want: 1000},
		"NoMoreObjects":    {quotas: []string{status(`"count/deployments.apps": "2"`, `"count/deployments.apps": "2"`)}, claim: claim(nil), want: 0},
		"OneMoreObject":    {quotas: []string{status(`"count/deployments.apps": "2"`, `"count/deployments.apps": "1"`)}, claim: claim(nil), want: unlimited},
		"TheObjectIsThere": {quotas: []string{status(`"count/deployments.apps": "2", "pods": "8"`, `"count/deployments.apps": "2", "pods": "1"`)}, claim: claim(nil), there: true, want: 7},
		"ObjectsByAnOldName": {
			quotas: []string{status(`"replicationcontrollers": "2"`, `"replicationcontrollers": "2"`)},
			claim: claim(func(r *interpreter.Requirements) {
				r.Kind = schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}
			}), want: 0,
		},
		"APod": {
			quotas: []string{status(`"count/pods": "2"`, `"count/pods": "1"`)},
			claim:  claim(func(r *interpreter.Requirements) { r.Kind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"} }), want: 1,
		},
		"ObjectsOnTheirWay": {
			quotas: []string{status(`"count/deployments.apps": "2"`, `"count/deployments.apps": "1"`)}, claim: claim(nil), taken: []scheduler.Taken{{Claim: claim(nil), Objects: 1}}, want: 0,
		},
		"ReplicasOnTheirWay": {
			quotas: []string{status(`"pods": "9", "requests.cpu": "10"`, `"pods": "2", "requests.cpu": "0"`), scoped(`"scopes": ["BestEffort"]`)}, claim: claim(nil),
			taken: []scheduler.Taken{
				{Claim: claim(func(r *interpreter.Requirements) { r.Requests = nil }), Replicas: 2},
				{Claim: claim(nil), Replicas: 3, Objects: 1},
				{Claim: claim(func(r *interpreter.Requirements) { r.Namespace = "other" }), Replicas: 10},
			},
			want: 2,
		},
		"WhatFitsOnNoNodeCountsInQuotas": {
			quotas: []string{status(`"pods": "9"`, `"pods": "0"`)}, claim: claim(nil),
			taken: []scheduler.Taken{{Claim: claim(func(r *interpreter.Requirements) { r.Requests = list("100", "") }), Replicas: 5}}, want: 4,
		},
		"Scope":             {quotas: []string{scoped(`"scopes": ["NotTerminating", "NotBestEffort"]`)}, claim: claim(nil), want: 2},
		"OtherScope":        {quotas: []string{scoped(`"scopes": ["NotTerminating", "BestEffort"]`)}, claim: claim(nil), want: unlimited},
		"UnknownScope":      {quotas: []string{scoped(`"scopes": ["Moonlit"]`)}, claim: claim(nil), want: unlimited},
		"ScopeSelector":     {quotas: []string{scoped(`"scopeSelector": {"matchExpressions": [{"scopeName": "NotTerminating", "operator": "Exists"}]}`)}, claim: claim(nil), want: 2},
		"PriorityIn":        {quotas: []string{selector("In", `"low", "high"`)}, claim: classy, want: 2},
		"PriorityNotAmong":  {quotas: []string{selector("In", `"low"`)}, claim: classy, want: unlimited},
		"PriorityNotIn":     {quotas: []string{selector("NotIn", `"low"`)}, claim: classy, want: 2},
		"PriorityNot":       {quotas: []string{selector("NotIn", `"high"`)}, claim: classy, want: unlimited},
		"PriorityExists":    {quotas: []string{selector("Exists", ``)}, claim: classy, want: 2},
		"PriorityIsNot":     {quotas: []string{selector("DoesNotExist", ``)}, claim: classy, want: unlimited},
		"PriorityByDefault": {quotas: []string{selector("NotIn", `"low"`)}, claim: claim(nil), want: unlimited},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapacity()
			for i := range 10 {
				setUp(t, c, nodes, fmt.Sprint(i), `{"metadata": {"name": "`+fmt.Sprint(i)+`"}, "status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "100"}, "conditions": [{"type": "Ready", "status": "True"}]}}`)
			}
			for i, q := range tc.quotas {
				if !setUp(t, c, quotas, fmt.Sprint(i), q) || setUp(t, c, quotas, fmt.Sprint(i), q) {
					t.Errorf("quota %d is no news, or news twice", i)
				}
			}
			full := c.measure()
			before, _ := full.Fits(tc.claim, tc.there)
			free := full
			if tc.taken != nil {
				free = full.Without(tc.taken)
			}
			if got, _ := free.Fits(tc.claim, tc.there); got != tc.want {
				t.Errorf("%d fit, want %d", got, tc.want)
			}
			if got, _ := full.Fits(tc.claim, tc.there); got != before {
				t.Errorf("%d fit in the capacity that does not change, want %d", got, before)
			}
			for i := range tc.quotas {
				c.setQuota(key{"shop", fmt.Sprint(i)}, nil)
			}
			if got, _ := c.measure().Fits(tc.claim, tc.there); got < unlimited {
				t.Errorf("%d fit without quotas", got)
			}
		})
	}
}

// TestQuotasKnown: once ResourceQuotas are required, the free capacity of a cluster is unknown
// until they are listed, unless the cluster does not serve them or refuses access.
func TestQuotasKnown(t *testing.T) {
	m := newMirror(openStore(t), newFleet(), testLogger(t))
	without := &map[schema.GroupVersionKind]bool{}
	with := &map[schema.GroupVersionKind]bool{quotaKind: true}
	forbidden := apierrors.NewForbidden(quotas, "", errors.New("no"))
	for name, tc := range map[string]struct {
		required, planned *map[schema.GroupVersionKind]bool
		table             *table
		want              bool
	}{
		"NobodyRequiresThem":  {required: without, want: true},
		"NobodyWaitsForThem":  {required: without, planned: without, table: &table{wanted: true}, want: true},
		"NotPlannedYet":       {required: with},
		"NotPlannedAnewYet":   {required: with, planned: without},
		"OfAnEarlierProcess":  {required: with, table: &table{synced: true}},
		"NotServed":           {required: with, planned: with, want: true},
		"NotListedYet":        {required: with, planned: with, table: &table{wanted: true}},
		"Listed":              {required: with, planned: with, table: &table{wanted: true, synced: true}, want: true},
		"ListedSomeOtherTime": {required: with, planned: with, table: &table{wanted: true, problem: errors.New("later")}},
		"NotForUs":            {required: with, planned: with, table: &table{wanted: true, problem: fmt.Errorf("list: %w", forbidden)}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			m.required.Store(tc.required)
			c := newCluster(m, "east", nil)
			c.decidedOn.required = tc.planned
			if tc.table != nil {
				c.tables[quotas] = tc.table
			}
			if got := c.quotasKnown(); got != tc.want {
				t.Errorf("known: %t", got)
			}
		})
	}
}

// TestCapacityOfDroppedTypes: nodes, pods and ResourceQuotas do not count any more when their type
// is no longer mirrored, also after it is mirrored again. Subscribers are notified once for each
// type.
func TestCapacityOfDroppedTypes(t *testing.T) {
	m := newMirror(openStore(t), newFleet(), testLogger(t))
	c := newCluster(m, "east", &testSource{reachable: true})
	m.replace("east", c)
	required := &map[schema.GroupVersionKind]bool{quotaKind: true}
	m.required.Store(required)
	c.decidedOn.required = required
	measured := map[schema.GroupResource]any{
		nodes: must[*node](t)(newNode([]byte(nodeBody("n1", "", "")))), pods: must[*pod](t)(newPod([]byte(podBody("1", `, "nodeName": "n1"`)))),
		quotas: must[*quota](t)(newQuota("few", []byte(`{"status": {"hard": {"pods": "5"}, "used": {"pods": "4"}}}`))),
	}
	mirrors := func(gr schema.GroupResource, entries ...entry) {
		tab := newTable(c, member.API{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: gr.Resource}, Resource: gr.Resource})
		c.tables[gr] = tab
		for _, e := range entries {
			e.row.Name = "n1"
			tab.observe(&e)
		}
		tab.wanted, tab.synced = true, true
	}
	for _, gr := range []schema.GroupResource{nodes, pods, quotas} {
		mirrors(gr, entry{measured: measured[gr]})
	}
	notified := 0
	m.SubscribeFreeCapacity(func(string) { notified++ })
	fit := func() int64 {
		t.Helper()
		free, known := m.FreeCapacity("east")
		if !known {
			return -1
		}
		n, _ := free.Fits(cpu("1"), false)
		return n
	}
	if n := fit(); n != 1 {
		t.Fatalf("%d fit, want 1, as the quotas have left", n)
	}
	for i, tc := range []struct {
		gr                  schema.GroupResource
		without, againEmpty int64
	}{{quotas, 3, 3}, {pods, -1, 4}, {nodes, -1, 0}} {
		c.drop(t.Context(), c.tables[tc.gr])
		if n := fit(); n != tc.without || notified != i+1 {
			t.Errorf("without %s %d fit, want %d; notified %d times", tc.gr.Resource, n, tc.without, notified)
		}
		mirrors(tc.gr)
		if n := fit(); n != tc.againEmpty {
			t.Errorf("when %s are mirrored again %d fit, want %d", tc.gr.Resource, n, tc.againEmpty)
		}
	}
}

// TestQuotasAreRequired: subscribers of the free capacity are notified when it becomes unknown,
// because ResourceQuotas are required that are not mirrored yet. Afterwards it is known again.
func TestQuotasAreRequired(t *testing.T) {
	fleet := newFleet(newSource(t, "east", testenv.Config(0), "configmaps"))
	m, stop := start(t, openStore(t), fleet)
	defer stop()
	eventually(t, "what is free is known", func() bool { _, known := m.FreeCapacity("east"); return known })
	if m.Synced("east", quotas) {
		t.Fatal("quotas are mirrored though nobody requires them")
	}
	notified := make(chan bool, 1)
	m.SubscribeFreeCapacity(func(string) {
		select {
		case notified <- true:
		default:
		}
	})
	m.Require(quotaKind)
	<-notified
	eventually(t, "it is known again", func() bool { _, known := m.FreeCapacity("east"); return known })
	if !m.Synced("east", quotas) {
		t.Error("quotas are not mirrored")
	}
}

// TestSets counts how often all components fit together on two plain nodes and one with GPUs. Each
// node has 4 CPUs and takes 10 pods. A set of head and workers takes 5 CPUs. The quota of
// QuotaOfAll admits each of them alone, but not both together.
func TestSets(t *testing.T) {
	claim := func(cpu string, more func(*interpreter.Requirements)) *scheduler.Claim {
		r := &interpreter.Requirements{
			Kind: schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}, Namespace: "shop",
			Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)},
		}
		if more != nil {
			more(r)
		}
		return scheduler.NewClaim(r)
	}
	gpu := func(r *interpreter.Requirements) { r.NodeSelector = map[string]string{"pool": "gpu"} }
	component := func(name string, replicas int64, claim *scheduler.Claim) scheduler.Component {
		return scheduler.Component{Name: name, Replicas: replicas, Claim: claim}
	}
	head, workers := component("head", 1, claim("1", nil)), component("workers", 2, claim("2", nil))
	status := func(hard, used string) string { return `{"status": {"hard": {` + hard + `}, "used": {` + used + `}}}` }
	for name, tc := range map[string]struct {
		components []scheduler.Component
		quotas     []string
		there      bool
		taken      []scheduler.Taken
		want       int64
		lacking    string
		quota      string
	}{
		"Together":          {components: []scheduler.Component{head, workers}, want: 2},
		"OneAlone":          {components: []scheduler.Component{workers}, want: 3},
		"InPieces":          {components: []scheduler.Component{component("a", 3, claim("3", nil)), component("b", 3, claim("1", nil))}, want: 1},
		"NotBesideOthers":   {components: []scheduler.Component{component("a", 2, claim("3", nil)), component("b", 2, claim("4", nil))}, lacking: "b"},
		"NotAlone":          {components: []scheduler.Component{head, component("big", 1, claim("5", nil))}, lacking: "big"},
		"NotSoMany":         {components: []scheduler.Component{head, component("many", 13, claim("1", nil))}, lacking: "many"},
		"Pods":              {components: []scheduler.Component{component("a", 16, nil), component("b", 15, nil)}, lacking: "b"},
		"NothingOffered":    {components: []scheduler.Component{head, component("odd", 1, requesting(corev1.ResourceList{"example.com/odd": resource.MustParse("1")}))}, lacking: "odd"},
		"NoneAsked":         {components: []scheduler.Component{component("none", 0, claim("99", nil)), head}, want: 12},
		"NoneAtAll":         {components: []scheduler.Component{component("none", 0, claim("99", nil))}, want: 1<<31 - 1},
		"RareNodesAreKept":  {components: []scheduler.Component{component("driver", 4, claim("2", nil)), component("gpu", 1, claim("4", gpu))}, want: 1},
		"OnlyRareNodes":     {components: []scheduler.Component{head, component("gpu", 2, claim("4", gpu))}, lacking: "gpu"},
		"LessIsFree":        {components: []scheduler.Component{head, workers}, taken: []scheduler.Taken{{Claim: claim("2", nil), Replicas: 3}}, want: 1},
		"Quota":             {components: []scheduler.Component{head, workers}, quotas: []string{status(`"requests.cpu": "9", "pods": "99"`, `"requests.cpu": "0", "pods": "0"`)}, want: 1, quota: "shop/q0"},
		"QuotaOfAll":        {components: []scheduler.Component{head, workers}, quotas: []string{status(`"requests.cpu": "4500m"`, `"requests.cpu": "0"`)}, quota: "shop/q0"},
		"StrictestQuota":    {components: []scheduler.Component{head, workers}, quotas: []string{status(`"pods": "5"`, `"pods": "1"`), status(`"pods": "5"`, `"pods": "3"`)}, quota: "shop/q1"},
		"QuotaIsWide":       {components: []scheduler.Component{head, workers}, quotas: []string{status(`"pods": "99"`, `"pods": "1"`)}, want: 2},
		"NoMoreObjects":     {components: []scheduler.Component{head, workers}, quotas: []string{status(`"count/jobsets.jobset.x-k8s.io": "1"`, `"count/jobsets.jobset.x-k8s.io": "1"`)}, quota: "shop/q0"},
		"TheObjectIsThere":  {components: []scheduler.Component{head, workers}, quotas: []string{status(`"count/jobsets.jobset.x-k8s.io": "1"`, `"count/jobsets.jobset.x-k8s.io": "1"`)}, there: true, want: 2},
		"MoreThanNumbers":   {components: []scheduler.Component{component("huge", 1<<31-1, claim("9000000000", nil))}, quotas: []string{status(`"requests.cpu": "9"`, `"requests.cpu": "0"`)}, quota: "shop/q0"},
		"UnknownIsNotCount": {components: []scheduler.Component{head, component("unknown", 1, nil)}, quotas: []string{status(`"pods": "1"`, `"pods": "0"`)}, want: 1, quota: "shop/q0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapacity()
			setUp(t, c, nodes, "a", nodeBody("a", `"pool": "gpu"`, ""))
			setUp(t, c, nodes, "b", nodeBody("b", "", ""))
			setUp(t, c, nodes, "c", nodeBody("c", "", ""))
			for i, body := range tc.quotas {
				setUp(t, c, quotas, fmt.Sprint("q", i), body)
			}
			left := c.measure().Without(tc.taken)
			before := slices.Clone(left.free)
			sets, lacking, quota := left.Sets(tc.components, tc.there)
			if sets != tc.want || lacking != tc.lacking || quota != tc.quota {
				t.Errorf("%d sets, lacking %q, quota %q; want %d, %q, %q", sets, lacking, quota, tc.want, tc.lacking, tc.quota)
			}
			if !slices.Equal(before, left.free) {
				t.Error("counting takes capacity")
			}
		})
	}
}

// BenchmarkFreeCapacity counts what fits in a cluster of a thousand nodes, and measures its free
// capacity as after a change of a pod.
func BenchmarkFreeCapacity(b *testing.B) {
	c := newCapacity()
	for i := range 1000 {
		name, taint := fmt.Sprintf("node-%04d", i), ""
		if i%10 == 0 {
			taint = `{"key": "gpu", "effect": "NoSchedule"}`
		}
		setUp(b, c, nodes, name, nodeBody(name, fmt.Sprintf(`"pool": "p%d", "kubernetes.io/hostname": "%s"`, i%4, name), taint))
		setUp(b, c, pods, name, podBody("1", `, "nodeName": "`+name+`"`))
	}
	setUp(b, c, quotas, "q", `{"status": {"hard": {"pods": "5000", "requests.cpu": "1000"}, "used": {"pods": "1000", "requests.cpu": "100"}}}`)
	one := corev1.ResourceList{"cpu": resource.MustParse("1")}
	for name, r := range map[string]*interpreter.Requirements{
		"Plain": {Requests: one},
		"Selected": {Requests: one, Namespace: "shop", NodeAffinity: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"p1", "p2"}}},
		}}}},
	} {
		claim, free := scheduler.NewClaim(r), c.measure()
		b.Run("Fits/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				free.Fits(claim, false)
			}
		})
		b.Run("Sets/"+name, func(b *testing.B) {
			set := []scheduler.Component{{Name: "head", Claim: cpu("2"), Replicas: 1}, {Name: "workers", Claim: claim, Replicas: 8}, {Name: "more", Claim: cpu("3"), Replicas: 2}}
			b.ReportAllocs()
			for b.Loop() {
				free.Sets(set, false)
			}
		})
		b.Run("Without/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				free.Without([]scheduler.Taken{{Claim: claim, Replicas: 100, Objects: 1}})
			}
		})
	}
	b.Run("Measure", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.measure()
		}
	})
}
