package search

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/store"
)

var leaseKind = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}

// now returns the present millisecond when it is over: later changes have a later time in the
// store.
func now() time.Time {
	moment := time.Now().Truncate(time.Millisecond)
	for !time.Now().Truncate(time.Millisecond).After(moment) { // for at most a millisecond
	}
	return moment.UTC()
}

// change stores an object with a UID, as changed by a manager.
func (f *fleet) change(t testing.TB, cluster, resource, uid, manager string, o *unstructured.Unstructured) {
	t.Helper()
	o.SetUID(types.UID(uid))
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1"}})
	body, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	gvk := o.GroupVersionKind()
	if err := f.store.Write(t.Context(), []store.Change{{Row: store.Row{
		Cluster: cluster, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), Created: o.GetCreationTimestamp().Time, Labels: o.GetLabels(), Body: body,
	}}}); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) drop(t testing.TB, cluster, resource, namespace, name string) {
	t.Helper()
	if err := f.store.Write(t.Context(), []store.Change{{Row: store.Row{Cluster: cluster, Resource: resource, Namespace: namespace, Name: name}, Delete: true}}); err != nil {
		t.Fatal(err)
	}
}

// pastFleet returns a fleet and a moment. After the moment, web of oak was changed twice, db
// was deleted, press of elm was created and web of elm was replaced by another object.
func pastFleet(t testing.TB) (f *fleet, then time.Time) {
	t.Helper()
	f = threeClusters(t)
	keys, err := seal.Parse([]byte(seal.New()))
	if err != nil {
		t.Fatal(err)
	}
	f.store.SealWith(keys)
	f.serve(secretKind, "secrets", true, "oak")
	f.serve(leaseKind, "leases", true, "oak")
	f.drop(t, "elm", "pods", "blog", "press")
	f.change(t, "oak", "secrets", "s", "kubectl", newObject(secretKind, "shop", "login", "data.password=b2xk"))
	then = now()
	f.change(t, "oak", "pods", "", "kubectl", newObject(podKind, "shop", "web", "label:app=web", "status.phase=Running", "spec.nodeName=n1"))
	f.change(t, "oak", "pods", "", "kubelet", newObject(podKind, "shop", "web", "label:app=web", "status.phase=Failed", "spec.nodeName=n1"))
	f.drop(t, "oak", "pods", "shop", "db")
	f.change(t, "elm", "pods", "2", "kubectl", newObject(podKind, "shop", "web", "label:app=web", "status.phase=Running"))
	f.change(t, "elm", "pods", "3", "kubectl", newObject(podKind, "blog", "press", "status.phase=Running"))
	f.change(t, "oak", "secrets", "s", "helm", newObject(secretKind, "shop", "login", "data.password=bmV3"))
	return f, then
}

func at(moment time.Time) string { return "at=" + url.QueryEscape(moment.Format(time.RFC3339Nano)) }

func TestAt(t *testing.T) {
	f, then := pastFleet(t)
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"Everywhere": {"/api/v1/pods?", []string{"elm/shop/web", "oak/shop/db", "oak/shop/web"}},
		"Label":      {"/api/v1/pods?labelSelector=app%3Ddb&", []string{"oak/shop/db"}},
		"Field":      {"/api/v1/pods?fieldSelector=status.phase%3DRunning&", []string{"elm/shop/web", "oak/shop/web"}},
		"NotThen":    {"/api/v1/pods?fieldSelector=status.phase%3DFailed&", []string{}},
		"OneCluster": {"/clusters/oak/api/v1/namespaces/shop/pods?", []string{"oak/shop/db", "oak/shop/web"}},
		"Names":      {"/api/v1/pods?names=db,press&", []string{"oak/shop/db"}},
		"Asked":      {"/api/v1/pods?q=phase:Running+cluster:o*&", []string{"oak/shop/web"}},
		"Not":        {"/api/v1/pods?q=-phase:Running&", []string{"oak/shop/db"}},
		"Expression": {"/api/v1/pods?filter=" + url.QueryEscape("object.status.phase == 'Running' && object.metadata.name.startsWith('w')") + "&", []string{"elm/shop/web", "oak/shop/web"}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.path+at(then), "")
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d: %v", resp.StatusCode, body)
			}
			if diff := cmp.Diff(c.want, found(body)); diff != "" {
				t.Errorf("objects (-want, +got):\n%s", diff)
			}
			if w := resp.Header.Values("Warning"); len(w) != 1 || !strings.Contains(w[0], "as the hub knew it at "+then.Format("2006-01-02")) {
				t.Errorf("warnings: %v", w)
			}
			if v := (&unstructured.UnstructuredList{Object: body}).GetResourceVersion(); v != "" {
				t.Errorf("a list of then has version %s", v)
			}
		})
	}
	if resp, body := f.ask(t, http.MethodGet, "/clusters/oak/api/v1/namespaces/shop/pods/db?"+at(then), ""); resp.StatusCode != http.StatusOK {
		t.Errorf("what is gone: %v", body)
	}
	if resp, _ := f.ask(t, http.MethodGet, "/clusters/elm/api/v1/namespaces/blog/pods/press?"+at(then), ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("what was not there: %d", resp.StatusCode)
	}
}

