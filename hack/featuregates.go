//go:build ignore

// Featuregates writes internal/lifecycle/plan/featuregates.yaml from the source of Kubernetes. Its
// arguments are releases, the newest patch of each minor of the catalog that is known:
//
//	go run hack/featuregates.go v1.34.4 v1.35.4 v1.36.3
//
// It reads the literals that register feature gates, from modules that go mod download fetches.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	output = "internal/lifecycle/plan/featuregates.yaml"
	every  = "every"
)

// registries are the files that register feature gates, by the component that has them. Every
// component links pkg/features of Kubernetes, which registers those of the libraries, too.
var registries = []struct{ component, module, file string }{
	{every, "kubernetes", "pkg/features/kube_features.go"},
	{every, "apiserver", "pkg/features/kube_features.go"},
	{every, "apiextensions-apiserver", "pkg/features/kube_features.go"},
	{every, "client-go", "features/known_features.go"},
	{every, "component-base", "logs/api/v1/kube_features.go"},
	{every, "component-base", "metrics/features/kube_features.go"},
	{every, "component-base", "zpages/features/kube_features.go"},
	{"kube-controller-manager", "controller-manager", "pkg/features/kube_features.go"},
}

// spec is one entry of a feature gate: from a minor on it has a default, and may be locked to that.
type spec struct {
	minor         int
	value, locked bool
}

func main() {
	log.SetFlags(0)
	states := map[string]map[string]map[string]string{} // component → feature → minor → state
	for _, release := range os.Args[1:] {
		minor := release[:strings.LastIndex(release, ".")]
		for component, features := range read(release) {
			for feature, state := range features {
				if states[component] == nil {
					states[component] = map[string]map[string]string{}
				}
				if states[component][feature] == nil {
					states[component][feature] = map[string]string{}
				}
				states[component][feature][minor] = state
			}
		}
	}
	if err := os.WriteFile(output, encode(os.Args[1:], states), 0o644); err != nil {
		log.Fatal(err)
	}
}

// read returns the state of each feature gate of a release, by component.
func read(release string) map[string]map[string]string {
	minor, err := strconv.Atoi(strings.Split(release, ".")[1])
	if err != nil {
		log.Fatalf("%s is not a release such as v1.36.3: %v", release, err)
	}
	names, files := map[string]string{}, make([]*ast.File, len(registries))
	for i, r := range registries {
		version := release
		if r.module != "kubernetes" {
			version = "v0" + strings.TrimPrefix(release, "v1")
		}
		path := filepath.Join(download("k8s.io/"+r.module+"@"+version), r.file)
		if files[i], err = parser.ParseFile(token.NewFileSet(), path, nil, 0); err != nil {
			log.Fatal(err)
		}
		maps.Copy(names, constants(files[i]))
	}
	states := map[string]map[string]string{}
	for i, r := range registries {
		for feature, specs := range features(files[i], names) {
			state := ""
			for _, s := range specs { // the oldest first
				switch {
				case s.minor > minor:
				case !s.locked:
					state = "settable"
				default:
					state = fmt.Sprintf("always %t", s.value)
				}
			}
			if state == "" || r.component != every && states[every][feature] != "" {
				continue
			}
			if states[r.component] == nil {
				states[r.component] = map[string]string{}
			}
			states[r.component][feature] = state
		}
	}
	return states
}

// download returns the directory of a module.
func download(module string) string {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("download %s: %v\n%s", module, err, out)
	}
	var got struct{ Dir string }
	if err := json.Unmarshal(out, &got); err != nil {
		log.Fatal(err)
	}
	return got.Dir
}

// constants returns the names of features by the identifiers of their constants.
func constants(f *ast.File) map[string]string {
	names := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != len(v.Names) {
			return true
		}
		for i, name := range v.Names {
			value := v.Values[i]
			if converted, ok := value.(*ast.CallExpr); ok && len(converted.Args) == 1 {
				value = converted.Args[0]
			}
			if text, ok := value.(*ast.BasicLit); ok && text.Kind == token.STRING {
				if unquoted, err := strconv.Unquote(text.Value); err == nil {
					names[name.Name] = unquoted
				}
			}
		}
		return true
	})
	return names
}

// features returns the entries of all maps of features in a file.
func features(f *ast.File, names map[string]string) map[string][]spec {
	all := map[string][]spec{}
	ast.Inspect(f, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		kind, ok := literal.Type.(*ast.MapType)
		if !ok || identifier(kind.Value) != "VersionedSpecs" && identifier(kind.Value) != "FeatureSpec" {
			return true
		}
		versioned := identifier(kind.Value) == "VersionedSpecs"
		for _, e := range literal.Elts {
			entry := e.(*ast.KeyValueExpr)
			name, ok := names[identifier(entry.Key)]
			if !ok {
				log.Fatalf("no constant %s", identifier(entry.Key))
			}
			if !versioned { // as client-go had them until v1.34
				all[name] = append(all[name], parse(name, entry.Value.(*ast.CompositeLit)))
				continue
			}
			for _, one := range entry.Value.(*ast.CompositeLit).Elts {
				all[name] = append(all[name], parse(name, one.(*ast.CompositeLit)))
			}
		}
		return false
	})
	return all
}

// parse returns one entry of a feature gate. It fails for values that it cannot evaluate.
func parse(feature string, literal *ast.CompositeLit) spec {
	var s spec
	for _, e := range literal.Elts {
		field := e.(*ast.KeyValueExpr)
		switch key := identifier(field.Key); key {
		case "Version":
			text := field.Value.(*ast.CallExpr).Args[0].(*ast.BasicLit).Value
			minor, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(text, `"1.`), `"`))
			if err != nil {
				log.Fatalf("%s: version %s: %v", feature, text, err)
			}
			s.minor = minor
		case "Default", "LockToDefault":
			value, err := strconv.ParseBool(identifier(field.Value))
			if err != nil {
				log.Fatalf("%s: %s: %v", feature, key, err)
			}
			if key == "Default" {
				s.value = value
			} else {
				s.locked = value
			}
		case "PreRelease", "MinCompatibilityVersion":
		default:
			log.Fatalf("%s: a field %s", feature, key)
		}
	}
	return s
}

// identifier returns the name of an identifier, without its package.
func identifier(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

const header = `# The feature gates of Kubernetes, of the minors in the catalog: by the component that has the feature, and by minor. A minor
# that is missing beside a feature does not have it. "settable" gates are set to true or false. "always true" and "always false"
# are locked: a component does not start with the other value. Written by hack/featuregates.go from the source of these
# releases; a later patch can have more gates.
`

func encode(releases []string, states map[string]map[string]map[string]string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%sreleases: [%s]\nfeatures:\n", header, strings.Join(releases, ", "))
	for _, component := range slices.Sorted(maps.Keys(states)) {
		fmt.Fprintf(&b, "  %s:\n", component)
		for _, feature := range slices.Sorted(maps.Keys(states[component])) {
			var of []string
			for _, minor := range slices.Sorted(maps.Keys(states[component][feature])) {
				of = append(of, minor+": "+states[component][feature][minor])
			}
			fmt.Fprintf(&b, "    %s: {%s}\n", feature, strings.Join(of, ", "))
		}
	}
	return b.Bytes()
}
