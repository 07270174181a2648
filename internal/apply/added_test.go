package apply

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

func TestAdded(t *testing.T) {
	const head = "apiVersion: apps/v1, kind: Deployment, metadata: {name: x"
	for name, tc := range map[string]struct {
		manifest, applied, owned string
		want                     []string
	}{
		"Same":       {`spec: {a: 1, b: [x, y]}`, `spec: {a: 1, b: [x, y]}, status: {c: 1}`, ``, nil},
		"Field":      {`spec: {a: 1}`, `spec: {a: 1, b: {c: 2}}`, ``, []string{"spec.b"}},
		"Empty":      {`spec: {a: 1}`, `spec: {a: 1, b: {c: "", d: []}, e: 0, f: false}`, ``, nil},
		"Element":    {`spec: {t: [{key: own}]}`, `spec: {t: [{key: own}, {key: injected}]}`, ``, []string{"spec.t[1]"}},
		"InFront":    {`spec: {t: [{key: own}]}`, `spec: {t: [{key: injected}, {key: own}]}`, ``, []string{"spec.t[0]"}},
		"Scalar":     {`spec: {args: [a]}`, `spec: {args: [a, b]}`, ``, []string{"spec.args[1]"}},
		"Named":      {`spec: {c: [{name: app, image: a}]}`, `spec: {c: [{name: side, image: s}, {name: app, image: a, tty: true}]}`, ``, []string{"spec.c[0]", "spec.c[1].tty"}},
		"Changed":    {`spec: {t: [{key: own}]}`, `spec: {t: [{key: other}]}`, ``, nil},
		"OtherShape": {`spec: {a: x}`, `spec: {a: {b: c}}`, ``, nil},
		"OfAUser":    {`spec: {a: 1}`, `spec: {a: 1, b: 2, c: {d: 3}}`, `{"f:spec": {"f:b": {}, "f:c": {"f:d": {}}}}`, nil},
		"OfAUserInAMap": {
			`spec: {a: {own: 1}}`, `spec: {a: {own: 1, theirs: 2, injected: 3}}`, `{"f:spec": {"f:a": {"f:theirs": {}}}}`, []string{"spec.a.injected"},
		},
		"OfAUserInAList": {
			`spec: {c: [{name: app}]}`, `spec: {c: [{name: app}, {name: theirs, image: i}, {name: injected}]}`,
			`{"f:spec": {"f:c": {"k:{\"name\":\"theirs\"}": {".": {}, "f:name": {}, "f:image": {}}}}}`, []string{"spec.c[2]"},
		},
		"WholeListOfAUser": {`spec: {t: [a]}`, `spec: {t: [a, b]}`, `{"f:spec": {"f:t": {}}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := parsed(t, "{"+head+"}, "+tc.manifest+"}")
			fields := ""
			if tc.owned != "" {
				fields = ", managedFields: [{manager: kubectl, operation: Update, fieldsType: FieldsV1, fieldsV1: " + tc.owned + "}]"
			}
			if diff := cmp.Diff(tc.want, added(manifest, parsed(t, "{"+head+fields+"}, "+tc.applied+"}"))); diff != "" {
				t.Error(diff)
			}
		})
	}
	labelled := parsed(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, labels: {team: a, work.orrery.dev/binding: b}, uid: u, finalizers: [f]}}`)
	if diff := cmp.Diff([]string{"metadata.labels"}, added(parsed(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}`), labelled)); diff != "" {
		t.Error(diff)
	}
}

// What admission in a member adds to what is applied is named, in lists and in maps, and what somebody adds there is not.
func TestWhatAMemberAdds(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	api, err := testenv.NewAPI(testenv.Config(oakServer))
	f.must(err)
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	f.result(f.bind(configMap(ns, "first", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	f.mutate(api, oak, ns, "adds-"+ns, `[JSONPatch{op: "add", path: "/data/injected", value: "theirs"}]`)

	b := f.bind(configMap(ns, "a", "1"), nil, "oak")
	r := f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	if !r.Applied || !strings.Contains(r.Message, "the cluster adds to what is applied: data.injected;") || strings.Contains(r.Message, "theirs") {
		t.Errorf("the result is %+v", r)
	}
	// The edit of a copy that has it and what a user added names the same.
	live := configMap(ns, "a", "1")
	live.SetUID("")
	f.must(oak.Get(t.Context(), client.ObjectKeyFromObject(live), live))
	live.Object["data"].(map[string]any)["users"] = "own" //nolint:forcetypeassert // it has data
	f.must(oak.Update(t.Context(), live))
	f.templates.set(configMap(ns, "a", "2"))
	f.eventually("the edit is applied", func() error { return f.appliedDigest(b, "oak", r.Digest) })
	if again := f.result(b, "oak", workv1alpha2.ReasonFullyApplied); again.Message != r.Message {
		t.Errorf("after an edit: %q, want %q", again.Message, r.Message)
	}
	f.unjoin("oak")
}
