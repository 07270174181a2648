package apply

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// left returns an error unless an object is there as before, and marked as an orphan.
func (f *fleet) left(c client.Client, was *corev1.ConfigMap) error {
	now := &corev1.ConfigMap{}
	if err := c.Get(f.t.Context(), client.ObjectKeyFromObject(was), now); err != nil {
		return err
	}
	if now.UID != was.UID || !now.DeletionTimestamp.IsZero() {
		return errors.New("it was deleted")
	}
	if now.Labels[workv1alpha2.BindingLabel] != "" || now.Annotations[workv1alpha2.OrphanAnnotation] == "" {
		return fmt.Errorf("labels %v, annotations %v", now.Labels, now.Annotations)
	}
	return nil
}

// An object that orphans of another template need in a cluster stays there without our marks
// when its own placement leaves the cluster or ends. It is a copy of the binding again when the
// binding names the cluster again.
func TestWhatOrphansNeedIsLeft(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	needed := func(s *workv1alpha2.BindingSpec) {
		s.RequiredByOrphans = []workv1alpha2.OrphaningTemplate{{Group: "apps", Kind: "Deployment", Name: "web", Clusters: []string{"oak"}}}
	}
	conf := f.bind(configMap(ns, "conf", "1"), needed, "elm", "oak")
	free := f.bind(configMap(ns, "free", "1"), nil, "elm", "oak")
	for _, b := range []*workv1alpha2.ResourceBinding{conf, free} {
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
	}
	was := f.data(oak, ns, "conf", "1")
	inOak, inElm := f.data(oak, ns, "free", "1"), f.data(elm, ns, "conf", "1")

	f.retarget(conf, "elm")
	f.retarget(free, "elm")
	f.gone(oak, inOak)
	f.eventually("it is left", func() error { return f.left(oak, was) })

	f.retarget(conf, "elm", "oak")
	f.marked(oak, was, conf.UID)
	f.must(f.hub.Delete(t.Context(), conf))
	f.gone(elm, inElm)
	f.gone(f.hub, conf)
	f.must(f.left(oak, was))
	f.unjoin("oak")
	f.unjoin("elm")
}
