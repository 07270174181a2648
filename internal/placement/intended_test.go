package placement

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// TestKnowsWhatTheHubHasStored: apply may act on a stored binding before the write is answered.
// This holds only for a binding equal to the decision, in the clusters that the decision knew.
func TestKnowsWhatTheHubHasStored(t *testing.T) {
	w := newWorld(t, 2)
	uids := map[string]types.UID{}
	for _, name := range w.clusters {
		c := &clusterv1alpha1.Cluster{}
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, c); err != nil {
			t.Fatal(err)
		}
		uids[name] = c.UID
	}
	seen, done, knows := make(chan struct{}), make(chan struct{}), map[string]bool{}
	defer close(done)
	w.controller.bindings.Subscribe(func(before, after *workv1alpha2.ResourceBinding) {
		if after == nil || after.Namespace != w.namespace || before != nil && before.Generation == after.Generation {
			return
		}
		for _, name := range w.clusters {
			letter := strings.TrimPrefix(name, w.namespace+"-")
			knows[letter] = w.controller.Knows(after.UID, after.Generation, name, uids[name])
			knows[letter+" made anew"] = w.controller.Knows(after.UID, after.Generation, name, "another")
		}
		knows["later"] = w.controller.Knows(after.UID, after.Generation+1, w.clusters[0], uids[w.clusters[0]])
		changed := *after
		changed.Spec.PlacementHash = "another"
		knows["otherwise"] = w.controller.intended.knows(&changed, w.clusters[0], uids[w.clusters[0]])
		select {
		case seen <- struct{}{}:
		case <-done:
		}
	})
	w.recorder.mu.Lock()
	w.recorder.answered = func(r *http.Request) {
		if strings.Contains(r.URL.Path, "/resourcebindings") {
			select {
			case <-seen: // the event came before the answer
			case <-done:
			}
		}
	}
	w.recorder.mu.Unlock()
	want := map[string]bool{"a": true, "b": true, "a made anew": false, "b made anew": false, "later": false, "otherwise": false}

	w.create(w.policy("p", deployments()))
	web := deployment("web", 4, nil)
	w.create(web)
	w.waitPlaced("web-deployment", "a=4 b=4", scheduled)
	if diff := cmp.Diff(want, knows); diff != "" {
		t.Errorf("when the binding is created Knows says (-want +got):\n%s", diff)
	}
	clear(knows)
	update(w, web, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(6)) })
	w.waitPlaced("web-deployment", "a=6 b=6", scheduled)
	if diff := cmp.Diff(want, knows); diff != "" {
		t.Errorf("when the binding is changed Knows says (-want +got):\n%s", diff)
	}
}
