package catalog

import (
	"net/url"
	"strings"
)

// ShownLocation returns a URL for messages: without the password and the values of the query, which
// may be secret. It returns other locations, such as paths, unchanged.
func ShownLocation(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return location
	}
	if u.RawQuery != "" {
		shown := strings.Split(u.RawQuery, "&")
		for i, part := range shown {
			shown[i] = "xxxxx"
			if name, _, ok := strings.Cut(part, "="); ok {
				shown[i] = name + "=xxxxx"
			}
		}
		u.RawQuery = strings.Join(shown, "&")
	}
	u.Fragment, u.RawFragment = "", ""
	return u.Redacted()
}