// TestPagesOfAMoment: all pages show the moment of the first one, also if the request names it
// as a duration before now. Changes between the pages do not matter.
func TestPagesOfAMoment(t *testing.T) {
	for name, c := range map[string]struct {
		moment func(then time.Time) string
		want   []string
	}{
		"Moment": {at, []string{"elm/shop/web", "oak/shop/db", "oak/shop/web"}},
		// A time relative to now is later with each request.
		"Ago": {func(time.Time) string { return "at=-1ms" }, []string{"elm/blog/press", "elm/shop/web", "oak/shop/web"}},
		"Sifted": {
			func(then time.Time) string {
				return at(then) + "&filter=" + url.QueryEscape("object.metadata.name != 'x'")
			},
			[]string{"elm/shop/web", "oak/shop/db", "oak/shop/web"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, then := pastFleet(t)
			_, _ = now(), now() // the last change is more than a millisecond old
			var got []string
			for next := ""; ; {
				resp, body := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&"+c.moment(then)+"&continue="+next, "")
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%v", body)
				}
				got = append(got, found(body)...)
				f.change(t, "oak", "pods", "", "kubectl", newObject(podKind, "shop", "db", "spec.nodeName="+fmt.Sprint(len(got))))
				if next = (&unstructured.UnstructuredList{Object: body}).GetContinue(); next == "" {
					break
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want, +got):\n%s", diff)
			}
		})
	}
}

