package search

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/store"
)

// BenchmarkFleet measures the time of requests to a large fleet: p50 and p95 in ms of 40
// requests of each class, for pages of 50 (Typed: 12). A time begins before the request is sent
// over TCP and ends when the whole answer is read. BenchmarkMillion of package store leaves the
// store in the directory STORE: 50 clusters, 100 namespaces, OBJECTS objects. The API server of
// a hub, which forwards requests, is not included.
func BenchmarkFleet(b *testing.B) {
	dir := os.Getenv("STORE")
	if dir == "" {
		b.Skip("STORE names no directory: make bench fills one")
	}
	s, err := store.Open(b.Context(), dir)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	clusters := make([]string, 50)
	for i := range clusters {
		clusters[i] = fmt.Sprintf("cluster-%02d", i)
	}
	f := fleetOf(b, s, dir, clusters...)
	for gvk, resource := range map[schema.GroupVersionKind]string{
		podKind: "pods", deploymentKind: "deployments",
		{Group: "apps", Version: "v1", Kind: "ReplicaSet"}: "replicasets", {Version: "v1", Kind: "ConfigMap"}: "configmaps",
	} {
		f.serve(gvk, resource, true, clusters...)
	}
	objects, err := s.Count(b.Context(), store.Query{Resource: "pods"})
	if err != nil || objects == 0 {
		b.Fatal(objects, err)
	}
	apps := max(int(objects)/len(clusters)/4, 1)
	app := func(i int) int { return i * 7919 % apps }
	same := func(query string) func(int) string { return func(int) string { return query } }
	pods := func(format string, a func(i int) int) func(int) string {
		return func(i int) string { return "/api/v1/pods?limit=50&" + fmt.Sprintf(format, a(i)) }
	}
	asked := func(format string, a func(i int) int) func(int) string {
		return func(i int) string { return "/search?limit=50&q=" + url.QueryEscape(fmt.Sprintf(format, a(i))) }
	}
	named := func(i int) int { return i }
	// typed is the request of the console's palette for a text, as a table. begun is its
	// request for a text of two characters: see useObjects in web/src/palette.
	typed := func(format string, a func(i int) int) func(int) string {
		return func(i int) string {
			return "/search?limit=12&q=" + url.QueryEscape(fmt.Sprintf("%q", fmt.Sprintf(format, a(i))))
		}
	}
	begun := func(i int) string { return "/search?limit=12&q=name:" + []string{"ap", "zz", "a5", "0-"}[i%4] + "*" }
	everything := func(authorizationv1.ResourceAttributes) bool { return false }
	tenant := func(namespaces int) func() {
		return func() {
			f.denied = func(what authorizationv1.ResourceAttributes) bool { return what.Namespace == "" }
			f.some = nil
			for n := range namespaces {
				f.some = append(f.some, fmt.Sprintf("namespace-%02d", n))
			}
		}
	}
	for _, class := range []struct {
		name  string
		path  func(i int) string
		begin func()
	}{
		{name: "LabelHit", path: pods("labelSelector=app%%3Dapp-%d", app)},
		{name: "LabelMiss", path: pods("labelSelector=app%%3Dnone-%d", app)},
		{name: "LabelCount", path: func(i int) string {
			return fmt.Sprintf("/api/v1/pods?q=label:team%%3Dteam-%d&group=cluster", app(i)%200)
		}},
		{name: "FieldNewest", path: same("/api/v1/pods?limit=50&fieldSelector=status.phase%3DPending&orderby=creationTimestamp+desc")},
		{name: "Image", path: func(i int) string {
			return fmt.Sprintf("/api/v1/pods?limit=50&q=image:%s", url.QueryEscape(fmt.Sprintf("registry.example.com/team-%d/app-%d:v1.%d", app(i)%200, app(i), app(i)%7)))
		}},
		{name: "NamePrefix", path: pods("q=name:app-%d-*", app)},
		{name: "NameFuzzy", path: pods("labelSelector=internalstorage.clusterpedia.io%%2Ffuzzy-name%%3Dp-%d-0", app)},
		{name: "Newest", path: same("/api/v1/pods?limit=50&orderby=creationTimestamp+desc")},
		{name: "OrderByName", path: same("/api/v1/pods?limit=50&orderby=name+desc")},
		{name: "Namespace", path: func(i int) string { return fmt.Sprintf("/api/v1/namespaces/namespace-%02d/pods?limit=50", i%100) }},
		{name: "DeepPage", path: same("/api/v1/pods?limit=50&offset=10000")},
		{name: "OwnerChain", path: func(i int) string {
			return fmt.Sprintf("/clusters/cluster-%02d/api/v1/namespaces/namespace-%02d/pods?limit=50&ownerName=app-%d&ownerGR=deployments.apps&ownerSeniority=1", i%50, app(i)%100, app(i))
		}},
		{name: "Get", path: func(i int) string {
			return fmt.Sprintf("/clusters/cluster-00/apis/apps/v1/namespaces/namespace-%02d/deployments/app-%d", app(i)%100, app(i))
		}},
		{name: "Tenant12", path: same("/api/v1/pods?limit=50"), begin: tenant(12)},
		// In 50 clusters these are 3,000 grants.
		{name: "Tenant60", path: same("/api/v1/pods?limit=50"), begin: tenant(60)},
		{name: "FullText", path: pods("q=text:app-%d", app)},
		{name: "FullTextCommon", path: same("/api/v1/pods?limit=50&q=text:front")},
		{name: "Palette", path: asked("name:app-%d*", app)},
		{name: "PaletteRare", path: asked("name:zzz%d*", named)},
		{name: "Words", path: asked("app-%d- kind:Pod", app)},
		{name: "TypedTwo", path: begun},
		{name: "TypedCommon", path: typed("app-%d", func(i int) int { return i % 10 })},
		{name: "TypedName", path: typed("app-%d", app)},
		{name: "TypedPart", path: typed("p-%d-0", app)},
		{name: "TypedPod", path: typed("-0-%x", func(i int) int { return i * 1_000 })},
		{name: "TypedNone", path: typed("zzz%d", named)},
		{name: "TypedTenant", path: typed("app-%d", app), begin: tenant(1)},
		{name: "TypedTenantTwo", path: begun, begin: tenant(1)},
		{name: "TypedTenant12", path: typed("app-%d", app), begin: tenant(12)},
		{name: "TypedTenant12Two", path: begun, begin: tenant(12)},
	} {
		b.Run(class.name, func(b *testing.B) {
			f.denied, f.some = everything, nil
			if class.begin != nil {
				class.begin()
			}
			var took []time.Duration
			for b.Loop() {
				for i := range 40 {
					start := time.Now()
					r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, f.url+class.path(i), nil)
					if err != nil {
						b.Fatal(err)
					}
					if strings.HasPrefix(class.name, "Typed") {
						r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
					}
					resp, err := http.DefaultClient.Do(r)
					if err != nil {
						b.Fatal(err)
					}
					body, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
						b.Fatalf("%s: %d %s %v", class.path(i), resp.StatusCode, body[:min(len(body), 500)], err)
					}
					took = append(took, time.Since(start))
					if i == 0 && os.Getenv("SHOW") != "" {
						b.Log(class.path(i), resp.StatusCode, len(body), strings.Count(string(body), `"uid"`))
					}
				}
			}
			slices.Sort(took)
			for share, name := range map[float64]string{0.5: "p50-ms", 0.95: "p95-ms"} {
				b.ReportMetric(took[int(share*float64(len(took)-1))].Seconds()*1000, name)
			}
		})
	}
}
