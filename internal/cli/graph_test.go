package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// aGraph is of a Secret of one name in two clusters, of which one is missing.
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

// TestDot: whatever names are, the tokens of Graphviz's grammar are those of the graph, and texts are as they were.
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

// dotTokens reads Graphviz's language: how often each token is there, and each text in quotes.
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
