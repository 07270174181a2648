package graph

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func written(l Link) string {
	text := string(l.Relation) + " "
	if l.Inverse {
		text += "of "
	}
	text += l.Kind.String() + " "
	if l.Namespace != "" {
		text += l.Namespace + "/"
	}
	if l.Selector != nil {
		return text + "[" + l.Selector.String() + "]"
	}
	if l.UID != "" {
		return text + l.Name + " " + string(l.UID)
	}
	return text + l.Name
}

// samples are objects of each source with all their links.
var samples = []struct {
	name, resource, object string
	want                   []string
}{
	{"Pod", "pods", `
metadata: {namespace: shop, ownerReferences: [{apiVersion: v1, kind: Node, name: n0, uid: u0}, {apiVersion: apps/v1, kind: ReplicaSet, name: web-5d, uid: u1, controller: true}]}
spec:
  nodeName: n1
  serviceAccountName: runner
  priorityClassName: high
  runtimeClassName: gvisor
  imagePullSecrets: [{name: registry}]
  initContainers: [{image: busybox:1, envFrom: [{secretRef: {name: s1}}, {configMapRef: {name: c1}}]}]
  containers: [{image: nginx:1, env: [{valueFrom: {secretKeyRef: {name: s2}}}, {valueFrom: {configMapKeyRef: {name: c2}}}]}, {image: nginx:1}]
  ephemeralContainers: [{image: debug}]
  volumes: [{secret: {secretName: s3}}, {configMap: {name: c3}}, {configMap: {name: kube-root-ca.crt}}, {persistentVolumeClaim: {claimName: data}}, {csi: {nodePublishSecretRef: {name: s4}}},
    {projected: {sources: [{secret: {name: s5}}, {configMap: {name: c5}}, {configMap: {name: kube-root-ca.crt}}]}}, {ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast}}}}]
`, []string{
		"owner of ReplicaSet.apps web-5d u1", "env Secret s1", "env ConfigMap c1", "env ConfigMap c2", "env Secret s2", "account ServiceAccount runner",
		"class PriorityClass.scheduling.k8s.io high", "class RuntimeClass.node.k8s.io gvisor", "pull Secret registry", "mount Secret s3", "mount ConfigMap c3",
		"mount PersistentVolumeClaim data", "mount Secret s4", "mount ConfigMap c5", "mount Secret s5", "storage StorageClass.storage.k8s.io fast",
		"image Image busybox:1", "image Image nginx:1", "image Image debug", "node Node n1",
	}},
	{"DefaultServiceAccount", "pods", `spec: {serviceAccountName: default}`, nil},
	{"FirstOwner", "things.example.com", `metadata: {ownerReferences: [{apiVersion: a.b/v1, kind: K, name: x, uid: u}, {apiVersion: v1, kind: Pod, name: y, uid: v}]}`, []string{"owner of K.a.b x u"}},
	{"SameTwice", "deployments.apps", `spec: {template: {spec: {volumes: [{secret: {secretName: s}}, {secret: {secretName: s}}], containers: [{envFrom: [{secretRef: {name: s}}]}]}}}`, []string{"env Secret s", "mount Secret s"}},
	{"StatefulSet", "statefulsets.apps", `spec: {serviceName: db, volumeClaimTemplates: [{spec: {storageClassName: fast}}]}`, []string{"route Service db", "storage StorageClass.storage.k8s.io fast"}},
	{"CronJob", "cronjobs.batch", `spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: a}]}}}}}`, []string{"image Image a"}},
	{"PodTemplate", "podtemplates", `template: {spec: {containers: [{image: a}]}}`, []string{"image Image a"}},
	{"ServiceAccount", "serviceaccounts", `{secrets: [{name: a}], imagePullSecrets: [{name: b}]}`, []string{"mount Secret a", "pull Secret b"}},
	{"Claim", "persistentvolumeclaims", `
metadata: {namespace: shop}
spec: {volumeName: pv-1, storageClassName: fast, dataSource: {kind: PersistentVolumeClaim, name: old}, dataSourceRef: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, namespace: backup, name: snap}}
`, []string{"storage PersistentVolume pv-1", "storage StorageClass.storage.k8s.io fast", "storage PersistentVolumeClaim old", "storage VolumeSnapshot.snapshot.storage.k8s.io backup/snap"}},
	{"Volume", "persistentvolumes", `spec: {storageClassName: fast, csi: {nodeStageSecretRef: {namespace: kube-system, name: key}}}`, []string{"storage StorageClass.storage.k8s.io fast", "mount Secret kube-system/key"}},
	{"Service", "services", `{metadata: {namespace: shop}, spec: {selector: {app: web}}}`, []string{"selector Pod [app=web]"}},
	{"ServiceWithoutSelector", "services", `{metadata: {namespace: shop}, spec: {}}`, nil},
	{"Budget", "poddisruptionbudgets.policy", `spec: {selector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}`, []string{"selector Pod [app in (a,b)]"}},
	{"BudgetOfAll", "poddisruptionbudgets.policy", `spec: {selector: {}}`, []string{"selector Pod []"}},
	{"BudgetOfNone", "poddisruptionbudgets.policy", `spec: {}`, nil},
	{"BudgetWrong", "poddisruptionbudgets.policy", `spec: {selector: {matchExpressions: [{key: app, operator: Near}]}}`, nil},
	{"NetworkPolicy", "networkpolicies.networking.k8s.io", `spec: {}`, []string{"selector Pod []"}},
	{"Event", "events", `{metadata: {namespace: shop}, involvedObject: {apiVersion: apps/v1, kind: Deployment, namespace: shop, name: web, uid: u}}`, []string{"event Deployment.apps web u"}},
	{"EventOfNode", "events", `{metadata: {namespace: default}, involvedObject: {kind: Node, name: n1, uid: u}}`, []string{"event Node n1 u"}},
	{"Ingress", "ingresses.networking.k8s.io", `
spec:
  ingressClassName: nginx
  tls: [{secretName: cert}, {hosts: [a]}]
  defaultBackend: {resource: {apiGroup: example.com, kind: Bucket, name: b}}
  rules: [{http: {paths: [{backend: {service: {name: web}}}, {backend: {service: {name: api}}}]}}, {host: x}]
`, []string{"route Bucket.example.com b", "route Service web", "route Service api", "tls Secret cert", "class IngressClass.networking.k8s.io nginx"}},
	{"Gateway", "gateways.gateway.networking.k8s.io", `
metadata: {namespace: infra}
spec: {gatewayClassName: envoy, listeners: [{tls: {certificateRefs: [{name: a}, {namespace: certs, name: b}, {group: example.com, kind: Cert, name: c}]}}]}
`, []string{"class GatewayClass.gateway.networking.k8s.io envoy", "tls Secret a", "tls Secret certs/b", "tls Cert.example.com c"}},
	{"Route", "httproutes.gateway.networking.k8s.io", `
metadata: {namespace: shop}
spec: {parentRefs: [{namespace: infra, name: gw}, {group: "", kind: Service, name: mesh}], rules: [{backendRefs: [{name: web}, {namespace: shop, name: api}, {group: example.com, kind: Bucket, name: b}]}]}
`, []string{"route Gateway.gateway.networking.k8s.io infra/gw", "route Service mesh", "route Service web", "route Service api", "route Bucket.example.com b"}},
	{"RoleBinding", "rolebindings.rbac.authorization.k8s.io", `
metadata: {namespace: shop}
roleRef: {kind: Role, name: r}
subjects: [{kind: ServiceAccount, namespace: shop, name: a}, {kind: ServiceAccount, namespace: ci, name: b}, {kind: User, name: u}]
`, []string{"binding Role.rbac.authorization.k8s.io r", "binding ServiceAccount a", "binding ServiceAccount ci/b"}},
	{
		"ClusterRoleBinding", "clusterrolebindings.rbac.authorization.k8s.io", `{roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: ServiceAccount, namespace: ci, name: b}]}`,
		[]string{"binding ClusterRole.rbac.authorization.k8s.io r", "binding ServiceAccount ci/b"},
	},
	{"Autoscaler", "horizontalpodautoscalers.autoscaling", `spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}`, []string{"scale Deployment.apps web"}},
	{"VerticalAutoscaler", "verticalpodautoscalers.autoscaling.k8s.io", `spec: {targetRef: {apiVersion: argoproj.io/v1, kind: Rollout, name: web}}`, []string{"scale Rollout.argoproj.io web"}},
	{"Webhook", "validatingwebhookconfigurations.admissionregistration.k8s.io", `webhooks: [{clientConfig: {service: {namespace: sys, name: a}}}, {clientConfig: {url: x}}]`, []string{"webhook Service sys/a"}},
	{"MutatingWebhook", "mutatingwebhookconfigurations.admissionregistration.k8s.io", `webhooks: [{clientConfig: {service: {namespace: sys, name: a}}}]`, []string{"webhook Service sys/a"}},
	{"CustomResource", "customresourcedefinitions.apiextensions.k8s.io", `spec: {conversion: {webhook: {clientConfig: {service: {namespace: sys, name: a}}}}}`, []string{"webhook Service sys/a"}},
	{"APIService", "apiservices.apiregistration.k8s.io", `spec: {service: {namespace: sys, name: a}}`, []string{"webhook Service sys/a"}},
	{"Slice", "endpointslices.discovery.k8s.io", `metadata: {labels: {kubernetes.io/service-name: web}}`, []string{"endpoints of Service web"}},
	{"Attachment", "volumeattachments.storage.k8s.io", `spec: {nodeName: n1, source: {persistentVolumeName: pv-1}}`, []string{"storage PersistentVolume pv-1", "node Node n1"}},
	{"OtherShapes", "pods", `{metadata: [], spec: {containers: {image: a}, volumes: [1, {secret: x}, {secret: {secretName: s}}], serviceAccountName: {a: b}}}`, []string{"mount Secret s"}},
	{"SelectorOfOtherShape", "services", `spec: {selector: [a]}`, nil},
}

