package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// valueAt returns the value at a path in an object; nil if there is none. A number in the path
// is an index of a list.
func valueAt(o *unstructured.Unstructured, path string) any {
	var value any = o.Object
	for name := range strings.SplitSeq(path, ".") {
		switch of := value.(type) {
		case map[string]any:
			value = of[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(of) {
				return nil
			}
			value = of[i]
		default:
			return nil
		}
	}
	return value
}

// TestWhatWentIsNotWrittenWhole: a manifest with a UID is about one object, so writeWhole never
// creates another one, forced or not. The test does not force it.
func TestWhatWentIsNotWrittenWhole(t *testing.T) {
	manifest := &unstructured.Unstructured{}
	manifest.SetUID("1")
	write := &task{queue: &clusterQueue{}, wanted: Wanted{Object: Object{Namespace: "shop", Name: "web"}}}
	applied, created, err := write.writeWhole(t.Context(), manifest, false)
	if applied != nil || created || !errors.Is(err, errChanged) {
		t.Errorf("it returned %v, %v, %v, want errChanged", applied, created, err)
	}
}

// API servers create lists with several elements of one key, and refuse to apply them. The copy
// has such lists as the template has them, edits of them arrive, and what others set beside
// them stays.
func TestElementsWithTheSameKey(t *testing.T) {
	f := newFleet(t)
	f.start()
	r, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(r.Close()) })
	f.join("oak", r.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))
	const refused, created, replaced, owned, applied = "apply 500", "create 201", "update 200", "patch 200", "apply 200"
	deployment := func(pod string) string {
		return `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: NAMESPACE}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: ` + pod + `}}}`
	}
	for name, tc := range map[string]struct {
		template, edited, path string
		clean                  string // a template without such elements
	}{
		"Environment": {
			deployment(`{containers: [{name: web, image: "nginx:1", args: [a], env: [{name: MODE, value: one}, {name: MODE, value: two}]}]}`),
			deployment(`{containers: [{name: web, image: "nginx:2", env: [{name: MODE, value: one}, {name: MODE, value: three}, {name: LOG, value: x}]}]}`),
			"spec.template.spec.containers.0.env",
			deployment(`{containers: [{name: web, image: "nginx:2", env: [{name: MODE, value: four}]}]}`),
		},
		"Ports": {
			deployment(`{containers: [{name: web, image: "nginx:1", args: [a], ports: [{name: http, containerPort: 8080, protocol: TCP}, {name: admin, containerPort: 8080, protocol: TCP}]}]}`),
			deployment(`{containers: [{name: web, image: "nginx:2", ports: [{name: http, containerPort: 8080, protocol: TCP}, {name: other, containerPort: 8080, protocol: TCP}]}]}`),
			"spec.template.spec.containers.0.ports",
			deployment(`{containers: [{name: web, image: "nginx:2", ports: [{name: http, containerPort: 8080, protocol: TCP}]}]}`),
		},
		"HostAliases": {
			deployment(`{containers: [{name: web, image: "nginx:1", args: [a]}], hostAliases: [{ip: 10.0.0.1, hostnames: [a.example]}, {ip: 10.0.0.1, hostnames: [b.example]}]}`),
			deployment(`{containers: [{name: web, image: "nginx:2"}], hostAliases: [{ip: 10.0.0.1, hostnames: [a.example]}, {ip: 10.0.0.1, hostnames: [c.example]}]}`),
			"spec.template.spec.hostAliases",
			deployment(`{containers: [{name: web, image: "nginx:2"}], hostAliases: [{ip: 10.0.0.1, hostnames: [c.example]}]}`),
		},
		"Secrets": {
			`{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}, secrets: [{name: s1}, {name: s1}]}`,
			`{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}, secrets: [{name: s1}, {name: s1}, {name: s2}]}`,
			"secrets",
			`{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}, secrets: [{name: s2}]}`,
		},
		"InitContainersOfAStatefulSet": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: NAMESPACE}, spec: {serviceName: x, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: nginx, args: [a]}], initContainers: [{name: i, image: busybox, env: [{name: A, value: "1"}, {name: A, value: "2"}]}]}}}}`,
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: NAMESPACE}, spec: {serviceName: x, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: nginx}], initContainers: [{name: i, image: busybox, env: [{name: A, value: "1"}, {name: A, value: "3"}]}]}}}}`,
			"spec.template.spec.initContainers.0.env",
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: NAMESPACE}, spec: {serviceName: x, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: nginx}], initContainers: [{name: i, image: busybox, env: [{name: A, value: "3"}]}]}}}}`,
		},
		"CronJob": {
			`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x, namespace: NAMESPACE}, spec: {schedule: "0 3 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: busybox, args: [a], env: [{name: TZ, value: UTC}, {name: TZ, value: UTC}]}]}}}}}}`,
			`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x, namespace: NAMESPACE}, spec: {schedule: "0 3 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: busybox, env: [{name: TZ, value: UTC}, {name: TZ, value: CET}]}]}}}}}}`,
			"spec.jobTemplate.spec.template.spec.containers.0.env",
			`{apiVersion: batch/v1, kind: CronJob, metadata: {name: x, namespace: NAMESPACE}, spec: {schedule: "0 3 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: busybox, env: [{name: TZ, value: CET}]}]}}}}}}`,
		},
		"Pod": {
			`{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: NAMESPACE}, spec: {containers: [{name: c, image: "nginx:1", env: [{name: A, value: "1"}, {name: A, value: "2"}]}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: NAMESPACE}, spec: {containers: [{name: c, image: "nginx:2", env: [{name: A, value: "1"}, {name: A, value: "2"}]}]}}`,
			"spec.containers.0.env", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			writes := func(what string, mark int, want ...string) {
				t.Helper()
				other := f.bind(configMap(ns, "after-"+what, "1"), nil, "oak")
				f.result(other, "oak", workv1alpha2.ReasonFullyApplied)
				var got []string
				f.eventually("the writes are made", func() error { // another worker may make them
					got = nil
					for _, w := range r.Writes(mark) {
						if w.Namespace != ns || w.Resource == "configmaps" || w.DryRun || w.FieldManager != workv1alpha2.FieldManager {
							continue
						}
						if w.Ended.IsZero() {
							return fmt.Errorf("%s is not answered", w)
						}
						got = append(got, fmt.Sprintf("%s %d", w.Verb, w.Code))
					}
					if len(got) < len(want) {
						return fmt.Errorf("these are: %v", got)
					}
					return nil
				})
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("writes that %s (-want +got):\n%s", what, diff)
				}
			}
			follows := func(what string, template *unstructured.Unstructured) *unstructured.Unstructured {
				t.Helper()
				var live *unstructured.Unstructured
				f.eventually(what, func() error {
					live = f.live(oak, template)
					if diff := cmp.Diff(valueAt(template, tc.path), valueAt(live, tc.path)); diff != "" {
						return errors.New(diff)
					}
					return nil
				})
				return live
			}
			template := f.manifestOf(ns, tc.template)
			mark := r.Mark()
			b := f.bind(template, nil, "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			live := follows("the copy is the template", template)
			writes("create", mark, refused, created, owned)

			// Additions of others stay, and cause no write.
			f.must(oak.Patch(t.Context(), live, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"theirs":"x"}}}`)), client.FieldOwner("someone")))
			mark = r.Mark()
			writes("ignore", mark)

			mark = r.Mark()
			edited := f.manifestOf(ns, tc.edited)
			edited.SetLabels(map[string]string{"edited": "yes"})
			f.templates.set(edited)
			f.eventually("the edit arrives", func() error {
				if f.live(oak, template).GetLabels()["edited"] != "yes" {
					return errors.New("it has not")
				}
				return nil
			})
			after := follows("the copy is the edited template", edited)
			if after.GetUID() != live.GetUID() || after.GetLabels()["theirs"] != "x" {
				t.Errorf("the copy is another, or lost what others set: %v", after.Object["metadata"])
			}
			if args := strings.Contains(fmt.Sprint(after.Object["spec"]), "args:[a]"); args {
				t.Error("a field that the template dropped stays")
			}
			writes("edit", mark, refused, replaced, owned)

			if tc.clean == "" {
				return
			}
			mark = r.Mark()
			clean := f.manifestOf(ns, tc.clean)
			f.templates.set(clean)
			after = follows("the copy has no duplicates", clean)
			f.eventually("the label goes", func() error {
				if after = f.live(oak, template); after.GetLabels()["edited"] != "" || after.GetLabels()["theirs"] != "x" {
					return fmt.Errorf("the labels are %v", after.GetLabels())
				}
				return nil
			})
			writes("tidy", mark, applied)
		})
	}
	f.unjoin("oak")
}

// A hub stops between the creation of an object with duplicates and the write of managedFields.
// The next process finds its mark, and takes the object back instead of creating it again.
func TestDuplicatesOfAHubThatEnds(t *testing.T) {
	f := newFleet(t)
	f.start()
	r, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(r.Close()) })
	f.join("oak", r.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	template := f.manifestOf(ns, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: x, namespace: NAMESPACE}, secrets: [{name: s1}, {name: s1}]}`)
	r.OnWriteIn(ns, func(w testenv.Write) {
		if w.Verb == "create" && w.Resource == "serviceaccounts" {
			r.Fail(testenv.Mute)
		}
	})
	b := f.bind(template, nil, "oak")
	creates := func() (n int) {
		for _, w := range r.Writes(0) {
			if w.Namespace == ns && w.Resource == "serviceaccounts" && w.Verb == "create" && w.Code == 201 {
				n++
			}
		}
		return n
	}
	f.eventually("it is created", func() error {
		if creates() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	f.stop()
	r.OnWriteIn(ns, nil)
	r.Heal()
	before := f.live(oak, template)
	if ownSet(before, "v1") != nil {
		t.Fatalf("the fields are owned already: %v", before.GetManagedFields())
	}

	f.start()
	f.eventually("oak is reachable", func() error { return f.reachable("oak") })
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	after := f.live(oak, template)
	if after.GetUID() != before.GetUID() || creates() != 1 {
		t.Errorf("it was created %d times", creates())
	}
	if diff := cmp.Diff(valueAt(template, "secrets"), valueAt(after, "secrets")); diff != "" || ownSet(after, "v1") == nil {
		t.Errorf("-want +got:\n%s\nmanagedFields: %v", diff, after.GetManagedFields())
	}
	f.unjoin("oak")
}

// A Job that was written whole exists even if each write of its managedFields fails. It is not
// created a second time.
func TestAJobThatWasWrittenWholeIsNotMadeAgain(t *testing.T) {
	f := newFleet(t)
	f.start()
	r, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(r.Close()) })
	f.join("oak", r.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	job := f.manifestOf(ns, `{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: nginx, env: [{name: A, value: "1"}, {name: A, value: "2"}]}]}}}}`)
	var changes int
	r.OnWriteIn(ns, func(w testenv.Write) {
		if w.Verb != "patch" || w.Resource != "jobs" || changes == ownershipAttempts {
			return
		}
		changes++
		patch := fmt.Sprintf(`{"metadata":{"labels":{"theirs":"%d"}}}`, changes)
		if err := oak.Patch(context.Background(), job.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("someone")); err != nil {
			t.Error(err)
		}
	})
	mark := r.Mark()
	f.result(f.bind(job, nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	uid := f.live(oak, job).GetUID()
	f.result(f.bind(configMap(ns, "after", "1"), nil, "oak"), "oak", workv1alpha2.ReasonFullyApplied)
	r.OnWriteIn(ns, nil)
	var got []string
	for _, w := range r.Writes(mark) {
		if w.Namespace == ns && w.Resource == "jobs" && !w.DryRun {
			got = append(got, fmt.Sprintf("%s %d", w.Verb, w.Code))
		}
	}
	want := append([]string{"apply 500", "create 201"}, slices.Repeat([]string{"patch 409"}, ownershipAttempts)...)
	// Later writes make it an ordinary copy. None of them creates it again.
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" || slices.Contains(got[min(len(want), len(got)):], "create 201") || f.live(oak, job).GetUID() != uid {
		t.Errorf("writes to the job are %v (-want +got):\n%s", got, diff)
	}
	f.unjoin("oak")
}
