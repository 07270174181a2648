package history

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	secrets     = schema.GroupResource{Resource: "secrets"}
)

func state(t *testing.T, gr schema.GroupResource, text string) *State {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(gr, body)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDifferences(t *testing.T) {
	for name, c := range map[string]struct {
		gr            schema.GroupResource
		before, after string
		all           bool
		want          []string // PATH: BEFORE -> AFTER
	}{
		"Same":            {before: "spec: {a: 1}", after: "spec: {a: 1}"},
		"Scalar":          {before: "spec: {a: 1}", after: "spec: {a: 2}", want: []string{"spec.a: 1 -> 2"}},
		"LargeNumber":     {before: "spec: {a: 9007199254740993}", after: "spec: {a: 9007199254740992}", want: []string{"spec.a: 9007199254740993 -> 9007199254740992"}},
		"Added":           {before: "spec: {}", after: "spec: {a: {b: 1}}", want: []string{`spec.a:  -> {"b":1}`}},
		"Removed":         {before: "spec: {a: x}", after: "spec: {}", want: []string{`spec.a: "x" -> `}},
		"NullIsNotAbsent": {before: "spec: {a: null}", after: "spec: {}", want: []string{"spec.a: null -> "}},
		"OtherType":       {before: "spec: {a: [1]}", after: "spec: {a: {b: 1}}", want: []string{`spec.a: [1] -> {"b":1}`}},
		"QuotedKey":       {before: "metadata: {labels: {}}", after: "metadata: {labels: {a.b/c: x}}", want: []string{`metadata.labels['a.b/c']:  -> "x"`}},
		"ElementsByName": {
			before: "spec: {containers: [{name: a, image: i:1}, {name: b, image: j}]}", after: "spec: {containers: [{name: c}, {name: a, image: i:2}, {name: b, image: j}]}",
			want: []string{`spec.containers[name=a].image: "i:1" -> "i:2"`, `spec.containers[name=c]:  -> {"name":"c"}`},
		},
		"ElementsByMountPath": {
			before: "m: [{name: v, mountPath: /a}, {name: v, mountPath: /b}]", after: "m: [{name: v, mountPath: /a}, {name: v, mountPath: /b, readOnly: true}]",
			want: []string{"m[mountPath=/b].readOnly:  -> true"},
		},
		"OrderOfElements":    {before: "l: [{name: a}, {name: b}]", after: "l: [{name: b}, {name: a}]", want: []string{`l: ["a","b"] -> ["b","a"]`}},
		"NamesTwice":         {before: "l: [{name: a}, {name: a}]", after: "l: [{name: a}, {name: a, x: 1}]", want: []string{"l[1].x:  -> 1"}},
		"ElementsByPosition": {before: "l: [a, b]", after: "l: [a, c, d]", want: []string{`l[1]: "b" -> "c"`, `l[2]:  -> "d"`}},
		"Noise": {
			before: "{metadata: {resourceVersion: '1', generation: 1, annotations: {deployment.kubernetes.io/revision: '1'}}, status: {x: 1}}",
			after:  "{metadata: {resourceVersion: '2', generation: 2, managedFields: [{manager: m}]}, status: {x: 2}}",
		},
		"NoiseAskedFor": {before: "status: {x: 1}", after: "status: {x: 2}", all: true, want: []string{"status.x: 1 -> 2"}},
		"Secret":        {gr: secrets, before: "{data: {password: b2xk}, type: a}", after: "{data: {password: bmV3}, type: b}", all: true, want: []string{"data: hidden", `type: "a" -> "b"`}},
		"SecretsData":   {gr: secrets, before: "{}", after: "{stringData: {password: new}}", want: []string{"data: hidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.gr == (schema.GroupResource{}) {
				c.gr = deployments
			}
			var got []string
			for _, d := range Differences(state(t, c.gr, c.before), state(t, c.gr, c.after), c.all) {
				if d.Hidden {
					got = append(got, d.Path+": hidden"+string(d.Before)+string(d.After))
					continue
				}
				got = append(got, d.Path+": "+string(d.Before)+" -> "+string(d.After))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("differences (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestSecretsDataIsNotShown(t *testing.T) {
	b, err := state(t, secrets, "{kind: Secret, data: {password: hush}, stringData: {other: hush}}").Object()
	if err != nil || strings.Contains(string(b), "hush") || !strings.Contains(string(b), "Secret") {
		t.Errorf("%s, %v", b, err)
	}
}

func TestBy(t *testing.T) {
	const (
		kubectl = "{manager: kubectl, operation: Update, apiVersion: apps/v1, time: '2026-11-20T10:00:00Z'}"
		later   = "{manager: kubectl, operation: Update, apiVersion: apps/v1, time: '2026-11-20T10:00:05Z'}"
		status  = "{manager: kcm, operation: Update, subresource: status, time: '2026-11-20T10:00:03Z'}"
		old     = "{manager: ancient, operation: Update, apiVersion: extensions/v1beta1, time: '2020-01-01T00:00:00Z'}"
	)
	fields := func(entries ...string) string {
		return "metadata: {managedFields: [" + strings.Join(entries, ", ") + "]}"
	}
	for name, c := range map[string]struct {
		before, after string
		want          []string
	}{
		"First":              {after: fields(kubectl, old), want: []string{"kubectl"}},
		"Another":            {before: fields(kubectl), after: fields(kubectl, status), want: []string{"kcm"}},
		"TheSameLater":       {before: fields(status), after: fields(later), want: []string{"kubectl"}},
		"NobodyIsNew":        {before: fields(kubectl), after: fields(kubectl)},
		"WithdrawnByAnother": {before: fields(kubectl, old), after: fields(old)},
		"NotMirrored":        {before: "metadata: {}", after: "metadata: {}"},
	} {
		t.Run(name, func(t *testing.T) {
			var before *State
			if c.before != "" {
				before = state(t, deployments, c.before)
			}
			var got []string
			for _, m := range By(before, state(t, deployments, c.after)) {
				got = append(got, m.Manager)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("managers (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestCause(t *testing.T) {
	why := state(t, deployments, "metadata: {annotations: {kubernetes.io/change-cause: image 2}}")
	without := state(t, deployments, "metadata: {}")
	if got := Cause(nil, why); got != "image 2" {
		t.Errorf("%q", got)
	}
	if got := Cause(without, why); got != "image 2" {
		t.Errorf("%q", got)
	}
	if got := Cause(why, why) + Cause(why, without); got != "" {
		t.Errorf("%q", got)
	}
}

func TestFirst(t *testing.T) {
	created := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	for want, began := range map[fleetv1alpha1.ChangeType][]time.Time{
		fleetv1alpha1.ChangeCreated: {created.Add(-time.Second), created, created.Add(time.Second)},
		fleetv1alpha1.ChangeSeen:    {{}, created.Add(time.Hour)},
	} {
		for _, at := range began {
			if got := First(created, at); got != want {
				t.Errorf("%s: %s, want %s", at, got, want)
			}
		}
	}
}
