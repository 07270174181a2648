package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// Versions of the kind Gadget: the new one has a field that the old one lacks.
const (
	oldGadget  = `{name: v1alpha1, served: true, storage: STORED, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, note: {type: string}, theirs: {type: string}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}, subresources: {status: {}}}`
	newGadget  = `{name: v1, served: true, storage: STORED, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, color: {type: string, default: red}, note: {type: string}, theirs: {type: string}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}, subresources: {status: {}}}`
	plainStore = `STORED`
)

// stored returns a version of a definition with its storage flag.
func stored(version string, is bool) string {
	return strings.ReplaceAll(version, plainStore, fmt.Sprint(is))
}

// defines creates or updates the definition of the kind Gadget in a group of a cluster, and
// waits until the cluster serves the versions.
func (f *fleet) defines(c client.Client, group string, versions ...string) {
	f.t.Helper()
	crd := parsed(f.t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.`+group+`}, spec: {group: `+group+
		`, scope: Namespaced, names: {kind: Gadget, plural: gadgets, singular: gadget, listKind: GadgetList}, versions: [`+strings.Join(versions, ", ")+`]}}`)
	// The API server writes the status of the definition, so that an update can conflict.
	f.eventually("the definition", func() error {
		is := crd.DeepCopy()
		err := c.Get(f.t.Context(), client.ObjectKeyFromObject(crd), is)
		switch {
		case apierrors.IsNotFound(err):
			f.must(c.Create(f.t.Context(), crd))
			f.t.Cleanup(func() { f.must(client.IgnoreNotFound(c.Delete(context.Background(), crd))) })
			return nil
		case err != nil:
			return err
		default:
			is.Object["spec"] = crd.Object["spec"]
			return c.Update(f.t.Context(), is)
		}
	})
	list, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range list {
		all := &unstructured.UnstructuredList{}
		all.SetAPIVersion(fmt.Sprint(group, "/", v.(map[string]any)["name"]))
		all.SetKind("GadgetList")
		f.eventually(all.GetAPIVersion()+" is served", func() error { return f.client(testenv.Config(oakServer)).List(f.t.Context(), all) })
	}
}

// migrated rewrites an object in the version of o, and records that version as the only stored
// one of the definition, as a storage migration does.
func (f *fleet) migrated(c client.Client, o *unstructured.Unstructured) {
	f.t.Helper()
	f.eventually("the object is rewritten", func() error { return c.Update(f.t.Context(), f.live(c, o), client.FieldOwner("migrator")) })
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("gadgets." + o.GroupVersionKind().Group)
	f.must(c.Status().Patch(f.t.Context(), crd, client.RawPatch(types.MergePatchType, []byte(`{"status":{"storedVersions":["`+o.GroupVersionKind().Version+`"]}}`))))
}

// gadget returns a template of the kind Gadget.
func (f *fleet) gadget(ns, apiVersion, spec string) *unstructured.Unstructured {
	f.t.Helper()
	return f.manifestOf(ns, `{apiVersion: `+apiVersion+`, kind: Gadget, metadata: {name: g, namespace: NAMESPACE}, spec: `+spec+`}`)
}

// sequence returns the writes to objects of a group after a mark, with their status codes. It
// waits until all are answered.
func (f *fleet) sequence(r *testenv.Recorder, mark int, group string) (all []string) {
	f.t.Helper()
	f.eventually("the writes are answered", func() error {
		all = nil
		for _, w := range r.Writes(mark) {
			if w.Group != group || w.DryRun {
				continue
			}
			if w.Ended.IsZero() {
				return fmt.Errorf("%s is not", w)
			}
			all = append(all, fmt.Sprintf("%s %d", w.Verb, w.Code))
		}
		return nil
	})
	return all
}

// A copy follows its kind to a new version. Fields of the new version arrive, even as defaults.
// Fields of others stay, and fields that the template drops are removed.
func TestCopiesFollowTheirKindToANewVersion(t *testing.T) {
	f := newFleet(t)
	f.loses = true
	f.start()
	r, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(r.Close()) })
	f.join("oak", r.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))
	const apply, refused, move = "apply 200", "apply 500", "patch 200"
	plain := strings.ReplaceAll(newGadget, ", default: red", "")
	adds := func(version string) func(string, string) {
		return func(group, _ string) { f.defines(oak, group, stored(oldGadget, false), stored(version, true)) }
	}
	drops := func(version string) func(string, string) {
		return func(group, ns string) {
			adds(version)(group, ns)
			f.migrated(oak, f.gadget(ns, group+"/v1", `{}`))
			f.defines(oak, group, stored(version, true))
		}
	}
	for name, tc := range map[string]struct {
		away   bool
		change func(group, ns string)
		color  string // of the template in the new version
		// forgotten is true if the API server lost the owners of fields: the fields of others
		// are removed.
		forgotten bool
		writes    []string // writes that move the copy to the new version
	}{
		"WithADefault":               {change: adds(newGadget), color: "red", writes: []string{refused, move, apply}},
		"WithADefaultWhileItWasAway": {away: true, change: adds(newGadget), color: "red", writes: []string{refused, move, apply}},
		"Dropped":                    {change: drops(plain), writes: []string{refused, move, apply}},
		"DroppedWhileItWasAway":      {away: true, change: drops(plain), writes: []string{refused, move, apply}},
		"DroppedWithADefault":        {away: true, change: drops(newGadget), color: "red", forgotten: true, writes: []string{apply, move, apply}},
		"TheSameFields":              {change: adds(plain), writes: []string{apply}},
		"AFieldMore":                 {change: adds(plain), color: "blue", writes: []string{refused, move, apply}},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			group := strings.ToLower(name) + ".example.com"
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			f.defines(oak, group, stored(oldGadget, true))
			b := f.bind(f.gadget(ns, group+"/v1alpha1", `{size: 1, note: a}`), nil, "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			before := f.live(oak, f.gadget(ns, group+"/v1alpha1", `{}`))
			f.must(oak.Patch(t.Context(), before, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"theirs":"x"}}`)), client.FieldOwner("someone")))

			mark := r.Mark()
			defer r.Heal()
			if tc.away {
				r.Fail(testenv.Cut)
				f.eventually("oak is away", func() error {
					if f.reachable("oak") == nil {
						return errors.New("it is not")
					}
					return nil
				})
			}
			tc.change(group, ns)
			template := f.gadget(ns, group+"/v1", `{size: 2, note: a}`)
			want := map[string]any{"size": int64(2), "note": "a"}
			var theirs any
			if !tc.forgotten {
				theirs, want["theirs"] = "x", "x"
			}
			if tc.color != "" {
				template, want["color"] = f.gadget(ns, group+"/v1", `{size: 2, note: a, color: `+tc.color+`}`), tc.color
			}
			f.templates.set(template)
			f.edit(b, func(s *workv1alpha2.BindingSpec) { s.Resource.APIVersion = group + "/v1" })
			r.Heal()
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			if diff := cmp.Diff(tc.writes, f.sequence(r, mark, group)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}

			live := f.live(oak, template)
			if diff := cmp.Diff(want, live.Object["spec"]); diff != "" {
				t.Errorf("the copy (-want +got):\n%s", diff)
			}
			if live.GetUID() != before.GetUID() {
				t.Error("the copy was made anew")
			}
			someones := slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "someone" })
			if ownSet(live, group+"/v1") == nil || someones == tc.forgotten {
				t.Errorf("the fields are owned by %v", live.GetManagedFields())
			}

			// A field that the template drops is removed in one write.
			mark = r.Mark()
			template = f.gadget(ns, group+"/v1", `{size: 3}`)
			f.templates.set(template)
			f.eventually("the copy follows", func() error {
				if spec := f.live(oak, template).Object["spec"].(map[string]any); spec["note"] != nil || spec["size"] != int64(3) || spec["theirs"] != theirs {
					return fmt.Errorf("it is %v", spec)
				}
				return nil
			})
			other := f.bind(configMap(ns, "settled", "1"), nil, "oak")
			f.result(other, "oak", workv1alpha2.ReasonFullyApplied)
			if diff := cmp.Diff([]string{apply}, f.sequence(r, mark, group)); diff != "" {
				t.Errorf("writes of the edit (-want +got):\n%s", diff)
			}
		})
	}
	f.unjoin("oak")
}

