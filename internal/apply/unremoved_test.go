package apply

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

func TestKept(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"Nothing":                {nil, ""},
		"AListThatFails":         {fmt.Errorf("look: %w", unlisted("namespace a", pods, apierrors.NewInternalError(errors.New("damaged")))), workv1alpha2.ReasonListFails},
		"AListThatIsForbidden":   {unlisted("namespace a", pods, apierrors.NewForbidden(pods, "", nil)), workv1alpha2.ReasonListFails},
		"AListWithoutAnAnswer":   {unlisted("namespace a", pods, io.ErrUnexpectedEOF), ""},
		"ADeletionIsForbidden":   {fmt.Errorf("delete: %w", apierrors.NewForbidden(pods, "a", errors.New("no"))), workv1alpha2.ReasonRejected},
		"AWebhookThatIsSilent":   {apierrors.NewInternalError(errors.New(`failed calling webhook "a.example.com"`)), workv1alpha2.ReasonRejected},
		"SomethingThatIsGoing":   {errors.New("namespaces a waits for pods a/b to go"), ""},
		"ADeletionThatConflicts": {apierrors.NewConflict(pods, "a", errors.New("changed")), ""},
		"ADeletionThatTimesOut":  {apierrors.NewTimeoutError("late", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := kept(tc.err); got != tc.want {
				t.Errorf("%v: %q, want %q", tc.err, got, tc.want)
			}
		})
	}
}

// TestACopyWhoseDeletionIsRefused: the result says why the cluster refuses to delete a copy,
// until it accepts the deletion.
func TestACopyWhoseDeletionIsRefused(t *testing.T) {
	f := newFleet(t)
	f.start()
	var refuses atomic.Bool
	refuses.Store(true)
	f.join("fir", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
		if !refuses.Load() || r.Method != http.MethodDelete || !strings.HasSuffix(r.URL.Path, "/configmaps/a") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"admission webhook says no"}`)
		return true
	}))
	fir := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "fir")
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	held := f.data(fir, ns, "a", "1")
	held.Finalizers = []string{"example.com/hold"}
	f.must(fir.Update(t.Context(), held))
	f.must(f.hub.Delete(t.Context(), b))
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if r := f.result(b, "fir", workv1alpha2.ReasonRejected); !strings.Contains(r.Message, "admission webhook says no") {
		t.Errorf("of the copy it is said %q", r.Message)
	}
	refuses.Store(false)
	f.result(b, "fir", workv1alpha2.ReasonRemoving) // the finalizer keeps it
	f.rewrite(fir, held, func(o *corev1.ConfigMap) { o.Finalizers = nil })
	f.gone(f.hub, b)
	f.unjoin("fir")
}

// TestANamespaceWhoseContentIsNotKnown: while an aggregated API of a cluster does not answer,
// namespaces there are not deleted. The result of a placed namespace has the reason, and so has
// one event about a namespace that the hub created.
func TestANamespaceWhoseContentIsNotKnown(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	placed, made := testenv.Namespace(t, testenv.Config(hubServer)), testenv.Namespace(t, testenv.Config(hubServer))
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	o.SetName(placed)
	o.SetUID(types.UID("template-" + placed))
	f.place(o, "oak")(workv1alpha2.ReasonFullyApplied)
	in := f.bind(configMap(made, "a", "1"), nil, "oak")
	f.result(in, "oak", workv1alpha2.ReasonFullyApplied)

	silent := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.silent.example.com"},
		"spec": map[string]any{
			"group": "silent.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "silent"},
		},
	}}
	f.must(oak.Create(t.Context(), silent))
	t.Cleanup(func() { _ = client.IgnoreNotFound(oak.Delete(t.Context(), silent)) })
	f.eventually("the API is known not to answer", func() error {
		f.registry.Rediscover("oak")
		if m, ok := f.registry.Member("oak"); !ok || m.APIs().Silent("silent.example.com") == "" {
			return errors.New("it is not")
		}
		return nil
	})

	b := &workv1alpha2.ClusterResourceBinding{ObjectMeta: metav1.ObjectMeta{Name: placed}}
	f.must(f.hub.Delete(t.Context(), b))
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if r := f.result(b.Binding(), "oak", workv1alpha2.ReasonListFails); !strings.Contains(r.Message, "silent.example.com/v1") {
		t.Errorf("of the namespace it is said %q", r.Message)
	}
	f.must(f.hub.Delete(t.Context(), in))
	f.gone(f.hub, in)
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: made}}
	f.must(f.hub.Delete(t.Context(), n))
	f.finalizeNamespace(testenv.Config(hubServer), made)
	waits := func() (found []eventsv1.Event) {
		list := &eventsv1.EventList{}
		f.must(f.hub.List(t.Context(), list))
		for _, e := range list.Items {
			if e.Reason == "NamespaceWaits" && e.Regarding.Name == "oak" && strings.Contains(e.Note, made) {
				found = append(found, e)
			}
		}
		return found
	}
	f.eventually("an event says why", func() error {
		if len(waits()) == 0 {
			return errors.New("none does")
		}
		return nil
	})
	q, _ := f.applier.queue("oak")
	for range 3 {
		q.reconcileNamespace(t.Context(), made)
	}
	f.must(oak.Delete(t.Context(), silent))
	f.eventually("the API is gone", func() error {
		f.registry.Rediscover("oak")
		if m, _ := f.registry.Member("oak"); m.APIs().Silent("silent.example.com") != "" {
			return errors.New("it is not")
		}
		return nil
	})
	f.eventually("the namespaces are being deleted", func() error {
		for _, name := range []string{placed, made} {
			left := &corev1.Namespace{}
			if err := oak.Get(t.Context(), client.ObjectKey{Name: name}, left); err == nil && left.DeletionTimestamp.IsZero() {
				return fmt.Errorf("%s is not", name)
			}
		}
		return nil
	})
	f.finalizeNamespace(testenv.Config(oakServer), placed)
	f.gone(f.hub, b)
	if all := waits(); len(all) != 1 || all[0].Series != nil || !strings.Contains(all[0].Note, "silent.example.com/v1") {
		t.Errorf("%d events: %+v", len(all), all)
	}
	f.unjoin("oak")
}