func TestTimesAreRefused(t *testing.T) {
	f, then := pastFleet(t)
	_, body := f.ask(t, http.MethodGet, "/api/v1/pods?limit=1&"+at(then), "")
	token := (&unstructured.UnstructuredList{Object: body}).GetContinue()
	for name, c := range map[string]struct {
		query string
		code  int
		says  string
	}{
		"Garbage":            {"/api/v1/pods?at=yesterday", 400, "2026-11-20T10:00Z"},
		"Future":             {"/api/v1/pods?" + at(time.Now().Add(time.Hour)), 400, "future"},
		"FutureFromNow":      {"/api/v1/pods?at=+1h", 400, "is in the future: give a moment of the past"},
		"FutureEscaped":      {"/api/v1/pods?changedSince=%2B2d", 400, "is in the future: give a moment of the past"},
		"Watched":            {"/api/v1/pods?watch=true&at=-0s", 400, "not watched"},
		"Version":            {"/api/v1/pods?resourceVersion=12&at=-0s", 400, "resourceVersion"},
		"TooOld":             {"/api/v1/pods?at=2020-01-01", 410, "is known from "},
		"TooOldToCompare":    {"/api/v1/pods?changedSince=2020-01-01T10:00Z", 410, "is known from "},
		"NoHistory":          {"/apis/coordination.k8s.io/v1/leases?at=-0s", 400, "no history is kept of leases"},
		"NoHistoryOfOne":     {"/apis/coordination.k8s.io/v1/namespaces/x/leases/y?history=true", 400, "no history is kept of leases"},
		"NoHistoryOfDeleted": {"/apis/coordination.k8s.io/v1/leases?deleted=true", 400, "no history is kept of leases"},
		"Two":                {"/api/v1/pods?at=-0s&deleted=true", 400, "one of them"},
		"HistoryOfMany":      {"/api/v1/pods?history=true", 400, "one object"},
		"DeletedOfOne":       {"/api/v1/namespaces/shop/pods/web?deleted=true", 400, "names"},
		"SelectedHistory":    {"/api/v1/namespaces/shop/pods/web?history=true&labelSelector=a%3Db", 400, "labels"},
		"SelectedChanges":    {"/api/v1/pods?changedSince=-0s&labelSelector=a%3Db", 400, "by cluster, namespace and name only"},
		"AllFieldsOfAList":   {"/api/v1/pods?allFields=true", 400, "allFields"},
		"HistoryOfSince":     {"/api/v1/namespaces/shop/pods/web?history=true&since=2026-01-01", 400, "since"},
		"ChangesOfAnOwner":   {"/api/v1/pods?changedSince=-0s&ownerUID=u", 400, "owners"},
		"DeletedInOrder":     {"/api/v1/pods?deleted=true&orderby=name", 400, "order of its own"},
		"TokenOfNow":         {"/api/v1/pods?continue=" + token, 400, "another moment"},
		"TokenOfAnother":     {"/api/v1/pods?" + at(then.Add(-time.Millisecond)) + "&continue=" + token, 400, "not of a list of this moment"},
		"ForgedToken":        {"/api/v1/pods?" + at(then) + "&continue=at-99999999999999999999.x", 400, "continue"},
		"ForgedHistory":      {"/api/v1/namespaces/shop/pods/web?history=true&continue=7.nowhere", 400, "continue"},
		"ForgedDeleted":      {"/api/v1/pods?deleted=true&continue=ended--7", 400, "continue"},
		"RemainingThen":      {"/api/v1/pods?limit=1&withRemainingCount=true&at=-0s", 400, "as they are now"},
		"CountsOfThen":       {"/api/v1/pods?group=cluster&at=-0s", 400, "as they are now"},
		"AskedChanges":       {"/api/v1/pods?changedSince=-0s&q=web", 400, "q and filter"},
		"SearchOfThen":       {"/search?q=web&at=-0s", 400, "lists of one kind"},
		"Unknown":            {"/api/v1/namespaces/shop/pods/never?history=true", 404, "never"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.ask(t, http.MethodGet, c.query, "")
			if message, _ := body["message"].(string); resp.StatusCode != c.code || !strings.Contains(message, c.says) {
				t.Errorf("%d %q, want %d and %q", resp.StatusCode, message, c.code, c.says)
			}
		})
	}
}

// objectHistory requests all pages of an ObjectHistory and returns a line for each change, and the
// JSON.
func (f *fleet) objectHistory(t testing.TB, path string) (lines []string, raw string) {
	t.Helper()
	for next := ""; ; {
		resp, body := f.ask(t, http.MethodGet, path+"&continue="+next, "")
		b, err := json.Marshal(body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, b, err)
		}
		raw += string(b)
		var page fleetv1alpha1.ObjectHistory
		if err := json.Unmarshal(b, &page); err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Items {
			line := fmt.Sprintf("%s/%s/%s %s", c.Cluster, c.Namespace, c.Name, c.Change)
			for _, m := range c.By {
				line += " by " + m.Manager
			}
			for _, d := range c.Fields {
				line += fmt.Sprintf(" %s:%s>%s", d.Path, d.Before, d.After)
			}
			lines = append(lines, line)
			if c.Time == nil || c.Time.After(time.Now()) || c.UID != "" && c.UID != "2" && c.UID != "3" && c.UID != "s" {
				t.Errorf("%s: UID %q at %v", line, c.UID, c.Time)
			}
		}
		if next = page.Continue; next == "" {
			return lines, raw
		}
	}
}

