package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/neutral"
)

// hostileText has every way in which a text can imitate a line or a cell, control a terminal,
// or hide or reverse a part of itself. Each line that it forges contains "forged".
const hostileText = "x\nforged line\n==> cluster forged <==\r\nforged line\rforged line\tcell\vforged\fforged\x1b[2J\x1b]0;title\x07\x7f\u0085forged\u009b31m" +
	"\u202aa\u202bb\u202cc\u202dd\u202ee\u2066f\u2067g\u2068h\u2069i\u200ej\u200fk\u061cl\u200bm\u200dn\u200co\u2060p\ufeffq\u00adr\u2028forged\u2029forged\U000e0041"

// longText is longer than anything that a table may show.
var longText = strings.Repeat("long", 100<<8)

// controlCharacters has the characters, beside ranges, that text for a person must not contain.
const controlCharacters = "\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\U000e0041"

// problemsOf returns the problems in the output of a command. If kubectl has laid the output
// out, texts may contain lines and tabs.
func problemsOf(out string, laidOut bool) (problems []string) {
	if !utf8.ValidString(out) {
		problems = append(problems, "not UTF-8")
	}
	for line := range strings.SplitSeq(out, "\n") {
		if strings.HasPrefix(line, "forged") && !laidOut || strings.HasPrefix(line, "==> cluster forged") {
			problems = append(problems, fmt.Sprintf("forged line %.200q", line))
		}
		previous := rune(0)
		for _, r := range line {
			if r == '\t' && laidOut {
				continue
			}
			joins := (r == '\u200c' || r == '\u200d') && previous < utf8.RuneSelf
			if r < ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune(controlCharacters, r) || joins {
				problems = append(problems, fmt.Sprintf("character %U in line %.200q", r, line))
				break
			}
			previous = r
		}
	}
	return problems[:min(len(problems), 5)]
}

// longestLine returns the number of bytes of the longest line.
func longestLine(out string) (most int) {
	for line := range strings.SplitSeq(out, "\n") {
		most = max(most, len(line))
	}
	return most
}

// filler sets every string in a value.
type filler struct{ text func(field string) string }

func (f filler) fill(v reflect.Value, field string, depth int) {
	if depth > 14 {
		return
	}
	switch v.Type() {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		v.FieldByName("Time").Set(reflect.ValueOf(time.Unix(1_790_000_000, 0)))
		return
	case reflect.TypeFor[json.RawMessage]():
		text, err := json.Marshal(f.text(field))
		if err != nil {
			panic(err)
		}
		v.SetBytes(text)
		return
	}
	switch v.Kind() { //nolint:exhaustive // the others have no text
	case reflect.String:
		v.SetString(f.text(field))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), field, depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			f.fill(v.Index(0), field, depth+1)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, field, depth+1)
		f.fill(value, field, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if _, own := reflect.TypeAssert[json.Unmarshaler](v.Addr()); own {
			return // quantities and similar types have no free text
		}
		for i := range v.NumField() {
			if name := v.Type().Field(i); name.IsExported() && !slices.Contains([]string{"ManagedFields", "DeletionTimestamp", "OwnerReferences", "Continue"}, name.Name) {
				f.fill(v.Field(i), name.Name, depth+1)
			}
		}
	}
}

// filled returns a value with all its strings set.
func filled[T any](f filler) *T {
	out := new(T)
	f.fill(reflect.ValueOf(out).Elem(), "", 0)
	return out
}

