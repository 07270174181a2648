package search

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/graph"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
)

// related are the types of the fleet; without clusters, a type is in all of them. No cluster
// has StorageClasses mirrored, and one has PersistentVolumes.
var related = []struct {
	gvk        schema.GroupVersionKind
	resource   string
	namespaced bool
	clusters   []string
}{
	{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "pods", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, "secrets", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "Service"}, "services", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"}, "serviceaccounts", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "Event"}, "events", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", false, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"}, "persistentvolumeclaims", true, nil},
	{schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolume"}, "persistentvolumes", false, []string{"ash"}},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, "deployments", true, nil},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "replicasets", true, nil},
	{schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}, "horizontalpodautoscalers", true, nil},
	{schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}, "endpointslices", true, nil},
	{schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"}, "ingresses", true, nil},
	{schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}, "networkpolicies", true, nil},
	{schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}, "poddisruptionbudgets", true, nil},
	{schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}, "rolebindings", true, nil},
	{schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"}, "validatingwebhookconfigurations", false, nil},
}

var (
	relatedClusters   = []string{"ash", "elm", "oak"}
	relatedNamespaces = []string{"blog", "ops", "shop"}
)

// anything returns the content of an object of a kind, with random references to objects that
// exist and to objects that do not.
func anything(random *rand.Rand, kind, namespace string) map[string]any {
	name := func(of string) any { return fmt.Sprintf("%s-%d", of, random.IntN(4)) }
	maybe := func(v any) any {
		if random.IntN(2) == 0 {
			return nil
		}
		return v
	}
	pod := func() map[string]any {
		return map[string]any{
			"serviceAccountName": maybe(name("serviceaccount")), "imagePullSecrets": []any{map[string]any{"name": maybe(name("secret"))}},
			"containers": []any{map[string]any{
				"image":   []string{"nginx:1.25", "registry.example.com/team/nginx@sha256:1", "redis:7"}[random.IntN(3)],
				"envFrom": []any{map[string]any{"configMapRef": map[string]any{"name": maybe(name("configmap"))}}},
			}},
			"volumes": []any{
				map[string]any{"secret": map[string]any{"secretName": maybe(name("secret"))}}, map[string]any{"persistentVolumeClaim": map[string]any{"claimName": maybe(name("persistentvolumeclaim"))}},
			},
		}
	}
	app := map[string]any{"app": fmt.Sprint("app-", random.IntN(3))}
	switch kind {
	case "Pod":
		spec := pod()
		spec["nodeName"] = maybe(name("node"))
		return map[string]any{"spec": spec}
	case "Deployment", "ReplicaSet":
		return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": pod()}}}
	case "Service":
		return map[string]any{"spec": map[string]any{"selector": maybe(app)}}
	case "PodDisruptionBudget":
		return map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": app}}}
	case "NetworkPolicy":
		return map[string]any{"spec": map[string]any{"podSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "NotIn", "values": []any{app["app"]}}}}}}
	case "PersistentVolumeClaim":
		return map[string]any{"spec": map[string]any{"volumeName": maybe(name("persistentvolume")), "storageClassName": maybe("fast")}}
	case "PersistentVolume":
		return map[string]any{"spec": map[string]any{"storageClassName": "fast"}}
	case "HorizontalPodAutoscaler":
		return map[string]any{"spec": map[string]any{"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name("deployment")}}}
	case "Ingress":
		return map[string]any{"spec": map[string]any{
			"tls": []any{map[string]any{"secretName": maybe(name("secret"))}}, "defaultBackend": map[string]any{"service": map[string]any{"name": name("service")}},
		}}
	case "RoleBinding":
		return map[string]any{
			"roleRef":  map[string]any{"kind": "Role", "name": "none"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": relatedNamespaces[random.IntN(3)], "name": name("serviceaccount")}},
		}
	case "ValidatingWebhookConfiguration":
		return map[string]any{"webhooks": []any{map[string]any{"clientConfig": map[string]any{"service": map[string]any{"namespace": relatedNamespaces[random.IntN(3)], "name": name("service")}}}}}
	case "Event":
		return map[string]any{"involvedObject": map[string]any{"kind": "Pod", "namespace": namespace, "name": fmt.Sprint("pod-", random.IntN(4))}}
	}
	return map[string]any{}
}

// relatedFleet returns a fleet with many references between its objects, and the rows of its
// store.
func relatedFleet(t testing.TB, seed uint64) (*fleet, []store.Row) {
	t.Helper()
	f := newFleet(t, relatedClusters...)
	random := rand.New(rand.NewPCG(seed, 1))
	var rows []store.Row
	for _, typ := range related {
		clusters := typ.clusters
		if clusters == nil {
			clusters = relatedClusters
		}
		f.mirror.serve(member.API{GroupVersionKind: typ.gvk, Resource: typ.resource, Singular: strings.ToLower(typ.gvk.Kind), Namespaced: typ.namespaced}, clusters)
		for _, cluster := range clusters {
			namespaces := relatedNamespaces
			if !typ.namespaced {
				namespaces = []string{""}
			}
			var objects []*unstructured.Unstructured
			for _, namespace := range namespaces {
				for i := range 4 {
					if random.IntN(4) == 0 {
						continue
					}
					name := fmt.Sprintf("%s-%d", strings.ToLower(typ.gvk.Kind), i)
					o := &unstructured.Unstructured{Object: anything(random, typ.gvk.Kind, namespace)}
					o.SetGroupVersionKind(typ.gvk)
					o.SetNamespace(namespace)
					o.SetName(name)
					o.SetUID(uidOf(typ.gvk.Kind, cluster, namespace, name))
					switch typ.gvk.Kind {
					case "Pod":
						o.SetLabels(map[string]string{"app": fmt.Sprint("app-", random.IntN(3))})
						own(o, random, "ReplicaSet", cluster)
					case "ReplicaSet":
						own(o, random, "Deployment", cluster)
					case "EndpointSlice":
						o.SetLabels(map[string]string{"kubernetes.io/service-name": fmt.Sprint("service-", random.IntN(4))})
					case "Event":
						on := o.Object["involvedObject"].(map[string]any)
						on["uid"] = string(uidOf("Pod", cluster, namespace, on["name"].(string)))
					}
					objects = append(objects, o)
				}
			}
			f.put(t, cluster, typ.resource, objects...)
			page, err := f.store.List(t.Context(), store.Query{Group: typ.gvk.Group, Resource: typ.resource, Clusters: []string{cluster}})
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, page.Rows...)
		}
	}
	return f, rows
}

func uidOf(kind, cluster, namespace, name string) types.UID {
	return types.UID(strings.Join([]string{kind, cluster, namespace, name}, "."))
}

// own gives an object an owner. The owner may not exist, or have another UID than the
// reference.
func own(o *unstructured.Unstructured, random *rand.Rand, kind, cluster string) {
	name := fmt.Sprintf("%s-%d", strings.ToLower(kind), random.IntN(4))
	uid := uidOf(kind, cluster, o.GetNamespace(), name)
	if random.IntN(5) == 0 {
		uid = "another"
	}
	yes := true
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: &yes}})
}

// role is what a caller may list.
type role struct {
	wide    map[string]bool     // types, in all namespaces
	spaces  map[string][]string // namespaces, by type
	closed  map[string][]string // clusters that it may not use, by namespace
	limited bool
}

func anyRole(random *rand.Rand) role {
	r := role{wide: map[string]bool{}, spaces: map[string][]string{}, closed: map[string][]string{}, limited: true}
	for _, gr := range append(relatedTypes(), schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}, schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}) {
		switch random.IntN(4) {
		case 0:
			r.wide[gr.String()] = true
		case 1, 2:
			for _, n := range relatedNamespaces {
				if random.IntN(3) > 0 {
					r.spaces[gr.String()] = append(r.spaces[gr.String()], n)
				}
			}
		}
	}
	for _, n := range relatedNamespaces {
		if random.IntN(3) == 0 {
			r.closed[n] = []string{relatedClusters[random.IntN(3)]}
		}
	}
	return r
}