func TestObjectHistory(t *testing.T) {
	f, then := pastFleet(t)
	f.drop(t, "oak", "pods", "shop", "web")
	since := "changedSince=" + url.QueryEscape(then.Format(time.RFC3339Nano))
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"OfOne": {"/clusters/oak/api/v1/namespaces/shop/pods/web?history=true&allFields=true", []string{
			"oak/shop/web Deleted", `oak/shop/web Updated by kubelet status.phase:"Running">"Failed"`,
			`oak/shop/web Updated by kubectl spec:>{"nodeName":"n1"}`, "oak/shop/web Seen",
		}},
		"WithoutNoise": {"/clusters/oak/api/v1/namespaces/shop/pods/web?history=true", []string{
			"oak/shop/web Deleted", `oak/shop/web Updated by kubelet`, `oak/shop/web Updated by kubectl spec:>{"nodeName":"n1"}`, "oak/shop/web Seen",
		}},
		"Everywhere": {"/api/v1/namespaces/shop/pods/web?history=true", []string{
			"elm/shop/web Created by kubectl", "elm/shop/web Deleted", "elm/shop/web Seen",
			"oak/shop/web Deleted", `oak/shop/web Updated by kubelet`, `oak/shop/web Updated by kubectl spec:>{"nodeName":"n1"}`, "oak/shop/web Seen",
		}},
		"Deleted":            {"/api/v1/pods?deleted=true", []string{"oak/shop/web Deleted", "elm/shop/web Deleted", "oak/shop/db Deleted", "elm/blog/press Deleted"}},
		"DeletedOfALabel":    {"/api/v1/pods?deleted=true&labelSelector=app%3Ddb", []string{"oak/shop/db Deleted"}},
		"DeletedInACluster":  {"/clusters/elm/api/v1/namespaces/shop/pods?deleted=true", []string{"elm/shop/web Deleted"}},
		"Since":              {"/api/v1/pods?" + since, []string{"elm/blog/press Seen by kubectl", "elm/shop/web Recreated by kubectl", "oak/shop/db Deleted", "oak/shop/web Deleted"}},
		"SinceInANamespace":  {"/api/v1/namespaces/blog/pods?" + since, []string{"elm/blog/press Seen by kubectl"}},
		"SinceOfNames":       {"/api/v1/pods?names=db&clusters=oak&" + since, []string{"oak/shop/db Deleted"}},
		"Secret":             {"/clusters/oak/api/v1/namespaces/shop/secrets/login?history=true&includeObject=Object", []string{"oak/shop/login Updated by helm data:>", "oak/shop/login Seen by kubectl"}},
		"SinceOfSecrets":     {"/api/v1/secrets?includeObject=Object&" + since, []string{"oak/shop/login Updated by helm data:>"}},
		"NothingOfACluster":  {"/clusters/ash/api/v1/pods?" + since, nil},
		"NothingWasDeleted":  {"/api/v1/secrets?deleted=true", nil},
		"SinceWithoutChange": {"/api/v1/pods?changedSince=-0s", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, limit := range []string{"", "&limit=1", "&limit=2"} {
				got, raw := f.objectHistory(t, c.path+limit)
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("limit %q (-want, +got):\n%s", limit, diff)
				}
				for _, secret := range []string{"b2xk", "bmV3"} {
					if strings.Contains(raw, secret) {
						t.Errorf("it tells a Secret's data: %s", raw)
					}
				}
				if objects := strings.Contains(raw, `"kind":"Secret"`); objects != strings.Contains(c.path, "includeObject") {
					t.Errorf("objects are included: %t", objects)
				}
			}
		})
	}
}

