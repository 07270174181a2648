package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// aGraph returns the graph of a Secret that has one name in two clusters and is missing in one
// of them.
func aGraph() *fleetv1alpha1.ObjectGraph {
	node := func(cluster, kind, namespace, name string, state fleetv1alpha1.GraphState) fleetv1alpha1.GraphNode {
		return fleetv1alpha1.GraphNode{Cluster: cluster, Kind: kind, Namespace: namespace, Name: name, State: state}
	}
	return &fleetv1alpha1.ObjectGraph{
		Roots: []int{5, 7},
		Nodes: []fleetv1alpha1.GraphNode{
			node("", "Image", "", "evil\"];x\\\n\x1b[2J", ""),
			node("elm", "ClusterRole", "", "reader", ""),
			node("elm", "Deployment", "shop", "web", ""),
			node("elm", "Pod", "shop", "web-1", ""),
			node("elm", "ReplicaSet", "shop", "web-5d", ""),
			node("elm", "Secret", "shop", "db-pass", ""),
			node("oak", "Deployment", "shop", "web", ""),
			node("oak", "Secret", "shop", "db-pass", fleetv1alpha1.GraphMissing),
		},
		Edges: []fleetv1alpha1.GraphEdge{
			{From: 2, To: 4, Relation: "owner"},
			{From: 2, To: 5, Relation: "env"},
			{From: 2, To: 5, Relation: "mount"},
			{From: 3, To: 5, Relation: "env"},
			{From: 4, To: 3, Relation: "owner"},
			{From: 4, To: 5, Relation: "env"},
			{From: 5, To: 0, Relation: "image"},
			{From: 5, To: 1, Relation: "owner"},
			{From: 6, To: 7, Relation: "env"},
		},
	}
}