func relatedTypes() (out []schema.GroupResource) {
	for _, typ := range related {
		out = append(out, schema.GroupResource{Group: typ.gvk.Group, Resource: typ.resource})
	}
	return out
}

func (r role) is(f *fleet) {
	f.denied, f.granted, f.closed = nil, nil, nil
	if !r.limited {
		return
	}
	f.closed = r.closed
	f.granted = func(what authorizationv1.ResourceAttributes) []string {
		return r.spaces[schema.GroupResource{Group: what.Group, Resource: what.Resource}.String()]
	}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		gr := schema.GroupResource{Group: what.Group, Resource: what.Resource}.String()
		return !r.wide[gr] && (what.Namespace == "" || !slices.Contains(r.spaces[gr], what.Namespace))
	}
}

// sees reports whether the role may list the objects of a type in a namespace of a cluster.
func (r role) sees(gr schema.GroupResource, cluster, namespace string) bool {
	return !r.limited || r.wide[gr.String()] || slices.Contains(r.spaces[gr.String()], namespace) && !slices.Contains(r.closed[namespace], cluster)
}

// thing is a node of the expected graph.
type thing struct{ kind, cluster, namespace, name, state string }

type relation struct {
	from, to thing
	relation graph.Relation
}

// naive returns the graph of all rows, with the edges whose two ends the role may see. It uses
// no index.
func naive(rows []store.Row, r role) (things map[thing]bool, edges map[relation]bool) {
	things, edges = map[thing]bool{}, map[relation]bool{}
	there := map[thing]store.Row{}
	byKind := map[string]schema.GroupResource{"Role.rbac.authorization.k8s.io": {Group: "rbac.authorization.k8s.io", Resource: "roles"}, "StorageClass.storage.k8s.io": {Group: "storage.k8s.io", Resource: "storageclasses"}}
	spaced := map[string]bool{"Role.rbac.authorization.k8s.io": true}
	mirrored := map[string]bool{}
	for _, typ := range related {
		kind := typ.gvk.GroupKind().String()
		byKind[kind], spaced[kind] = schema.GroupResource{Group: typ.gvk.Group, Resource: typ.resource}, typ.namespaced
		for _, c := range relatedClusters {
			mirrored[kind+c] = typ.clusters == nil || slices.Contains(typ.clusters, c)
		}
	}
	of := func(row store.Row) thing {
		return thing{kind: schema.GroupKind{Group: row.Group, Kind: row.Kind}.String(), cluster: row.Cluster, namespace: row.Namespace, name: row.Name}
	}
	for _, row := range rows {
		there[of(row)] = row
		if r.sees(byKind[of(row).kind], row.Cluster, row.Namespace) {
			things[of(row)] = true
		}
	}
	for _, row := range rows {
		from := of(row)
		if !things[from] {
			continue
		}
		join := func(l graph.Link, to thing) {
			things[to] = true
			one := relation{from, to, l.Relation}
			if l.Inverse {
				one.from, one.to = to, from
			}
			edges[one] = true
		}
		for _, l := range graph.Links(schema.GroupResource{Group: row.Group, Resource: row.Resource}, row.Body) {
			to := thing{kind: l.Kind.String(), cluster: row.Cluster, name: l.Name}
			if spaced[to.kind] {
				to.namespace = cmp.Or(l.Namespace, row.Namespace)
			}
			target, found := there[to]
			switch {
			case l.Selector != nil:
				for pod := range there {
					if pod.kind == "Pod" && pod.cluster == row.Cluster && pod.namespace == row.Namespace && things[pod] && l.Selector.Matches(labels.Set(there[pod].Labels)) {
						join(l, pod)
					}
				}
			case l.Relation == graph.Image:
				join(l, thing{kind: "Image", name: l.Name})
			case !r.sees(byKind[to.kind], to.cluster, to.namespace):
			case found && (l.UID == "" || l.UID == target.UID):
				join(l, to)
			case !found && mirrored[to.kind+to.cluster]:
				to.state = "Missing"
				join(l, to)
			case !found:
				to.state = "Unknown"
				join(l, to)
			}
		}
	}
	return things, edges
}

