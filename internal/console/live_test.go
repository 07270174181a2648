package console

import (
	"io"
	"net/http"
	"testing"

	"github.com/coder/websocket"
	"k8s.io/apiserver/pkg/endpoints/request"

	"orrery.dev/orrery/internal/testenv"
)

// TestLiveHasASession: the handler of live windows gets the user of a session, ends with the
// session, and is reached only from pages of the console.
func TestLiveHasASession(t *testing.T) {
	s := newSite(t, testenv.Config(0), func(c *Console) {
		c.options.Live = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, ok := request.UserFrom(r.Context())
			if !ok {
				http.Error(w, "no user", http.StatusTeapot)
				return
			}
			if r.Header.Get("Upgrade") != "" {
				if socket, err := websocket.Accept(w, r, nil); err == nil {
					_ = socket.CloseNow()
				}
				return
			}
			_, _ = io.WriteString(w, who.GetName())
			_ = http.NewResponseController(w).Flush()
			if r.URL.Query().Has("stay") {
				<-r.Context().Done()
			}
		})
	})
	s.browser().want(http.StatusUnauthorized, http.MethodGet, livePath, "")
	b := s.login(alice)
	if got := b.want(http.StatusOK, http.MethodGet, livePath, ""); got != "alice" {
		t.Error(got)
	}
	b.want(http.StatusForbidden, http.MethodGet, livePath, "", "Upgrade", "websocket", "Connection", "Upgrade", "Origin", "https://evil.example.com")
	b.want(http.StatusSwitchingProtocols, http.MethodGet, livePath, "", "Upgrade", "websocket", "Connection", "Upgrade",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	stays := b.start(http.MethodGet, livePath+"?stay=true", "")
	b.want(http.StatusNoContent, http.MethodDelete, sessionPath, "")
	if _, err := io.ReadAll(stays.Body); err != nil {
		t.Error(err)
	}
}