// servedByHostile has the types of the hostile hub, of its fleet and of its members.
var servedByHostile = map[string][]metav1.APIResource{
	"v1": {
		{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", ShortNames: []string{"po"}},
		{Name: "configmaps", SingularName: "configmap", Namespaced: true, Kind: "ConfigMap", ShortNames: []string{"cm"}},
		{Name: "events", SingularName: "event", Namespaced: true, Kind: "Event"},
		{Name: "namespaces", SingularName: "namespace", Kind: "Namespace"},
		{Name: "nodes", SingularName: "node", Kind: "Node"},
		{Name: "secrets", SingularName: "secret", Namespaced: true, Kind: "Secret"},
	},
	"apps/v1":                     {{Name: "deployments", SingularName: "deployment", Namespaced: true, Kind: "Deployment", ShortNames: []string{"deploy"}}},
	"batch/v1":                    {{Name: "jobs", SingularName: "job", Namespaced: true, Kind: "Job"}},
	"cluster.orrery.dev/v1alpha1": {{Name: "clusters", SingularName: "cluster", Kind: "Cluster"}},
	"work.orrery.dev/v1alpha2": {
		{Name: "resourcebindings", SingularName: "resourcebinding", Namespaced: true, Kind: "ResourceBinding"},
		{Name: "clusterresourcebindings", SingularName: "clusterresourcebinding", Kind: "ClusterResourceBinding"},
	},
	"policy.orrery.dev/v1alpha1": {
		{Name: "propagationpolicies", SingularName: "propagationpolicy", Namespaced: true, Kind: "PropagationPolicy"},
		{Name: "clusterpropagationpolicies", SingularName: "clusterpropagationpolicy", Kind: "ClusterPropagationPolicy"},
	},
	"apps.orrery.dev/v1alpha1":        {{Name: "workloadrebalancers", SingularName: "workloadrebalancer", Kind: "WorkloadRebalancer"}},
	"hostile.example.com/v1":          {{Name: "things", SingularName: "thing", Namespaced: true, Kind: "Thing" + hostileText}},
	"metrics.k8s.io/v1beta1":          {{Name: "pods", Namespaced: true, Kind: "PodMetrics"}, {Name: "nodes", Kind: "NodeMetrics"}},
	"flowcontrol.apiserver.k8s.io/v1": {{Name: "flowschemas", SingularName: "flowschema", Kind: "FlowSchema"}},
}

// hostileHub is a hub that forwards the texts of a hostile member: every string in its answers
// is hostile, also the names of objects, and the errors.
type hostileHub struct {
	filler

	refuses bool // every request except discovery
	log     string
}

func (h *hostileHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Warning"] = []string{`299 - "` + strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, hostileText) + `"`}
	if strings.HasSuffix(r.URL.Path, "/log") && !h.refuses {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte(cmp.Or(h.log, "2026-11-20T10:00:00Z line\n")))
		return
	}
	answer := h.answer(r)
	w.Header().Set("Content-Type", "application/json")
	if s, ok := answer.(*metav1.Status); ok {
		w.WriteHeader(int(s.Code))
	}
	_ = json.NewEncoder(w).Encode(answer) //nolint:errchkjson // a client may have gone
}

func (h *hostileHub) answer(r *http.Request) any {
	const fleet, clusters = fleetv1alpha1.FleetPath, fleetv1alpha1.ClustersPath
	path, below := r.URL.Path, ""
	if rest, ok := strings.CutPrefix(path, clusters+"/"); ok {
		_, below, _ = strings.Cut(rest, "/")
		path = strings.TrimPrefix(below, "proxy")
	} else if rest, ok := strings.CutPrefix(path, fleet); ok {
		path, below = rest, "fleet"
		if rest, ok := strings.CutPrefix(path, "/clusters/"); ok {
			_, path, _ = strings.Cut(rest, "/")
			path = "/" + path
		}
	}
	group := func(gv string) metav1.APIGroup {
		of, _ := schema.ParseGroupVersion(gv)
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: of.Version}
		return metav1.APIGroup{Name: of.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	}
	gv := strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
	switch {
	case path == "/readyz", path == "/healthz", path == "/livez":
		return "ok"
	case path == "/version":
		return map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.0" + h.text("Version")}
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}}
	case path == "/apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range slices.Sorted(maps.Keys(servedByHostile)) {
			if gv != "v1" {
				list.Groups = append(list.Groups, group(gv))
			}
		}
		return list
	case servedByHostile[gv] != nil:
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
		for _, resource := range servedByHostile[gv] {
			resource.Verbs = []string{"get", "list", "watch", "create", "patch", "delete"}
			list.APIResources = append(list.APIResources, resource)
		}
		return list
	case h.refuses:
		s := filled[metav1.Status](h.filler)
		s.TypeMeta, s.Status, s.Reason, s.Code = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure, metav1.StatusReasonForbidden, http.StatusForbidden
		return s
	case below == "mirror":
		return filled[fleetv1alpha1.ClusterMirror](h.filler)
	case below == "fleet" && path == "/graph":
		g := filled[fleetv1alpha1.ObjectGraph](h.filler)
		g.Nodes = append(g.Nodes, *filled[fleetv1alpha1.GraphNode](h.filler))
		g.Edges[0].To = 1
		return g
	case r.URL.Query().Get("explain") != "":
		return filled[fleetv1alpha1.SearchExplanation](h.filler)
	case r.URL.Query().Get("group") != "":
		return filled[fleetv1alpha1.SearchCounts](h.filler)
	case r.URL.Query().Get("history") != "", r.URL.Query().Get("deleted") != "", r.URL.Query().Get("changedSince") != "":
		return filled[fleetv1alpha1.ObjectHistory](h.filler)
	case path == fleetv1alpha1.PlacementsPath:
		return filled[fleetv1alpha1.PlacementExplanation](h.filler)
	case path == fleetv1alpha1.PlacementReviewsPath:
		return filled[fleetv1alpha1.PlacementReview](h.filler)
	case path == fleetv1alpha1.ConsoleLinksPath:
		return filled[fleetv1alpha1.ConsoleLink](h.filler)
	case below == "fleet" && path == "/search":
		return h.table(r, 8)
	}
	return h.objects(r, path)
}

