package render

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// stripWebhooks removes, in place, placeholders for CA bundles from the webhooks of a
// ValidatingWebhookConfiguration or MutatingWebhookConfiguration.
func stripWebhooks(o *unstructured.Unstructured) {
	webhooks, _ := o.Object["webhooks"].([]any)
	for _, w := range webhooks {
		webhook, _ := w.(map[string]any)
		stripCABundle(webhook, "clientConfig")
	}
}

// stripCABundle removes the caBundle of the map at a path, in place, if it contains no certificate,
// such as the line feed that generators write (Cg==). Such a bundle is a placeholder that an
// injector in the cluster replaces: the field belongs to the cluster.
func stripCABundle(o map[string]any, path ...string) {
	config, _ := field(o, path...).(map[string]any)
	if text, ok := config["caBundle"].(string); ok && !holdsCertificate(text) {
		delete(config, "caBundle")
	}
}

// holdsCertificate reports whether a text in base64 contains a certificate in PEM.
func holdsCertificate(text string) bool {
	rest, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return false
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			return true
		}
	}
}
