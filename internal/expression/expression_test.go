package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	casejson "sigs.k8s.io/json"
)

const web = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","labels":{"app":"web","a.b/c":"d"}},
 "spec":{"replicas":4,"weight":0.5,"template":{"spec":{"containers":[{"image":"nginx:1.25"},{"image":"sidecar"}]}}},"status":{"phase":null}}`

func TestMatches(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"Greater":           {`object.spec.replicas > 3`, true},
		"NotGreater":        {`object.spec.replicas > 4`, false},
		"IntAndDouble":      {`object.spec.replicas > 3.5 && object.spec.weight < 1`, true},
		"Cluster":           {`cluster.startsWith("eu-")`, true},
		"LabelByIndex":      {`object.metadata.labels["a.b/c"] == "d"`, true},
		"ListMacro":         {`object.spec.template.spec.containers.exists(c, c.image.startsWith("nginx:"))`, true},
		"All":               {`object.spec.template.spec.containers.all(c, c.image.startsWith("nginx:"))`, false},
		"Has":               {`has(object.spec.paused)`, false},
		"HasNot":            {`!has(object.spec.paused)`, true},
		"Whole":             {`object.size() == 5`, true},
		"AbsentField":       {`object.spec.paused == true`, false},
		"AbsentNegated":     {`!(object.spec.paused == true)`, false},
		"AbsentOr":          {`object.spec.paused || cluster == "eu-1"`, true},
		"OtherType":         {`object.spec.replicas == "4"`, false},
		"NoOverload":        {`object.metadata.name > 3`, false},
		"Null":              {`object.status.phase == null`, true},
		"InNoObject":        {`object.kind.name == "x"`, false},
		"ShadowedVariable":  {`[{"spec": {"replicas": 9}}].exists(object, object.spec.replicas == 9)`, true},
		"KeyThatIsComputed": {`object.metadata.labels["a" + "pp"] == "web"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Compile(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Matches(t.Context(), "eu-1", []byte(web), &Budget{})
			if err != nil || got != tc.want {
				t.Errorf("%s: %t, %v, want %t", tc.text, got, err, tc.want)
			}
		})
	}
}

func TestEqualities(t *testing.T) {
	e, err := Compile(`object.metadata.namespace == "shop" && ("web" == object.metadata.labels["app"] && cluster == "oak") && object.spec.replicas > 1 && (object.metadata.name == "a" || object.kind == "b")`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Equality{{[]string{"metadata", "namespace"}, "shop"}, {[]string{"metadata", "labels", "app"}, "web"}, {nil, "oak"}}
	if diff := cmp.Diff(want, e.Equalities()); diff != "" {
		t.Error(diff)
	}
}

func TestInvalid(t *testing.T) {
	for name, text := range map[string]string{
		"Empty": "", "Syntax": "object.spec.", "Unknown": "pod.spec == 1", "NoBoolean": "object.spec.replicas", "Number": "1 + 1",
		"Long": "true || " + strings.Repeat(" ", mostBytes), "Deep": strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500),
		"NoText": "\xff == 1", "Regex": `"a".matches("(")`,
		"LargeRegex": `object.metadata.name.matches("` + strings.Repeat("(?:.?){1000}", 300) + `!$")`, "MadeRegex": `"a".matches(object.metadata.name)`,
		"NestedRegex": `object.metadata.name.matches("((a{30}){30}){30}")`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compile(text); !errors.Is(err, ErrInvalid) {
				t.Errorf("%.40s: %v", text, err)
			}
		})
	}
}