// table returns a table of one row.
func (h *hostileHub) table(r *http.Request, columns int) any {
	if !strings.Contains(r.Header.Get("Accept"), "as=Table") {
		return map[string]any{"items": []any{h.object("v1", "Pod", "")}}
	}
	table := metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}}
	row := metav1.TableRow{}
	for range columns {
		table.ColumnDefinitions = append(table.ColumnDefinitions, metav1.TableColumnDefinition{Name: h.text("Name"), Type: "string"})
		row.Cells = append(row.Cells, h.text("Name"))
	}
	raw, err := json.Marshal(h.object("v1", "Pod", ""))
	if err != nil {
		panic(err)
	}
	row.Object.Raw = raw
	table.Rows = append(table.Rows, row)
	return table
}

// objects answers a request for objects of a type: with a list of one object, or with the named
// object.
func (h *hostileHub) objects(r *http.Request, path string) any {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	gv, rest := "v1", segments[min(len(segments), 2):]
	if segments[0] == "apis" && len(segments) > 2 {
		gv, rest = segments[1]+"/"+segments[2], segments[3:]
	}
	if len(rest) > 2 && rest[0] == "namespaces" {
		rest = rest[2:]
	}
	at := -1
	if len(rest) > 0 {
		at = slices.IndexFunc(servedByHostile[gv], func(a metav1.APIResource) bool { return a.Name == rest[0] })
	}
	if at < 0 {
		return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: h.text("Message")}
	}
	kind := servedByHostile[gv][at].Kind
	if r.Method == http.MethodPost || len(rest) > 1 {
		return h.object(gv, kind, strings.Join(rest[min(len(rest), 1):min(len(rest), 2)], ""))
	}
	if strings.Contains(r.Header.Get("Accept"), "as=Table") {
		return h.table(r, 5)
	}
	list := map[string]any{"kind": kind + "List", "apiVersion": gv, "metadata": map[string]any{}, "items": []any{h.object(gv, kind, "")}}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	return list
}

