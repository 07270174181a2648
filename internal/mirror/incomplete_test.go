package mirror

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestObjectsThatAreTooDeep: an object that the API server accepts and the database refuses is
// stored without the refused part, and with a mark. The cluster's condition and the metrics
// count the object, also after a restart. Its type still resumes from a checkpoint. A mark that
// a member set itself is ignored.
func TestObjectsThatAreTooDeep(t *testing.T) {
	cfg := testenv.Config(0)
	namespace := testenv.Namespace(t, cfg)
	gr := schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}
	k := clientset(t, cfg)
	create := func(name, data string) {
		t.Helper()
		body := `{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"` + name + `","labels":{"app":"web"},"annotations":{"` +
			fleetv1alpha1.IncompleteAnnotation + `":"spec"}},"revision":1,"data":` + data + `}`
		post(t, k, "/apis/apps/v1/namespaces/"+namespace+"/controllerrevisions", body)
	}
	create("shallow", `{"a":1}`)
	create("deep", strings.Repeat(`{"a":`, 1_500)+"1"+strings.Repeat("}", 1_500))
	s := openStore(t)
	fleet := newFleet(newSource(t, "east", cfg, "controllerrevisions.apps"))
	m, stop := start(t, s, fleet)
	marks := func() map[string]string {
		t.Helper()
		out := map[string]string{}
		for _, row := range rows(t, s, store.Query{Group: gr.Group, Resource: gr.Resource, Namespaces: []string{namespace}}) {
			var o metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Body, &o); err != nil {
				t.Fatal(err)
			}
			if o.ResourceVersion == "" || o.ResourceVersion != row.ResourceVersion || o.Labels["app"] != "web" {
				t.Errorf("%s is %s", row.Name, row.Body)
			}
			out[row.Name] = o.Annotations[fleetv1alpha1.IncompleteAnnotation]
		}
		return out
	}
	counted := func(n int) func() bool {
		return func() bool {
			o := m.Observation("east")
			partly, missing := m.Incomplete("east", gr)
			return o.Synced && partly == n && missing == 0 && (n > 0) == strings.Contains(o.Notice, "1 of controllerrevisions.apps") && measured(t, m) == float64(n)
		}
	}
	for _, run := range []string{"after the first start", "after a restart"} {
		if run != "after the first start" {
			m, stop = start(t, s, fleet)
		}
		synced(t, m, "east")
		eventually(t, "it is counted "+run, counted(1))
		if got := marks(); len(got) != 2 || got["deep"] != "data" || got["shallow"] != "" {
			t.Errorf("%s the marks are %q", run, got)
		}
		eventually(t, "a checkpoint is saved", func() bool {
			state, err := s.Checkpoint(t.Context(), "east", gr)
			return err == nil && state != nil
		})
		if run == "after the first start" {
			stop()
		}
	}
	defer stop()
	if err := k.AppsV1().ControllerRevisions(namespace).Delete(t.Context(), "deep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not counted any more", counted(0))
}

// post creates an object from JSON, unchanged.
func post(t *testing.T, k kubernetes.Interface, path, body string) {
	t.Helper()
	if err := k.AppsV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// measured returns the metric of objects that are not stored completely.
func measured(t *testing.T, m *Mirror) (n float64) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(lags{m}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "orrery_mirror_incomplete_objects" {
			for _, one := range f.GetMetric() {
				n += one.GetGauge().GetValue()
			}
		}
	}
	return n
}