// An object that others created in an earlier version is taken over in the version of the
// template. Fields that a controller owns in the earlier version stay the controller's.
func TestTakenOverInANewVersion(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := f.adoptable(oak)
	const group = "taken.example.com"
	f.defines(oak, group, stored(oldGadget, true))
	theirs := f.has(oak, f.gadget(ns, group+"/v1alpha1", `{size: 1}`), "someone")
	f.must(oak.Status().Patch(t.Context(), theirs, client.RawPatch(types.MergePatchType, []byte(`{"status":{"ready":true}}`)), client.FieldOwner("controller")))
	f.defines(oak, group, stored(oldGadget, false), stored(newGadget, true))

	template := f.gadget(ns, group+"/v1", `{size: 1}`)
	b := f.bind(template, overwrites, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	live := f.live(oak, template)
	if live.GetUID() != theirs.GetUID() || live.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
		t.Errorf("it was not taken over: %v", live.Object["metadata"])
	}
	if _, owned := ownSet(live, group+"/v1")["f:spec"]; !owned {
		t.Errorf("the fields are owned by %v", live.GetManagedFields())
	}
	if !slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "controller" && e.Subresource == "status" }) {
		t.Errorf("the status is owned by %v", live.GetManagedFields())
	}
	f.unjoin("oak")
}

// managedFields are moved only if the error says that the API server cannot compare the object
// in their versions.
func TestRefusesVersions(t *testing.T) {
	for message, want := range map[string]bool{
		`failed to prune fields: failed add back owned items: failed to convert pruned object at version example.org/v1: .spec.color: field not declared in schema`: true,
		`failed to convert new object: .spec.color: field not declared in schema`:                                                                                   true,
		`request to convert CR to an invalid group/version: example.org/v1alpha1`:                                                                                   true,
		`failed calling webhook "check.example.org": failed to call webhook: Post "https://check": dial tcp: connection refused`:                                    false,
		`etcdserver: leader changed`: false,
		`failed to prune fields: failed to convert merged object at version example.org/v1: conversion webhook for example.org/v2 failed: connection refused`: false,
		`.spec.env: duplicate entries for key [name="A"]`: false,
	} {
		if refusesVersions(apierrors.NewInternalError(errors.New(message))) != want {
			t.Errorf("%s: want %t", message, want)
		}
		if refusesVersions(apierrors.NewBadRequest(message)) {
			t.Errorf("a bad request with %q refuses versions", message)
		}
	}
}
