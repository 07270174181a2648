package pki

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Expiry says when one certificate expires. It is a row of "orrery cluster certs list".
type Expiry struct {
	// Name of the certificate, such as ca or host-1/kubelet.
	Name string `json:"name"`
	// Authority is the name of the authority that signed it; "" for an authority.
	Authority string `json:"authority,omitempty"`
	// NotAfter is when the certificate expires.
	NotAfter time.Time `json:"notAfter"`
	// Limit is the expiry of the authority, which no certificate that it signs can exceed. For an
	// authority it is NotAfter.
	Limit time.Time `json:"-"`
}

// Expiries returns the expiries of the certificates that leaves name and of their authorities, each
// authority once, the earliest expiry first. Missing and unreadable certificates are left out, and
// so is each certificate of a missing or unreadable authority. It does not check whether a
// certificate fits its Leaf.
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

// IsAuthority reports whether this is the expiry of an authority.
func (e Expiry) IsAuthority() bool { return e.Authority == "" }

// Due reports whether the certificate should be renewed at the time now: it expires within
// RenewBefore, and a new certificate would expire later. It is false for an authority.
func (e Expiry) Due(now time.Time) bool {
	return !e.IsAuthority() && due(e.NotAfter, e.Limit, now)
}

// Near reports whether a user should be warned: a certificate is due for renewal, or an authority
// expires within LeafLifetime. New certificates of such an authority are valid for less than
// LeafLifetime.
func (e Expiry) Near(now time.Time) bool {
	return e.Due(now) || e.IsAuthority() && now.Add(LeafLifetime).After(e.NotAfter)
}
