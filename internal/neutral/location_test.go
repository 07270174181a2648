package neutral

import "testing"

// TestShownLocation: a plan, which is printed and stored, has no passwords or tokens of URLs.
func TestShownLocation(t *testing.T) {
	for name, c := range map[string]struct{ location, want string }{
		"Plain":        {"https://example.com/a.yaml", "https://example.com/a.yaml"},
		"Password":     {"https://me:secret@example.com/a.yaml", "https://me:xxxxx@example.com/a.yaml"},
		"Token":        {"https://example.com/a.yaml?token=secret", "https://example.com/a.yaml?token=xxxxx"},
		"InTheirOrder": {"https://example.com/a?z=secret&a=secret&secret", "https://example.com/a?z=xxxxx&a=xxxxx&xxxxx"},
		"NoQuery":      {"https://example.com/a?x=%zzsecret;y=secret", "https://example.com/a?x=xxxxx"},
		"Fragment":     {"https://example.com/a#access_token=secret", "https://example.com/a"},
		"OtherScheme":  {"oci://me:secret@example.com/a", "oci://me:xxxxx@example.com/a"},
		"Unparsable":   {"https://me:sec%zzret@example.com/a", "https://xxxxx"},
		"NoHost":       {"https:///a?token=secret", "https:///a?token=xxxxx"},
		"NoSlashes":    {"http:a?token=secret", "http:a?token=xxxxx"},
		"File":         {"file:///srv/a.yaml", "file:///srv/a.yaml"},
		"PathWithSign": {"/srv/100%/a.yaml", "/srv/100%/a.yaml"},
		"Path":         {"/srv/what?is=this.yaml", "/srv/what?is=this.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ShownLocation(c.location); got != c.want {
				t.Errorf("%s is shown as %s, want %s", c.location, got, c.want)
			}
		})
	}
}
