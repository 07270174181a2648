package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/testenv"
)

// TestFleetAnswersAsItsMember changes random objects in a real API server and mirrors them. The
// API server and the fleet must answer alike: lists with selectors, whole and in pages, tables,
// counts, options of lists and watches, events of watches, and lists at past moments. Without
// SOAK it runs once with each database.
func TestFleetAnswersAsItsMember(t *testing.T) {
	open := map[string]func(t *testing.T) (*store.Store, string, error){
		"SQLite": func(t *testing.T) (*store.Store, string, error) {
			dir := t.TempDir()
			s, err := store.Open(t.Context(), dir)
			return s, dir, err
		},
	}
	for _, d := range []*testenv.Database{testenv.PostgreSQL, testenv.MariaDB} {
		open[d.Name] = func(t *testing.T) (*store.Store, string, error) {
			s, err := store.OpenDSN(t.Context(), d.Create(t))
			return s, "", err
		}
	}
	definition := define(t)
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := testenv.Seed(t)
			for n := range testenv.Count(t, "DIFFERENTIALS", 1, 10) {
				s, dir, err := open(t)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				f := fleetOf(t, s, dir, "oak")
				f.serve(definition.GroupVersionKind(), "customresourcedefinitions", false, "oak")
				f.put(t, "oak", "customresourcedefinitions", definition)
				newDifferential(t, rand.New(rand.NewPCG(seed, uint64(n))), f).run()
			}
		})
	}
}

// differential sends requests to a fleet of one cluster, and to the cluster itself.
type differential struct {
	t         *testing.T
	random    *rand.Rand
	fleet     *fleet
	config    *rest.Config
	http      *http.Client
	client    dynamic.Interface
	namespace string
	objects   []*unstructured.Unstructured // that exist
	named     int
	questions []*comparedList
}

// comparedList is a list that is requested repeatedly.
type comparedList struct {
	kind           comparedKind
	labels, fields string
	watch          *stream
	selected       []string   // at present
	events         []string   // expected of the watch
	then           []answered // at past moments
}

type answered struct {
	at    time.Time
	names []string
}

func newDifferential(t *testing.T, random *rand.Rand, f *fleet) *differential {
	d := &differential{t: t, random: random, fleet: f, config: rest.CopyConfig(testenv.Config(0))}
	d.config.QPS = -1
	var err error
	if d.client, err = dynamic.NewForConfig(d.config); err != nil {
		t.Fatal(err)
	}
	if d.http, err = rest.HTTPClientFor(d.config); err != nil {
		t.Fatal(err)
	}
	d.namespace = testenv.Namespace(t, d.config)
	for _, k := range comparedKinds {
		if k.spec == nil {
			continue
		}
		f.mirror.serve(member.API{GroupVersionKind: k.gvk, Resource: k.resource, Namespaced: k.namespaced}, []string{"oak"})
	}
	return d
}

// define creates the definition of gadgets in the API server, until the test ends.
func define(t *testing.T) *unstructured.Unstructured {
	definition := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(gadgetDefinition), definition); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	made, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := definitions.Delete(context.Background(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		testenv.Eventually(t, "gadgets are gone", testenv.Patience, func() error {
			if _, err := definitions.Get(context.Background(), made.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("their definition is there: %w", err)
			}
			return nil
		})
	})
	disco, err := discovery.NewDiscoveryClientForConfig(testenv.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	served(t, disco, schema.GroupVersionKind{Group: "differential.example.org", Version: "v1", Kind: "Gadget"})
	return made
}

