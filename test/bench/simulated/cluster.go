package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	nodesEach = 3
	// remembered is the number of changes after which a watch can no longer be resumed.
	remembered = 256
	// bookmarkEvery is how often an idle watch gets a bookmark with the resourceVersion.
	bookmarkEvery = time.Minute
)

// cluster is one simulated cluster.
type cluster struct {
	fleet *fleet
	name  string
	door  *door

	offline atomic.Bool

	mu       sync.Mutex
	restarts int
	down     context.Context //nolint:containedctx // ends the watches that are open when the cluster goes offline
	cut      context.CancelFunc
	version  int64
	tables   map[string]*table
}

// table holds the objects of one type.
type table struct {
	resource
	objects  map[string][]byte // NAMESPACE/NAME → the object
	events   []event
	lost     int64 // the version of the newest event that was dropped
	watchers map[chan event]bool
}

type event struct {
	version   int64
	namespace string
	line      []byte
}

func newCluster(f *fleet, name string, pods int) *cluster {
	c := &cluster{fleet: f, name: name, tables: map[string]*table{}}
	c.down, c.cut = context.WithCancel(context.Background())
	for _, r := range resources() {
		c.tables[r.key()] = &table{resource: r, objects: map[string][]byte{}, watchers: map[chan event]bool{}}
	}
	for _, ns := range []string{"kube-system", "default", "kube-public"} {
		c.put(c.tables["v1/namespaces"], object("", ns, map[string]any{"status": map[string]any{"phase": "Active"}}))
	}
	capacity := map[string]any{"cpu": "16", "memory": "64Gi", "pods": "110"}
	for i := range nodesEach {
		c.put(c.tables["v1/nodes"], object("", fmt.Sprintf("node-%d", i), map[string]any{
			"spec":   map[string]any{},
			"status": map[string]any{"capacity": capacity, "allocatable": capacity, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
		}))
	}
	for i := range pods {
		c.put(c.tables["v1/pods"], object("default", fmt.Sprintf("pod-%d", i), map[string]any{
			"spec": map[string]any{"nodeName": fmt.Sprintf("node-%d", i%nodesEach), "containers": []any{map[string]any{
				"name": "app", "image": "registry.example.org/app:1.0", "resources": map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "64Mi"}},
			}}},
			"status": status(0),
		}))
	}
	return c
}

// status returns the status of a pod whose container was restarted that many times.
func status(restarts int) map[string]any {
	return map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{
		"name": "app", "ready": true, "restartCount": restarts, "state": map[string]any{"running": map[string]any{}},
	}}}
}

// restart counts one more restart of the pod's container.
func (c *cluster) restart(pod int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables["v1/pods"]
	var o map[string]any
	if json.Unmarshal(t.objects[fmt.Sprintf("default/pod-%d", pod)], &o) != nil {
		return // a client deleted it
	}
	c.restarts++
	o["status"] = status(c.restarts)
	c.put(t, o)
}

func object(namespace, name string, fields map[string]any) map[string]any {
	metadata := map[string]any{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := map[string]any{"metadata": metadata}
	maps.Copy(o, fields)
	return o
}

// setOffline takes the cluster offline, or online again.
func (c *cluster) setOffline(offline bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offline.Swap(offline) == offline {
		return
	}
	if offline {
		c.cut()
		c.door.shut()
		return
	}
	c.down, c.cut = context.WithCancel(context.Background())
}

func metadataOf(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		o["metadata"] = m
	}
	return m
}

func text(o map[string]any, key string) string {
	s, _ := o[key].(string)
	return s
}

// put stores an object under a new version and sends it to the watches. The cluster must be
// locked, or not be served yet.
func (c *cluster) put(t *table, o map[string]any) []byte {
	m := metadataOf(o)
	key := text(m, "namespace") + "/" + text(m, "name")
	_, exists := t.objects[key]
	c.version++
	o["apiVersion"], o["kind"] = t.apiVersion(), t.kind
	if !exists {
		m["uid"], m["creationTimestamp"] = string(uuid.NewUUID()), time.Now().UTC().Format(time.RFC3339)
	}
	m["resourceVersion"] = strconv.FormatInt(c.version, 10)
	raw, _ := json.Marshal(o) //nolint:errchkjson // it was decoded from JSON
	t.objects[key] = raw
	kind := "MODIFIED"
	if !exists {
		kind = "ADDED"
	}
	c.tell(t, kind, text(m, "namespace"), raw)
	return raw
}

