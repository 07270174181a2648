package binding

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// NameFor is the name of a template's binding: NAME-KIND for the kinds that Kubernetes has
// built in, else NAME-KIND.GROUP. A name that would be too long, or is none for a binding
// (those of RBAC roles may hold colons), is made fit and gets a hash of the template's own.
func NameFor(t Template) string {
	name := t.Name + "-" + strings.ToLower(t.Kind)
	if strings.Contains(t.Group, ".") && !strings.HasSuffix(t.Group, ".k8s.io") {
		name += "." + t.Group
	}
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	return hashed(name, t)
}

// hashed makes a name of a template's own.
func hashed(name string, t Template) string {
	sum := sha256.Sum256([]byte(t.Group + "/" + t.Kind + "/" + t.Name))
	suffix := "-" + hex.EncodeToString(sum[:5])
	// Dots would need a letter or digit on both sides of each, so they go too.
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	name = name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(suffix))]
	return strings.Trim(name, "-") + suffix
}