func (d *differential) run() {
	d.t.Cleanup(d.clean)
	for _, k := range comparedKinds {
		for range 8 {
			d.create(k)
		}
	}
	for _, k := range comparedKinds {
		for range 8 {
			q := &comparedList{kind: k, labels: d.labels(), fields: d.fields(k)}
			d.questions = append(d.questions, q)
		}
		d.questions = append(d.questions, &comparedList{kind: k, labels: "run=" + d.namespace}, &comparedList{kind: k, fields: "metadata.name=a", labels: "a b"})
		if !k.bare {
			d.tables(k)
		}
		d.options(k)
	}
	// Lists that both refuse are not requested again.
	d.questions = slices.DeleteFunc(d.questions, func(q *comparedList) bool { return !d.compare(q) })
	for _, q := range d.questions {
		d.initial(q)
		if !q.kind.past && q.fields != "" {
			// The previous state of an Event is unknown. If an Event changes and is not
			// selected, the watch sends DELETED, also if it was not selected before.
			continue
		}
		from := d.fleet.version(d.t, d.path(q.kind)+"?limit=1")
		q.watch = d.fleet.watch(d.t, d.path(q.kind)+"?"+q.query()+"&watch=true&resourceVersion="+from)
	}
	for range 60 {
		d.step()
	}
	// If a list has an object, the last event of its watch is a deletion.
	for _, q := range d.questions {
		if len(q.selected) > 0 {
			if i := slices.IndexFunc(d.objects, func(o *unstructured.Unstructured) bool { return d.is(q.kind, o) && o.GetName() == q.selected[0] }); i >= 0 {
				d.delete(i)
			}
		}
	}
	for _, q := range d.questions {
		d.compare(q)
		var events []string
		for range q.events {
			events = append(events, strings.Replace(q.watch.next(), " oak/"+d.in(q.kind)+"/", " ", 1))
		}
		if diff := cmp.Diff(q.events, events); diff != "" {
			d.t.Errorf("events of %s (-API server, +fleet):\n%s", q, diff)
		}
		for _, then := range q.then {
			if d.random.IntN(4) > 0 {
				continue
			}
			_, body := d.ask(d.path(q.kind)+"?"+q.query()+"&"+at(then.at), "")
			if diff := cmp.Diff(then.names, namesOf(body), cmpopts.EquateEmpty()); diff != "" {
				d.t.Errorf("%s at a moment (-API server then, +fleet now):\n%s%v", q, diff, body["message"])
			}
		}
	}
}

func (q *comparedList) query() string {
	return url.Values{"labelSelector": {q.labels}, "fieldSelector": {q.fields}}.Encode()
}

func (q *comparedList) String() string {
	return fmt.Sprintf("%s labels %q fields %q", q.kind.resource, q.labels, q.fields)
}

// in returns the namespace of a kind's objects; "" if they have none.
func (d *differential) in(k comparedKind) string {
	if k.namespaced {
		return d.namespace
	}
	return ""
}

func (d *differential) of(k comparedKind) dynamic.ResourceInterface {
	return d.client.Resource(k.gvk.GroupVersion().WithResource(k.resource)).Namespace(d.in(k))
}

// path returns the path of the objects of a kind, which is the same for both.
func (d *differential) path(k comparedKind) string {
	path := "/api/v1"
	if k.gvk.Group != "" {
		path = "/apis/" + k.gvk.GroupVersion().String()
	}
	if k.namespaced {
		path += "/namespaces/" + d.namespace
	}
	return path + "/" + k.resource
}

func (d *differential) is(k comparedKind, o *unstructured.Unstructured) bool {
	return o.GroupVersionKind() == k.gvk
}

func (d *differential) randomLabels() map[string]any {
	out := map[string]any{"run": d.namespace}
	maybe(d.random, out, "n", "1", "7", "007", "000000000000000000007", "1000000000000000000", "999999999999999999", "9223372036854775807", "9223372036854775808", "", "x", "1.5")
	maybe(d.random, out, "app", "web", "db", "")
	return out
}

// labels returns a random label selector. Some selectors cannot be parsed.
func (d *differential) labels() string {
	var out []string
	for range d.random.IntN(3) {
		out = append(out, one(d.random, "n>5", "n<8", "n>999999999999999999", "n<9223372036854775807", "n>9223372036854775806", "n>-1", "n=007", "n", "!n", "n in (1,7,)", "n notin (x)", "n!=1",
			"app=web", "app==db", "app!=web", "app in (web,db)", "app notin (web)", "app=", "!app", "app", "app in ()", "n>x", "app=a=b", "app in (web", "x>1,"))
	}
	return strings.Join(append(out, "run="+d.namespace), ",")
}