func TestTree(t *testing.T) {
	var out strings.Builder
	if err := printTree(&out, aGraph()); err != nil {
		t.Fatal(err)
	}
	want := `Secret/db-pass in shop of elm
├─ uses
│  ├─ Image/evil"];x\��[2J (image)
│  └─ ClusterRole/reader (owner)
└─ used by
   ├─ Deployment/web (env, mount)
   ├─ Pod/web-1 (env)
   │  └─ ReplicaSet/web-5d (owner)
   │     └─ Deployment/web (owner)
   └─ ReplicaSet/web-5d (env) …

Secret/db-pass in shop of oak MISSING
└─ used by
   └─ Deployment/web (env)
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestDot: for any names of objects, the tokens are those of the graph, and the texts are kept.
// Control characters are replaced.
func TestDot(t *testing.T) {
	var out strings.Builder
	if err := printDot(&out, aGraph()); err != nil {
		t.Fatal(err)
	}
	tokens, texts := dotTokens(t, out.String())
	if tokens["{"] != 3 || tokens["}"] != 3 || tokens["->"] != 9 || tokens["subgraph"] != 2 || tokens["n0"] != 2 || tokens["n7"] != 2 || tokens["x"] != 0 {
		t.Errorf("%v in %s", tokens, &out)
	}
	for _, text := range []string{"Image\nevil\"];x\\��[2J", "Secret\ndb-pass\nshop\nMissing", "elm", "oak", "mount"} {
		if texts[text] == 0 {
			t.Errorf("there is no %q in %s", text, &out)
		}
	}
}

// dotTokens parses Graphviz's language. It counts the tokens, and the texts in quotes.
func dotTokens(t *testing.T, text string) (tokens, texts map[string]int) {
	t.Helper()
	tokens, texts = map[string]int{}, map[string]int{}
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		switch c := rest[0]; {
		case c == '"':
			var quoted strings.Builder
			i := 1
			for ; i < len(rest) && rest[i] != '"'; i++ {
				if rest[i] != '\\' {
					quoted.WriteByte(rest[i])
					continue
				}
				switch i++; rest[i] {
				case 'n':
					quoted.WriteByte('\n')
				case '"', '\\':
					quoted.WriteByte(rest[i])
				default:
					t.Fatalf("\\%c is a variable of Graphviz", rest[i])
				}
			}
			if i == len(rest) {
				t.Fatal("a text does not end")
			}
			texts[quoted.String()]++
			rest = rest[i+1:]
		case strings.HasPrefix(rest, "->"):
			tokens["->"]++
			rest = rest[2:]
		case strings.ContainsRune("{}[]=;,", rune(c)):
			tokens[string(c)]++
			rest = rest[1:]
		default:
			end := strings.IndexFunc(rest, func(r rune) bool {
				return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
			})
			if end <= 0 {
				t.Fatalf("%q is no token", rest[:min(20, len(rest))])
			}
			tokens[rest[:end]]++
			rest = rest[end:]
		}
	}
	return tokens, texts
}

// graph queries the dependents of an existing and of a missing Secret, and the dependencies of
// a Service.
func (f *hubOfTwo) graph(t *testing.T) {
	run := f.run
	in, labels := kubernetes.NewForConfigOrDie(f.oak.Config()), map[string]string{"app": "web"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "tree", Name: name, Labels: labels}
	}
	_, err := in.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tree"}}, metav1.CreateOptions{})
	must(err)
	_, err = in.CoreV1().Secrets("tree").Create(t.Context(), &corev1.Secret{ObjectMeta: meta("db-pass"), StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{})
	must(err)
	spec := corev1.PodSpec{
		Containers: []corev1.Container{{Name: "web", Image: "tree/web:1", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "db-pass"}}}}}},
		Volumes:    []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}}},
	}
	_, err = in.AppsV1().Deployments("tree").Create(t.Context(), &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}, metav1.CreateOptions{})
	must(err)
	_, err = in.CoreV1().Services("tree").Create(t.Context(), &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(err)
	_, err = in.CoreV1().ServiceAccounts("tree").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta("runner")}, metav1.CreateOptions{})
	must(err)
	spec.ServiceAccountName = "runner"
	_, err = in.CoreV1().Pods("tree").Create(t.Context(), &corev1.Pod{ObjectMeta: meta("web-1"), Spec: spec}, metav1.CreateOptions{})
	must(err)

	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"UsedBy": {
			[]string{"secret/db-pass", "--used-by"},
			"Secret/db-pass in tree of oak\n└─ used by\n   ├─ Deployment/web (env)\n   └─ Pod/web-1 (env)\n      └─ Service/web (selector)\n",
		},
		"Missing": {
			[]string{"secrets/tls", "-n", "tree", "--cluster", "oak", "--used-by", "--depth", "1"},
			"Secret/tls in tree of oak MISSING\n└─ used by\n   ├─ Deployment/web (mount)\n   └─ Pod/web-1 (mount)\n",
		},
		"Uses": {
			[]string{"svc/web", "-n", "tree", "--uses", "--relations", "selector,env,account"},
			"Service/web in tree of oak\n└─ uses\n   └─ Pod/web-1 (selector)\n      ├─ Secret/db-pass (env)\n      └─ ServiceAccount/runner (account)\n",
		},
		"Image": {
			[]string{"image:web", "--used-by", "--depth", "1"},
			"Image/tree/web:1\n└─ used by\n   ├─ Deployment/web in tree of oak (image)\n   └─ Pod/web-1 in tree of oak (image)\n",
		},
	} {
		testenv.Eventually(t, name, testenv.Patience, func() error {
			code, out, errOut := run(append([]string{"graph"}, tc.args...)...)
			if diff := cmp.Diff(tc.want, out); code != 0 || diff != "" {
				return fmt.Errorf("%d: %s%s", code, diff, errOut)
			}
			return nil
		})
	}
	runUntil(t, run, func(code int, out, _ string) bool {
		return code == 0 && strings.Contains(out, "ClusterRoleBinding/cluster-admin (binding)")
	}, "graph", "clusterrole/cluster-admin", "--used-by", "--depth", "1", "--relations", "binding")
	runUntil(t, run, func(code int, out, _ string) bool {
		return code == 0 && strings.HasPrefix(out, "Service/kubernetes in default of oak\n")
	}, "graph", "svc/kubernetes", "-n", "default", "--cluster", "oak")
	runUntil(t, run, func(code int, out, _ string) bool {
		var g fleetv1alpha1.ObjectGraph
		return json.Unmarshal([]byte(out), &g) == nil && code == 0 && g.Kind == "ObjectGraph" && len(g.Nodes) == 4 && len(g.Roots) == 1 && g.Nodes[g.Roots[0]].UID != ""
	}, "graph", "secret/db-pass", "-n", "tree", "--used-by", "-o", "json")
	runUntil(t, run, func(code int, out, _ string) bool {
		if strings.Contains(out, "hunter2") {
			t.Fatalf("the data of a Secret is shown: %s", out)
		}
		return code == 0 && strings.HasPrefix(out, "digraph fleet {")
	}, "graph", "secret/db-pass", "-o", "dot")
	failsUntil(t, run, func(code int, _, errOut string) bool {
		return code == 1 && strings.Contains(errOut, `secrets "none" not found`)
	}, "graph", "secret/none", "-n", "tree")
	runUntil(t, run, func(code int, _, errOut string) bool {
		return code == 0 && strings.Contains(errOut, "Not all is shown: there are more than 2 nodes")
	}, "graph", "secret/db-pass", "--limit", "2")
	runUntil(t, run, func(code int, out, _ string) bool {
		return code == 0 && out == "oak pod/web-1 tree\noak deployment.apps/web tree\n"
	}, "search", "-o", "name", "uses:secret/db-pass")
	runUntil(t, run, func(code int, out, _ string) bool {
		return code == 0 && strings.Contains(out, "it refers to Secret/db-pass") && strings.Contains(out, "an index")
	}, "search", "--explain", "uses:secret/db-pass")
}
