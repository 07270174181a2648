package proxy

import (
	"context"
	"net"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/proxy/proxytest"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

// TestAnswersAreConfined: no cookies, challenges, trailers or early hints of a member reach a
// client, whether the hub dials the member or its agent the hub. Streams and upgrades pass.
func TestAnswersAreConfined(t *testing.T) {
	hostile := proxytest.NewServer()
	direct := fake(t, "", hostile.ServeHTTP)
	site := tunneltest.New(t)
	site.Run("oak", "a", strings.TrimPrefix(direct.config.Host, "https://"))
	byAgent := *direct
	byAgent.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return site.Gateway.Dial(ctx, "oak", tunnel.APIServer)
	}
	for name, member := range map[string]*fakeMember{"Direct": direct, "ByAgent": &byAgent} {
		t.Run(name, func(t *testing.T) {
			server, _ := front(t, member, alice)
			proxytest.Check(t, hostile, proxytest.Proxy{Path: "/oak", Dial: func() net.Conn {
				c, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				return c
			}})
		})
	}
}