// object returns an object with hostile strings. A Cluster belongs to the hub, which accepts no
// hostile name.
func (h *hostileHub) object(gv, kind, name string) any {
	of := schema.FromAPIVersionAndKind(gv, kind)
	object, err := hub.Scheme().New(of)
	if err != nil {
		object = filled[metav1.PartialObjectMetadata](h.filler)
	}
	h.fill(reflect.ValueOf(object).Elem(), "", 0)
	object.GetObjectKind().SetGroupVersionKind(of)
	as := object.(metav1.Object)
	as.SetAnnotations(map[string]string{fleetv1alpha1.ClusterAnnotation: "elm", "hostile": h.text("Annotation")})
	if name != "" {
		as.SetName(name)
	}
	if c, ok := object.(*clusterv1alpha1.Cluster); ok {
		c.Name = "elm"
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	if of.Group == "metrics.k8s.io" {
		out["usage"], out["containers"] = map[string]string{"cpu": "1", "memory": "1Gi"}, []any{map[string]any{"name": h.text("Name"), "usage": map[string]string{"cpu": "1"}}}
	}
	return out
}

// start serves the hub, and returns the path of its kubeconfig.
func (h *hostileHub) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["hub"] = &clientcmdapi.Cluster{Server: server.URL}
	config.AuthInfos["hub"] = clientcmdapi.NewAuthInfo()
	config.Contexts["hub"] = &clientcmdapi.Context{Cluster: "hub", AuthInfo: "hub"}
	config.CurrentContext = "hub"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// hostileRuns has command lines for every command, or the reason why there are none. HUB is
// replaced by the kubeconfig of the hostile hub, and STATE by a directory with records from
// hostile hosts.
var hostileRuns = map[string]struct {
	runs [][]string
	// exempt is the reason why the command is not run.
	exempt string
	// whole is true if the command prints values in full length.
	whole bool
}{
	"server":                 {exempt: "its output is the log: TestServerLog"},
	"server rotate-key":      {exempt: "it prints texts of its own"},
	"server confirm-restore": {runs: [][]string{{"--yes", "--kubeconfig=HUB"}}},
	"demo":                   {exempt: "it prints its help"},
	"demo up":                {exempt: "it starts a hub of its own, and prints clusters and placements as cluster describe does"},
	"demo status":            {exempt: "its hub is its own; it prints as cluster list and cluster describe do"},
	"demo down":              {exempt: "it prints texts of its own"},
	"console":                {runs: [][]string{{"--print", "--kubeconfig=HUB"}, {"--no-browser", "--kubeconfig=HUB"}}},
	"cluster":                {exempt: "it prints its help"},
	"cluster join":           {exempt: "it waits until the hub says that the cluster is ready; its errors are printed as those of all commands"},
	"cluster rejoin":         {exempt: "as cluster join"},
	"cluster unjoin":         {exempt: "it waits until the hub says that the cluster has left; its errors are printed as those of all commands"},
	"cluster list":           {runs: [][]string{{"--kubeconfig=HUB"}, {"-o", "wide", "--kubeconfig=HUB"}, {"-o", "name", "--kubeconfig=HUB"}, {"-o", "json", "--kubeconfig=HUB"}}},
	"cluster describe":       {runs: [][]string{{"elm", "--kubeconfig=HUB"}, {"elm", "-o", "json", "--kubeconfig=HUB"}}},
	"cluster orphans":        {runs: [][]string{{"--kubeconfig=HUB"}, {"-o", "name", "--kubeconfig=HUB"}}},
	"cluster config":         {exempt: "it prints YAML"},
	"cluster kubeconfig":     {exempt: "it prints a file of this machine"},
	"cluster preflight":      {exempt: "it asks hosts: TestHostileHosts"},
	"cluster plan":           {exempt: "as cluster preflight"},
	"cluster create":         {exempt: "as cluster preflight"},
	"cluster apply":          {exempt: "as cluster preflight"},
	"cluster rollback":       {exempt: "as cluster preflight"},
	"cluster add-node":       {exempt: "as cluster preflight"},
	"cluster delete-node":    {exempt: "as cluster preflight"},
	"cluster delete":         {exempt: "as cluster preflight"},
	"cluster certs":          {exempt: "it prints its help"},
	"cluster certs list":     {exempt: "it prints what keys of this machine say"},
	"cluster certs renew":    {exempt: "as cluster preflight"},
	"agent-image":            {exempt: "it prints texts of its own"},
	"operation":              {exempt: "it prints its help"},
	"operation list":         {runs: [][]string{{"--state-dir=STATE"}, {"-o", "json", "--state-dir=STATE"}}},
	"operation show":         {runs: [][]string{{"elm-1", "--state-dir=STATE"}, {"elm-1", "-o", "wide", "--state-dir=STATE"}}},
	"operation resume":       {exempt: "as cluster preflight"},
	"operation pause":        {runs: [][]string{{"elm-1", "--state-dir=STATE"}}},
	"operation cancel":       {runs: [][]string{{"elm-1", "--state-dir=STATE"}}},
	"get": {runs: [][]string{
		{"pods", "-A", "--kubeconfig=HUB"},
		{"pods", "-o", "wide", "--show-labels", "-L", "a", "--kubeconfig=HUB"},
		{"pods,cm", "-n", "shop", "--kubeconfig=HUB"},
		{"pods", "x", "-n", "shop", "--kubeconfig=HUB"},
		{"pods", "x", "-n", "shop", "-C", "elm", "--kubeconfig=HUB"},
		{"pods", "-C", "elm", "--live", "-A", "--kubeconfig=HUB"},
		{"pods", "-o", "name", "--kubeconfig=HUB"},
		{"pods", "x", "-o", "name", "-C", "elm", "--kubeconfig=HUB"},
		{"pods", "-o", "custom-columns=A:.metadata.name,B:.metadata.labels,C:.kind", "--kubeconfig=HUB"},
		{"pods", "--server-print=false", "-A", "--kubeconfig=HUB"},
		{"pods", "-o", "json", "--kubeconfig=HUB"},
		{"things", "--kubeconfig=HUB"},
		{"things", "-o", "name", "--kubeconfig=HUB"},
		{"unknown", "--kubeconfig=HUB"},
		{"pods", "-o", "jsonpath-as-json={.items[*].metadata}", "--kubeconfig=HUB"},
		{"pods", "-n", "shop", "-w", "--kubeconfig=HUB"},
		{"pods", "-n", "shop", "-w", "-o", "name", "--kubeconfig=HUB"},
	}},
	"describe": {whole: true, runs: [][]string{
		{"pods", "-n", "shop", "--kubeconfig=HUB"},
		{"pod/x", "-n", "shop", "-C", "elm", "--kubeconfig=HUB"},
		{"node", "x", "-C", "elm", "--kubeconfig=HUB"},
		{"cm", "x", "-C", "elm", "--kubeconfig=HUB"},
		{"pod/x", "-C", "elm,oak", "-n", "shop", "--kubeconfig=HUB"},
		{"deploy/x", "-C", "elm", "--kubeconfig=HUB"},
	}},
	"top":       {exempt: "it prints its help"},
	"top pods":  {runs: [][]string{{"-A", "--containers", "--sum", "--kubeconfig=HUB"}, {"x", "-n", "shop", "--kubeconfig=HUB"}}},
	"top nodes": {runs: [][]string{{"--kubeconfig=HUB"}, {"x", "--kubeconfig=HUB"}}},
	"logs": {runs: [][]string{
		{"x", "-n", "shop", "-C", "elm,oak", "--prefix", "--kubeconfig=HUB"}, {"-l", "a=b", "-n", "shop", "--all-containers", "--prefix", "-C", "elm", "--kubeconfig=HUB"}, {"deploy/x", "-n", "shop", "--kubeconfig=HUB"},
	}},
	"exec":                 {runs: [][]string{{"x", "-n", "shop", "-C", "elm", "--kubeconfig=HUB", "--", "date"}, {"x", "-n", "shop", "--kubeconfig=HUB", "--", "date"}}},
	"attach":               {runs: [][]string{{"x", "-n", "shop", "-C", "elm", "--kubeconfig=HUB"}}},
	"cordon":               {runs: [][]string{{"elm", "--kubeconfig=HUB"}, {"--all", "--kubeconfig=HUB"}}},
	"uncordon":             {runs: [][]string{{"elm", "--kubeconfig=HUB"}}},
	"taint":                {runs: [][]string{{"cluster", "elm", "a=b:NoSchedule", "--kubeconfig=HUB"}, {"cluster", "elm", "a=b:NoExecute", "--dry-run=server", "--kubeconfig=HUB"}, {"cluster", "elm", "a-", "--kubeconfig=HUB"}}},
	"failover":             {exempt: "it prints its help"},
	"failover status":      {runs: [][]string{{"--kubeconfig=HUB"}, {"-o", "wide", "--kubeconfig=HUB"}, {"-o", "json", "--kubeconfig=HUB"}}},
	"failover pause":       {runs: [][]string{{"--kubeconfig=HUB"}, {"--reason=x", "--kubeconfig=HUB"}}},
	"failover resume":      {runs: [][]string{{"--kubeconfig=HUB"}}},
	"promote":              {runs: [][]string{{"cm/x", "-n", "shop", "-C", "elm", "--kubeconfig=HUB"}, {"deploy/x", "-n", "shop", "--kubeconfig=HUB"}}},
	"rebalance":            {runs: [][]string{{"cm/x", "-n", "shop", "--kubeconfig=HUB"}}},
	"rerun":                {runs: [][]string{{"job/x", "-n", "shop", "--timeout=1ms", "--kubeconfig=HUB"}}},
	"why":                  {runs: [][]string{{"cm/x", "-n", "shop", "--kubeconfig=HUB"}, {"cm/x", "-n", "shop", "-o", "wide", "--kubeconfig=HUB"}, {"things/x", "--kubeconfig=HUB"}, {"cm/x", "-o", "json", "--kubeconfig=HUB"}}},
	"search":               {runs: [][]string{{"x", "--kubeconfig=HUB"}, {"x", "-o", "wide", "--kubeconfig=HUB"}, {"x", "-o", "name", "--kubeconfig=HUB"}, {"x", "--group", "cluster,kind", "--kubeconfig=HUB"}, {"x", "--explain", "--kubeconfig=HUB"}, {"x", "-o", "json", "--kubeconfig=HUB"}}},
	"graph":                {runs: [][]string{{"pod/x", "--kubeconfig=HUB"}, {"pod/x", "-o", "dot", "--kubeconfig=HUB"}, {"pod/x", "-o", "json", "--kubeconfig=HUB"}}},
	"history":              {whole: true, runs: [][]string{{"pod/x", "--kubeconfig=HUB"}, {"pod/x", "-o", "wide", "--kubeconfig=HUB"}, {"pod/x", "--diff", "--kubeconfig=HUB"}, {"--deleted", "--kubeconfig=HUB"}, {"pod/x", "-o", "json", "--kubeconfig=HUB"}}},
	"diff":                 {whole: true, runs: [][]string{{"--since", "1h", "--kubeconfig=HUB"}, {"--since", "1h", "-o", "wide", "pods", "--kubeconfig=HUB"}}},
	"api-resources":        {runs: [][]string{{"--kubeconfig=HUB"}, {"--clusters", "-o", "wide", "--kubeconfig=HUB"}}},
	"migrate":              {exempt: "it prints its help"},
	"migrate clusterpedia": {runs: [][]string{{"--kubeconfig=HUB", "--hub-kubeconfig=HUB", "--dry-run"}}},
	"kubectl":              {exempt: "kubectl takes the place of the process"},
	"version":              {exempt: "it prints texts of its own"},
}

// TestHostileMember runs every command while all texts of members, objects and errors are
// hostile. No output may have a line or a control character from them, and no table a cell of
// 100 KB.
func TestHostileMember(t *testing.T) {
	var commands []string
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.HasParent() {
			commands = append(commands, strings.TrimPrefix(c.CommandPath(), programName+" "))
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(Command())
	for _, command := range commands {
		if run, ok := hostileRuns[command]; !ok || (run.exempt == "") != (len(run.runs) > 0) {
			t.Errorf("orrery %s: add command lines to hostileRuns, or the reason why it cannot be run", command)
		}
	}
	for command := range hostileRuns {
		if !slices.Contains(commands, command) {
			t.Errorf("there is no command orrery %s", command)
		}
	}
	long := func(field string) string {
		if slices.Contains([]string{"Name", "Message", "Reason"}, field) {
			return longText
		}
		return "x"
	}
	for name, hub := range map[string]*hostileHub{
		"Answers":     {filler: filler{func(string) string { return hostileText }}},
		"Refused":     {filler: filler{func(string) string { return hostileText }}, refuses: true},
		"Long":        {filler: filler{long}},
		"LongRefusal": {filler: filler{long}, refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig, state := hub.start(t), hostileState(t, hub.filler)
			t.Setenv("KUBECONFIG", kubeconfig)
			for _, command := range commands {
				for i, args := range hostileRuns[command].runs {
					if strings.HasPrefix(name, "Long") && i > 2 {
						break // the other lines print the same texts
					}
					replace := strings.NewReplacer("HUB", kubeconfig, "STATE", state)
					line := strings.Fields(command)
					for _, arg := range args {
						line = append(line, replace.Replace(arg))
					}
					t.Run(strings.Join(append([]string{command}, args...), " "), func(t *testing.T) {
						var out, errOut bytes.Buffer
						code := Main(line, strings.NewReader(""), &out, &errOut)
						t.Logf("code %d, %d bytes, errors: %.300q", code, out.Len(), errOut.String())
						for what, text := range map[string]string{"output": out.String(), "errors": errOut.String()} {
							for _, problem := range problemsOf(text, command == "describe" && what == "output") {
								t.Errorf("%s: %s", what, problem)
							}
							if most := longestLine(text); most > 90<<10 && !hostileRuns[command].whole && !strings.Contains(strings.Join(args, " "), "json") {
								t.Errorf("%s: a line has %d bytes", what, most)
							}
						}
						if code == 0 && out.Len()+errOut.Len() == 0 || code != 0 && errOut.Len() == 0 {
							t.Errorf("code %d, and nothing is printed", code)
						}
					})
				}
			}
			for _, typed := range [][]string{{"get", ""}, {"get", "pods", ""}, {"get", "pods", "-n", ""}, {"get", "pods", "-C", ""}, {"search", "kind:"}, {"search", "ns:"}, {"logs", ""}, {"describe", "pods/"}, {"cordon", ""}} {
				var out bytes.Buffer
				Main(append([]string{"__complete"}, typed...), strings.NewReader(""), &out, &out)
				for _, problem := range problemsOf(out.String(), false) {
					t.Errorf("completion of %q: %s", typed, problem)
				}
			}
		})
	}
}

// hostileState returns a state directory with the record of a run on hostile hosts.
func hostileState(t *testing.T, f filler) string {
	t.Helper()
	dir := t.TempDir()
	op := filled[lifecyclev1alpha1.Operation](f)
	op.Name, op.Spec.Cluster, op.Namespace = "elm-1", "elm", ""
	status := op.Status
	if err := lifecycle.Files(dir).Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	op.Status = status
	if err := lifecycle.Files(dir).Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHostileNames: output for scripts leaves out a name that a script could misread, and the
// command reports an error.
func TestHostileNames(t *testing.T) {
	kubeconfig := (&hostileHub{filler: filler{func(string) string { return "a b" }}}).start(t)
	for _, line := range []string{"search x -o name", "get pods -o name", "get pods x -C elm -o name"} {
		t.Run(line, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Main(append(strings.Fields(line), "--kubeconfig="+kubeconfig), strings.NewReader(""), &out, &errOut)
			if strings.HasSuffix(line, "x -C elm -o name") {
				if code != 0 || out.String() != "pod/x\n" { // the name in the arguments
					t.Errorf("code %d, output %q, errors %q", code, out.String(), errOut.String())
				}
				return
			}
			if code != 1 || out.Len() > 0 || !strings.Contains(errOut.String(), "is left out") || !strings.Contains(errOut.String(), "a b") {
				t.Errorf("code %d, output %q, errors %q", code, out.String(), errOut.String())
			}
		})
	}
}

// TestHostileProgram: the output of a program in a container is unchanged. The names before it
// are made harmless.
func TestHostileProgram(t *testing.T) {
	const line = "2026-11-20T10:00:00Z \x1b[31mred\x1b[0m\r\x9b\n"
	h := &hostileHub{filler: filler{func(string) string { return hostileText }}, log: line}
	var out, errOut bytes.Buffer
	code := Main([]string{"logs", "x", "-n", "shop", "-C", "elm", "--prefix", "--kubeconfig=" + h.start(t)}, strings.NewReader(""), &out, &errOut)
	want := "[elm/x] \x1b[31mred\x1b[0m\r\x9b\n"
	if code != 0 || out.String() != want {
		t.Errorf("code %d, output %q, want %q; errors %q", code, out.String(), want, errOut.String())
	}
}

// TestHostileHosts: texts from hosts are harmless in the progress and the findings of a run.
func TestHostileHosts(t *testing.T) {
	f := filler{func(string) string { return hostileText }}
	op := filled[lifecyclev1alpha1.Operation](f)
	step := filled[lifecyclev1alpha1.StepRecord](f)
	finding, changes := filled[plan.Finding](f), filled[plan.Changes](f)
	for name, printTo := range map[string]func(s streams){
		"Lines": func(s streams) {
			p := newRunProgress(s.err, true)
			p.step(*step)
			p.verbose = false
			op.Status.Hosts[0].State = lifecyclev1alpha1.StepFailed
			p.record(op)
			op.Status.Hosts[0].State, op.Status.Hosts[0].Stage = lifecyclev1alpha1.StepRunning, "other"
			p.record(op)
		},
		"Steps":    func(s streams) { newProgress(s.err).step(hostileText) },
		"Findings": func(s streams) { _ = printFindings(s.out, []plan.Finding{*finding}) },
		"Plan":     func(s streams) { changes.PrintDetail(neutral.NewWriter(s.out)) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			printTo(streams{out: &out, err: &out})
			if out.Len() == 0 {
				t.Error("nothing is printed")
			}
			for _, problem := range problemsOf(out.String(), false) {
				t.Error(problem)
			}
		})
	}
	t.Run("Terminal", func(t *testing.T) {
		var out bytes.Buffer
		p := newRunProgress(&out, false)
		p.terminal = true
		op.Status.Phase, op.Status.Hosts[0].State = lifecyclev1alpha1.PhaseRunning, lifecyclev1alpha1.StepFailed
		p.record(op)
		p.erase()
		steps := newProgress(&out)
		steps.terminal, steps.width = true, 200
		steps.step(hostileText)
		own := strings.NewReplacer("\r\n", "\n", "\x1b[2A", "", "\r\x1b[J", "", "\x1b[K", "", "\r", "")
		for _, problem := range problemsOf(own.Replace(out.String()), false) {
			t.Error(problem)
		}
	})
}

