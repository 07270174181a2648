package pki

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Expiry is when a certificate ends.
type Expiry struct {
	// Name of the certificate, such as ca or host-1/kubelet.
	Name string `json:"name"`
	// Authority is the name of the authority that signed it; empty of an authority.
	Authority string `json:"authority,omitempty"`
	// NotAfter is its end.
	NotAfter time.Time `json:"notAfter"`
	// Limit is the end that a successor would have at most: that of the authority.
	Limit time.Time `json:"-"`
}

// Expiries lists when the certificates of leaves end, and their authorities, the first to end first. What is missing or
// cannot be read is left out.
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

// IsAuthority is true of an authority.
func (e Expiry) IsAuthority() bool { return e.Authority == "" }

// Due tells whether a leaf is to be renewed, as KeyPair.Due does.
func (e Expiry) Due(now time.Time) bool {
	return !e.IsAuthority() && due(e.NotAfter, e.Limit, now)
}

// Near tells whether somebody has to be warned: of a leaf that is due, and of an authority that ends within LeafLifetime, for
// what it signs ends with it.
func (e Expiry) Near(now time.Time) bool {
	return e.Due(now) || e.IsAuthority() && now.Add(LeafLifetime).After(e.NotAfter)
}
