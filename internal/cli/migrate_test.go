package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/testenv"
)

func TestMirrorOfSyncResources(t *testing.T) {
	type resources = clusterv1alpha1.MirrorResources
	for name, tc := range map[string]struct {
		from  []pediaResources
		want  []resources
		notes []string // content of each file
	}{
		"Nothing":    {},
		"Plain":      {[]pediaResources{{Group: "apps", Resources: []string{"deployments", "statefulsets", "deployments"}}}, []resources{{Group: "apps", Resources: []string{"deployments", "statefulsets"}}}, nil},
		"Versions":   {[]pediaResources{{Group: "a.b", Versions: []string{"v2", "v1", "v2"}, Resources: []string{"x"}}}, []resources{{Group: "a.b", Versions: []string{"v2", "v1"}, Resources: []string{"x"}}}, []string{"one is mirrored"}},
		"All":        {[]pediaResources{{Group: "*", Versions: []string{"v1"}, Resources: []string{"pods", "*"}}}, []resources{{Group: "*", Resources: []string{"*"}}}, []string{"no versions of its own", "of Secrets the metadata"}},
		"Secrets":    {[]pediaResources{{Resources: []string{"secrets"}}}, []resources{{Resources: []string{"secrets"}}}, []string{"of Secrets the metadata"}},
		"Events":     {[]pediaResources{{Resources: []string{"pods"}, Events: []string{"pods"}}}, []resources{{Resources: []string{"pods"}}, {Resources: []string{"events"}}}, []string{"eventsInvolvedResources"}},
		"HasEvents":  {[]pediaResources{{Resources: []string{"events", "pods"}, Events: []string{"pods"}}}, []resources{{Resources: []string{"events", "pods"}}}, []string{"eventsInvolvedResources"}},
		"NoResource": {[]pediaResources{{Resources: []string{"Pod", "pods/status", "nodes"}}, {Group: "A b", Resources: []string{"x"}}, {Group: "c", Resources: []string{"X"}}}, []resources{{Resources: []string{"nodes"}}}, []string{`"Pod"`, `"pods/status"`, `group "A b"`, `"X"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got, notes := mirrorOf(tc.from)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if len(notes) != len(tc.notes) {
				t.Fatalf("%q, want %q", notes, tc.notes)
			}
			for i, says := range tc.notes {
				if !strings.Contains(notes[i], says) {
					t.Errorf("%q does not say %q", notes[i], says)
				}
			}
		})
	}
}

func TestClusterOfAPediaCluster(t *testing.T) {
	all := &clusterv1alpha1.Mirror{Exclude: []clusterv1alpha1.MirrorExclusion{{Group: "*", Resources: []string{"*"}}}}
	shared, empty := &pediaSync{}, &pediaSync{}
	shared.Spec.SyncResources = []pediaResources{{Resources: []string{"pods"}}}
	for name, tc := range map[string]struct {
		change func(*pediaCluster)
		shared *pediaSync
		want   *clusterv1alpha1.Mirror
	}{
		"Nothing":       {func(*pediaCluster) {}, nil, all},
		"Own":           {func(c *pediaCluster) { c.Spec.SyncResources = shared.Spec.SyncResources }, nil, &clusterv1alpha1.Mirror{Resources: []clusterv1alpha1.MirrorResources{{Resources: []string{"pods"}}}}},
		"Custom":        {func(c *pediaCluster) { c.Spec.SyncAllCustomResources = true }, nil, &clusterv1alpha1.Mirror{CustomResources: clusterv1alpha1.MirrorCustomResourcesAll}},
		"Shared":        {func(c *pediaCluster) { c.Spec.SyncResourcesRefName = "s" }, shared, nil},
		"SharedNothing": {func(c *pediaCluster) { c.Spec.SyncResourcesRefName = "s" }, empty, all},
	} {
		t.Run(name, func(t *testing.T) {
			c := &pediaCluster{ObjectMeta: metav1.ObjectMeta{Name: "oak", Labels: map[string]string{"env": "prod", "x.clusterpedia.io/y": "z"}}}
			tc.change(c)
			mirror, labels, _ := clusterOf(c, tc.shared)
			if diff := cmp.Diff(tc.want, mirror); diff != "" {
				t.Error(diff)
			}
			want := map[string]string{"env": "prod"}
			if c.Spec.SyncResourcesRefName != "" {
				want[labelSyncResources] = c.Spec.SyncResourcesRefName
			}
			if diff := cmp.Diff(want, labels); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCredentialsOfAPediaCluster(t *testing.T) {
	const hush = "do-not-tell"
	none := func(pediaKey) ([]byte, error) { return nil, errors.New("a Secret was read") }
	for name, tc := range map[string]struct {
		change func(*pediaCluster)
		says   string // "": it is accepted
	}{
		"Nothing": {func(*pediaCluster) {}, "neither a kubeconfig nor an apiserver"},
		"NoToken": {func(c *pediaCluster) { c.Spec.APIServer = "oak:6443" }, "neither a token nor"},
		"NoKey":   {func(c *pediaCluster) { c.Spec.APIServer, c.Spec.CertData = "oak:6443", []byte(hush) }, "neither a token nor"},
		"Token":   {func(c *pediaCluster) { c.Spec.APIServer, c.Spec.TokenData = "oak:6443", []byte(hush) }, ""},
		"NoSecret": {func(c *pediaCluster) {
			c.Spec.AuthenticationFrom = &struct {
				Kubeconfig *pediaKey `json:"kubeconfig"`
				Token      *pediaKey `json:"token"`
				CA         *pediaKey `json:"ca"`
				Cert       *pediaKey `json:"cert"`
				Key        *pediaKey `json:"key"`
			}{Kubeconfig: &pediaKey{"a", "b"}}
		}, "a Secret was read"},
		"NoConfig": {func(c *pediaCluster) { c.Spec.Kubeconfig = []byte("{" + hush) }, "cannot be read"},
		"FileOfCA": {func(c *pediaCluster) {
			c.Spec.Kubeconfig = []byte(`{"clusters":[{"name":"a","cluster":{"server":"https://x","certificate-authority":"/etc/passwd"}}]}`)
		}, "names a file"},
		"FileOfUser": {func(c *pediaCluster) {
			c.Spec.Kubeconfig = []byte(`{"users":[{"name":"a","user":{"tokenFile":"/etc/passwd"}}]}`)
		}, "names a file"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &pediaCluster{}
			tc.change(c)
			kubeconfig, notes, err := credentialsOf(c, none)
			switch {
			case tc.says == "":
				config, loads := clientcmd.Load(kubeconfig)
				if err != nil || loads != nil || config.Clusters["migrated"].Server != "https://oak:6443" || config.AuthInfos["migrated"].Token != hush || !config.Clusters["migrated"].InsecureSkipTLSVerify || len(notes) != 1 {
					t.Errorf("%v %v %q", err, loads, notes)
				}
			case err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), hush):
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

// TestKeepOfAnAccess: each changed part is taken over, and everything else is kept.
func TestKeepOfAnAccess(t *testing.T) {
	spec := clusterv1alpha1.ClusterSpec{APIEndpoint: "https://here", TLSServerName: "here", ProxyURL: "http://here"}
	secret := map[string][]byte{"ca.crt": []byte("here"), "tls.crt": []byte("here"), "tls.key": []byte("here")}
	for name, tc := range map[string]struct {
		changed  []string
		insecure bool // in Clusterpedia
		skip     bool // on the hub
		want     string
	}{
		"Nothing":         {nil, true, false, "https://here here http://here here false here"},
		"NothingSkipped":  {nil, false, true, "https://here here http://here here true here"},
		"Address":         {[]string{partAddress}, false, false, "https://there there http://here here false here"},
		"Authority":       {[]string{partAuthority}, false, false, "https://here here http://here there false here"},
		"AuthoritySet":    {[]string{partAuthority}, false, true, "https://here here http://here there false here"},
		"AuthorityGone":   {[]string{partAuthority}, true, false, "https://here here http://here here false here"},
		"Credentials":     {[]string{partCredentials}, true, false, "https://here here http://there here false there"},
		"AllButVerifying": {[]string{partAddress, partAuthority, partCredentials}, true, false, "https://there there http://there here false there"},
	} {
		t.Run(name, func(t *testing.T) {
			there := []byte("there")
			a := &access{
				server: &clientcmdapi.Cluster{Server: "https://there", TLSServerName: "there", ProxyURL: "http://there", CertificateAuthorityData: there, InsecureSkipTLSVerify: tc.insecure},
				user:   &clientcmdapi.AuthInfo{ClientCertificateData: there, ClientKeyData: there},
			}
			spec := spec
			if tc.skip {
				spec.TLSVerification = clusterv1alpha1.TLSSkip
			}
			a.keep(&spec, secret, tc.changed)
			s := a.server
			if got := fmt.Sprint(s.Server, " ", s.TLSServerName, " ", s.ProxyURL, " ", string(s.CertificateAuthorityData), " ", s.InsecureSkipTLSVerify, " ", string(a.user.ClientCertificateData)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// pediaCRDs are Clusterpedia's types, with the parts that are read.
const pediaCRDs = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pediaclusters.cluster.clusterpedia.io}
spec:
  group: cluster.clusterpedia.io
  scope: Cluster
  names: {kind: PediaCluster, listKind: PediaClusterList, plural: pediaclusters, singular: pediacluster}
  versions:
  - {name: v1alpha2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clustersyncresources.cluster.clusterpedia.io}
spec:
  group: cluster.clusterpedia.io
  scope: Cluster
  names: {kind: ClusterSyncResources, listKind: ClusterSyncResourcesList, plural: clustersyncresources, singular: clustersyncresources}
  versions:
  - {name: v1alpha2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}
`

// TestMigrateClusterpedia takes over an installation with real API servers. One of its clusters
// is the cluster of Clusterpedia itself.
func TestMigrateClusterpedia(t *testing.T) {
	ours, oak, pine := testenv.StartServer(t), testenv.StartServer(t), testenv.StartServer(t)
	if err := testenv.InstallCRDs(ours.Config()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig, source := file("hub", ours.Kubeconfig()), file("clusterpedia", oak.Kubeconfig())
	c, err := client.New(ours.Config(), client.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	api, err := testenv.NewAPI(oak.Config())
	if err != nil {
		t.Fatal(err)
	}
	encode := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	raw, err := clientcmd.Load(pine.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	context := raw.Contexts[raw.CurrentContext]
	server, user := raw.Clusters[context.Cluster], raw.AuthInfos[context.AuthInfo]
	api.Apply(t, pediaCRDs)
	api.Apply(t, `
apiVersion: cluster.clusterpedia.io/v1alpha2
kind: ClusterSyncResources
metadata: {name: shared}
spec: {syncResources: [{group: apps, resources: [deployments]}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: clusterpedia-system}
---
apiVersion: v1
kind: Secret
metadata: {name: oak, namespace: clusterpedia-system}
data: {config: `+encode(oak.Kubeconfig())+`}
---
apiVersion: cluster.clusterpedia.io/v1alpha2
kind: PediaCluster
metadata: {name: oak, labels: {env: prod}}
spec:
  authenticationFrom: {kubeconfig: {name: oak, key: config}}
  syncResources: [{group: "", resources: [pods, secrets], eventsInvolvedResources: [pods]}]
  shardingName: one
---
apiVersion: cluster.clusterpedia.io/v1alpha2
kind: PediaCluster
metadata: {name: pine}
spec:
  apiserver: `+server.Server+`
  caData: `+encode(server.CertificateAuthorityData)+`
  certData: `+encode(user.ClientCertificateData)+`
  keyData: `+encode(user.ClientKeyData)+`
  tokenData: `+encode([]byte(user.Token))+`
  syncResources: []
  syncResourcesRefName: shared
---
apiVersion: cluster.clusterpedia.io/v1alpha2
kind: PediaCluster
metadata: {name: broken}
spec: {apiserver: "https://127.0.0.1:1", syncResources: []}
`)
	run := func(args ...string) (code int, out string) {
		t.Helper()
		var o, e bytes.Buffer
		code = Main(append([]string{"migrate", "clusterpedia", "--hub-kubeconfig=" + kubeconfig, "--kubeconfig=" + source}, args...), strings.NewReader(""), &o, &e)
		out = o.String() + e.String()
		for _, hidden := range [][]byte{user.ClientKeyData, []byte(user.Token)} {
			if len(hidden) > 0 && (strings.Contains(out, string(hidden)) || strings.Contains(out, encode(hidden))) {
				t.Errorf("%q shows credentials", args)
			}
		}
		if strings.Contains(out, "PRIVATE KEY") || strings.Contains(out, "client-key-data") {
			t.Errorf("%q shows credentials", args)
		}
		return code, out
	}
	wrote := func() (names []string) {
		t.Helper()
		var clusters clusterv1alpha1.ClusterList
		var policies configv1alpha1.MirrorPolicyList
		var secrets corev1.SecretList
		for _, list := range []client.ObjectList{&clusters, &policies, &secrets} {
			if err := c.List(t.Context(), list, client.InNamespace(map[bool]string{true: clusterv1alpha1.SecretNamespace}[list == client.ObjectList(&secrets)])); err != nil {
				t.Fatal(err)
			}
		}
		for i := range clusters.Items {
			names = append(names, "Cluster "+clusters.Items[i].Name+" "+clusters.Items[i].ResourceVersion)
		}
		for i := range policies.Items {
			names = append(names, "MirrorPolicy "+policies.Items[i].Name+" "+policies.Items[i].ResourceVersion)
		}
		for i := range secrets.Items {
			names = append(names, "Secret "+secrets.Items[i].Name+" "+secrets.Items[i].ResourceVersion)
		}
		return names
	}

	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"OneIsBroken":    {nil, "PediaCluster broken: it has an apiserver, but neither a token"},
		"NoSuchCluster":  {[]string{"oak", "elm"}, "no PediaCluster elm"},
		"NoSecret":       {[]string{"oak", "--secrets-namespace=other"}, "other/oak"},
		"NoClusterpedia": {[]string{"--kubeconfig=" + kubeconfig}, "is Clusterpedia installed"},
	} {
		if code, out := run(tc.args...); code == 0 || !strings.Contains(out, tc.says) {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	code, out := run("oak", "pine", "--dry-run", "-o", "yaml")
	if code != 0 || !strings.Contains(out, "kind: MirrorPolicy") || !strings.Contains(out, "shardingName") || !strings.Contains(out, "secretData: Encrypted") || !strings.Contains(out, "kind: Cluster") {
		t.Errorf("%d %s", code, out)
	}
	if got := wrote(); got != nil {
		t.Fatalf("%q was written", got)
	}

	if code, out := run("oak", "pine"); code != 0 || !strings.Contains(out, "eventsInvolvedResources") {
		t.Fatalf("%d %s", code, out)
	}
	cluster := func(name string) *clusterv1alpha1.Cluster {
		t.Helper()
		out := &clusterv1alpha1.Cluster{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	got := cluster("oak")
	want := &clusterv1alpha1.Mirror{Resources: []clusterv1alpha1.MirrorResources{{Resources: []string{"pods", "secrets"}}, {Resources: []string{"events"}}}}
	if diff := cmp.Diff(want, got.Spec.Mirror); diff != "" || got.Labels["env"] != "prod" {
		t.Errorf("%s %v", diff, got.Labels)
	}
	if got := cluster("pine"); got.Spec.Mirror != nil || got.Labels[labelSyncResources] != "shared" || got.Spec.APIEndpoint != server.Server || got.Spec.TLSVerification != clusterv1alpha1.TLSVerify {
		t.Errorf("%+v", got)
	}
	policy := &configv1alpha1.MirrorPolicy{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "clusterpedia-shared"}, policy); err != nil || policy.Spec.ClusterSelector.MatchLabels[labelSyncResources] != "shared" || policy.Spec.Mirror.Resources[0].Group != "apps" {
		t.Errorf("%v %+v", err, policy.Spec)
	}

	// A second run changes nothing, not even what a user has changed since.
	patch := client.MergeFrom(got.DeepCopy())
	got.Labels["env"], got.Spec.Mirror = "test", nil
	if err := c.Patch(t.Context(), got, patch); err != nil {
		t.Fatal(err)
	}
	before := wrote()
	if len(before) != 5 {
		t.Errorf("%q", before)
	}
	if code, out := run("oak", "pine"); code != 0 || strings.Contains(out, "create") {
		t.Errorf("%d %s", code, out)
	}
	if diff := cmp.Diff(before, wrote()); diff != "" {
		t.Error(diff)
	}

	// A run that was interrupted before the last cluster is completed.
	if err := c.Delete(t.Context(), cluster("pine")); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "pine"}}); err != nil {
		t.Fatal(err)
	}
	if code, out := run("oak", "pine"); code != 0 || strings.Count(out, "create") != 1 {
		t.Errorf("%d %s", code, out)
	}
	cluster("pine")

	// A CA that a user has set since stays. Of a change in Clusterpedia since, only the changed
	// part is taken over.
	of := func(authority string) {
		t.Helper()
		api.Apply(t, `
apiVersion: cluster.clusterpedia.io/v1alpha2
kind: PediaCluster
metadata: {name: pine}
spec:
  apiserver: `+server.Server+`
  caData: `+authority+`
  certData: `+encode(user.ClientCertificateData)+`
  keyData: `+encode(user.ClientKeyData)+`
  tokenData: `+encode([]byte(user.Token))+`
  syncResources: []
  syncResourcesRefName: shared
`)
	}
	of(encode(server.CertificateAuthorityData))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: "pine"}}
	for _, o := range []client.Object{cluster("pine"), secret} {
		if err := c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if code, out := run("oak", "pine"); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[corev1.ServiceAccountRootCAKey] = append(bytes.Clone(server.CertificateAuthorityData), "\n\n"...)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	before = wrote()
	if code, out := run("oak", "pine"); code != 0 || strings.Count(out, migrateKeep) != 3 {
		t.Errorf("%d %s", code, out)
	}
	if diff := cmp.Diff(before, wrote()); diff != "" {
		t.Error(diff)
	}
	of(encode(append(bytes.Clone(server.CertificateAuthorityData), '\n')))
	if code, out := run("oak", "pine", "--dry-run"); code != 0 || !strings.Contains(out, migrateRenew) || !strings.Contains(out, "taken over: ") || strings.Contains(out, "not verified") {
		t.Errorf("%d %s", code, out)
	}

	// Objects that the command did not create are refused by name, and nothing else is written.
	got = cluster("oak")
	patch = client.MergeFrom(got.DeepCopy())
	delete(got.Annotations, annotationMigrated)
	if err := c.Patch(t.Context(), got, patch); err != nil {
		t.Fatal(err)
	}
	policyPatch := client.MergeFrom(policy.DeepCopy())
	delete(policy.Annotations, annotationMigrated)
	if err := c.Patch(t.Context(), policy, policyPatch); err != nil {
		t.Fatal(err)
	}
	before = wrote()
	if code, out := run("oak", "pine"); code == 0 || !strings.Contains(out, "a Cluster oak that was not made from it") || !strings.Contains(out, "a MirrorPolicy clusterpedia-shared that was not made from it") {
		t.Errorf("%d %s", code, out)
	}
	if diff := cmp.Diff(before, wrote()); diff != "" {
		t.Error(diff)
	}
}

// TestChangedSinceWithoutSecret: a Cluster of an earlier migration whose secretRef is empty, or
// names a Secret that does not exist, gets all parts of its access again. The API server refuses a
// request without a name.
func TestChangedSinceWithoutSecret(t *testing.T) {
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(hub.Scheme()).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if key.Name == "" {
				return errors.New("resource name may not be empty")
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	known := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak", Annotations: map[string]string{annotationTaken: `{"a":"1","b":"2"}`}}}
	for _, ref := range []clusterv1alpha1.SecretReference{{}, {Namespace: "orrery-system", Name: "gone"}} {
		known.Spec.SecretRef = ref
		changed, secret, err := changedSince(t.Context(), c, known, map[string]string{"a": "1", "b": "2"})
		if err != nil || secret == nil || !slices.Equal(changed, []string{"a", "b"}) {
			t.Errorf("with %v: changed %v, %v", ref, changed, err)
		}
	}
}