// around returns the part of a graph that roots reach within depth.
func around(edges map[relation]bool, roots []thing, depth int, up, down bool, wanted func(graph.Relation) bool) (things map[thing]bool, found map[relation]bool) {
	things, found = map[thing]bool{}, map[relation]bool{}
	for _, r := range roots {
		things[r] = true
	}
	for _, back := range []bool{false, true} {
		if back && !up || !back && !down {
			continue
		}
		distance := map[thing]int{}
		for _, r := range roots {
			distance[r] = 0
		}
		for d := range depth {
			for e := range edges {
				near, far := e.from, e.to
				if back {
					near, far = far, near
				}
				if at, ok := distance[near]; !ok || at != d || !wanted(e.relation) || !back && near.state != "" {
					continue
				}
				found[e], things[far] = true, true
				if _, ok := distance[far]; !ok {
					distance[far] = d + 1
				}
			}
		}
	}
	return things, found
}

// graph requests a graph.
func (f *fleet) graph(t testing.TB, root string, q url.Values) (int, fleetv1alpha1.ObjectGraph, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+root+"/graph?"+q.Encode(), nil)
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
	var g fleetv1alpha1.ObjectGraph
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &g); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, g, string(body)
}

func thingOf(n fleetv1alpha1.GraphNode) thing {
	return thing{schema.GroupKind{Group: n.Group, Kind: n.Kind}.String(), n.Cluster, n.Namespace, n.Name, string(n.State)}
}

func sortedText[T thing | relation](of map[T]bool) (out []string) {
	for one := range of {
		out = append(out, fmt.Sprintf("%+v", one))
	}
	slices.Sort(out)
	return out
}

// TestGraph: a graph has exactly what the caller can reach over objects that it may list, for
// random callers and queries. It has neither the hidden ends of edges nor objects that only
// hidden objects lead to. The expected graph is computed from all rows, one by one.
func TestGraph(t *testing.T) {
	answers, refusals, missing, cells := 0, 0, 0, 0
	for seed := range uint64(3) {
		f, rows := relatedFleet(t, seed)
		random := rand.New(rand.NewPCG(seed, 2))
		for i := range 12 {
			r := role{}
			if i > 0 {
				r = anyRole(random)
			}
			r.is(f)
			things, edges := naive(rows, r)
			for range 25 {
				q, roots, up, down, depth, wanted, root := anyGraph(random, things, edges)
				code, got, body := f.graph(t, root, q)
				name := fmt.Sprintf("seed %d, role %d, %s/graph?%s", seed, i, root, q.Encode())
				if len(roots) == 0 {
					if refusals++; code == http.StatusOK {
						t.Fatalf("%s: there is nothing, and it answers %s", name, body)
					}
					continue
				}
				if answers++; code != http.StatusOK || got.Cut != "" {
					t.Fatalf("%s: %d %s", name, code, body)
				}
				wantThings, wantEdges := around(edges, roots, depth, up, down, wanted)
				gotThings, gotEdges, gotRoots := map[thing]bool{}, map[relation]bool{}, map[thing]bool{}
				for _, n := range got.Nodes {
					gotThings[thingOf(n)] = true
					cells++
					if n.State == fleetv1alpha1.GraphMissing {
						missing++
					}
				}
				for _, e := range got.Edges {
					gotEdges[relation{thingOf(got.Nodes[e.From]), thingOf(got.Nodes[e.To]), graph.Relation(e.Relation)}] = true
				}
				for _, i := range got.Roots {
					gotRoots[thingOf(got.Nodes[i])] = true
				}
				wantRoots := map[thing]bool{}
				for _, one := range roots {
					wantRoots[one] = true
				}
				if len(gotThings) != len(got.Nodes) || len(gotEdges) != len(got.Edges) {
					t.Fatalf("%s: something is told twice: %s", name, body)
				}
				if diff := gocmp.Diff(sortedText(wantRoots), sortedText(gotRoots)); diff != "" {
					t.Fatalf("%s: roots: %s", name, diff)
				}
				if diff := gocmp.Diff(sortedText(wantThings), sortedText(gotThings)); diff != "" {
					t.Fatalf("%s: nodes: %s", name, diff)
				}
				if diff := gocmp.Diff(sortedText(wantEdges), sortedText(gotEdges)); diff != "" {
					t.Fatalf("%s: edges: %s", name, diff)
				}
			}
		}
	}
	if answers < 300 || refusals < 50 || missing < 100 || cells < 3000 {
		t.Errorf("%d answers with %d nodes, %d of them missing, and %d refusals: the test asks too little", answers, cells, missing, refusals)
	}
}

// anyGraph returns a random query and the expected parts of the answer, by the graph that the
// caller may see.
func anyGraph(random *rand.Rand, things map[thing]bool, edges map[relation]bool) (q url.Values, roots []thing, up, down bool, depth int, wanted func(graph.Relation) bool, root string) {
	depth = 1 + random.IntN(5)
	q = url.Values{"depth": {fmt.Sprint(depth)}, "limit": {"2000"}}
	direction := []string{"uses", "usedBy", "both"}[random.IntN(3)]
	q.Set("direction", direction)
	up, down = direction != "uses", direction != "usedBy"
	wanted = func(r graph.Relation) bool { return r != graph.Event }
	switch random.IntN(4) {
	case 0:
		q.Set("relations", "all")
		wanted = func(graph.Relation) bool { return true }
	case 1:
		q.Set("relations", "owner,mount,env,selector")
		wanted = func(r graph.Relation) bool {
			return slices.Contains([]graph.Relation{graph.Owner, graph.Mount, graph.Env, graph.Selector}, r)
		}
	}
	if random.IntN(8) == 0 {
		q.Set("of", "image:nginx:1.25")
		for e := range edges {
			if e.to.name == "nginx:1.25" {
				return q, []thing{e.to}, up, down, depth, wanted, ""
			}
		}
		return q, nil, up, down, depth, wanted, ""
	}
	typ := related[random.IntN(len(related))]
	kind, name := typ.gvk.GroupKind().String(), fmt.Sprintf("%s-%d", strings.ToLower(typ.gvk.Kind), random.IntN(4))
	if random.IntN(10) == 0 {
		kind, name = "StorageClass.storage.k8s.io", "fast"
		q.Set("of", "sc/fast")
	} else {
		q.Set("of", strings.ToLower(typ.gvk.Kind)+"/"+name)
	}
	namespace := ""
	if q.Get("of") != "sc/fast" && typ.namespaced && random.IntN(2) == 0 {
		namespace = relatedNamespaces[random.IntN(3)]
		q.Set("of", strings.ToLower(typ.gvk.Kind)+"/"+namespace+"/"+name)
	}
	cluster := ""
	if random.IntN(4) == 0 {
		cluster = relatedClusters[random.IntN(3)]
		if random.IntN(2) == 0 {
			root = "/clusters/" + cluster
		} else {
			q.Set("clusters", cluster)
		}
	}
	for _, one := range slices.SortedFunc(maps.Keys(things), func(a, b thing) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		if one.kind != kind || one.name != name || namespace != "" && one.namespace != namespace || cluster != "" && one.cluster != cluster {
			continue
		}
		if one.state == "" {
			roots = append(roots, one)
			continue
		}
		// An object that does not exist is found only by the objects that refer to it.
		for e := range edges {
			if up && e.to == one && e.relation != graph.Event && wanted(e.relation) {
				roots = append(roots, one)
				break
			}
		}
	}
	return q, roots, up, down, depth, wanted, root
}

