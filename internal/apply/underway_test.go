package apply

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// A binding that is deleted while a copy is written to a cluster is there until that copy is gone.
// It makes no difference that the cluster held nothing before the write, nor whether the deleted
// binding still names the cluster.
func TestADeletedBindingWaitsForTheWriteUnderWay(t *testing.T) {
	recorder, err := testenv.NewRecorder(testenv.Config(oakServer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() })
	for name, vacated := range map[string]bool{"Named": false, "NotNamed": true} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.answerPatience = deadline // the test holds a request for longer than the product would
			f.start()
			f.join("oak", recorder.Kubeconfig())
			f.join("elm", testenv.Kubeconfig(elmServer))
			oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
			ns := testenv.Namespace(t, testenv.Config(hubServer))
			b := f.bind(configMap(ns, "a", "1"), nil, "elm", "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
			inElm := f.data(elm, ns, "a", "1")
			holds := func(cluster string) func() error {
				return func() error {
					if !f.applier.Gone(b.UID, cluster) {
						return fmt.Errorf("%s may hold a copy", cluster)
					}
					return nil
				}
			}
			f.retarget(b, "elm")
			f.eventually("oak holds nothing", holds("oak"))

			begun, goOn := make(chan struct{}), make(chan struct{})
			letGo, begin := sync.OnceFunc(func() { close(goOn) }), sync.OnceFunc(func() { close(begun) })
			recorder.OnWriteIn(ns, func(w testenv.Write) {
				if w.Verb == "apply" && w.Resource == "configmaps" {
					begin()
					<-goOn
				}
			})
			t.Cleanup(func() { letGo(); recorder.OnWriteIn(ns, nil) })
			f.retarget(b, "elm", "oak")
			<-begun
			if vacated {
				f.retarget(b, "elm")
			}
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(elm, inElm)
			f.eventually("elm holds nothing", holds("elm"))
			f.applier.letGo(t.Context(), client.ObjectKeyFromObject(b))
			f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), &workv1alpha2.ResourceBinding{}))
			letGo()
			f.gone(f.hub, b)
			f.gone(oak, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}})
			f.unjoin("oak")
			f.unjoin("elm")
		})
	}
}

// A binding that is deleted waits for a cluster that it does not name and that may hold a copy. It
// waits no longer once that cluster is unjoined, also if the cluster cannot be asked.
func TestADeletedBindingWaitsForNoClusterThatLeft(t *testing.T) {
	server := testenv.StartServer(t)
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("ivy", server.Kubeconfig())
	f.join("elm", testenv.Kubeconfig(elmServer))
	elm := f.client(testenv.Config(elmServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "elm", "ivy")
	f.result(b, "ivy", workv1alpha2.ReasonFullyApplied)
	f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
	inElm := f.data(elm, ns, "a", "1")
	server.Signal(t, syscall.SIGSTOP)
	f.eventually("ivy is lost", func() error {
		if f.reachable("ivy") == nil {
			return errors.New("it is not")
		}
		return nil
	})
	f.retarget(b, "elm")
	f.must(f.hub.Delete(t.Context(), b))
	f.gone(elm, inElm)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	f.unjoin("ivy")
	f.gone(f.hub, b)
	server.Signal(t, syscall.SIGCONT)
	f.unjoin("elm")
}
