package mirror

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

const hush = "correct-horse-battery-staple"

func sealedStore(t testing.TB, keys ...string) (s *store.Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = must[*store.Store](t)(store.Open(context.Background(), dir))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.SealWith(must[*seal.Keys](t)(seal.Parse([]byte(strings.Join(keys, "\n")))))
	return s, dir
}

// nowhere fails the test if a file of the store contains a text, plain or in base64.
func nowhere(t testing.TB, dir string, texts ...string) {
	t.Helper()
	files := must[[]string](t)(filepath.Glob(filepath.Join(dir, "*")))
	for _, f := range files {
		b := must[[]byte](t)(os.ReadFile(f))
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) || bytes.Contains(b, []byte(base64.StdEncoding.EncodeToString([]byte(text)))) {
				t.Errorf("%s has %q", f, text)
			}
		}
	}
	if len(files) == 0 {
		t.Error("there are no files")
	}
}

// TestSecretData: data is mirrored only of Secrets that a policy selects with secretData. When
// the policy goes, the data and its history are deleted: in a cluster that answers, in one that
// does not, and if the policy went while the mirror was down.
func TestSecretData(t *testing.T) {
	cfg := testenv.Config(0)
	k := clientset(t, cfg)
	asked, other := testenv.Namespace(t, cfg), testenv.Namespace(t, cfg)
	for _, namespace := range []string{asked, other} {
		must[*corev1.Secret](t)(k.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "login"}, Type: "example.org/login", StringData: map[string]string{"password": hush + "-1"},
		}, metav1.CreateOptions{}))
	}
	change := func(value string) {
		must[*corev1.Secret](t)(k.CoreV1().Secrets(asked).Patch(t.Context(), "login", types.MergePatchType,
			fmt.Appendf(nil, `{"stringData":{"password":%q}}`, value), metav1.PatchOptions{}))
	}
	first := seal.New()
	s, dir := sealedStore(t, first)
	q := store.Query{Resource: "secrets", Namespaces: []string{asked, other}}
	password := func(namespace string) string {
		t.Helper()
		row, ok := rows(t, s, q)["east/"+namespace+"/login"]
		if !ok {
			return "no row"
		}
		var o corev1.Secret
		if err := json.Unmarshal(row.Body, &o); err != nil {
			t.Fatal(err)
		}
		if o.Name != "login" || slices.ContainsFunc(o.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.FieldsV1 != nil }) || (o.Type == "") != (len(o.Data) == 0) {
			t.Errorf("it is %s", row.Body)
		}
		return string(o.Data["password"])
	}
	states := func() int {
		t.Helper()
		r, err := s.Revisions(t.Context(), store.Object{Cluster: "east", Resource: secrets, Namespace: asked, Name: "login"}, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Items)
	}
	is := func(want string) func() bool {
		return func() bool { return password(asked) == want && password(other) == "" }
	}
	all := mirrorPolicy(t, "all", "mirror: {resources: [{resources: [secrets]}]}")
	data := mirrorPolicy(t, "data", fmt.Sprintf("mirror: {resources: [{resources: [secrets], namespaces: [%s], secretData: Encrypted}]}", asked))
	source := newSource(t, "east", cfg)
	fleet := newFleet(source)
	m, stop := start(t, s, fleet)
	m.setPolicy("all", all)
	eventually(t, "the metadata is mirrored", is(""))
	m.setPolicy("data", data)
	eventually(t, "data is mirrored of those that are asked for", is(hush+"-1"))
	change(hush + "-2")
	eventually(t, "it is followed", is(hush+"-2"))
	synced(t, m, "east")
	d, _ := m.Describe("east")
	said := ""
	for _, one := range d.Types {
		if one.Resource == "secrets" {
			said = one.Objects
		}
	}
	if want := "all, with data of namespaces " + asked; said != want || !m.WithoutData("east") {
		t.Errorf("what is mirrored is %q, want %q", said, want)
	}
	nowhere(t, dir, hush)
	if states() < 2 {
		t.Error("there is no history to be dropped")
	}

	m.setPolicy("data", nil)
	eventually(t, "data goes, and the metadata stays", is(""))
	eventually(t, "history goes", func() bool { return states() == 1 })
	m.setPolicy("data", data)
	eventually(t, "it comes again", is(hush+"-2"))
	synced(t, m, "east")

	fleet.setReachable(source, false)
	m.setPolicy("data", nil)
	eventually(t, "data goes of a cluster that does not answer", is(""))
	m.setPolicy("data", data)
	fleet.setReachable(source, true)
	eventually(t, "it comes when the cluster answers", is(hush+"-2"))
	change(hush + "-3")
	eventually(t, "it is followed still", is(hush+"-3"))
	synced(t, m, "east")
	stop()

	// No policy selects the data when the mirror starts again, and the cluster does not answer.
	gone := newSource(t, "east", cfg)
	gone.apis, gone.reachable = nil, false
	_, stop = begin(t, s, newFleet(gone), all)
	eventually(t, "data goes that was stored before", is(""))
	stop()
	m, stop = begin(t, s, newFleet(source), all, data)
	eventually(t, "it comes after a restart", is(hush+"-3"))
	synced(t, m, "east")
	stop()

	// The key is rotated and then lost.
	second, third := seal.New(), seal.New()
	for _, tc := range []struct{ what, keys string }{{"is rotated", second + "\n" + first}, {"was rotated", second}, {"is lost", third}} {
		s.SealWith(must[*seal.Keys](t)(seal.Parse([]byte(tc.keys))))
		if lost := is(hush + "-3")(); lost == (tc.keys == third) {
			t.Errorf("when the key %s, the password is %q", tc.what, password(asked))
		}
		m, stop = begin(t, s, newFleet(source), all, data)
		eventually(t, "data is there when the key "+tc.what, is(hush+"-3"))
		synced(t, m, "east")
		stop()
	}
	m, stop = begin(t, s, newFleet(source), all, mirrorPolicy(t, "data", "mirror: {resources: [{resources: [secrets], secretData: Encrypted}]}"))
	eventually(t, "all data is mirrored", func() bool { return password(other) == hush+"-1" && password(asked) == hush+"-3" })
	eventually(t, "no cluster is without", func() bool { return !m.WithoutData("east") })
	stop()
	nowhere(t, dir, hush)
}

// begin starts a mirror with policies that are known from the start.
func begin(t testing.TB, s *store.Store, f *testFleet, policies ...*configv1alpha1.MirrorPolicy) (m *Mirror, stop func()) {
	t.Helper()
	m = newMirror(s, f, testLogger(t))
	m.follow(s)
	for _, p := range policies {
		m.setPolicy(p.Name, p)
	}
	return m, run(t, m)
}