// TestGraphRevealsNothing: objects that the caller may not list change no byte of an answer or
// error, nor do the references of these objects.
func TestGraphRevealsNothing(t *testing.T) {
	f, _ := relatedFleet(t, 9)
	r := role{limited: true, wide: map[string]bool{"nodes": true}, spaces: map[string][]string{
		"pods": {"shop"}, "services": {"shop"}, "deployments.apps": {"shop"}, "serviceaccounts": {"shop", "ops"}, "rolebindings.rbac.authorization.k8s.io": {"shop"},
	}, closed: map[string][]string{"shop": {"elm"}}}
	r.is(f)
	questions := []url.Values{}
	for _, of := range []string{
		"pod/shop/hidden-pod", "pod/hidden-pod", "secret/hidden", "secret/shop/hidden", "sa/shop/serviceaccount-1", "sa/serviceaccount-1", "sa/serviceaccount-9", "service/service-1", "node/node-1", "node/node-9",
		"image:nginx", "image:hidden:1", "image:hidden", "deploy/deployment-1", "deploy/deployment-9", "sc/fast", "sc/slow", "configmap/configmap-1", "pod/shop/pod-1",
	} {
		for _, direction := range []string{"uses", "usedBy"} {
			questions = append(questions, url.Values{"of": {of}, "direction": {direction}, "relations": {"all"}, "depth": {"5"}, "limit": {"60"}})
		}
	}
	ask := func() (out []string) {
		for _, q := range questions {
			for _, root := range []string{"", "/clusters/oak", "/clusters/elm"} {
				code, _, body := f.graph(t, root, q)
				out = append(out, fmt.Sprint(root, "/graph?", q.Encode(), ": ", code, " ", body))
			}
		}
		return out
	}
	before := ask()
	there := 0
	for _, one := range before {
		if strings.Contains(one, ": 200 ") {
			there++
		}
	}
	if there < 20 {
		t.Fatalf("only %d questions are answered", there)
	}
	hidden := func(kind schema.GroupVersionKind, namespace, name string, content map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: content}
		o.SetGroupVersionKind(kind)
		o.SetNamespace(namespace)
		o.SetName(name)
		o.SetUID(types.UID("hidden-" + name + namespace))
		return o
	}
	pod := func() map[string]any {
		return map[string]any{"spec": map[string]any{
			"nodeName": "node-1", "serviceAccountName": "serviceaccount-1", "containers": []any{map[string]any{"image": "hidden:1"}, map[string]any{"image": "nginx:1.25"}},
			"volumes": []any{map[string]any{"secret": map[string]any{"secretName": "hidden"}}, map[string]any{"persistentVolumeClaim": map[string]any{"claimName": "none"}}},
		}}
	}
	yes := true
	for _, cluster := range relatedClusters {
		f.put(t, cluster, "secrets", hidden(secretVersion, "shop", "hidden", map[string]any{}), hidden(secretVersion, "shop", "secret-1", map[string]any{}), hidden(secretVersion, "shop", "secret-3", map[string]any{}))
		var pods []*unstructured.Unstructured
		for i := range 100 { // more than the limit, if they counted
			o := hidden(podKind, "ops", fmt.Sprint("pod-", i), pod())
			o.SetLabels(map[string]string{"app": "app-1"})
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: uidOf("Node", cluster, "", "node-1"), Controller: &yes}})
			pods = append(pods, o)
		}
		f.put(t, cluster, "pods", pods...)
		f.put(t, cluster, "rolebindings", hidden(schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}, "ops", "hidden", map[string]any{
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "shop", "name": "serviceaccount-1"}},
		}))
		f.put(t, cluster, "ingresses", hidden(schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"}, "shop", "hidden", map[string]any{
			"spec": map[string]any{"defaultBackend": map[string]any{"service": map[string]any{"name": "service-1"}}},
		}))
	}
	f.put(t, "elm", "pods", hidden(podKind, "shop", "hidden-pod", pod()))
	if diff := gocmp.Diff(before, ask()); diff != "" {
		t.Error(diff)
	}
	role{}.is(f)
	if diff := gocmp.Diff(before, ask()); diff == "" {
		t.Error("who may list everything sees none of it, either")
	}
}

var secretVersion = schema.GroupVersionKind{Version: "v1", Kind: "Secret"}