// TestBombs: an expensive evaluation is refused because of its cost or, where CEL
// underestimates the cost, because of its duration.
func TestBombs(t *testing.T) {
	var items []string
	for i := range 300 {
		items = append(items, fmt.Sprintf(`{"n":%d}`, i))
	}
	body := []byte(`{"spec":{"items":[` + strings.Join(items, ",") + `],"text":"` + strings.Repeat("ab", 1<<17) + `"}}`)
	nested := `i.n >= 0`
	for range 4 {
		nested = `object.spec.items.all(i, ` + nested + `)`
	}
	list := "[" + strings.Repeat("0,", 300) + "0]"
	literal := `x >= 0`
	for range 3 {
		literal = list + `.all(x, ` + literal + `)`
	}
	for name, text := range map[string]string{
		"Loops": nested, "Literals": literal,
		"Maps":  `object.spec.items.map(a, object.spec.items.map(b, object.spec.items.map(c, c.n))).size() > 0`,
		"Texts": `object.spec.items.all(i, object.spec.text.contains("aaaaaaaaaaaaaaaaaaab") == false)`,
		"Regex": `object.spec.items.all(i, object.spec.text.matches("(a*)*(b*)*c") == false)`,
		"Equal": `[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, object.spec.items.all(i, object == object)))`,
		"Sums":  `object.spec.items.all(i, (object.spec.text + object.spec.text + object.spec.text).size() > 0)`,
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Compile(text)
			if err != nil {
				if name == "Literals" && errors.Is(err, ErrInvalid) {
					return
				}
				t.Fatal(err)
			}
			if _, err := e.Matches(t.Context(), "oak", body, &Budget{}); !errors.Is(err, ErrCost) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("AllTogether", func(t *testing.T) {
		e, err := Compile(`object.spec.items.all(i, i.n >= 0)`)
		if err != nil {
			t.Fatal(err)
		}
		var budget Budget
		for range 1 << 20 {
			if _, err = e.Matches(t.Context(), "oak", body, &budget); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrCost) {
			t.Errorf("%v", err)
		}
	})
	t.Run("WhoeverAskedHasGone", func(t *testing.T) {
		e, err := Compile(nested)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.Matches(ctx, "oak", body, &Budget{}); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrCost) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzTree: read returns the same values as a decoder of the whole object.
func FuzzTree(f *testing.F) {
	for _, body := range []string{web, `{}`, `{"a":{"b":1,"b":2}}`, `{"\u0061":{"b":"\"}"}}`, `{"a":[{"b":1}]}`, `{"a":null}`, ` { "a" : { "b" : [ ] } , "c" : 1e3 } `, `{"a":{"b":tru}}`, `{"a":`, "{\"d\":[\x00]}"} {
		f.Add([]byte(body))
	}
	named := &tree{}
	named.add([]string{"a", "b"})
	named.add([]string{"spec", "replicas"})
	named.add([]string{"c"})
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := named.read(body)
		var whole map[string]any
		if !json.Valid(body) || casejson.UnmarshalCaseSensitivePreserveInts(body, &whole) != nil {
			return // for invalid JSON, read only has to return
		}
		if err != nil || whole == nil {
			if whole == nil {
				return
			}
			t.Fatalf("%s: %v", body, err)
		}
		want := map[string]any{}
		for _, path := range [][]string{{"a", "b"}, {"spec", "replicas"}, {"c"}} {
			value, there := whole[path[0]]
			if !there {
				continue
			}
			inner, object := value.(map[string]any)
			if len(path) == 1 || !object {
				want[path[0]] = value
				continue
			}
			below := map[string]any{}
			if v, ok := inner[path[1]]; ok {
				below[path[1]] = v
			}
			want[path[0]] = below
		}
		if duplicates(body) {
			return
		}
		if diff := cmp.Diff(any(want), got); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	})
}

// duplicates reports whether an object may have a key twice. Then read uses the last value, and
// the other decoder merges the values.
func duplicates(body []byte) bool {
	for _, key := range []string{"a", "b", "c", "spec", "replicas"} {
		if strings.Count(string(body), `"`+key+`"`) > 1 || strings.Contains(string(body), `\`) {
			return true
		}
	}
	return false
}

func BenchmarkMatches(b *testing.B) {
	e, err := Compile(`object.spec.replicas > 3`)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := e.Matches(b.Context(), "oak", []byte(web), &Budget{}); err != nil {
			b.Fatal(err)
		}
	}
}
