package search

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// comparedKind is a type whose objects are created, changed and requested at random.
type comparedKind struct {
	gvk        schema.GroupVersionKind
	resource   string
	namespaced bool
	past       bool // the type has a history
	// fields are those that API servers accept in field selectors, with values for them.
	fields map[string][]string
	// bare is true if tables of the fleet have only names and ages for the type.
	bare bool
	// spec is nil if the objects are created in another API group or version.
	spec func(random *rand.Rand, o map[string]any)
	// status is nil if the objects get no status.
	status func(random *rand.Rand, o map[string]any) map[string]any
	fixed  bool // spec is not changed after the creation
}

// one returns one of the values.
func one[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// maybe sets a field to one of the values, or leaves it out.
func maybe[T any](random *rand.Rand, o map[string]any, field string, of ...T) {
	if i := random.IntN(len(of) + 1); i < len(of) {
		o[field] = of[i]
	}
}

var comparedKinds = []comparedKind{
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, resource: "configmaps", namespaced: true, past: true,
		spec: func(random *rand.Rand, o map[string]any) { o["data"] = map[string]any{"a": fmt.Sprint(random.IntN(3))} },
	},
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, resource: "pods", namespaced: true, past: true, fixed: true,
		fields: map[string][]string{
			"spec.hostNetwork": {"true", "false", "", "no"}, "spec.nodeName": {"n1", "n2", ""}, "spec.host": {"n1", ""}, "spec.restartPolicy": {"Always", "Never", ""},
			"spec.schedulerName": {"default-scheduler", "other"}, "spec.serviceAccountName": {"robot", ""}, "status.phase": {"Pending", "Running", "Succeeded", "Failed", ""},
			"status.podIP": {"10.0.0.1", ""}, "status.podIPs": {"10.0.0.1", ""}, "status.nominatedNodeName": {"n1", ""},
		},
		spec: func(random *rand.Rand, o map[string]any) {
			spec := map[string]any{"containers": []any{map[string]any{"name": "a", "image": "b:1"}}}
			maybe(random, spec, "hostNetwork", true, false)
			maybe(random, spec, "nodeName", "n1", "n2")
			maybe(random, spec, "restartPolicy", "Always", "Never")
			maybe(random, spec, "schedulerName", "other")
			maybe(random, spec, "serviceAccountName", "robot")
			o["spec"] = spec
		},
		status: func(random *rand.Rand, o map[string]any) map[string]any {
			status := map[string]any{}
			maybe(random, status, "phase", "Pending", "Running", "Succeeded", "Failed")
			maybe(random, status, "podIPs", []any{map[string]any{"ip": "10.0.0.1"}})
			if _, bound, _ := unstructured.NestedString(o, "spec", "nodeName"); !bound {
				maybe(random, status, "nominatedNodeName", "n1")
			}
			return status
		},
	},
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "Node"}, resource: "nodes", past: true, fields: map[string][]string{"spec.unschedulable": {"true", "false", "", "no"}},
		spec: func(random *rand.Rand, o map[string]any) {
			spec := map[string]any{}
			maybe(random, spec, "unschedulable", true, false)
			o["spec"] = spec
		},
	},
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "Service"}, resource: "services", namespaced: true, past: true, fixed: true,
		fields: map[string][]string{"spec.type": {"ClusterIP", "ExternalName", ""}, "spec.clusterIP": {"None", ""}},
		spec: func(random *rand.Rand, o map[string]any) {
			o["spec"] = one(random, map[string]any{"type": "ExternalName", "externalName": "example.org"}, map[string]any{"clusterIP": "None", "ports": []any{map[string]any{"port": int64(80)}}},
				map[string]any{"ports": []any{map[string]any{"port": int64(80)}}})
		},
	},
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "Event"}, resource: "events", namespaced: true, fixed: true,
		fields: map[string][]string{
			"source": {"kubelet", "sched", ""}, "reportingComponent": {"sched", ""}, "reason": {"Pulled", "Failed", ""}, "type": {"Normal", "Warning", ""},
			"involvedObject.kind": {"Pod", "Node", ""}, "involvedObject.name": {"web", ""}, "involvedObject.uid": {"u1", ""}, "involvedObject.fieldPath": {"spec.containers{a}", ""},
			"involvedObject.apiVersion": {"v1", ""}, "involvedObject.resourceVersion": {"7", ""},
		},
		spec: func(random *rand.Rand, o map[string]any) {
			source, about := map[string]any{}, map[string]any{"namespace": o["metadata"].(map[string]any)["namespace"]}
			maybe(random, source, "component", "kubelet", "sched")
			maybe(random, source, "host", "n1")
			maybe(random, o, "reportingComponent", "sched", "kubelet")
			maybe(random, o, "reportingInstance", "i1")
			maybe(random, o, "reason", "Pulled", "Failed")
			maybe(random, o, "type", "Normal", "Warning")
			maybe(random, o, "count", int64(3))
			maybe(random, about, "kind", "Pod", "Node")
			maybe(random, about, "name", "web")
			maybe(random, about, "uid", "u1")
			maybe(random, about, "fieldPath", "spec.containers{a}")
			maybe(random, about, "apiVersion", "v1")
			maybe(random, about, "resourceVersion", "7")
			o["source"], o["involvedObject"] = source, about
		},
	},
	{
		gvk: schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}, resource: "events", namespaced: true,
		fields: map[string][]string{
			"reportingController": {"sched", ""}, "reason": {"Pulled", "Failed", ""}, "type": {"Normal", "Warning", ""}, "regarding.kind": {"Pod", "Node", ""}, "regarding.name": {"web", ""},
			"regarding.uid": {"u1", ""}, "regarding.fieldPath": {"spec.containers{a}", ""}, "regarding.apiVersion": {"v1", ""}, "regarding.resourceVersion": {"7", ""},
		},
	},
	{
		gvk: schema.GroupVersionKind{Group: "certificates.k8s.io", Version: "v1", Kind: "CertificateSigningRequest"}, resource: "certificatesigningrequests", past: true, fixed: true, bare: true,
		fields: map[string][]string{"spec.signerName": {"example.org/a", "example.org/b", ""}},
		spec: func(random *rand.Rand, o map[string]any) {
			o["spec"] = map[string]any{"request": signingRequest(), "usages": []any{"client auth"}, "signerName": one(random, "example.org/a", "example.org/b")}
		},
	},
	{
		gvk: schema.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceSlice"}, resource: "resourceslices", past: true, fixed: true, bare: true,
		fields: map[string][]string{"spec.nodeName": {"n1", ""}, "spec.driver": {"a.example.org", "b.example.org", ""}},
		spec: func(random *rand.Rand, o map[string]any) {
			spec := map[string]any{
				"driver": one(random, "a.example.org", "b.example.org"), "pool": map[string]any{"name": "p", "generation": int64(1), "resourceSliceCount": int64(1)},
			}
			if spec["nodeName"] = "n1"; random.IntN(2) == 0 {
				delete(spec, "nodeName")
				spec["allNodes"] = true
			}
			o["spec"] = spec
		},
	},
	{
		gvk: schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}, resource: "replicationcontrollers", namespaced: true, past: true, fixed: true,
		fields: map[string][]string{"status.replicas": {"0", "2", "", "02"}},
		spec: func(_ *rand.Rand, o map[string]any) {
			o["spec"] = map[string]any{"selector": map[string]any{"a": "b"}, "template": podTemplate("Always")}
		},
		status: func(random *rand.Rand, _ map[string]any) map[string]any {
			return map[string]any{"replicas": int64(one(random, 0, 2))}
		},
	},
	{
		gvk: schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, resource: "jobs", namespaced: true, past: true, fixed: true,
		fields: map[string][]string{"status.successful": {"0", "1", "2", "", "00"}},
		spec: func(_ *rand.Rand, o map[string]any) {
			o["spec"] = map[string]any{"completions": int64(5), "template": podTemplate("Never")}
		},
		// The number of succeeded pods must not decrease.
		status: func(random *rand.Rand, o map[string]any) map[string]any {
			succeeded, _, _ := unstructured.NestedInt64(o, "status", "succeeded")
			return map[string]any{"succeeded": max(succeeded, int64(one(random, 0, 1, 2)))}
		},
	},
	{
		gvk: schema.GroupVersionKind{Group: "differential.example.org", Version: "v1", Kind: "Gadget"}, resource: "gadgets", namespaced: true, past: true,
		fields: map[string][]string{
			"spec.on": {"true", "false", ""}, "spec.num": {"0", "7", "9007199254740993", "-9223372036854775808", "9223372036854775807", ""}, "spec.s": {"x", "a=b", `c\d`, "e,f", " g", "", "é"},
		},
		spec: func(random *rand.Rand, o map[string]any) {
			spec := map[string]any{}
			maybe(random, spec, "on", true, false)
			maybe(random, spec, "num", int64(0), 7, 9007199254740993, -9223372036854775808, 9223372036854775807)
			maybe(random, spec, "s", "x", "a=b", `c\d`, "e,f", " g", "", "é")
			maybe(random, spec, "ratio", 0.5, 1e-7)
			o["spec"] = spec
		},
	},
}

