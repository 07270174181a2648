package apply

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// leave deletes a Cluster with a deletionPolicy, and does not wait until it has left.
func (f *fleet) leave(name string, policy clusterv1alpha1.DeletionPolicy) *clusterv1alpha1.Cluster {
	f.t.Helper()
	c := &clusterv1alpha1.Cluster{}
	f.eventually("set deletionPolicy", func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKey{Name: name}, c); err != nil {
			return err
		}
		c.Spec.DeletionPolicy = policy
		return f.hub.Update(f.t.Context(), c)
	})
	f.must(f.hub.Delete(f.t.Context(), c))
	return c
}

// A hub is restored from a backup in which a Cluster is being deleted with deletionPolicy Delete.
// The only copy that is newer than the hub is in that cluster. It stays until the restore is
// confirmed.
func TestARestoredHubDeletesNothingInALeavingCluster(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "oak")
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
	f.stop()

	later := f.data(oak, ns, "a", "1")
	from, err := f.applier.key().Verify(later.Annotations[workv1alpha2.SourceAnnotation])
	f.must(err)
	from.Version += 1 << 40
	f.rewrite(oak, later, func(o *corev1.ConfigMap) {
		o.Annotations[workv1alpha2.DigestAnnotation] = "later"
		o.Annotations[workv1alpha2.SourceAnnotation] = f.applier.key().Sign(from)
	})
	c := f.leave("oak", clusterv1alpha1.DeletionDelete)
	deletes := f.calls("delete")
	f.start()
	state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}}
	f.eventually("a restore is suspected", func() error {
		if made := f.calls("delete") - deletes; made != 0 {
			t.Fatalf("%v deletions were made", made)
		}
		return f.hub.Get(t.Context(), client.ObjectKeyFromObject(state), state)
	})
	if !strings.Contains(state.Data[restoreReason], "oak") {
		t.Errorf("the hub says %v", state.Data)
	}
	f.untouched(oak, later)

	state.Data["state"] = RestoreConfirmed
	f.must(f.hub.Update(t.Context(), state))
	f.gone(f.hub, c)
	f.gone(oak, later)
	f.must(f.hub.Delete(t.Context(), state))
}

// A cluster leaves while a copy is written to it. The write succeeds without an answer, and the
// mirror does not see it. The copy is deleted, or loses our marks.
func TestACopyWrittenWithoutAnAnswerIsRemovedFromALeavingCluster(t *testing.T) {
	for _, policy := range []clusterv1alpha1.DeletionPolicy{clusterv1alpha1.DeletionDelete, clusterv1alpha1.DeletionOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			f := newFleet(t)
			f.answerPatience = deadline // the test holds a request for longer than the product would
			f.start()
			oak := f.client(testenv.Config(oakServer))
			through, err := rest.TransportFor(testenv.Config(oakServer))
			f.must(err)
			target, err := url.Parse(testenv.Config(oakServer).Host)
			f.must(err)
			begun, goOn := make(chan struct{}), make(chan struct{})
			begin, letGo := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(goOn) })
			f.join("oak", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") && r.URL.Query().Get("watch") != "":
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusOK)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done() // the watch sends no event
					return true
				case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/a") && r.Header.Get("Content-Type") == string(types.ApplyPatchType):
					begin()
					<-goOn
					write := r.Clone(context.WithoutCancel(r.Context()))
					write.URL.Scheme, write.URL.Host, write.Host, write.RequestURI = target.Scheme, target.Host, "", ""
					write.Header.Del("Authorization")
					if answer, err := through.RoundTrip(write); err != nil {
						t.Error(err)
					} else if err := answer.Body.Close(); err != nil || answer.StatusCode >= http.StatusBadRequest {
						t.Errorf("the write was answered with %s (%v)", answer.Status, err)
					}
					http.Error(w, "the answer is lost", http.StatusServiceUnavailable)
					return true
				default:
					return false
				}
			}))
			t.Cleanup(letGo)
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			f.must(oak.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
			b := f.bind(configMap(ns, "a", "1"), nil, "oak")
			<-begun
			m, _ := f.registry.Member("oak")
			c := f.leave("oak", policy)
			f.eventually("oak leaves", func() error {
				if !m.Leaving() {
					return errors.New("it does not")
				}
				return nil
			})
			letGo()
			f.gone(f.hub, c)
			left := &corev1.ConfigMap{}
			err = oak.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, left)
			switch {
			case policy == clusterv1alpha1.DeletionDelete && !apierrors.IsNotFound(err):
				t.Errorf("the copy is left (%v)", err)
			case policy == clusterv1alpha1.DeletionOrphan && (err != nil || left.Labels[workv1alpha2.BindingLabel] != ""):
				t.Errorf("the copy has the labels %v (%v)", left.Labels, err)
			}
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(f.hub, b)
		})
	}
}

// A cluster stops answering after its departure has begun. Nothing was done there, and the
// departure must not say that our marks were taken off.
func TestAClusterThatDoesNotAnswerIsNotCleanedUp(t *testing.T) {
	recorder, err := testenv.NewRecorder(testenv.Config(oakServer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() })
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("oak", recorder.Kubeconfig())
	m, _ := f.registry.Member("oak")
	recorder.Fail(testenv.Cut)
	f.eventually("oak does not answer", func() error {
		if m.Reachable() {
			return errors.New("it does")
		}
		return nil
	})
	if err := f.applier.Leave(t.Context(), m); err == nil {
		t.Error("the cleanup of a cluster that does not answer is done")
	}
	recorder.Heal()
	f.eventually("oak answers", func() error { return f.reachable("oak") })
	f.unjoin("oak")
}
