package podsecurity

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestViolation(t *testing.T) {
	const (
		restricted  = `{securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, containers: [{name: c, image: i, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}`
		baseline    = `{containers: [{name: c, image: i}]}`
		privileged  = `{containers: [{name: c, image: i, securityContext: {privileged: true}}]}`
		hostNetwork = `{hostNetwork: true, containers: [{name: c, image: i}]}`
		initRoot    = `{containers: [{name: c, image: i}], initContainers: [{name: c2, image: i, securityContext: {privileged: true}}]}`
		hostPath    = `{containers: [{name: c, image: i}], volumes: [{name: v, hostPath: {path: /}}]}`
	)
	template := func(kind, spec string) string {
		return `{apiVersion: apps/v1, kind: ` + kind + `, metadata: {name: x}, spec: {template: {spec: ` + spec + `}}}`
	}
	enforce := func(level string) map[string]string {
		return map[string]string{"pod-security.kubernetes.io/enforce": level}
	}
	cases := map[string]struct {
		manifest   string
		namespace  map[string]string
		unlabelled Level
		want       []string // parts of the sentence; none: it is taken
	}{
		"UnlabelledIsPrivileged":     {manifest: template("Deployment", privileged)},
		"UnlabelledByTheFlag":        {manifest: template("Deployment", privileged), unlabelled: "baseline", want: []string{`baseline:latest`, "privileged"}},
		"LabelBeforeTheFlag":         {manifest: template("Deployment", privileged), namespace: enforce("privileged"), unlabelled: "restricted"},
		"WarnAloneHoldsNothing":      {manifest: template("Deployment", privileged), namespace: map[string]string{"pod-security.kubernetes.io/warn": "restricted"}},
		"UnreadableIsRestricted":     {manifest: template("Deployment", baseline), namespace: enforce("strict"), want: []string{"restricted:latest"}},
		"Baseline":                   {manifest: template("Deployment", baseline), namespace: enforce("baseline")},
		"BaselineUnderRestricted":    {manifest: template("Deployment", baseline), namespace: enforce("restricted"), want: []string{`spec.template.spec violates PodSecurity "restricted:latest"`, "runAsNonRoot != true"}},
		"Restricted":                 {manifest: template("StatefulSet", restricted), namespace: enforce("restricted")},
		"HostNetworkOfADaemonSet":    {manifest: template("DaemonSet", hostNetwork), namespace: enforce("baseline"), want: []string{"hostNetwork=true"}},
		"HostPathOfAReplicaSet":      {manifest: template("ReplicaSet", hostPath), namespace: enforce("baseline"), want: []string{`hostPath volumes (volume "v")`}},
		"InitContainer":              {manifest: template("Deployment", initRoot), namespace: enforce("baseline"), want: []string{`container "c2"`}},
		"Pod":                        {manifest: `{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: ` + privileged + `}`, namespace: enforce("baseline"), want: []string{"spec violates"}},
		"AppArmorAnnotationOfAPod":   {manifest: `{apiVersion: v1, kind: Pod, metadata: {name: x, annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}}, spec: ` + baseline + `}`, namespace: enforce("baseline"), want: []string{"AppArmor"}},
		"AnnotationOfATemplate":      {manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {template: {metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}}, spec: ` + baseline + `}}}`, namespace: enforce("baseline"), want: []string{"AppArmor"}},
		"CronJob":                    {manifest: `{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {jobTemplate: {spec: {template: {spec: ` + privileged + `}}}}}`, namespace: enforce("baseline"), want: []string{"spec.jobTemplate.spec.template.spec violates"}},
		"PodTemplate":                {manifest: `{apiVersion: v1, kind: PodTemplate, metadata: {name: x}, template: {spec: ` + privileged + `}}`, namespace: enforce("baseline"), want: []string{"template.spec violates"}},
		"CustomKind":                 {manifest: `{apiVersion: example.org/v1, kind: Training, metadata: {name: x}, spec: {roles: [{template: {spec: ` + baseline + `}}, {template: {spec: ` + privileged + `}}]}}`, namespace: enforce("baseline"), want: []string{"spec.roles[1].template.spec violates"}},
		"CustomKindWithoutContainer": {manifest: `{apiVersion: example.org/v1, kind: Agent, metadata: {name: x}, spec: {podTemplate: {spec: {hostPID: true}}}}`, namespace: enforce("baseline"), want: []string{"hostPID=true"}},
		"NoPodThatAnybodyCanRead":    {manifest: template("Deployment", `{containers: [{name: 7}]}`), namespace: enforce("baseline"), want: []string{"cannot be read"}},
		"OlderVersion":               {manifest: template("Deployment", restricted), namespace: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.20"}},
		"NoPods":                     {manifest: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {containers: "[]", hostNetwork: "true"}}`, namespace: enforce("restricted")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			standard, err := New(tc.unlabelled)
			if err != nil {
				t.Fatal(err)
			}
			got := standard.Violation(object(t, tc.manifest), tc.namespace)
			if (got == "") != (len(tc.want) == 0) {
				t.Fatalf("Violation = %q, want %q", got, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not say %q", got, want)
				}
			}
		})
	}
}

func TestLevelIsAFlag(t *testing.T) {
	var l Level
	if l.String() != "privileged" {
		t.Errorf("the default is %s", l.String())
	}
	if err := l.Set("strict"); err == nil || !strings.Contains(err.Error(), "privileged, baseline or restricted") {
		t.Errorf("Set: %v", err)
	}
	if err := l.Set("baseline"); err != nil || l != "baseline" {
		t.Errorf("Set: %v, %s", err, l)
	}
}

func TestLabels(t *testing.T) {
	got := Labels(map[string]string{"a": "b", "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn-version": "latest"})
	want := map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn-version": "latest"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := Labels(map[string]string{"a": "b"}); got != nil {
		t.Errorf("Labels of none: %v", got)
	}
}