// signingRequest returns a request for a certificate that API servers accept.
var signingRequest = sync.OnceValue(func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		panic(err)
	}
	request, err := x509.CreateCertificateRequest(crand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
})

func podTemplate(restart string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"a": "b"}},
		"spec":     map[string]any{"restartPolicy": restart, "containers": []any{map[string]any{"name": "a", "image": "b:1"}}},
	}
}

// gadgetDefinition defines gadgets, with columns and with fields that can be selected.
const gadgetDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gadgets.differential.example.org"},"spec":{
"group":"differential.example.org","scope":"Namespaced","names":{"kind":"Gadget","plural":"gadgets","singular":"gadget"},"versions":[{"name":"v1","served":true,"storage":true,
"selectableFields":[{"jsonPath":".spec.on"},{"jsonPath":".spec.num"},{"jsonPath":".spec.s"}],
"additionalPrinterColumns":[{"name":"On","type":"boolean","jsonPath":".spec.on"},{"name":"Num","type":"integer","jsonPath":".spec.num"},{"name":"Text","type":"string","jsonPath":".spec.s"},
{"name":"Ratio","type":"number","jsonPath":".spec.ratio"},{"name":"Nothing","type":"string","jsonPath":".spec.nothing"}],
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"on":{"type":"boolean"},"num":{"type":"integer","format":"int64"},"s":{"type":"string"},
"ratio":{"type":"number"},"nothing":{"type":"string","nullable":true}}}}}}}]}}`