func TestLinks(t *testing.T) {
	covered := map[schema.GroupResource]bool{}
	for _, tc := range samples {
		gr := schema.ParseGroupResource(tc.resource)
		covered[gr] = true
		t.Run(tc.name, func(t *testing.T) {
			body, err := yaml.YAMLToJSON([]byte(tc.object))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range Links(gr, body) {
				got = append(got, written(l))
			}
			slices.Sort(got)
			if diff := cmp.Diff(slices.Sorted(slices.Values(tc.want)), got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for gr := range sources {
		if s := sources[gr]; !covered[gr] && !slices.Contains(podMakers, gr) && !slices.Contains([]string{"grpcroutes", "tcproutes", "tlsroutes", "udproutes"}, gr.Resource) {
			t.Errorf("%s has no sample: %v", gr, s.to)
		}
	}
	for _, body := range []string{"", "{", "[]", "null", `{"metadata":`} {
		for gr := range sources {
			if gr.Resource != "networkpolicies" && Links(gr, []byte(body)) != nil {
				t.Errorf("%s: %q says something", gr, body)
			}
		}
	}
}

// TestSourcesAreComplete: for every link of an object, Sources of its target has the object's type,
// with the right Across and Inverse.
func TestSourcesAreComplete(t *testing.T) {
	for _, tc := range samples {
		gr := schema.ParseGroupResource(tc.resource)
		body, err := yaml.YAMLToJSON([]byte(tc.object))
		if err != nil {
			t.Fatal(err)
		}
		indexed := Terms(Referring(gr, body))
		for _, l := range Links(gr, body) {
			if l.Relation == Owner || l.Relation == Event || l.Relation == Image || l.Selector != nil || l.Relation == Node && gr.Resource == "pods" {
				continue
			}
			i := slices.IndexFunc(Sources(l.Kind), func(s Source) bool { return s.GroupResource == gr })
			if i < 0 {
				t.Errorf("%s: nothing leads from %s to %s", tc.name, l.Kind, gr)
				continue
			}
			if s := Sources(l.Kind)[i]; !slices.Contains(s.Says, l.Relation) || s.Inverse != l.Inverse || l.Namespace != "" && !s.Across {
				t.Errorf("%s: %s is found as %+v", tc.name, written(l), s)
			}
			if !slices.Contains(indexed, Term(l.Kind, l.Name)) || l.Namespace != "" && !slices.Contains(indexed, TermAcross(l.Kind, l.Namespace, l.Name)) {
				t.Errorf("%s: %s is not among %v", tc.name, written(l), indexed)
			}
		}
	}
}

func TestParseKind(t *testing.T) {
	for text, want := range map[string]string{
		"secret": "Secret", "Secrets": "Secret", "cm": "ConfigMap", "pvc": "PersistentVolumeClaim", "sc": "StorageClass.storage.k8s.io", "StorageClass": "StorageClass.storage.k8s.io",
		"storageclasses.storage.k8s.io": "StorageClass.storage.k8s.io", "deploy": "Deployment.apps", "Rollout.argoproj.io": "Rollout.argoproj.io", "secret.example.com": "secret.example.com",
		"": "", "thing": "", "thing.": "", ".x": "",
	} {
		got, ok := ParseKind(text)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%q: %s, %t; want %q", text, got, ok, want)
		}
	}
	for _, r := range Relations() {
		if r.Means() == "" {
			t.Errorf("%s means nothing", r)
		}
	}
}