func (c *cluster) tell(t *table, kind, namespace string, raw []byte) {
	e := event{c.version, namespace, fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", kind, raw)}
	t.events = append(t.events, e)
	if len(t.events) > remembered {
		t.lost = t.events[0].version
		t.events = slices.Clone(t.events[1:])
	}
	for w := range t.watchers {
		select {
		case w <- e:
		default: // too slow: its watch ends
			delete(t.watchers, w)
			close(w)
		}
	}
}

// serve answers one request.
func (c *cluster) serve(w http.ResponseWriter, r *http.Request, path string) {
	if c.offline.Load() { // the request arrived before the cluster went offline
		panic(http.ErrAbortHandler)
	}
	switch path {
	case "/readyz", "/livez", "/healthz":
		_, _ = w.Write([]byte("ok")) // fails only if the client is gone
		return
	case "/version":
		answer(w, http.StatusOK, map[string]any{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
		return
	case "/api", "/apis":
		c.discover(w, r, path)
		return
	case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		answer(w, http.StatusCreated, map[string]any{
			"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": map[string]any{}, "status": map[string]any{"allowed": true},
		})
		return
	}
	t, namespace, name := c.find(path)
	if t == nil {
		fail(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	switch {
	case r.Method == http.MethodGet && name == "" && r.URL.Query().Get("watch") != "":
		c.watch(w, r, t, namespace)
	case r.Method == http.MethodGet && name == "":
		c.list(w, r, t, namespace)
	case r.Method == http.MethodGet:
		c.get(w, t, namespace, name)
	default:
		c.change(w, r, t, namespace, name)
	}
}

func (c *cluster) discover(w http.ResponseWriter, r *http.Request, path string) {
	body := c.fleet.core
	if path == "/apis" {
		body = c.fleet.apis
	}
	const etag = `"simulated-1"`
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_, _ = w.Write(body) // fails only if the client is gone
}

// find parses a path into the type, the namespace and the name.
func (c *cluster) find(path string) (t *table, namespace, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	n := 2 // api/v1
	if parts[0] == "apis" {
		n = 3
	}
	if len(parts) <= n {
		return nil, "", ""
	}
	gv, rest := strings.Join(parts[1:n], "/"), parts[n:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		namespace, rest = rest[1], rest[2:]
	}
	if len(rest) > 1 {
		name = rest[1]
	}
	return c.tables[gv+"/"+rest[0]], namespace, name
}

// partial reports whether the client wants only metadata.
func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func metadataOnly(raw []byte) []byte {
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil {
		return raw
	}
	out, _ := json.Marshal(map[string]any{ //nolint:errchkjson // it was decoded from JSON
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"],
	})
	return out
}

func (c *cluster) list(w http.ResponseWriter, r *http.Request, t *table, namespace string) {
	c.mu.Lock()
	version := c.version
	items := make([][]byte, 0, len(t.objects))
	for key, raw := range t.objects {
		if namespace == "" || strings.HasPrefix(key, namespace+"/") {
			items = append(items, raw)
		}
	}
	c.mu.Unlock()
	more := ""
	switch {
	case r.URL.Query().Get("limit") != "1":
		c.fleet.lists.Add(1)
	case len(items) > 1: // such a client wants the resourceVersion; every other list has one page
		items, more = items[:1], `,"continue":"more"`
	}
	apiVersion, kind := t.apiVersion(), t.kind+"List"
	if partial(r) {
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"%s},"items":[`, kind, apiVersion, version, more) //nolint:gosec // JSON, to a benchmark
	for i, raw := range items {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		if partial(r) {
			raw = metadataOnly(raw)
		}
		_, _ = w.Write(raw)
	}
	_, _ = io.WriteString(w, "]}")
}

func (c *cluster) get(w http.ResponseWriter, t *table, namespace, name string) {
	c.mu.Lock()
	raw, ok := t.objects[namespace+"/"+name]
	c.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", t.plural, name))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw) //nolint:gosec // JSON, to a benchmark
}

func (c *cluster) watch(w http.ResponseWriter, r *http.Request, t *table, namespace string) {
	query := r.URL.Query()
	from, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	initial := query.Get("sendInitialEvents") == "true"
	events := make(chan event, 1024)
	c.mu.Lock()
	if !initial && from > 0 && from < t.lost {
		c.mu.Unlock()
		fail(w, http.StatusGone, "Expired", "too old resource version")
		return
	}
	var first [][]byte
	if initial {
		for _, raw := range t.objects {
			first = append(first, fmt.Appendf(nil, "{\"type\":\"ADDED\",\"object\":%s}\n", raw))
		}
		first = append(first, c.bookmark(t, `{"k8s.io/initial-events-end":"true"}`))
	} else {
		for _, e := range t.events {
			if e.version > from {
				first = append(first, e.line)
			}
		}
	}
	t.watchers[events] = true
	down := c.down
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(t.watchers, events)
		c.mu.Unlock()
	}()
	c.fleet.watches.Add(1)
	defer c.fleet.watches.Add(-1)

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	for _, line := range first {
		_, _ = w.Write(line)
	}
	_ = out.Flush()
	tick := time.NewTicker(bookmarkEvery)
	defer tick.Stop()
	var nearEnd, end <-chan time.Time // a bookmark is sent shortly before the end
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		lasts := time.Duration(seconds) * time.Second
		nearEnd, end = time.After(lasts-2*time.Second), time.After(lasts)
	}
	for {
		var line []byte
		select {
		case <-end:
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			if namespace != "" && e.namespace != namespace {
				continue
			}
			line = e.line
		case <-tick.C:
			if line = c.progress(t, events); line == nil {
				continue
			}
		case <-nearEnd:
			if line = c.progress(t, events); line == nil {
				nearEnd = time.After(10 * time.Millisecond)
				continue
			}
		case <-down.Done():
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
		if _, err := w.Write(line); err != nil { //nolint:gosec // JSON, to a benchmark
			return
		}
		_ = out.Flush()
	}
}

// progress returns a bookmark of the current version, or nil if events must be sent first.
func (c *cluster) progress(t *table, events <-chan event) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(events) > 0 {
		return nil
	}
	return c.bookmark(t, "null")
}

func (c *cluster) bookmark(t *table, annotations string) []byte {
	return fmt.Appendf(nil, "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":%q,\"apiVersion\":%q,\"metadata\":{\"resourceVersion\":\"%d\",\"annotations\":%s}}}\n",
		t.kind, t.apiVersion(), c.version, annotations)
}

// change serves a create, apply, patch or delete request.
func (c *cluster) change(w http.ResponseWriter, r *http.Request, t *table, namespace, name string) {
	var body map[string]any
	raw, err := io.ReadAll(r.Body)
	if err == nil && len(raw) > 0 {
		err = json.Unmarshal(raw, &body)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	if name == "" {
		name = text(metadataOf(body), "name")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.namespaced && r.Method != http.MethodDelete {
		if _, ok := c.tables["v1/namespaces"].objects["/"+namespace]; !ok {
			fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("namespaces %q not found", namespace))
			return
		}
	}
	key := namespace + "/" + name
	var before map[string]any
	if old, ok := t.objects[key]; ok {
		if err := json.Unmarshal(old, &before); err != nil {
			fail(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
	}
	apply := strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch")
	switch {
	case r.Method == http.MethodPost && before != nil:
		fail(w, http.StatusConflict, "AlreadyExists", fmt.Sprintf("%s %q already exists", t.plural, name))
		return
	case before == nil && r.Method != http.MethodPost && !apply:
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", t.plural, name))
		return
	case r.Method == http.MethodDelete:
		c.fleet.writes.Add(1)
		c.version++
		metadataOf(before)["resourceVersion"] = strconv.FormatInt(c.version, 10)
		last, _ := json.Marshal(before) //nolint:errchkjson // it was decoded from JSON
		delete(t.objects, key)
		c.tell(t, "DELETED", namespace, last)
		answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success"})
		return
	}
	after := merge(before, body)
	m := metadataOf(after)
	m["name"] = name
	if namespace != "" {
		m["namespace"] = namespace
	}
	if r.Method == http.MethodPost || apply {
		m["managedFields"] = []any{map[string]any{
			"manager": r.URL.Query().Get("fieldManager"), "operation": map[bool]string{true: "Apply", false: "Update"}[apply],
			"apiVersion": t.apiVersion(), "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:metadata": map[string]any{}},
		}}
	}
	settle(t.kind, before, after)
	code := http.StatusOK
	if before == nil {
		code = http.StatusCreated
	}
	if r.URL.Query().Get("dryRun") != "" || before != nil && reflect.DeepEqual(before, after) {
		answer(w, code, after)
		return
	}
	c.fleet.writes.Add(1)
	stored := c.put(t, after)
	if t.kind == "Deployment" {
		annotations, _ := m["annotations"].(map[string]any)
		c.fleet.tell(write{Cluster: c.name, Namespace: namespace, Name: name, Mark: text(annotations, "bench"), Time: time.Now()})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(stored) // fails only if the client is gone
}

// merge returns into with the JSON merge patch applied. It does not change into.
func merge(into, patch map[string]any) map[string]any {
	out := make(map[string]any, len(into)+len(patch))
	maps.Copy(out, into)
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case map[string]any:
			old, _ := out[k].(map[string]any)
			out[k] = merge(old, v)
		default:
			out[k] = v
		}
	}
	return out
}

// settle sets at once the generation and status that the API server and the controllers would
// set.
func settle(kind string, before, after map[string]any) {
	m := metadataOf(after)
	generation, _ := m["generation"].(float64)
	if before == nil || !reflect.DeepEqual(before["spec"], after["spec"]) {
		generation++
		m["generation"] = generation
	}
	if kind != "Deployment" {
		return
	}
	spec, _ := after["spec"].(map[string]any)
	replicas, ok := spec["replicas"].(float64)
	if !ok {
		replicas = 1
	}
	after["status"] = map[string]any{
		"observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
		"conditions": []any{map[string]any{"type": "Available", "status": "True"}},
	}
}
