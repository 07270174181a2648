package render

import (
	"encoding/base64"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"
)

// A CA bundle without a certificate is for the cluster to fill, so none is sent. A bundle with
// a certificate belongs to the template.
func TestCABundles(t *testing.T) {
	pem, _, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	bundles := map[string]struct {
		text  string
		stays bool
	}{
		"None":          {"", false},
		"LineFeed":      {"Cg==", false},
		"Words":         {encode([]byte("to be injected")), false},
		"NoBase64":      {"<ca>", false},
		"NoCertificate": {encode([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), false},
		"Certificate":   {encode(pem), true},
		"AfterComments": {encode(append([]byte("# ours\n"), pem...)), true},
	}
	for kind, tc := range map[string]struct {
		manifest string
		path     func(o map[string]any) map[string]any // the map that has the bundle
	}{
		"ValidatingWebhookConfiguration": {
			`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: x}, webhooks: [{name: a.b.c, clientConfig: {url: "https://x"}}]}`,
			func(o map[string]any) map[string]any {
				return o["webhooks"].([]any)[0].(map[string]any)["clientConfig"].(map[string]any)
			},
		},
		"MutatingWebhookConfiguration": {
			`{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: x}, webhooks: [{name: a.b.c, clientConfig: {url: "https://x"}}]}`,
			func(o map[string]any) map[string]any {
				return o["webhooks"].([]any)[0].(map[string]any)["clientConfig"].(map[string]any)
			},
		},
		"CustomResourceDefinition": {
			`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {url: "https://x"}}}}}`,
			func(o map[string]any) map[string]any {
				return field(o, "spec", "conversion", "webhook", "clientConfig").(map[string]any)
			},
		},
		"APIService": {
			`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: x}, spec: {service: {name: x, namespace: y}}}`,
			func(o map[string]any) map[string]any { return field(o, "spec").(map[string]any) },
		},
	} {
		for name, bundle := range bundles {
			t.Run(kind+"/"+name, func(t *testing.T) {
				template := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(tc.manifest), &template.Object); err != nil {
					t.Fatal(err)
				}
				want := runtimeCopy(template)
				tc.path(template.Object)["caBundle"] = bundle.text
				if bundle.stays {
					tc.path(want)["caBundle"] = bundle.text
				}
				before := runtimeCopy(template)
				got, err := strip(template)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got.Object); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(before, template.Object); diff != "" {
					t.Errorf("the template was changed (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func runtimeCopy(o *unstructured.Unstructured) map[string]any { return o.DeepCopy().Object }
