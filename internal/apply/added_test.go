package apply

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// The result names what admission in a member adds to the manifest, here a key of a map. The
// result does not name what users add to the copy.
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
	// An edit of a copy that has this key, and one that a user added, gives the same message.
	live := configMap(ns, "a", "1")
	live.SetUID("")
	f.must(oak.Get(t.Context(), client.ObjectKeyFromObject(live), live))
	live.Object["data"].(map[string]any)["users"] = "own"
	f.must(oak.Update(t.Context(), live))
	f.templates.set(configMap(ns, "a", "2"))
	f.eventually("the edit is applied", func() error { return f.appliedDigest(b, "oak", r.Digest) })
	if again := f.result(b, "oak", workv1alpha2.ReasonFullyApplied); again.Message != r.Message {
		t.Errorf("after an edit: %q, want %q", again.Message, r.Message)
	}
	f.unjoin("oak")
}
