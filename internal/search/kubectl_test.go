package search

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var spaces = regexp.MustCompile(` {2,}`)

// printed returns the lines of kubectl's output, with "|" between columns and a word for ages.
func printed(out string) []string {
	var lines []string
	for l := range strings.Lines(out) {
		lines = append(lines, spaces.ReplaceAllString(passing.ReplaceAllString(strings.TrimSpace(l), "age"), "|"))
	}
	return lines
}

// TestKubectl: plain kubectl works on the fleet as on any cluster.
func TestKubectl(t *testing.T) {
	kinds(t)
	f := newFleet(t, "elm", "oak")
	// oak has all objects, elm only those named web and those without a namespace.
	f.fill(t, func(cluster string, o *unstructured.Unstructured) bool {
		ours := o.GetNamespace() == "shop" || o.GetName() == "n1" || o.GetKind() == "CustomResourceDefinition"
		return ours && (cluster == "oak" || o.GetName() == "web" || o.GetNamespace() == "")
	}, "elm", "oak")
	for name, c := range map[string]struct {
		args string
		want []string
	}{
		"AllNamespaces": {"get pods -A", []string{
			"NAMESPACE|CLUSTER|NAME|READY|STATUS|RESTARTS|AGE",
			"shop|oak|crashing|0/1|CrashLoopBackOff|12 (age ago)|age",
			"shop|oak|failed|0/2|Signal:9|0|age",
			"shop|oak|gated|0/1|SchedulingGated|0|age",
			"shop|oak|init-failed|0/1|Init:ExitCode:3|2|age",
			"shop|oak|init-waiting|0/1|Init:1/2|0|age",
			"shop|oak|running|2/3|Running|3 (age ago)|age",
		}},
		"SeveralTypesByLabel": {"get deploy,svc -A -l app=web", []string{
			"NAMESPACE|CLUSTER|NAME|READY|UP-TO-DATE|AVAILABLE|AGE",
			"shop|elm|deployment.apps/web|2/3|3|1|age",
			"shop|oak|deployment.apps/web|2/3|3|1|age",
			"",
			"NAMESPACE|CLUSTER|NAME|TYPE|CLUSTER-IP|EXTERNAL-IP|PORT(S)|AGE",
			"shop|elm|service/web|ClusterIP|IP|<none>|80/TCP,443/TCP|age",
			"shop|oak|service/web|ClusterIP|IP|<none>|80/TCP,443/TCP|age",
		}},
		"Nodes": {"get nodes", []string{
			"CLUSTER|NAME|STATUS|ROLES|AGE|VERSION",
			"elm|n1|Ready,SchedulingDisabled|control-plane,main|age|v1.36.3",
			"oak|n1|Ready,SchedulingDisabled|control-plane,main|age|v1.36.3",
		}},
		"FieldSelector": {"get pods -n shop --field-selector status.phase=Running,spec.nodeName!=n1 -o name", []string{"pod/crashing"}},
		"Custom": {"get wd -n shop", []string{
			"CLUSTER|NAME|SIZE|COLOUR|READY|ROUND|MADE|AGE",
			"oak|bare|age",
			"oak|big|3|red|True|true|age|age",
		}},
		"Wide": {"get deploy -n shop -o wide", []string{
			"CLUSTER|NAME|READY|UP-TO-DATE|AVAILABLE|AGE|CONTAINERS|IMAGES|SELECTOR",
			"elm|web|2/3|3|1|age|web,log|nginx:1,fluent:2|app=web",
			"oak|web|2/3|3|1|age|web,log|nginx:1,fluent:2|app=web",
		}},
		"LabelColumn":  {"get pods -n shop -L app --field-selector metadata.name=running --no-headers", []string{"oak|running|2/3|Running|3 (age ago)|age|web"}},
		"Chunks":       {"get svc -n shop --chunk-size=1 -o name", []string{"service/web", "service/balanced", "service/elsewhere", "service/headless", "service/node-port", "service/web"}},
		"SortBy":       {"get deploy -A --sort-by=.metadata.annotations.fleet\\.orrery\\.dev/cluster --no-headers", []string{"shop|elm|web|2/3|3|1|age", "shop|oak|web|2/3|3|1|age"}},
		"ByName":       {"get pod running -n shop --no-headers", []string{"oak|running|2/3|Running|3 (age ago)|age"}},
		"JSONPath":     {"get pods -n shop -l app=web -o jsonpath={.items[*].metadata.name}", []string{"crashing running"}},
		"APIResources": {"api-resources --api-group=apps --no-headers", []string{"daemonsets|ds|apps/v1|true|DaemonSet", "deployments|deploy|apps/v1|true|Deployment", "replicasets|rs|apps/v1|true|ReplicaSet", "statefulsets|sts|apps/v1|true|StatefulSet"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := f.kubectl(t, strings.Fields(c.args)...)
			if err != nil || stderr != "" {
				t.Fatalf("%v: %s", err, stderr)
			}
			stdout = regexp.MustCompile(`10\.96\.\d+\.\d+`).ReplaceAllString(stdout, "IP")
			if diff := cmp.Diff(c.want, printed(stdout)); diff != "" {
				t.Errorf("kubectl %s (-want, +got):\n%s", c.args, diff)
			}
		})
	}
	t.Run("JSON", func(t *testing.T) {
		stdout, stderr, err := f.kubectl(t, "get", "deploy", "-A", "-o", "json")
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(stdout), &body); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"elm/shop/web", "oak/shop/web"}, found(body)); diff != "" {
			t.Errorf("objects (-want, +got):\n%s", diff)
		}
	})
	t.Run("YAMLByName", func(t *testing.T) {
		stdout, stderr, err := f.kubectl(t, "get", "pod", "running", "-n", "shop", "-o", "yaml")
		if err != nil || !strings.Contains(stdout, "fleet.orrery.dev/cluster: oak") {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
	})
	t.Run("Version", func(t *testing.T) {
		stdout, stderr, err := f.kubectl(t, "version")
		if err != nil || !strings.Contains(stdout, "Server Version: v1.36.3") {
			t.Errorf("%v: %s%s", err, stdout, stderr)
		}
	})
	for name, c := range map[string]struct {
		args, says string
		works      bool
	}{
		"Ambiguous":   {"get deploy web -n shop", "elm, oak", false},
		"Delete":      {"delete pod running -n shop --wait=false", "read-only", false},
		"Logs":        {"logs running -n shop", "kubectl --context CLUSTER", false},
		"UnknownType": {"get gateways", `doesn't have a resource type "gateways"`, false},
		"Stale":       {"get deploy -A", "Warning: cluster elm is unreachable since", true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.works {
				f.mirror.stale["elm"] = time.Now()
			}
			stdout, stderr, err := f.kubectl(t, strings.Fields(c.args)...)
			if (err == nil) != c.works || !strings.Contains(stderr, c.says) {
				t.Errorf("%v: %s%s", err, stdout, stderr)
			}
		})
	}
}
