package render

import (
	"strings"
	"testing"
)

// Users with rights in one namespace of the hub may write an OverridePolicy. It must not set
// what the hub would refuse to them in the template. A ClusterOverridePolicy may do so. Neither
// may change the finalizers and ownerReferences of an object.
func TestOverridesKeepToTheirRights(t *testing.T) {
	const (
		deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns, labels: {app: x}}, spec: {replicas: 2, template: {
			metadata: {labels: {app: x}, annotations: {a: b}}, spec: {containers: [
				{name: main, image: app:v1, ports: [{containerPort: 80}], securityContext: {runAsNonRoot: true, capabilities: {drop: [ALL]}}},
				{name: side, image: side:v1, livenessProbe: {httpGet: {path: /, port: 80}}}],
			volumes: [{name: data, emptyDir: {}}]}}}}`
		cronJob = `{apiVersion: batch/v1, kind: CronJob, metadata: {name: x, namespace: ns}, spec: {jobTemplate: {spec: {template: {spec: {
			containers: [{name: main, image: app:v1}]}}}}}}`
		rollout = `{apiVersion: example.org/v1, kind: Fleet, metadata: {name: x, namespace: ns}, spec: {roles: [{name: a, template: {spec: {
			containers: [{name: main, image: app:v1}]}}}]}}`
		database    = `{apiVersion: example.org/v1, kind: Database, metadata: {name: x, namespace: ns}, spec: {podSecurityContext: {fsGroup: 1}}}`
		roleBinding = `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x, namespace: ns}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view},
			subjects: [{kind: User, name: alice}]}`
		role      = `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: x, namespace: ns}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`
		admission = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: x}, webhooks: []}`
		config    = `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns}, data: {hostNetwork: "no", app.yaml: "hostPID: false\n"}}`
		pod       = "/spec/template/spec"
		main      = pod + "/containers/0"
	)
	both, cluster, nobody := "both", "cluster", "nobody"
	cases := map[string]struct {
		template, overriders, may string
		field                     string // that the refusal names
	}{
		"RoleRef":           {roleBinding, `{plaintext: [{path: /roleRef/name, operator: replace, value: cluster-admin}]}`, cluster, "roleRef of a RoleBinding.rbac.authorization.k8s.io"},
		"WholeRoleRef":      {roleBinding, `{plaintext: [{path: /roleRef, operator: replace, value: {kind: ClusterRole, name: cluster-admin}}]}`, cluster, "roleRef"},
		"RoleRefAsImage":    {roleBinding, `{imageOverrider: [{predicate: {path: /roleRef/name}, component: Repository, operator: replace, value: cluster-admin}]}`, cluster, "roleRef"},
		"WholeObject":       {roleBinding, `{plaintext: [{path: "", operator: replace, value: {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x, namespace: ns}, roleRef: {name: admin}}}]}`, cluster, "roleRef"},
		"Subjects":          {roleBinding, `{plaintext: [{path: /subjects/-, operator: add, value: {kind: User, name: bob}}]}`, cluster, "subjects"},
		"LabelsOfARole":     {role, `{labelsOverrider: [{operator: add, value: {a: b}}]}`, cluster, "metadata of a Role"},
		"Rules":             {role, `{plaintext: [{path: /rules/0/verbs/-, operator: add, value: "*"}]}`, cluster, "rules"},
		"Webhooks":          {admission, `{plaintext: [{path: /webhooks/-, operator: add, value: {name: w}}]}`, cluster, "webhooks"},
		"NothingOfARole":    {role, `{labelsOverrider: [{operator: replace, value: {a: b}}]}`, both, ""},
		"Privileged":        {deployment, `{plaintext: [{path: ` + main + `/securityContext/privileged, operator: add, value: true}]}`, cluster, "spec.template.spec.containers[name=\"main\"].securityContext"},
		"ContextRemoved":    {deployment, `{plaintext: [{path: ` + main + `/securityContext, operator: remove}]}`, cluster, "securityContext"},
		"ContainerReplaced": {deployment, `{plaintext: [{path: ` + main + `, operator: replace, value: {name: main, image: x}}]}`, cluster, "securityContext"},
		"TemplateReplaced":  {deployment, `{plaintext: [{path: /spec/template, operator: replace, value: {spec: {hostPID: true, containers: [{name: main, image: x}]}}}]}`, cluster, "spec.template.spec"},
		"SpecReplaced":      {deployment, `{plaintext: [{path: /spec, operator: replace, value: {template: {spec: {containers: [{name: main, image: x, securityContext: {privileged: true}}]}}}}]}`, cluster, "securityContext"},
		"NamesSwapped": {
			deployment, `{plaintext: [{path: ` + main + `/name, operator: replace, value: side}, {path: ` + pod + `/containers/1/name, operator: replace, value: main}]}`,
			cluster, "securityContext",
		},
		"PodContext":         {deployment, `{plaintext: [{path: ` + pod + `/securityContext, operator: add, value: {runAsUser: 0}}]}`, cluster, "securityContext"},
		"HostPID":            {deployment, `{plaintext: [{path: ` + pod + `/hostPID, operator: add, value: true}]}`, cluster, "spec.template.spec.hostPID"},
		"HostIPC":            {deployment, `{plaintext: [{path: ` + pod + `/hostIPC, operator: add, value: true}]}`, cluster, "hostIPC"},
		"HostNetwork":        {deployment, `{plaintext: [{path: ` + pod + `/hostNetwork, operator: add, value: true}]}`, cluster, "hostNetwork"},
		"HostPath":           {deployment, `{plaintext: [{path: ` + pod + `/volumes/0, operator: replace, value: {name: data, hostPath: {path: /}}}]}`, cluster, "hostPath"},
		"HostPort":           {deployment, `{plaintext: [{path: ` + main + `/ports/0/hostPort, operator: add, value: 80}]}`, cluster, "hostPort"},
		"ProbeOfAnotherHost": {deployment, `{plaintext: [{path: ` + pod + `/containers/1/livenessProbe/httpGet/host, operator: add, value: 169.254.169.254}]}`, cluster, "httpGet.host"},
		"ServiceAccount":     {deployment, `{plaintext: [{path: ` + pod + `/serviceAccountName, operator: add, value: admin}]}`, cluster, "serviceAccountName"},
		"AppArmor": {
			deployment, `{plaintext: [{path: /spec/template/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1main, operator: add, value: unconfined}]}`,
			cluster, "container.apparmor",
		},
		"InitContainer":        {deployment, `{plaintext: [{path: ` + pod + `/initContainers, operator: add, value: [{name: i, image: i, securityContext: {privileged: true}}]}]}`, cluster, "initContainers"},
		"EphemeralContainer":   {deployment, `{plaintext: [{path: ` + pod + `/ephemeralContainers, operator: add, value: [{name: e, image: e, securityContext: {procMount: Unmasked}}]}]}`, cluster, "ephemeralContainers"},
		"OfACronJob":           {cronJob, `{plaintext: [{path: /spec/jobTemplate/spec/template/spec/hostNetwork, operator: add, value: true}]}`, cluster, "hostNetwork"},
		"OfACustomKind":        {rollout, `{plaintext: [{path: /spec/roles/0/template/spec/containers/0/securityContext, operator: add, value: {privileged: true}}]}`, cluster, "securityContext"},
		"OfAnOperator":         {database, `{plaintext: [{path: /spec/podSecurityContext/fsGroup, operator: replace, value: 0}]}`, cluster, "spec.podSecurityContext"},
		"Image":                {deployment, `{imageOverrider: [{component: Tag, operator: replace, value: v2}]}`, both, ""},
		"ContainerPutFirst":    {deployment, `{plaintext: [{path: ` + pod + `/containers/0, operator: add, value: {name: first, image: f}}]}`, both, ""},
		"ReplacedByTheSame":    {deployment, `{plaintext: [{path: ` + main + `/securityContext, operator: replace, value: {capabilities: {drop: [ALL]}, runAsNonRoot: true}}]}`, both, ""},
		"KeysOfAConfigMap":     {config, `{plaintext: [{path: /data/hostNetwork, operator: replace, value: "yes"}], fieldOverrider: [{fieldPath: /data/app.yaml, yaml: [{subPath: /hostPID, operator: replace, value: true}]}]}`, both, ""},
		"Finalizers":           {config, `{plaintext: [{path: /metadata/finalizers, operator: add, value: [example.org/nobody]}]}`, nobody, "metadata.finalizers"},
		"Owners":               {config, `{plaintext: [{path: /metadata/ownerReferences, operator: add, value: [{apiVersion: v1, kind: Pod, name: p, uid: u}]}]}`, nobody, "metadata.ownerReferences"},
		"MetadataWithOwners":   {config, `{plaintext: [{path: /metadata, operator: replace, value: {name: x, namespace: ns, ownerReferences: []}}]}`, nobody, "metadata.ownerReferences"},
		"FinalizersOfPods":     {deployment, `{plaintext: [{path: /spec/template/metadata/finalizers, operator: add, value: [example.org/nobody]}]}`, nobody, "spec.template.metadata.finalizers"},
		"FinalizersOfARole":    {role, `{plaintext: [{path: /metadata/finalizers, operator: add, value: [example.org/nobody]}]}`, nobody, "metadata.finalizers"},
		"FinalizersInAMessage": {config, `{plaintext: [{path: /data/finalizers, operator: add, value: x}]}`, both, ""},
	}
	for name, tc := range cases {
		for namespace, kind := range map[string]string{"": "ClusterOverridePolicy tune", "ns": "OverridePolicy ns/tune"} {
			t.Run(name+"/"+strings.Fields(kind)[0], func(t *testing.T) {
				_, _, err := Render(Input{
					Template: object(t, tc.template), Cluster: aCluster(), Binding: binding,
					Overrides: compiled(overridePolicy(t, namespace, "tune", `{overrideRules: [{overriders: `+tc.overriders+`}]}`)),
				})
				if tc.may == both || tc.may == cluster && namespace == "" {
					if err != nil {
						t.Fatalf("refused: %v", err)
					}
					return
				}
				if err == nil {
					t.Fatal("not refused")
				}
				for _, want := range []string{kind + ": spec.overrideRules[0]", tc.field} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q does not name %q", err, want)
					}
				}
			})
		}
	}
}