// TestNoiseIsNoChange: if only noise differs in an object, the object is not reported as
// changed, except with allFields.
func TestNoiseIsNoChange(t *testing.T) {
	f := threeClusters(t)
	then := url.QueryEscape(now().Format(time.RFC3339Nano))
	f.change(t, "oak", "pods", "", "kubelet", newObject(podKind, "shop", "web", "label:app=web", "status.phase=Failed"))
	if got, _ := f.objectHistory(t, "/api/v1/pods?changedSince="+then); len(got) > 0 {
		t.Errorf("noise: %v", got)
	}
	got, _ := f.objectHistory(t, "/api/v1/pods?allFields=true&changedSince="+then)
	if want := `oak/shop/web Updated by kubelet`; len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], `status.phase:"Running">"Failed"`) {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestHistoryIsForThoseWhoMaySeeTheObjects: a caller with a right in a namespace gets the
// history of the namespace, in the clusters that it may use, and no other.
func TestHistoryIsForThoseWhoMaySeeTheObjects(t *testing.T) {
	f, then := pastFleet(t)
	since := "changedSince=" + url.QueryEscape(then.Format(time.RFC3339Nano))
	f.denied = func(what authorizationv1.ResourceAttributes) bool {
		return what.Namespace != "shop" || what.Resource != "pods"
	}
	f.closed = map[string][]string{"shop": {"elm"}}
	f.some = []string{"shop"}
	for path, want := range map[string][]string{
		"/api/v1/pods?" + since:                              {"oak/shop/db Deleted", `oak/shop/web Updated by kubelet spec:>{"nodeName":"n1"}`},
		"/api/v1/pods?deleted=true":                          {"oak/shop/db Deleted"},
		"/api/v1/namespaces/shop/pods?deleted=true":          {"oak/shop/db Deleted"},
		"/api/v1/namespaces/shop/pods/web?history=true":      {"oak/shop/web Updated by kubelet", `oak/shop/web Updated by kubectl spec:>{"nodeName":"n1"}`, "oak/shop/web Seen"},
		"/api/v1/namespaces/shop/pods?names=web&" + since:    {`oak/shop/web Updated by kubelet spec:>{"nodeName":"n1"}`},
		"/clusters/oak/api/v1/namespaces/shop/pods?" + since: {"oak/shop/db Deleted", `oak/shop/web Updated by kubelet spec:>{"nodeName":"n1"}`},
	} {
		if got, _ := f.objectHistory(t, path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	_, body := f.ask(t, http.MethodGet, "/api/v1/pods?"+at(then), "")
	if diff := cmp.Diff([]string{"oak/shop/db", "oak/shop/web"}, found(body)); diff != "" {
		t.Errorf("at a moment (-want, +got):\n%s", diff)
	}
	for path, want := range map[string]int{
		"/clusters/elm/api/v1/namespaces/shop/pods/web?history=true": http.StatusNotFound,
		"/api/v1/namespaces/blog/pods/press?history=true":            http.StatusForbidden,
		"/api/v1/namespaces/shop/secrets/login?history=true":         http.StatusForbidden,
		"/api/v1/namespaces/shop/secrets?deleted=true":               http.StatusForbidden,
		"/api/v1/namespaces/shop/secrets?" + since:                   http.StatusForbidden,
		"/api/v1/namespaces/shop/secrets?" + at(then):                http.StatusForbidden,
	} {
		if resp, body := f.ask(t, http.MethodGet, path, ""); resp.StatusCode != want {
			t.Errorf("%s: %v, want %d", path, body, want)
		}
	}
}

// TestPredecessor: a caller with rights in a namespace of the hub does not see what clusters
// had in it before the hub created it. Those objects belonged to an earlier namespace of the
// name.
func TestPredecessor(t *testing.T) {
	f := threeClusters(t)
	old := f.version(t, "/api/v1/pods")
	f.change(t, "oak", "pods", "old", "kubectl", newObject(podKind, "shop", "stays", "status.phase=Running"))
	f.change(t, "oak", "pods", "old", "kubectl", newObject(podKind, "shop", "secret", "status.phase=Running"))
	before := now()
	f.change(t, "oak", "pods", "new", "kubectl", newObject(podKind, "shop", "secret", "status.phase=Failed"))
	f.drop(t, "oak", "pods", "shop", "secret")
	f.drop(t, "oak", "pods", "shop", "db")
	// The changes so far are at least a millisecond old.
	_ = now()
	// The hub has the creation time in whole seconds: it may have been any moment of the
	// second.
	f.made = map[string]time.Time{"shop": now().Add(-time.Second)}
	f.change(t, "oak", "pods", "old", "kubectl", newObject(podKind, "shop", "stays", "status.phase=Failed"))
	after := now()
	f.denied, f.some = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }, []string{"blog", "shop"}
	recent := f.version(t, "/api/v1/namespaces/shop/pods")
	f.denied = nil
	f.change(t, "oak", "pods", "new", "kubectl", newObject(podKind, "shop", "secret", "status.phase=Pending"))
	f.drop(t, "oak", "pods", "shop", "web")

	all := func(authorizationv1.ResourceAttributes) bool { return false }
	some := func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
	f.some = []string{"blog", "shop"}
	request := func(path string) string {
		t.Helper()
		_, body := f.ask(t, http.MethodGet, path, "")
		if body["kind"] == "Pod" {
			return fmt.Sprint(body["metadata"].(map[string]any)["name"])
		}
		if _, is := body["items"]; !is {
			return fmt.Sprint(body["code"], " ", body["message"])
		}
		out := []string{}
		for _, one := range body["items"].([]any) {
			m := one.(map[string]any)
			if meta, ok := m["metadata"].(map[string]any); ok {
				out = append(out, fmt.Sprint(meta["name"]))
			} else {
				out = append(out, fmt.Sprint(m["change"], " ", m["cluster"], "/", m["namespace"], "/", m["name"]))
			}
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	const pods, shop = "/api/v1/pods", "/api/v1/namespaces/shop/pods"
	since := "changedSince=" + strings.TrimPrefix(at(before), "at=")
	for _, c := range []struct{ path, all, some string }{
		{shop + "?" + at(before), "db, secret, stays, web, web", "410 "},
		{shop + "?" + at(after), "stays, web, web", "stays, web, web"},
		{pods + "?" + at(before), "db, press, secret, stays, web, web", "press"},
		{pods + "?namespaces=shop,blog&" + at(before), "db, press, secret, stays, web, web", "press"},
		{shop + "/secret?" + at(before), "secret", "410 "},
		{shop + "?" + since, "Deleted oak/shop/db, Deleted oak/shop/web, Recreated oak/shop/secret", "410 "},
		{pods + "?" + since, "Deleted oak/shop/db, Deleted oak/shop/web, Recreated oak/shop/secret", ""},
		{shop + "?deleted=true", "Deleted oak/shop/db, Deleted oak/shop/secret, Deleted oak/shop/secret, Deleted oak/shop/web", "Deleted oak/shop/web"},
		// A state that lasted until the namespace was created is visible to its present users.
		{shop + "/stays?history=true", "Seen oak/shop/stays, Updated oak/shop/stays", "Seen oak/shop/stays, Updated oak/shop/stays"},
		{
			shop + "/secret?history=true", "Created oak/shop/secret, Deleted oak/shop/secret, Deleted oak/shop/secret, Seen oak/shop/secret, Updated oak/shop/secret",
			"Seen oak/shop/secret",
		},
		{shop + "/db?history=true", "Deleted oak/shop/db, Seen oak/shop/db", "404 "},
	} {
		f.denied = all
		if got := request(c.path); got != c.all {
			t.Errorf("%s: a caller that may see everything gets %s, want %s", c.path, got, c.all)
		}
		f.denied = some
		if got := request(c.path); got != c.some && (!strings.HasSuffix(c.some, " ") || !strings.HasPrefix(got, c.some)) {
			t.Errorf("%s: a caller with the namespace gets %s, want %s", c.path, got, c.some)
		}
	}
	_, body := f.ask(t, http.MethodGet, shop+"?deleted=true&limit=1", "")
	if body["continue"] != nil {
		t.Errorf("a token tells that there is more: %v", body)
	}
	w := f.watch(t, shop+"?watch=true&resourceVersion="+recent)
	w.expect("ADDED oak/shop/secret", "DELETED oak/shop/web")
	// crafted returns a version as if the caller had got it before the hub created the
	// namespace.
	crafted := func(path string) string {
		own, err := store.ParseVersion(f.version(t, path))
		if err != nil {
			t.Fatal(err)
		}
		then, err := store.ParseVersion(old)
		if err != nil {
			t.Fatal(err)
		}
		return own.At(int64(then - then.At(0))).String()
	}
	f.watch(t, shop+"?watch=true&resourceVersion="+crafted(shop)).expect("ERROR 410 Expired", "")
	f.watch(t, pods+"?watch=true&resourceVersion="+crafted(pods)).expect("ERROR 410 Expired", "")
	resp, _ := f.ask(t, http.MethodGet, pods+"?"+at(before), "")
	if w := strings.Join(resp.Header.Values("Warning"), " "); !strings.Contains(w, "the hub did not have shop yet") {
		t.Errorf("warnings: %s", w)
	}
}

// TestMomentsOfUsers: commands refuse a moment in the future and other texts before they ask the
// hub.
func TestMomentsOfUsers(t *testing.T) {
	for value, says := range map[string]string{
		"1h": "", "-1h": "", "-2d": "", "-0s": "", "2020-01-01": "", "2020-01-01T10:00+02:00": "",
		"+1h": "is in the future", "+2d": "is in the future", "9999-01-01": "is in the future: give a moment of the past, such as",
		"--1h": "must be a moment", "yesterday": "must be a moment",
	} {
		err := CheckMoment(value)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, want %q", value, err, says)
		}
	}
}