// TestGraphOfOneName: one query is about all clusters, also those in which the object is
// missing. A query for an image without tag and digest is about its whole repository.
func TestGraphOfOneName(t *testing.T) {
	f, _ := relatedFleet(t, 3)
	pod := func(image, secret string) *unstructured.Unstructured {
		o := newObject(podKind, "shop", "only", "label:app=x")
		o.Object["spec"] = map[string]any{"containers": []any{map[string]any{"image": image}}, "volumes": []any{map[string]any{"secret": map[string]any{"secretName": secret}}}}
		return o
	}
	f.put(t, "elm", "pods", pod("registry.example.com:5000/mine/app:1", "db-pass"))
	f.put(t, "oak", "pods", pod("mine/app@sha256:2", "db-pass"))
	f.put(t, "elm", "secrets", newObject(secretVersion, "shop", "db-pass"))
	text := func(g fleetv1alpha1.ObjectGraph) (out []string) {
		for _, e := range g.Edges {
			from, to := g.Nodes[e.From], g.Nodes[e.To]
			out = append(out, fmt.Sprintf("%s %s/%s/%s -> %s/%s/%s %s", e.Relation, from.Cluster, from.Namespace, from.Name, to.Cluster, to.Namespace, to.Name, to.State))
		}
		slices.Sort(out)
		return out
	}
	for name, tc := range map[string]struct {
		root string
		q    url.Values
		want []string
	}{
		"EveryCluster": {"", url.Values{"of": {"secrets/db-pass"}}, []string{"mount elm/shop/only -> elm/shop/db-pass ", "mount oak/shop/only -> oak/shop/db-pass Missing"}},
		"OneCluster":   {"/clusters/oak", url.Values{"of": {"secrets/db-pass"}}, []string{"mount oak/shop/only -> oak/shop/db-pass Missing"}},
		"NamedCluster": {"", url.Values{"of": {"Secret/shop/db-pass"}, "clusters": {"elm"}}, []string{"mount elm/shop/only -> elm/shop/db-pass "}},
		"Repository":   {"", url.Values{"of": {"image:mine/app"}}, []string{"image elm/shop/only -> //registry.example.com:5000/mine/app:1 ", "image oak/shop/only -> //mine/app@sha256:2 "}},
		"RepositoryOf": {"", url.Values{"of": {"image:app"}}, []string{"image elm/shop/only -> //registry.example.com:5000/mine/app:1 ", "image oak/shop/only -> //mine/app@sha256:2 "}},
		"Image":        {"", url.Values{"of": {"image:mine/app@sha256:2"}}, []string{"image oak/shop/only -> //mine/app@sha256:2 "}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.q.Set("direction", "usedBy")
			tc.q.Set("relations", "mount,image")
			code, g, body := f.graph(t, tc.root, tc.q)
			if code != http.StatusOK {
				t.Fatal(code, body)
			}
			if diff := gocmp.Diff(tc.want, text(g)); diff != "" {
				t.Error(diff)
			}
		})
	}
	code, g, body := f.graph(t, "", url.Values{"of": {"secrets/db-pass"}, "limit": {"3"}, "relations": {"mount"}})
	if code != http.StatusOK || g.Cut == "" || len(g.Nodes) != 3 {
		t.Errorf("more than the limit: %d %s", code, body)
	}
	code, g, body = f.graph(t, "", url.Values{"of": {"secrets/db-pass"}, "limit": {"4"}, "relations": {"mount"}})
	if code != http.StatusOK || g.Cut != "" || len(g.Nodes) != 4 {
		t.Errorf("as many as the limit: %d %s", code, body)
	}
	f.url = strings.Replace(f.url, fleetv1alpha1.FleetPath, fleetv1alpha1.QualifiedPath, 1)
	code, g, body = f.graph(t, "", url.Values{"of": {"secrets/shop@elm/db-pass"}, "relations": {"mount"}})
	if code != http.StatusOK || len(g.Nodes) != 2 || g.Nodes[g.Roots[0]].Namespace != "shop@elm" || g.Nodes[0].Namespace != "shop@elm" {
		t.Errorf("with qualified names: %d %s", code, body)
	}
	if code, g, body = f.graph(t, "", url.Values{"of": {"secrets/db-pass"}, "relations": {"mount"}}); code != http.StatusOK || len(g.Nodes) != 4 {
		t.Errorf("in any namespace, with qualified names: %d %s", code, body)
	}
	if code, _, body = f.graph(t, "", url.Values{"of": {"secrets/shop/db-pass"}}); code != http.StatusBadRequest {
		t.Errorf("a namespace without its cluster: %d %s", code, body)
	}
}

// TestGraphWarns: if a type is mirrored in part or still being read, objects that are not found
// have the state Unknown instead of Missing. A type that is still being read has a warning.
func TestGraphWarns(t *testing.T) {
	f, _ := relatedFleet(t, 3)
	o := newObject(podKind, "shop", "only")
	o.Object["spec"] = map[string]any{"volumes": []any{map[string]any{"secret": map[string]any{"secretName": "none"}}}}
	f.put(t, "oak", "pods", o)
	state := func() (fleetv1alpha1.GraphState, http.Header) {
		resp, body := f.ask(t, http.MethodGet, "/graph?of=pod/shop/only&direction=uses", "")
		for _, n := range body["nodes"].([]any) {
			if n := n.(map[string]any); n["kind"] == "Secret" {
				text, _ := n["state"].(string)
				return fleetv1alpha1.GraphState(text), resp.Header
			}
		}
		t.Fatal("there is no Secret")
		return "", nil
	}
	if is, header := state(); is != fleetv1alpha1.GraphMissing || header.Get("Warning") != "" {
		t.Errorf("%s, with %v", is, header.Values("Warning"))
	}
	f.mirror.parts["oak/secrets"] = true
	if is, _ := state(); is != fleetv1alpha1.GraphUnknown {
		t.Errorf("mirrored in part: %s", is)
	}
	clear(f.mirror.parts)
	f.mirror.behind["oak"] = true
	if is, header := state(); is != fleetv1alpha1.GraphUnknown || !strings.Contains(strings.Join(header.Values("Warning"), "\n"), "still being read") {
		t.Errorf("being read: %s, with %v", is, header.Values("Warning"))
	}
}

