package apply

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// parsed returns the object that a YAML text describes.
func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return o
}

// door returns a kubeconfig that reaches a server through a proxy. answered reports whether it
// answered the request itself.
func (f *fleet) door(server int, answered func(w http.ResponseWriter, r *http.Request) bool) []byte {
	f.t.Helper()
	target, err := url.Parse(testenv.Config(server).Host)
	f.must(err)
	through, err := rest.TransportFor(testenv.Config(server))
	f.must(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Header.Del("Authorization") },
		Transport: through, FlushInterval: -1,
	}
	door := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answered(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	f.t.Cleanup(door.Close)
	kubeconfig, err := clientcmd.Load(testenv.Kubeconfig(server))
	f.must(err)
	for _, c := range kubeconfig.Clusters {
		c.Server, c.CertificateAuthorityData = door.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: door.Certificate().Raw})
	}
	raw, err := clientcmd.Write(*kubeconfig)
	f.must(err)
	return raw
}

func TestTakenFromUs(t *testing.T) {
	for name, tc := range map[string]struct {
		manifest, live, ours string
		want                 bool
	}{
		"AsApplied":         {`data: {a: x}`, `data: {a: x}`, `{"f:data":{"f:a":{}}}`, false},
		"ChangedByAWebhook": {`data: {a: x}`, `data: {a: y}`, `{"f:data":{"f:a":{}}}`, false},
		"DroppedByTheAPI":   {`data: {a: x, b: y}`, `data: {a: x}`, `{"f:data":{"f:a":{},"f:b":{}}}`, false},
		"ChangedByOthers":   {`data: {a: x}`, `data: {a: y}`, `{"f:data":{"f:b":{}}}`, true},
		"TakenByOthers":     {`data: {a: x}`, `data: {a: y}`, `{"f:metadata":{}}`, true},
		"RemovedByOthers":   {`data: {a: x}`, `{}`, `{"f:metadata":{}}`, true},
		"TheirsAndTheSame":  {`data: {a: x}`, `data: {a: x}`, `{}`, false},
		"NobodyKnows":       {`data: {a: x}`, `data: {a: y}`, ``, true},
		"AnElementByKey": {
			`spec: {ports: [{port: 80, protocol: TCP, name: http}]}`, `spec: {ports: [{port: 80, protocol: TCP, name: web}]}`,
			`{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:name":{}}}}}`, false,
		},
		"AnElementByKeyOfOthers": {
			`spec: {ports: [{port: 80, protocol: TCP, name: http}]}`, `spec: {ports: [{port: 80, protocol: TCP, name: web}]}`,
			`{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}`, true,
		},
		"AnElementWithADefaultKey": {
			`spec: {ports: [{port: 80, name: http}]}`, `spec: {ports: [{port: 80, protocol: TCP, name: web}]}`,
			`{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:name":{}}}}}`, false,
		},
		"AnElementOfASet":         {`metadata: {finalizers: [a]}`, `metadata: {}`, `{"f:metadata":{"f:finalizers":{"v:\"a\"":{}}}}`, false},
		"AnElementOfASetIsGone":   {`metadata: {finalizers: [a]}`, `metadata: {}`, `{"f:metadata":{"f:finalizers":{"v:\"b\"":{}}}}`, true},
		"AListAsAWhole":           {`spec: {args: [a, b]}`, `spec: {args: [x, a, b]}`, `{"f:spec":{"f:args":{}}}`, false},
		"AListAsAWholeOfOthers":   {`spec: {args: [a, b]}`, `spec: {args: [x, a, b]}`, `{"f:spec":{"f:other":{}}}`, true},
		"AMapAsAWhole":            {`spec: {selector: {a: b}}`, `spec: {selector: {a: c}}`, `{"f:spec":{"f:selector":{}}}`, false},
		"MoreThanTheManifestHas":  {`data: {a: x}`, `data: {a: x, b: y}`, `{"f:data":{"f:a":{}}}`, false},
		"WrittenInOtherWords":     {`spec: {cpu: 1000m}`, `spec: {cpu: "1"}`, `{}`, false},
		"AnElementByNameOfOthers": {`spec: {c: [{name: a, image: x}]}`, `spec: {c: [{name: s}, {name: a, image: y}]}`, `{"f:spec":{"f:c":{"k:{\"name\":\"a\"}":{"f:name":{}}}}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			const head = "apiVersion: v1\nkind: ConfigMap\n"
			live := parsed(t, head+strings.TrimPrefix(tc.live, "{}"))
			if tc.ours != "" {
				meta, _ := live.Object["metadata"].(map[string]any)
				if meta == nil {
					meta = map[string]any{}
				}
				entry := parsed(t, head+"entry: {manager: orrery, operation: Apply, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: "+tc.ours+"}").Object["entry"]
				meta["managedFields"] = []any{entry}
				live.Object["metadata"] = meta
			}
			if got := takenFromUs(parsed(t, head+tc.manifest), live); got != tc.want {
				t.Errorf("taken: %t, want %t", got, tc.want)
			}
		})
	}
}

// After a loss of the records, a cluster does not let the hub read a copy. Its state is
// unknown: the result is no rejection, and nothing is written.
func TestACopyThatCannotBeReadIsUnknown(t *testing.T) {
	f := newFleet(t)
	var forbid atomic.Bool
	var refused atomic.Int64
	f.start()
	f.join("fir", f.door(oakServer, func(w http.ResponseWriter, r *http.Request) bool {
		if !forbid.Load() || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/configmaps/a") {
			return false
		}
		refused.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`))
		return true
	}))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	b := f.bind(configMap(ns, "a", "1"), nil, "fir")
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	f.stop()
	f.records = newMemory()
	applies := f.calls("apply")
	forbid.Store(true)
	f.start()
	f.eventually("it was asked for twice", func() error {
		if refused.Load() < 2 {
			return errors.New("it was not")
		}
		return nil
	})
	if r, known := f.applier.Result(b.UID, "fir"); !known || r.Reason != workv1alpha2.ReasonListFails || !strings.Contains(r.Message, "the verb get") {
		t.Errorf("the result is %+v, known %t, want that the verb get is missing", r, known)
	}
	forbid.Store(false)
	f.result(b, "fir", workv1alpha2.ReasonFullyApplied)
	if made := f.calls("apply") - applies; made != 0 {
		t.Errorf("%v applies were made, want none", made)
	}
	f.unjoin("fir")
}
