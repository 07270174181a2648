package cli

import (
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/pki"
)

// TestCertificatesThatEndWithTheirAuthority: a certificate that ends soon with its authority, and
// the authority, are not called due or valid, because nothing renews them. A renewal that does
// nothing says so.
func TestCertificatesThatEndWithTheirAuthority(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	day := func(n int) time.Time { return now.AddDate(0, 0, n) }
	leaf := func(ends, limit int) pki.Expiry {
		return pki.Expiry{Name: "a/kubelet", Authority: "ca", NotAfter: day(ends), Limit: day(limit)}
	}
	authority := func(ends int) pki.Expiry {
		return pki.Expiry{Name: "ca", NotAfter: day(ends), Limit: day(ends)}
	}
	for name, c := range map[string]struct {
		list   []pki.Expiry
		states []string
		said   string // by a renewal that has nothing to do; "": some are due
	}{
		"AllValid":         {[]pki.Expiry{leaf(300, 3000), authority(3000)}, []string{"valid", "valid"}, "no certificate ends within 60d; the first, a/kubelet, ends at 2030-10-28T00:00:00Z"},
		"Due":              {[]pki.Expiry{leaf(30, 3000), authority(3000)}, []string{"due", "valid"}, ""},
		"AuthorityInAYear": {[]pki.Expiry{leaf(300, 300), authority(300)}, []string{"valid", "ending"}, "no certificate ends within 60d; the first, a/kubelet, ends at 2030-10-28T00:00:00Z"},
		"DueBefore":        {[]pki.Expiry{leaf(30, 50), authority(50)}, []string{"due", "ending"}, ""},
		"WithAuthority": {
			[]pki.Expiry{leaf(50, 50), authority(50)},
			[]string{"ending", "ending"},
			"nothing was renewed: authority ca ends at 2030-02-20T00:00:00Z, and no certificate that it signs can end later; authorities are not renewed: replace the cluster by a new one",
		},
		"Ended": {
			[]pki.Expiry{authority(-1)},
			[]string{"expired"},
			"nothing was renewed: authority ca ends at 2029-12-31T00:00:00Z, and no certificate that it signs can end later; authorities are not renewed: replace the cluster by a new one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := printCertificates(&out, c.list, now); err != nil {
				t.Fatal(err)
			}
			rows := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
			for i, want := range c.states {
				if !strings.HasSuffix(rows[i], " "+want) {
					t.Errorf("the row is %q, want the state %s", rows[i], want)
				}
			}
			if c.said == "" {
				return
			}
			if got := nothingDue(c.list, now); got != c.said {
				t.Errorf("a renewal says %q, want %q", got, c.said)
			}
		})
	}
}