// TestGraphWarnsOfWhatIsNotFound: if nothing is found, the answer warns of the possible
// reasons, as far as the caller may list the types.
func TestGraphWarnsOfWhatIsNotFound(t *testing.T) {
	f, _ := relatedFleet(t, 3)
	f.put(t, "oak", "secrets", newObject(secretVersion, "shop", "db-pass"))
	ask := func(path string, code int) string {
		t.Helper()
		resp, body := f.ask(t, http.MethodGet, path, "")
		if resp.StatusCode != code {
			t.Errorf("%s: %d %v, want %d", path, resp.StatusCode, body, code)
		}
		return strings.Join(resp.Header.Values("Warning"), "\n")
	}
	const used = "/graph?of=secrets/shop/db-pass&direction=usedBy"
	warns := func(warnings string, want bool, what string) {
		t.Helper()
		if strings.Contains(warnings, what) != want {
			t.Errorf("the warnings have %q: %t, in %s", what, !want, warnings)
		}
	}
	warnings := ask(used, http.StatusOK)
	warns(warnings, true, "not mirrored of any cluster")
	warns(warnings, true, "cronjobs.batch")
	warns(warnings, true, "not mirrored of cluster oak, so that what they use there is not known: persistentvolumes")
	warns(warnings, false, "gateways") // most clusters do not serve them
	warns(warnings, false, "pods of")
	f.mirror.parts["elm/pods"], f.mirror.parts["oak/pods"] = true, true
	warns(ask(used, http.StatusOK), true, "pods of oak are mirrored in part")
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource == "pods" || what.Group == "batch"
	}
	warnings = ask(used, http.StatusOK)
	warns(warnings, false, "pods of")
	warns(warnings, false, "batch")
	f.denied = nil
	clear(f.mirror.parts)
	f.mirror.behind["oak"] = true
	warns(ask(used, http.StatusOK), true, "cluster oak: pods are still being read")
	warns(ask("/graph?of=secrets/none", http.StatusNotFound), true, "cluster oak: secrets are still being read")
	clear(f.mirror.behind)

	delete(f.mirror.served, "elm")
	for _, of := range []string{"secrets/none", "image:none", "image:none:1"} {
		warns(ask("/graph?of="+of, http.StatusNotFound), true, "nothing is known yet of elm")
		ask("/graph?clusters=elm&of="+of, http.StatusServiceUnavailable)
		ask("/clusters/elm/graph?of="+of, http.StatusServiceUnavailable)
	}
	role{limited: true, spaces: map[string][]string{"secrets": {"shop"}, "pods": {"shop"}}, closed: map[string][]string{"shop": {"elm"}}}.is(f)
	for _, of := range []string{"secrets/none", "secrets/shop/none", "image:none"} {
		warns(ask("/graph?of="+of, http.StatusNotFound), false, "elm")
	}
}

// TestGraphOfOddReferences: API servers accept any text as a reference. A reference that cannot
// be a name is missing, and removes nothing else from the graph.
func TestGraphOfOddReferences(t *testing.T) {
	f, _ := relatedFleet(t, 3)
	f.mirror.serve(member.API{GroupVersionKind: schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"}, Resource: "gateways", Namespaced: true}, relatedClusters)
	f.put(t, "oak", "secrets", newObject(secretVersion, "shop", "db-pass"))
	f.put(t, "oak", "serviceaccounts", newObject(schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"}, "shop", "robot"))
	long := strings.Repeat("g", 600)
	pod := newObject(podKind, "shop", "odd", "label:app=odd")
	pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: long, UID: types.UID(long)}})
	pod.Object["spec"] = map[string]any{"nodeName": long, "volumes": []any{
		map[string]any{"secret": map[string]any{"secretName": "a\x00b"}}, map[string]any{"secret": map[string]any{"secretName": "db-pass"}},
	}}
	f.put(t, "oak", "pods", pod)
	set := map[string]any{}
	for i := range 150 {
		set[fmt.Sprint("key-", i)] = "x"
	}
	service := newObject(schema.GroupVersionKind{Version: "v1", Kind: "Service"}, "shop", "odd")
	service.Object["spec"] = map[string]any{"selector": set}
	f.put(t, "oak", "services", service)
	binding := newObject(schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}, "ops", "odd")
	binding.Object["subjects"] = []any{
		map[string]any{"kind": "ServiceAccount", "namespace": "a\x00b", "name": "robot"}, map[string]any{"kind": "ServiceAccount", "namespace": "shop", "name": "robot"},
	}
	f.put(t, "oak", "rolebindings", binding)

	for name, tc := range map[string]struct {
		q    url.Values
		want []string
	}{
		"Uses": {url.Values{"of": {"pod/shop/odd"}, "direction": {"uses"}}, []string{
			"mount odd -> a\x00b Missing", "mount odd -> db-pass ", "node odd -> " + long + " Missing",
		}},
		"UsedBy": {url.Values{"of": {"secret/shop/db-pass"}, "direction": {"usedBy"}, "relations": {"all"}, "clusters": {"oak"}}, []string{
			"mount odd -> db-pass ", "owner " + long + " -> odd ",
		}},
		"Selector": {url.Values{"of": {"service/shop/odd"}, "direction": {"uses"}, "clusters": {"oak"}}, nil},
		"Namespace": {url.Values{"of": {"rolebindings/ops/odd"}, "direction": {"uses"}, "depth": {"1"}}, []string{
			"binding odd -> robot ", "binding odd -> robot Missing",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			code, g, body := f.graph(t, "", tc.q)
			if code != http.StatusOK || g.Cut != "" {
				t.Fatal(code, body)
			}
			var got []string
			for _, e := range g.Edges {
				if from, to := g.Nodes[e.From], g.Nodes[e.To]; from.Name == "odd" || to.Name == "odd" {
					got = append(got, fmt.Sprintf("%s %s -> %s %s", e.Relation, from.Name, to.Name, to.State))
				}
			}
			slices.Sort(got)
			if diff := gocmp.Diff(tc.want, slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "selector ") })); diff != "" {
				t.Error(diff)
			}
		})
	}
	resp, _ := f.ask(t, http.MethodGet, "/graph?of=service/shop/odd&direction=uses&clusters=oak", "")
	if warnings := strings.Join(resp.Header.Values("Warning"), "\n"); !strings.Contains(warnings, "some pods may be left out") {
		t.Errorf("that a selector cannot be asked is not told: %s", warnings)
	}
}

// readStore counts the objects that are read of each type. It calls before with each query.
type readStore struct {
	Store

	read   map[string]int
	before func(ctx context.Context, q store.Query)
}

func (s *readStore) List(ctx context.Context, q store.Query) (store.Page, error) {
	if s.before != nil {
		s.before(ctx, q)
	}
	page, err := s.Store.List(ctx, q)
	s.read[q.Resource] += len(page.Rows)
	return page, err
}

// popular returns a fleet in which many pods in namespace shop of elm, and one in blog of oak,
// refer to a Secret that only shop has.
func popular(t *testing.T) (*fleet, *readStore) {
	t.Helper()
	f := newFleet(t, "elm", "oak")
	f.serve(podKind, "pods", true, "elm", "oak")
	f.serve(secretVersion, "secrets", true, "elm", "oak")
	pod := func(namespace, name, secret string) *unstructured.Unstructured {
		o := newObject(podKind, namespace, name)
		o.SetUID(types.UID(namespace + name))
		o.Object["spec"] = map[string]any{"nodeName": "none", "volumes": []any{map[string]any{"secret": map[string]any{"secretName": secret}}}}
		return o
	}
	var pods []*unstructured.Unstructured
	for i := range 400 {
		pods = append(pods, pod("shop", fmt.Sprint("pod-", i), []string{"popular", "none"}[i%2]))
	}
	f.put(t, "elm", "pods", pods...)
	f.put(t, "oak", "pods", pod("blog", "only", "popular"))
	for _, cluster := range []string{"elm", "oak"} {
		f.put(t, cluster, "secrets", newObject(secretVersion, "shop", "popular"))
	}
	counted := &readStore{Store: f.search.Store, read: map[string]int{}}
	f.search.Store = counted
	return f, counted
}

