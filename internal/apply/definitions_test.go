package apply

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

// definition returns a template that defines the kind Gadget in a group.
func (f *fleet) definition(plural, group string, versions ...string) *unstructured.Unstructured {
	f.t.Helper()
	name := plural + "." + group
	return parsed(f.t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+name+`, uid: template-`+strings.ReplaceAll(name, ".", "-")+`}, spec: {group: `+group+
		`, scope: Namespaced, names: {kind: Gadget, plural: `+plural+`, singular: gadget, listKind: GadgetList}, versions: [`+strings.Join(versions, ", ")+`]}}`)
}

// A placed CustomResourceDefinition is not deleted with objects of others: neither if the API list
// of the cluster lacks the type or has only an earlier version of it, nor if the objects cannot be
// listed. A definition that is not served is deleted.
func TestADefinitionIsNotDeletedWithObjectsOfOthers(t *testing.T) {
	f := newFleet(t)
	f.start()
	var outdated, unlisted atomic.Bool // outdated: the hub's API list of the cluster stays as it is
	f.join("oak", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case outdated.Load() && (r.URL.Path == "/api" || r.URL.Path == "/apis"):
			http.Error(w, "the server is starting", http.StatusInternalServerError)
		case unlisted.Load() && strings.HasSuffix(r.URL.Path, "/gadgets"):
			http.NotFound(w, r)
		default:
			return false
		}
		return true
	}))
	oak := f.client(testenv.Config(oakServer))
	unserved := func(version string) string { return strings.Replace(version, "served: true", "served: false", 1) }
	placed := func(crd *unstructured.Unstructured) *workv1alpha2.ClusterResourceBinding {
		f.place(crd, "oak")(workv1alpha2.ReasonFullyApplied)
		f.t.Cleanup(func() { f.must(client.IgnoreNotFound(oak.Delete(context.Background(), crd))) })
		b := &workv1alpha2.ClusterResourceBinding{}
		f.must(f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(crd), b))
		return b
	}
	known := func(gvk schema.GroupVersionKind) {
		f.eventually("the type is known", func() error {
			f.registry.Rediscover("oak")
			m, ok := f.registry.Member("oak")
			if !ok {
				return errors.New("the cluster is not")
			}
			if _, served := m.APIs().Kind(gvk); served != presence.Present {
				return errors.New("it is not")
			}
			return nil
		})
	}
	known(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	for name, tc := range map[string]struct {
		first, last        string // the versions of the definition before and after the gadget is made
		serves             string // the version in which the gadget is made
		outdated, unlisted bool
		waits              string // why the deletion waits; "": it does not
	}{
		"NotInTheAPIList":       {first: stored(newGadget, true), serves: "v1", outdated: true},
		"InAVersionThatIsGone":  {first: stored(oldGadget, true), serves: "v1alpha1", last: unserved(stored(oldGadget, false)) + ", " + stored(newGadget, true), outdated: true},
		"NotListed":             {first: stored(newGadget, true), serves: "v1", unlisted: true, waits: "cannot list gadgets"},
		"InNoVersionThatServes": {first: stored(newGadget, true), serves: "v1", last: unserved(stored(newGadget, true)), waits: "serves no version"},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole; outdated.Store(false); unlisted.Store(false) }()
			group := strings.ToLower(name) + ".example.com"
			gadget := f.gadget("default", group+"/"+tc.serves, `{size: 1}`)
			outdated.Store(tc.outdated && tc.last == "")
			b := placed(f.definition("gadgets", group, tc.first))
			f.eventually("a gadget", func() error { return oak.Create(t.Context(), gadget) })
			if tc.last != "" {
				known(gadget.GroupVersionKind())
				outdated.Store(tc.outdated)
				crd := f.definition("gadgets", group, tc.last)
				f.templates.set(crd)
				f.eventually("the definition has the other versions", func() error {
					versions, _, _ := unstructured.NestedSlice(f.live(oak, crd).Object, "spec", "versions")
					if served, _, _ := unstructured.NestedBool(versions[0].(map[string]any), "served"); served {
						return errors.New("it has not")
					}
					return nil
				})
			}
			unlisted.Store(tc.unlisted)
			f.must(f.hub.Delete(t.Context(), b))
			if tc.waits != "" {
				f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b)) // its generation has changed
				if r := f.result(b.Binding(), "oak", workv1alpha2.ReasonListFails); !strings.Contains(r.Message, tc.waits) {
					t.Errorf("of the definition it is said %q", r.Message)
				}
				unlisted.Store(false)
			}
			crd := f.definition("gadgets", group, stored(newGadget, true))
			if tc.waits != "" && tc.last != "" {
				f.must(oak.Patch(t.Context(), f.live(oak, crd), client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/0/served","value":true}]`))))
			}
			f.gone(f.hub, b)
			if left := f.live(oak, crd); left.GetDeletionTimestamp() != nil || left.GetLabels()[workv1alpha2.BindingLabel] != "" {
				t.Errorf("the definition is left with %v", left.Object["metadata"])
			}
			gvk := schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Gadget"}
			after := gadget.DeepCopy()
			after.SetGroupVersionKind(gvk)
			f.eventually("the gadget is served", func() error { return oak.Get(t.Context(), client.ObjectKeyFromObject(gadget), after) })
			if after.GetUID() != gadget.GetUID() {
				t.Errorf("the gadget was %s and is %s", gadget.GetUID(), after.GetUID())
			}
		})
	}
	t.Run("NotServed", func(t *testing.T) {
		f.t = t
		defer func() { f.t = f.whole }()
		f.defines(oak, "taken.names.example.com", stored(newGadget, true))
		crd := f.definition("others", "taken.names.example.com", stored(newGadget, true)) // kind taken
		b := placed(crd)
		f.must(f.hub.Delete(t.Context(), b))
		f.gone(f.hub, b)
		f.gone(oak, crd)
	})
	f.unjoin("oak")
}
