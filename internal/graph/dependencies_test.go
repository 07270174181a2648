package graph

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestDependencies(t *testing.T) {
	const pod = `{
      serviceAccountName: runner, imagePullSecrets: [{name: registry}], priorityClassName: high,
      initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: s1}}]}],
      containers: [{name: c, image: c, env: [{name: E, valueFrom: {configMapKeyRef: {name: c1, key: k}}}]}],
      volumes: [{name: a, secret: {secretName: s1}}, {name: b, configMap: {name: kube-root-ca.crt}}, {name: d, persistentVolumeClaim: {claimName: data}}]}`
	ofPod := []string{"Secret/s1", "ConfigMap/c1", "ServiceAccount/runner", "Secret/registry", "PersistentVolumeClaim/data"}
	for _, tc := range []struct {
		name, object string
		want         []string
	}{
		{"Deployment", `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, ofPod},
		{"ReplicaSet", `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, ofPod},
		{"ReplicationController", `{apiVersion: v1, kind: ReplicationController, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, ofPod},
		{"DaemonSet", `{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, ofPod},
		{"Job", `{apiVersion: batch/v1, kind: Job, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, ofPod},
		{"CronJob", `{apiVersion: batch/v1, kind: CronJob, metadata: {namespace: shop}, spec: {jobTemplate: {spec: {template: {spec: ` + pod + `}}}}}`, ofPod},
		{"Pod", `{apiVersion: v1, kind: Pod, metadata: {namespace: shop}, spec: ` + pod + `}`, ofPod},
		{"StatefulSet", `{apiVersion: apps/v1, kind: StatefulSet, metadata: {namespace: shop}, spec: {serviceName: db, template: {spec: {containers: [{name: c, image: c}]}}, volumeClaimTemplates: [{spec: {storageClassName: fast}}]}}`, []string{"Service/db"}},
		{"Ingress", `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: shop}, spec: {ingressClassName: nginx, tls: [{secretName: cert}], rules: [{http: {paths: [{backend: {service: {name: web}}}, {backend: {service: {name: web}}}]}}]}}`, []string{"Service/web", "Secret/cert"}},
		{"Gateway", `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {namespace: shop}, spec: {gatewayClassName: g, listeners: [{tls: {certificateRefs: [{name: cert}, {namespace: other, name: theirs}]}}]}}`, []string{"Secret/cert"}},
		{"Route", `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {namespace: shop}, spec: {parentRefs: [{name: gw}], rules: [{backendRefs: [{name: web}, {namespace: other, name: theirs}]}]}}`, []string{"Service/web"}},
		{"ServiceAccount", `{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: shop}, imagePullSecrets: [{name: registry}]}`, []string{"Secret/registry"}},
		{"Claim", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: shop}, spec: {volumeName: pv, storageClassName: fast, dataSource: {kind: PersistentVolumeClaim, name: old}}}`, nil},
		{"Autoscaler", `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {namespace: shop}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}`, nil},
		{"Service", `{apiVersion: v1, kind: Service, metadata: {namespace: shop}, spec: {selector: {app: web}}}`, nil},
		{"WithoutNamespace", `{apiVersion: v1, kind: PersistentVolume, spec: {csi: {nodeStageSecretRef: {namespace: kube-system, name: key}}}}`, nil},
		{"Custom", `{apiVersion: example.com/v1, kind: Gateway, metadata: {namespace: shop}, spec: {template: {spec: ` + pod + `}}}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tc.object), &o.Object); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range Dependencies(o) {
				if r.Namespace != "shop" {
					t.Errorf("%v is in another namespace", r)
				}
				got = append(got, r.Kind.Kind+"/"+r.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
