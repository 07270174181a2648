package apply

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// A namespace of a cluster that is about to be deleted stays, with its UID, if a binding places
// something in it after its objects were listed. So does the copy.
func TestANamespaceThatIsEnteredWhileItsObjectsAreListed(t *testing.T) {
	f := newFleet(t)
	f.start()
	var last atomic.Value // the path of the last list of the objects in a namespace
	last.Store("")
	var begin, goOn func()
	var begun, going chan struct{}
	f.join("oak", f.door(oakServer, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && r.URL.Path == last.Load() {
			begin()
			<-going
		}
		return false
	}))
	oak := f.client(testenv.Config(oakServer))
	for name, placed := range map[string]bool{"MadeByTheHub": false, "Placed": true} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			begun, going = make(chan struct{}), make(chan struct{})
			begin, goOn = sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(going) })
			defer goOn()
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			if placed {
				o := &unstructured.Unstructured{Object: map[string]any{}}
				o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
				o.SetName(ns)
				o.SetUID(types.UID("template-" + ns))
				f.place(o, "oak")(workv1alpha2.ReasonFullyApplied)
			} else {
				b := f.bind(configMap(ns, "first", "1"), nil, "oak")
				f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
				f.must(f.hub.Delete(t.Context(), b))
				f.gone(f.hub, b)
			}
			before := &corev1.Namespace{}
			f.must(oak.Get(t.Context(), client.ObjectKey{Name: ns}, before))
			m, _ := f.registry.Member("oak")
			for _, api := range m.APIs().All() {
				if api.Preferred && inhabits(api) && api.GroupVersionKind.Group != "" {
					last.Store("/apis/" + api.GroupVersionKind.GroupVersion().String() + "/namespaces/" + ns + "/" + api.Resource)
				}
			}

			if placed {
				f.must(f.hub.Delete(t.Context(), &workv1alpha2.ClusterResourceBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
			} else {
				f.must(f.hub.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
				f.finalizeNamespace(testenv.Config(hubServer), ns)
			}
			<-begun
			if !placed {
				f.must(f.hub.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
			}
			b := f.bind(configMap(ns, "a", "1"), nil, "oak")
			f.eventually("the copy was tried", func() error {
				if _, known := f.applier.Result(b.UID, "oak"); !known {
					return errors.New("it was not")
				}
				return nil
			})
			goOn()
			q, _ := f.applier.queue("oak")
			q.working.Lock()   // waits for the deletion, if there is one
			q.working.Unlock() //nolint:staticcheck // nothing is protected
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			copied := f.data(oak, ns, "a", "1")
			after := &corev1.Namespace{}
			f.must(oak.Get(t.Context(), client.ObjectKey{Name: ns}, after))
			if after.UID != before.UID || after.DeletionTimestamp != nil {
				t.Errorf("the namespace was %s and is %s, deleted at %v", before.UID, after.UID, after.DeletionTimestamp)
			}
			f.untouched(oak, copied)
		})
	}
	f.unjoin("oak")
}