// TestServerLog: no text adds a line or a control character to the log of a server. This holds
// for our entries and for those of client-go and net/http.
func TestServerLog(t *testing.T) {
	before := slog.Default()
	defer func() {
		klog.SetLogger(logr.Discard())
		slog.SetDefault(before)
		log.SetOutput(os.Stderr)
	}()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			entries, err := newLog(streams{err: &out}, format, 0)
			if err != nil {
				t.Fatal(err)
			}
			log.Print(hostileText)
			entries.Info(hostileText, "name", hostileText, "objects", []string{hostileText})
			entries.WithName(hostileText).Error(fmt.Errorf("member: %s%s", hostileText, longText), "failed", "body", longText)
			klog.Warningf("watch of %s", hostileText)
			klog.ErrorS(nil, hostileText, "object", runtime.RawExtension{Raw: []byte(`"` + "\u202e" + `"`)})
			for _, problem := range problemsOf(out.String(), false) {
				t.Error(problem)
			}
			if lines := strings.Count(out.String(), "\n"); lines != 5 {
				t.Errorf("%d lines", lines)
			}
			if longestLine(out.String()) > 100<<10 {
				t.Error("an entry is long")
			}
		})
	}
}

// TestOnlySayFormats: commands format text only with say, which makes it harmless. fmt prints
// only constants to a stream, and control characters of progress.
func TestOnlySayFormats(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "progress.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			of, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if in, ok := of.X.(*ast.Ident); !ok || in.Name != "fmt" || !strings.HasPrefix(of.Sel.Name, "Fprint") && !strings.HasPrefix(of.Sel.Name, "Print") {
				return true
			}
			for _, arg := range call.Args[min(len(call.Args), 1):] {
				if literal, ok := arg.(*ast.BasicLit); !ok || literal.Kind != token.STRING {
					t.Errorf("%s: fmt.%s prints text that may be foreign: use say", set.Position(call.Pos()), of.Sel.Name)
					break
				}
			}
			return true
		})
	}
}
