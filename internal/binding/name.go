package binding

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// NameFor returns the name that placement gives to the binding of a template: NAME-KIND for
// built-in kinds of Kubernetes, else NAME-KIND.GROUP. A name that is too long, or not valid for a
// binding, is made valid and ends with a hash of the template's group, kind and name. So names of
// RBAC roles with colons become valid.
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

// hashed returns a name that is valid for a binding: name, changed and cut if necessary, with
// a hash of the template at its end.
func hashed(name string, t Template) string {
	sum := sha256.Sum256([]byte(t.Group + "/" + t.Kind + "/" + t.Name))
	suffix := "-" + hex.EncodeToString(sum[:5])
	// A dot needs a letter or digit on both sides, so dots are replaced as well.
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	name = name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(suffix))]
	return strings.Trim(name, "-") + suffix
}
