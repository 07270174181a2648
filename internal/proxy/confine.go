package proxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
)

// confined are the headers of answers that Confine removes. A client would apply them to the whole
// address of the hub, such as cookies, or answer them with a password.
var confined = []string{
	"Set-Cookie", "Set-Cookie2",
	"Www-Authenticate", "Authentication-Info", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints",
	"Service-Worker-Allowed", "Strict-Transport-Security",
	"Trailer",
}

// Confine returns a transport for an httputil.ReverseProxy, so that a server behind the hub reaches
// a browser or client only with the content of its answers. It removes the confined headers,
// trailers, and informational answers such as 103 Early Hints. Bodies, upgraded connections and
// errors of next pass unchanged.
func Confine(next http.RoundTripper) http.RoundTripper { return confinement{next} }

// confinement is the transport that Confine returns.
type confinement struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper. An error is that of the next transport.
func (c confinement) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r.WithContext(untraced{r.Context()})) //nolint:contextcheck // it wraps the request's
	if err != nil {
		return nil, err //nolint:wrapcheck // it is as if it were that
	}
	// When the body has ended, the transport adds trailers to the answer that it returned. The copy
	// does not get them.
	confinedAnswer := *answer
	confinedAnswer.Trailer = nil
	for _, name := range confined {
		confinedAnswer.Header.Del(name)
	}
	return &confinedAnswer, nil
}

// untraced is a context in which an httptrace.ClientTrace cannot be found. httputil.ReverseProxy
// puts such a trace into the context, and forwards informational answers with all their headers
// from it.
type untraced struct{ context.Context } //nolint:containedctx // it is a context

// Value implements context.Context. It returns nil in place of an httptrace.ClientTrace.
func (c untraced) Value(key any) any {
	value := c.Context.Value(key)
	if _, ok := value.(*httptrace.ClientTrace); ok {
		return nil
	}
	return value
}
