package proxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
)

// confined are the headers of answers that stop at a proxy. A client would apply them to all of the
// hub's address, or answer them with a password.
var confined = []string{
	"Set-Cookie", "Set-Cookie2",
	"Www-Authenticate", "Authentication-Info", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints",
	"Service-Worker-Allowed", "Strict-Transport-Security",
	"Trailer",
}

// Confine returns a transport for an httputil.ReverseProxy. Its answers have no confined headers
// and no trailers, and informational answers such as 103 Early Hints are dropped. Bodies and
// upgraded connections are those of next.
func Confine(next http.RoundTripper) http.RoundTripper { return confinement{next} }

type confinement struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c confinement) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r.WithContext(untraced{r.Context()})) //nolint:contextcheck // it wraps the request's
	if err != nil {
		return nil, err //nolint:wrapcheck // it is as if it were that
	}
	// The transport adds trailers to its own answer when the body has ended. A copy never gets
	// them.
	confinedAnswer := *answer
	confinedAnswer.Trailer = nil
	for _, name := range confined {
		confinedAnswer.Header.Del(name)
	}
	return &confinedAnswer, nil
}

// untraced is a context without an httptrace.ClientTrace. httputil.ReverseProxy forwards
// informational answers, with all their headers, from such a trace.
type untraced struct{ context.Context } //nolint:containedctx // it is a context

// Value implements context.Context.
func (c untraced) Value(key any) any {
	value := c.Context.Value(key)
	if _, ok := value.(*httptrace.ClientTrace); ok {
		return nil
	}
	return value
}
