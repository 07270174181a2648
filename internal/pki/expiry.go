package pki

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Expiry is the expiry of a certificate.
type Expiry struct {
	// Name of the certificate, such as ca or host-1/kubelet.
	Name string `json:"name"`
	// Authority is the name of the authority that signed it; "" for an authority.
	Authority string `json:"authority,omitempty"`
	// NotAfter is when the certificate expires.
	NotAfter time.Time `json:"notAfter"`
	// Limit is the latest expiry of a new certificate: that of the authority.
	Limit time.Time `json:"-"`
}

// Expiries returns the expiries of the leaves' certificates and of their authorities, the earliest
// first. Missing and unreadable certificates are left out.
func (b Bundle) Expiries(leaves []Leaf) []Expiry {
	var list []Expiry
	ends := map[string]time.Time{}
	for _, l := range leaves {
		if _, ok := ends[l.Authority]; !ok {
			cert, err := b[l.Authority].Certificate()
			if err != nil {
				continue
			}
			ends[l.Authority] = cert.NotAfter
			list = append(list, Expiry{Name: l.Authority, NotAfter: cert.NotAfter, Limit: cert.NotAfter})
		}
		if cert, err := b[l.Name].Certificate(); err == nil {
			list = append(list, Expiry{Name: l.Name, Authority: l.Authority, NotAfter: cert.NotAfter, Limit: ends[l.Authority]})
		}
	}
	slices.SortFunc(list, func(a, b Expiry) int {
		return cmp.Or(a.NotAfter.Compare(b.NotAfter), strings.Compare(a.Name, b.Name))
	})
	return list
}

// IsAuthority reports whether the certificate is an authority.
func (e Expiry) IsAuthority() bool { return e.Authority == "" }

// Due reports whether a leaf should be renewed, as KeyPair.Due does.
func (e Expiry) Due(now time.Time) bool {
	return !e.IsAuthority() && due(e.NotAfter, e.Limit, now)
}

// Near reports whether a user should be warned: a leaf is due, or an authority expires within
// LeafLifetime. Certificates expire with their authority.
func (e Expiry) Near(now time.Time) bool {
	return e.Due(now) || e.IsAuthority() && now.Add(LeafLifetime).After(e.NotAfter)
}
