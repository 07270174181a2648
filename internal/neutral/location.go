package neutral

import (
	"net/url"
	"strings"
)

// ShownLocation returns a URL as messages may show it: without the password, the values of the
// query and the fragment, which may be secret. Of a URL that cannot be parsed, it returns only the
// scheme. Other locations, such as paths, are returned as they are.
func ShownLocation(location string) string {
	scheme, _, isURL := strings.Cut(location, "://")
	u, err := url.Parse(location)
	switch {
	case err != nil && isURL:
		return scheme + "://xxxxx"
	case err != nil, !isURL && u.Scheme != "http" && u.Scheme != "https":
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