// TestGraphReadsWhatItShows: to find the roots of a graph, objects that refer to existing
// objects are not read, nor relations that are not requested.
func TestGraphReadsWhatItShows(t *testing.T) {
	f, counted := popular(t)
	for query, want := range map[string]struct{ roots, pods int }{
		"of=secret/popular&relations=tls":                                  {2, 0},
		"of=secret/shop/popular&relations=mount&direction=usedBy&limit=5":  {2, graphPage},
		"of=secret/popular&relations=mount&direction=usedBy&limit=5":       {3, graphPage + 1},
		"of=secret/shop/none&relations=mount&direction=usedBy&limit=10":    {1, 200 + graphPage},
		"of=node/none&relations=mount":                                     {0, 0},
		"of=secret/blog/popular&relations=mount&direction=usedBy&limit=10": {1, 2},
	} {
		clear(counted.read)
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		code, g, body := f.graph(t, "", q)
		if want.roots == 0 && code != http.StatusNotFound || want.roots > 0 && (code != http.StatusOK || len(g.Roots) != want.roots) {
			t.Errorf("%s: %d %s", query, code, body)
		}
		if counted.read["pods"] > want.pods {
			t.Errorf("%s: %d pods are read, more than %d", query, counted.read["pods"], want.pods)
		}
	}
}

// builderOf returns a graphBuilder for a query, which only its own limits end.
func (f *fleet) builderOf(t *testing.T, query string) *graphBuilder {
	t.Helper()
	q, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := parseGraph(q)
	if err != nil {
		t.Fatal(err)
	}
	return f.search.newGraphBuilder(asked, location{})
}

// TestGraphEndsReading: a graph that would read too many objects is cut, and has those found
// before.
func TestGraphEndsReading(t *testing.T) {
	f, counted := popular(t)
	g := f.builderOf(t, "of=secret/shop/none&direction=usedBy&limit=2000")
	g.mostRead = 200
	roots, err := g.all(t.Context())
	if err != nil || len(roots) != 1 || !strings.Contains(g.cut, "objects would be read") {
		t.Errorf("%d roots, cut as %q: %v", len(roots), g.cut, err)
	}
	if len(g.arcs) < graphPage || counted.read["pods"] > 200 {
		t.Errorf("%d edges, of %d pods", len(g.arcs), counted.read["pods"])
	}
}

// lapsing is a context whose deadline passes when the test closes done.
type lapsing struct {
	context.Context

	done chan struct{}
}

func (l lapsing) Done() <-chan struct{} { return l.done }

func (l lapsing) Err() error {
	select {
	case <-l.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestGraphEndsInTime: at the deadline, the answer has what is known and the reason why more
// may be missing. It is an error if the roots are not known by then.
func TestGraphEndsInTime(t *testing.T) {
	f, counted := popular(t)
	for resource, want := range map[string]int{"pods": 2, "secrets": 0} {
		ctx := lapsing{t.Context(), make(chan struct{})}
		counted.before = func(within context.Context, q store.Query) {
			if q.Resource == resource && ctx.Err() == nil {
				close(ctx.done)
				<-within.Done()
			}
		}
		g := f.builderOf(t, "of=secret/shop/popular&direction=usedBy")
		roots, err := g.all(ctx)
		if (err == nil) != (want > 0) || len(roots) != want || (g.cut != "") != (want > 0) {
			t.Errorf("late for %s: %d roots, cut as %q: %v", resource, len(roots), g.cut, err)
		}
	}
}

func TestGraphRefused(t *testing.T) {
	f, _ := relatedFleet(t, 3)
	for query, want := range map[string]struct {
		code int
		says string
	}{
		"":                                       {http.StatusBadRequest, "parameter of is missing"},
		"of=secrets":                             {http.StatusBadRequest, "must be KIND/NAME"},
		"of=a/b/c/d":                             {http.StatusBadRequest, "must be KIND/NAME"},
		"of=secrets//x":                          {http.StatusBadRequest, "must be KIND/NAME"},
		"of=image:":                              {http.StatusBadRequest, "an image is missing"},
		"of=unicorns/x":                          {http.StatusBadRequest, "no kind is mirrored"},
		"of=node/shop/x":                         {http.StatusBadRequest, "in no namespace"},
		"of=secrets/none":                        {http.StatusNotFound, "not found"},
		"of=image:none":                          {http.StatusNotFound, "not found"},
		"of=image:none:1":                        {http.StatusNotFound, "not found"},
		"of=secrets/secret-1&clusters=moon":      {http.StatusBadRequest, "not a cluster of the fleet"},
		"of=image:nginx&clusters=moon":           {http.StatusBadRequest, "not a cluster of the fleet"},
		"of=secrets/secret-1&depth=0":            {http.StatusBadRequest, "from 1 to 10"},
		"of=secrets/secret-1&depth=11":           {http.StatusBadRequest, "from 1 to 10"},
		"of=secrets/secret-1&limit=2001":         {http.StatusBadRequest, "from 1 to 2000"},
		"of=secrets/secret-1&direction=up":       {http.StatusBadRequest, "uses, usedBy or both"},
		"of=secrets/secret-1&relations=friend":   {http.StatusBadRequest, "no relation"},
		"of=secrets/secret-1&q=x":                {http.StatusBadRequest, "unknown parameter"},
		"of=secrets/secret-1&of=secrets/x":       {http.StatusBadRequest, "given twice"},
		"of=secrets/a%00b":                       {http.StatusBadRequest, "no text"},
		"of=image:%27%20OR%201%3D1--%20:1":       {http.StatusNotFound, "not found"},
		"of=secrets/%27%3BDROP%20TABLE%20object": {http.StatusNotFound, "not found"},
	} {
		resp, body := f.ask(t, http.MethodGet, "/graph?"+query, "")
		if message, _ := body["message"].(string); resp.StatusCode != want.code || !strings.Contains(message, want.says) {
			t.Errorf("%s: %d %v, want %d with %q", query, resp.StatusCode, body, want.code, want.says)
		}
	}
	if resp, _ := f.ask(t, http.MethodGet, "/clusters/moon/graph?of=secrets/secret-1", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a cluster that there is not: %d", resp.StatusCode)
	}
	if resp, _ := f.ask(t, http.MethodPost, "/graph?of=secrets/secret-1", ""); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("written to: %d", resp.StatusCode)
	}
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource == "secrets" || what.Resource == "pods" || what.Group == "apps"
	}
	refusal := func(path string) string {
		resp, body := f.ask(t, http.MethodGet, path, "")
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s of what one may not list: %d %v", path, resp.StatusCode, body)
		}
		return fmt.Sprint(body)
	}
	for _, query := range []string{"of=secrets/secret-1", "of=secrets/none", "of=secrets/shop/none", "of=image:nginx", "of=image:none:1"} {
		refusal("/graph?" + query)
		if oak, moon := refusal("/graph?clusters=oak&"+query), refusal("/graph?clusters=moon&"+query); oak != moon {
			t.Errorf("%s tells which clusters there are: %s, %s", query, oak, moon)
		}
		if oak, moon := refusal("/clusters/oak/graph?"+query), refusal("/clusters/moon/graph?"+query); oak != moon {
			t.Errorf("%s of a cluster tells which there are: %s, %s", query, oak, moon)
		}
	}
	clear(f.mirror.served)
	refusal("/clusters/moon/graph?of=image:nginx")
}

