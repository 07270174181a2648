package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/config"
)

const ours = `# a comment
---
apiVersion: cluster.orrery.dev/v1alpha1
kind: Cluster
metadata:
  name: alpha
spec:
  provision:
    hosts:
    - name: node1
      address: 10.0.0.1
      privateKeyPath: keys/id
    roleGroups:
      control-plane: [node1]
    kubernetes:
      version: v1.36.3
    addons:
    - name: a
      yaml: [a.yaml, /etc/b.yaml, "https://example.com/c.yaml"]
`

func TestParseOurs(t *testing.T) {
	read, err := config.Parse([]byte(ours), "/files")
	if err != nil {
		t.Fatal(err)
	}
	want := &clusterv1alpha1.Provision{
		Hosts:      []clusterv1alpha1.Host{{Name: "node1", Address: "10.0.0.1", PrivateKeyPath: "/files/keys/id"}},
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
		Addons:     []clusterv1alpha1.Addon{{Name: "a", YAML: []string{"/files/a.yaml", "/etc/b.yaml", "https://example.com/c.yaml"}}},
	}
	if diff := cmp.Diff(want, read.Cluster.Spec.Provision); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if read.Cluster.Name != "alpha" || len(read.Ignored) > 0 {
		t.Errorf("got %s, ignored %q", read.Cluster.Name, read.Ignored)
	}
}

func TestParseRefuses(t *testing.T) {
	cases := map[string]struct{ content, want string }{
		"UnknownField": {
			strings.Replace(ours, "      address:", "      host:", 1),
			`line 11: unknown field "spec.provision.hosts[0].host"`,
		},
		"UnknownFieldsOfTheCluster": {
			strings.Replace(ours, "  provision:", "  speed: 1\n  provision:\n    nodes: []", 1),
			"line 8: unknown field \"spec.speed\"\nline 10: unknown field \"spec.provision.nodes\"",
		},
		"FieldsThatTheHubRefuses": {
			strings.Replace(ours, "  provision:", "  zone: a\n  proxyHeader: {a: b}\n  provision:", 1),
			"line 8: unknown field \"spec.zone\"\nline 9: unknown field \"spec.proxyHeader\"",
		},
		"FieldTwice": {
			strings.Replace(ours, "  name: alpha", "  name: alpha\n  name: beta", 1),
			"read YAML: yaml: unmarshal errors:\n  line 7: key \"name\" already set in map",
		},
		"WrongType":   {strings.Replace(ours, "version: v1.36.3", "version: 1.36", 1), "line 3: read the Cluster: spec.provision.kubernetes.version is number and must be string"},
		"NoName":      {strings.Replace(ours, "name: alpha", "labels: {}", 1), "line 3: metadata.name is missing: give the cluster a name"},
		"NoProvision": {"apiVersion: cluster.orrery.dev/v1alpha1\nkind: Cluster\nmetadata: {name: a}\nspec: {}", "line 1: spec.provision is missing: it says what the cluster is built of; to join one that runs, use orrery cluster join"},
		"TwoDocuments": {
			ours + "---\nkind: Secret\napiVersion: v1\n", "line 3: the file has 2 documents: put the Cluster in a file of its own",
		},
		"Empty":      {"# nothing\n---\n", "the file is empty: orrery cluster config writes one to begin with"},
		"OtherKind":  {"kind: Pod\napiVersion: v1\n", `line 1: apiVersion "v1" and kind "Pod" are not those of a cluster: use cluster.orrery.dev/v1alpha1 and Cluster, or KubeKey's kubekey.kubesphere.io/v1alpha2`},
		"NoYAML":     {"\n\na: b: c", "read YAML: yaml: line 3: mapping values are not allowed in this context"},
		"NoMap":      {"hello", "line 1: this is no object: it needs apiVersion and kind"},
		"KindIsList": {"kind: [a]", "line 1: read apiVersion, kind and name: kind is array and must be string"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.content), "")
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ours)
	f.Add("---\n--- # x\n---\tkind: Cluster\n...\n")
	f.Add("apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n  hosts: [a, [b], {name: 1}]\n  roleGroups: {registry: [1, a], master: a, etcd: {a: b}}\n")
	f.Add("apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n  kubernetes: a\n  system: {preInstall: [a, {name: [], bash: 1}], skipConfigureOS: a}\n  registry: {auths: {a: b, c: {d: e}}}\n  addons: [a, {sources: {chart: a, yaml: [b]}}]\n  controlPlaneEndpoint: []\n  etcd: {external: a, type: 1}")
	f.Fuzz(func(t *testing.T, content string) {
		read, err := config.Parse([]byte(content), "")
		if (err == nil) != (read != nil && read.Cluster != nil && read.Cluster.Spec.Provision != nil) {
			t.Errorf("got %+v and %v", read, err)
		}
	})
}