// fields returns a random field selector that the API server accepts.
func (d *differential) fields(k comparedKind) string {
	var out []string
	known := []string{"metadata.name"}
	for path := range k.fields {
		known = append(known, path)
	}
	slices.Sort(known)
	for range d.random.IntN(3) {
		path := one(d.random, known...)
		value := one(d.random, append([]string{"else"}, k.fields[path]...)...)
		if path == "metadata.name" {
			value = one(d.random, "o-1", "o-2", "", " o-1")
		}
		out = append(out, path+one(d.random, "=", "==", "!=")+strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`).Replace(value))
	}
	return strings.Join(out, ",")
}

func (d *differential) create(k comparedKind) {
	if k.spec == nil {
		return
	}
	d.named++
	name := fmt.Sprintf("o-%d", d.named)
	if !k.namespaced {
		name = d.namespace + "-" + name
	}
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "labels": d.randomLabels()}}}
	o.SetGroupVersionKind(k.gvk)
	if k.namespaced {
		o.SetNamespace(d.namespace)
	}
	k.spec(d.random, o.Object)
	made, err := d.of(k).Create(d.t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		d.t.Fatalf("create %v: %v", o, err)
	}
	d.objects = append(d.objects, made)
	d.happened(k, made, false)
}

// step makes a random change.
func (d *differential) step() {
	i := d.random.IntN(len(d.objects))
	o := d.objects[i].DeepCopy()
	k := comparedKinds[slices.IndexFunc(comparedKinds, func(k comparedKind) bool { return d.is(k, o) })]
	var err error
	switch what := d.random.IntN(8); {
	case what == 0:
		d.create(k)
		return
	case what == 1:
		d.delete(i)
		return
	case what < 5 && k.status != nil:
		o.Object["status"] = k.status(d.random, o.Object)
		o, err = d.of(k).UpdateStatus(d.t.Context(), o, metav1.UpdateOptions{})
	default:
		labels := map[string]string{}
		for key, value := range d.randomLabels() {
			labels[key], _ = value.(string)
		}
		if o.SetLabels(labels); !k.fixed {
			k.spec(d.random, o.Object)
		}
		o, err = d.of(k).Update(d.t.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		d.t.Fatalf("change %s %s: %v", k.resource, d.objects[i].GetName(), err)
	}
	same := o.GetResourceVersion() == d.objects[i].GetResourceVersion()
	if d.objects[i] = o; !same {
		d.happened(k, o, false)
	}
}

func (d *differential) delete(i int) {
	o := d.objects[i]
	k := comparedKinds[slices.IndexFunc(comparedKinds, func(k comparedKind) bool { return d.is(k, o) })]
	d.objects = slices.Delete(d.objects, i, i+1)
	d.remove(k, o)
	d.happened(k, o, true)
}

func (d *differential) remove(k comparedKind, o *unstructured.Unstructured) {
	grace, background := int64(0), metav1.DeletePropagationBackground
	tried := false
	testenv.Eventually(d.t, "delete "+k.resource+" "+o.GetName(), testenv.Patience, func() error {
		err := d.of(k).Delete(context.WithoutCancel(d.t.Context()), o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &grace, PropagationPolicy: &background})
		if tried && apierrors.IsNotFound(err) { // by an attempt whose answer was lost
			return nil
		}
		tried = true
		return err
	})
}

func (d *differential) clean() {
	for _, o := range d.objects {
		for _, k := range comparedKinds {
			if d.is(k, o) {
				d.remove(k, o)
			}
		}
	}
}

// happened mirrors a change and records the expected events and results of all lists.
func (d *differential) happened(k comparedKind, o *unstructured.Unstructured, gone bool) {
	if gone {
		if err := d.fleet.store.Write(d.t.Context(), []store.Change{{Delete: true, Row: store.Row{
			Cluster: "oak", Group: k.gvk.Group, Resource: k.resource, Namespace: o.GetNamespace(), Name: o.GetName(),
		}}}); err != nil {
			d.t.Fatal(err)
		}
	} else {
		d.fleet.put(d.t, "oak", k.resource, o)
	}
	moment := now()
	for _, q := range d.questions {
		if q.watch == nil || q.kind.resource != k.resource {
			continue
		}
		_, _, body := d.member(d.path(q.kind)+"?"+q.query(), "")
		was := slices.Contains(q.selected, o.GetName())
		q.selected = namesOf(body)
		switch is := slices.Contains(q.selected, o.GetName()); {
		case is && was:
			q.events = append(q.events, "MODIFIED "+o.GetName())
		case is:
			q.events = append(q.events, "ADDED "+o.GetName())
		case was:
			q.events = append(q.events, "DELETED "+o.GetName())
		}
		if k.past {
			q.then = append(q.then, answered{moment, q.selected})
		}
	}
}

// ask sends a request to the fleet, and again if its database does not respond for a moment.
func (d *differential) ask(path, accept string) (resp reply, body map[string]any) {
	d.t.Helper()
	testenv.Eventually(d.t, path, testenv.Patience, func() error {
		if resp, body = d.fleet.ask(d.t, http.MethodGet, path, accept); resp.StatusCode >= http.StatusInternalServerError {
			return fmt.Errorf("%d %v", resp.StatusCode, body)
		}
		return nil
	})
	return resp, body
}

// member sends a request to the API server, and again if it cannot answer for the moment.
func (d *differential) member(path, accept string) (code int, header http.Header, body map[string]any) {
	d.t.Helper()
	testenv.Eventually(d.t, path, testenv.Patience, func() error {
		req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, strings.TrimSuffix(d.config.Host, "/")+path, nil)
		if err != nil {
			d.t.Fatal(err)
		}
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		resp, err := d.http.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		code, header, body = resp.StatusCode, resp.Header, nil
		if code >= http.StatusInternalServerError || code == http.StatusTooManyRequests {
			return errors.New(resp.Status)
		}
		return json.NewDecoder(resp.Body).Decode(&body)
	})
	return code, header, body
}

func namesOf(body map[string]any) (out []string) {
	items, _ := body["items"].([]any)
	for _, item := range items {
		out = append(out, (&unstructured.Unstructured{Object: item.(map[string]any)}).GetName())
	}
	return out
}

// compare requests a list from both, whole and in pages, and counts it. It reports whether both
// return a list.
func (d *differential) compare(q *comparedList) bool {
	code, _, want := d.member(d.path(q.kind)+"?"+q.query(), "")
	resp, got := d.ask(d.path(q.kind)+"?"+q.query(), "")
	if resp.StatusCode != code || got["reason"] != want["reason"] || got["kind"] != want["kind"] || got["apiVersion"] != want["apiVersion"] {
		d.t.Errorf("%s: API server %d %v %v, fleet %d %v %v", q, code, want["reason"], want["message"], resp.StatusCode, got["reason"], got["message"])
		return false
	}
	if code != http.StatusOK {
		return false
	}
	if diff := cmp.Diff(sameItems(want), sameItems(got), cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("%s (-API server, +fleet):\n%s", q, diff)
		return true
	}
	q.selected = namesOf(want)
	limit := 1 + d.random.IntN(4)
	for name, ask := range map[string]func(path string) map[string]any{
		"API server": func(path string) map[string]any { _, _, body := d.member(path, ""); return body },
		"fleet":      func(path string) map[string]any { _, body := d.ask(path, ""); return body },
	} {
		var paged []string
		for next := ""; ; {
			page := ask(fmt.Sprintf("%s?%s&limit=%d&continue=%s", d.path(q.kind), q.query(), limit, url.QueryEscape(next)))
			paged = append(paged, namesOf(page)...)
			if next = (&unstructured.UnstructuredList{Object: page}).GetContinue(); next == "" {
				break
			}
		}
		if diff := cmp.Diff(q.selected, paged, cmpopts.EquateEmpty()); diff != "" {
			d.t.Errorf("%s in pages of %d of the %s:\n%s", q, limit, name, diff)
		}
	}
	order, ordered := one(d.random, "name", "name desc", "namespace,name desc", "cluster,name"), slices.Sorted(slices.Values(q.selected))
	if strings.HasSuffix(order, " desc") {
		slices.Reverse(ordered)
	}
	var paged []string
	for next := ""; ; {
		_, page := d.ask(fmt.Sprintf("%s?%s&limit=%d&orderby=%s&continue=%s", d.path(q.kind), q.query(), limit, url.QueryEscape(order), url.QueryEscape(next)), "")
		paged = append(paged, namesOf(page)...)
		if next = (&unstructured.UnstructuredList{Object: page}).GetContinue(); next == "" {
			break
		}
	}
	if diff := cmp.Diff(ordered, paged, cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("%s by %s in pages of %d:\n%s", q, order, limit, diff)
	}
	if _, counted := d.ask(d.path(q.kind)+"?group=cluster&"+q.query(), ""); fmt.Sprint(counted["total"]) != fmt.Sprint(len(q.selected)) {
		d.t.Errorf("%s: counted %v, listed %d", q, counted["total"], len(q.selected))
	}
	return true
}

// sameItems returns the items of a list without the fields that differ between the fleet and
// the API server.
func sameItems(body map[string]any) (out []any) {
	items, _ := body["items"].([]any)
	for _, item := range items {
		o := (&unstructured.Unstructured{Object: item.(map[string]any)}).DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		annotations := o.GetAnnotations()
		delete(annotations, fleetv1alpha1.ClusterAnnotation)
		delete(annotations, fleetv1alpha1.ResourceVersionAnnotation)
		if o.SetAnnotations(annotations); len(annotations) == 0 {
			unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
		}
		delete(o.Object, "kind")
		delete(o.Object, "apiVersion")
		out = append(out, o.Object)
	}
	return out
}

// initial compares the first events of a watch with the list.
func (d *differential) initial(q *comparedList) {
	w := d.fleet.watch(d.t, d.path(q.kind)+"?"+q.query()+"&watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
	var names []string
	for {
		event := w.next()
		name, ok := strings.CutPrefix(event, "ADDED oak/"+d.in(q.kind)+"/")
		if !ok {
			if event != "BOOKMARK all" {
				d.t.Errorf("%s: a watch begins with %q", q, event)
			}
			break
		}
		names = append(names, name)
	}
	if diff := cmp.Diff(q.selected, names, cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("a watch of %s begins (-list, +watch):\n%s", q, diff)
	}
}

// tables compares the tables of a kind.
func (d *differential) tables(k comparedKind) {
	_, _, want := d.member(d.path(k)+"?labelSelector=run%3D"+d.namespace, tableAccept)
	_, got := d.ask(d.path(k)+"?labelSelector=run%3D"+d.namespace, tableAccept)
	shown := func(body map[string]any, own int) (heads, rows []any) {
		definitions, _ := body["columnDefinitions"].([]any)
		for _, definition := range definitions[own:] {
			definition := definition.(map[string]any)
			heads = append(heads, []any{definition["name"], definition["type"], definition["format"], definition["priority"]})
		}
		all, _ := body["rows"].([]any)
		for _, row := range all {
			row := row.(map[string]any)
			cells := row["cells"].([]any)[own:]
			for i, cell := range cells {
				if text, ok := cell.(string); ok {
					cells[i] = passing.ReplaceAllString(text, "age")
				}
			}
			rows = append(rows, []any{cells, row["conditions"]})
		}
		return heads, rows
	}
	heads, rows := shown(want, 0)
	fleetHeads, fleetRows := shown(got, 1)
	if diff := cmp.Diff([]any{heads, rows}, []any{fleetHeads, fleetRows}); diff != "" {
		d.t.Errorf("table of %s (-API server, +fleet):\n%s", k.resource, diff)
	}
}

// options compares the answers to random options of lists and watches.
func (d *differential) options(k comparedKind) {
	versions := map[bool]string{}
	_, _, list := d.member(d.path(k)+"?limit=1", "")
	versions[false], versions[true] = (&unstructured.UnstructuredList{Object: list}).GetResourceVersion(), d.fleet.version(d.t, d.path(k)+"?limit=1")
	for range 25 {
		options := url.Values{}
		set := func(name string, of ...string) {
			if value := one(d.random, append(of, "", "")...); value != "" {
				options.Set(name, value)
			}
		}
		set("watch", "true", "false")
		set("resourceVersion", "0", "read")
		set("resourceVersionMatch", "Exact", "NotOlderThan", "Newest")
		set("sendInitialEvents", "true", "false")
		set("allowWatchBookmarks", "true")
		watching := options.Get("watch") == "true"
		if options.Set("timeoutSeconds", "1"); !watching {
			set("limit", "1", "-1", "0", "x")
		}
		ask := func(client *http.Client, root string, fleet bool) (int, string) {
			asked := url.Values{}
			for name := range options {
				asked.Set(name, strings.Replace(options.Get(name), "read", versions[fleet], 1))
			}
			return d.refusal(client, root+d.path(k)+"?"+asked.Encode())
		}
		var code, fleetCode int
		var want, got string
		testenv.Eventually(d.t, "both answer", testenv.Patience, func() error {
			// The caches of the API server may not have the version yet.
			code, want = ask(d.http, strings.TrimSuffix(d.config.Host, "/"), false)
			fleetCode, got = ask(http.DefaultClient, d.fleet.url, true)
			if max(code, fleetCode) >= http.StatusInternalServerError || code == http.StatusTooManyRequests {
				return fmt.Errorf("%s?%s: API server %d %s, fleet %d %s", k.resource, options.Encode(), code, want, fleetCode, got)
			}
			return nil
		})
		if code != fleetCode || want != got {
			d.t.Errorf("%s?%s: API server %d %s, fleet %d %s", k.resource, options.Encode(), code, want, fleetCode, got)
		}
	}
}

// refusal returns the status code of an answer and, for an error, its reason and causes.
func (d *differential) refusal(client *http.Client, address string) (int, string) {
	ctx, stop := context.WithCancel(d.t.Context())
	defer stop() // ends a watch as soon as its answer begins
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header["Accept"] = []string{""}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return resp.StatusCode, ""
	}
	var status metav1.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		d.t.Fatalf("%s: %v", address, err)
	}
	says := string(status.Reason)
	if status.Details != nil && status.Reason == metav1.StatusReasonInvalid {
		for _, cause := range status.Details.Causes {
			says += fmt.Sprintf(" %s %s %s", cause.Field, cause.Type, cause.Message)
		}
	}
	return resp.StatusCode, says
}