// BenchmarkGraph requests graphs of a fleet of 50 clusters, each with 200 Deployments, their
// ReplicaSets and 400 pods in 10 namespaces. Each graph is requested b.N times.
func BenchmarkGraph(b *testing.B) {
	var clusters []string
	for i := range 50 {
		clusters = append(clusters, fmt.Sprintf("c%02d", i))
	}
	f := newFleet(b, clusters...)
	for _, typ := range related {
		f.mirror.serve(member.API{GroupVersionKind: typ.gvk, Resource: typ.resource, Singular: strings.ToLower(typ.gvk.Kind), Namespaced: typ.namespaced}, clusters)
	}
	yes := true
	for _, cluster := range clusters {
		objects := map[string][]*unstructured.Unstructured{}
		add := func(i int, kind schema.GroupVersionKind, resource, namespace, name, owner, ownerName string, content map[string]any) {
			o := &unstructured.Unstructured{Object: content}
			o.SetGroupVersionKind(kind)
			o.SetNamespace(namespace)
			o.SetName(name)
			o.SetUID(uidOf(kind.Kind, cluster, namespace, name))
			o.SetLabels(map[string]string{"app": fmt.Sprint("app-", i)})
			o.SetAnnotations(map[string]string{"fill": strings.Repeat("x", 1000)})
			if owner != "" {
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: owner, Name: ownerName, UID: uidOf(owner, cluster, namespace, ownerName), Controller: &yes}})
			}
			objects[resource] = append(objects[resource], o)
		}
		pod := func(i int) map[string]any {
			return map[string]any{
				"containers": []any{map[string]any{"image": fmt.Sprintf("registry.example.com/app-%d:1.%d", i, i%7), "envFrom": []any{map[string]any{"configMapRef": map[string]any{"name": fmt.Sprint("app-", i)}}}}},
				"volumes":    []any{map[string]any{"secret": map[string]any{"secretName": "db-pass"}}},
			}
		}
		for n := range 10 {
			namespace := fmt.Sprint("team-", n)
			add(-1, secretVersion, "secrets", namespace, "db-pass", "", "", map[string]any{})
			for i := range 20 {
				app := fmt.Sprint("app-", 20*n+i)
				template := map[string]any{"template": map[string]any{"spec": pod(20*n + i)}}
				add(20*n+i, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", namespace, app, "", "", map[string]any{})
				add(20*n+i, schema.GroupVersionKind{Version: "v1", Kind: "Service"}, "services", namespace, app, "", "", map[string]any{"spec": map[string]any{"selector": map[string]any{"app": app}}})
				add(20*n+i, deploymentKind, "deployments", namespace, app, "", "", map[string]any{"spec": template})
				add(20*n+i, schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "replicasets", namespace, app, "Deployment", app, map[string]any{"spec": template})
				for p := range 2 {
					add(20*n+i, podKind, "pods", namespace, fmt.Sprint(app, "-", p), "ReplicaSet", app, map[string]any{"spec": pod(20*n + i)})
				}
			}
		}
		for resource, of := range objects {
			f.put(b, cluster, resource, of...)
		}
	}
	for _, one := range []struct {
		name, query string
		role        role
	}{
		{"SecretOfOneCluster", "of=secret/team-3/db-pass&direction=usedBy&clusters=c07&depth=3&limit=2000", role{}},
		{"ConfigMapOfFiftyClusters", "of=configmap/team-3/app-61&direction=usedBy&depth=2&limit=2000", role{}},
		{"DeploymentBoth", "of=deploy/team-3/app-61&clusters=c07", role{}},
		{"Image", "of=image:registry.example.com/app-61:1.5&direction=usedBy&depth=1&limit=2000", role{}},
		{"Repository", "of=image:app-61&direction=usedBy&depth=1&limit=2000", role{}},
		{"ConfigMapOfATenant", "of=configmap/team-3/app-61&direction=usedBy&depth=2&limit=2000", role{limited: true, spaces: map[string][]string{
			"configmaps": {"team-3"}, "pods": {"team-3"}, "deployments.apps": {"team-3"}, "replicasets.apps": {"team-3"}, "services": {"team-3"},
		}}},
	} {
		b.Run(one.name, func(b *testing.B) {
			one.role.is(f)
			q, err := url.ParseQuery(one.query)
			if err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			nodes, edges := 0, 0
			for b.Loop() {
				began := time.Now()
				code, g, body := f.graph(b, "", q)
				took = append(took, time.Since(began))
				if code != http.StatusOK || g.Cut != "" {
					b.Fatal(code, body[:min(len(body), 500)])
				}
				nodes, edges = len(g.Nodes), len(g.Edges)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
			b.ReportMetric(float64(nodes), "nodes")
			b.ReportMetric(float64(edges), "edges")
		})
	}
}
