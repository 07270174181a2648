// Package layers checks which packages may import which.
package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "orrery.dev/orrery/"

// order is the direction of the data flows: a package imports only packages that come before
// it. ARCHITECTURE.md draws the same order.
var order = []string{
	"api", "config/crd", "internal/presence", "internal/neutral", "internal/mark", "internal/queue", "internal/disk", "internal/image", "internal/manifest", "internal/chart",
	"internal/pki", "internal/slots", "internal/process", "internal/sandbox", "internal/testenv", "internal/lab", "internal/reconciler",
	"internal/lifecycle/catalog", "internal/lifecycle/plan", "internal/lifecycle/intent", "internal/lifecycle/safety", "internal/lifecycle/facts", "internal/lifecycle/config",
	"internal/lifecycle/host", "internal/lifecycle/reach", "internal/lifecycle/unit", "internal/lifecycle/node",
	"internal/lifecycle/balancer", "internal/lifecycle/agent", "internal/lifecycle/addon", "internal/lifecycle/content", "internal/lifecycle", "internal/hosttest",
	"internal/interpreter", "internal/policy", "internal/scheduler", "internal/access", "internal/render", "internal/podsecurity", "internal/words", "internal/graph", "internal/query", "internal/expression", "internal/history", "internal/served",
	"internal/sqlite", "internal/seal", "internal/store", "internal/records",
	"internal/tunnel", "internal/hub", "internal/listener", "internal/enrollment", "internal/member", "internal/provision", "internal/mirror", "internal/template",
	"internal/binding", "internal/fleet", "internal/failover",
	"internal/placement", "internal/apply", "internal/status", "internal/revision", "internal/rebalance",
	"internal/website",
	"internal/explanation",
	"internal/answer", "internal/search", "internal/live", "internal/proxy", "internal/fleetapi", "internal/console",
	"internal/server",
	"internal/demo",
	"internal/cli", "cmd", "test",
}

// pure packages only compute decisions. They access no API server, no disk and no process.
var pure = []string{"api", "internal/lifecycle/plan", "internal/lifecycle/intent", "internal/lifecycle/safety", "internal/lifecycle/facts", "internal/interpreter", "internal/policy", "internal/scheduler", "internal/access", "internal/render", "internal/podsecurity", "internal/presence", "internal/neutral", "internal/mark", "internal/seal", "internal/words", "internal/graph", "internal/query", "internal/expression", "internal/history", "internal/served"}

// clients are the modules that connect to API servers.
var clients = []string{"sigs.k8s.io/controller-runtime", "k8s.io/client-go/"}

// kubeconfigTypes is a package of client-go with nothing but the format of a kubeconfig.
const kubeconfigTypes = "k8s.io/client-go/tools/clientcmd/api"

func TestPackagesImportOnlyEarlierOnes(t *testing.T) {
	for _, p := range packages(t) {
		here := position(t, p.ImportPath)
		for _, i := range p.Imports {
			if !strings.HasPrefix(i, module) {
				continue
			}
			if there := position(t, i); there > here {
				t.Errorf("%s imports %s, which comes after it in the flow; turn the dependency round with a callback that internal/server connects", p.ImportPath, i)
			}
		}
	}
}

func TestPurePackagesReachNoClient(t *testing.T) {
	for _, p := range pure {
		for _, dep := range dependencies(t, p, true) {
			for _, c := range clients {
				if strings.HasPrefix(dep+"/", c) && !strings.HasPrefix(dep, kubeconfigTypes) {
					t.Errorf("%s depends on %s: it must stay pure", p, dep)
				}
			}
			if dep == "os/exec" || dep == "database/sql" {
				t.Errorf("%s depends on %s: it must stay pure", p, dep)
			}
		}
	}
}

// metrics is the package of controller-runtime that every package may use: a registry, no
// controller.
const metrics = "sigs.k8s.io/controller-runtime/pkg/metrics"

func TestDatabasesKnowNoController(t *testing.T) {
	for _, database := range []string{"internal/sqlite", "internal/store", "internal/records"} {
		allowed := []string{metrics, module + "internal/sqlite", module + "internal/seal", module + "internal/words", module + "internal/graph", module + database}
		for _, dep := range dependencies(t, database, true) {
			if (strings.HasPrefix(dep, clients[0]) || strings.HasPrefix(dep, module)) && !slices.Contains(allowed, dep) {
				t.Errorf("%s depends on %s", database, dep)
			}
		}
	}
}

// TestTunnelKnowsNoController: the agent's part belongs to a small program that runs in
// members.
func TestTunnelKnowsNoController(t *testing.T) {
	for path, allowed := range map[string][]string{
		"internal/tunnel": {module + "internal/tunnel"}, "internal/tunnel/agent": {module + "internal/neutral", module + "internal/tunnel", module + "internal/tunnel/agent"},
		"internal/tunnel/gateway": {metrics, module + "internal/slots", module + "internal/tunnel", module + "internal/tunnel/gateway"},
	} {
		for _, dep := range dependencies(t, path, false) {
			if (strings.HasPrefix(dep, clients[0]) || strings.HasPrefix(dep, module)) && !slices.Contains(allowed, dep) {
				t.Errorf("%s depends on %s", path, dep)
			}
			if !strings.HasSuffix(path, "gateway") && strings.HasPrefix(dep, clients[1]) && !strings.HasPrefix(dep, kubeconfigTypes) {
				t.Errorf("%s depends on %s", path, dep)
			}
		}
	}
}

func TestPackagesAreNouns(t *testing.T) {
	for _, p := range packages(t) {
		for element := range strings.SplitSeq(strings.TrimPrefix(p.ImportPath, module), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "pkg"}, element) {
				t.Errorf("%s: a function lives with its concept, not in %q", p.ImportPath, element)
			}
		}
	}
}

// position returns the index in order of a package.
func position(t *testing.T, path string) int {
	t.Helper()
	path = strings.TrimPrefix(path, module)
	for i, r := range order {
		if path == r || strings.HasPrefix(path, r+"/") {
			return i
		}
	}
	t.Fatalf("package %s has no place in the order of packages: add it to test/layers and ARCHITECTURE.md", path)
	return 0
}

// goPackage is a package of the module, without its tests. Deps includes indirect dependencies.
type goPackage struct {
	ImportPath    string
	Imports, Deps []string
}

// listed returns all packages of the module. go list takes a second or more, so all tests share
// its result. Go's cache of test results does not know which files go list reads. Therefore
// these tests run with -count=1.
var listed = sync.OnceValues(func() ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func packages(t *testing.T) []goPackage {
	t.Helper()
	all, err := listed()
	if err != nil || len(all) == 0 {
		t.Fatalf("go list: %d packages, %v", len(all), err)
	}
	return all
}

// dependencies returns a package, or with below all packages in and below its directory, and
// all their direct and indirect dependencies.
func dependencies(t *testing.T, path string, below bool) []string {
	t.Helper()
	var all []string
	for _, p := range packages(t) {
		if p.ImportPath == module+path || below && strings.HasPrefix(p.ImportPath, module+path+"/") {
			all = append(append(all, p.ImportPath), p.Deps...)
		}
	}
	if len(all) == 0 {
		t.Fatalf("there is no package %s", path)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
