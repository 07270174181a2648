package search

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/net/websocket"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// isWebSocket reports whether the headers of a request ask for a WebSocket. User interfaces in
// browsers make their watches over WebSockets.
func isWebSocket(r *http.Request) bool {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return false
	}
	for _, header := range r.Header.Values("Connection") {
		for part := range strings.SplitSeq(header, ",") {
			if strings.EqualFold(strings.TrimSpace(part), "upgrade") {
				return true
			}
		}
	}
	return false
}

// overWebSocket upgrades the request to a WebSocket and calls run, until run returns. The ctx of
// run ends when the client disconnects. Before, f.out and f.write are set so that each event is one
// message, as API servers send it: text for JSON, else binary. The upgrade has the headers of w. A
// request without an origin is refused.
func (f *watch) overWebSocket(ctx context.Context, w http.ResponseWriter, r *http.Request, encoding wire, run func(context.Context)) {
	header := w.Header().Clone() // warnings
	header.Del("Content-Type")
	websocket.Server{
		Handshake: func(config *websocket.Config, r *http.Request) (err error) {
			if config.Origin, err = websocket.Origin(config, r); err == nil && config.Origin == nil {
				err = errors.New("the request has no origin")
			}
			config.Header = header
			return err
		},
		Handler: func(conn *websocket.Conn) {
			ctx, gone := context.WithCancel(ctx)
			defer gone()
			go func() {
				defer gone()
				// clients send nothing; an error means that they disconnected
				_, _ = io.Copy(io.Discard, conn)
			}()
			f.out = messages{conn}
			f.write = func(kind apiwatch.EventType, object any) error {
				event, err := encoding.event(kind, object)
				if err != nil {
					return err
				}
				if encoding == inJSON {
					return websocket.Message.Send(conn, string(event))
				}
				return websocket.Message.Send(conn, event)
			}
			run(ctx)
		},
	}.ServeHTTP(taken{w}, r)
}

// messages is the sender of a watch over a WebSocket. Each write is sent at once as a message.
type messages struct{ *websocket.Conn }

// Flush implements sender.
func (messages) Flush() error { return nil }

// taken adds Hijack to a response writer that may only wrap one with that method. The WebSocket
// takes the connection over with it.
type taken struct{ http.ResponseWriter }

// Hijack implements http.Hijacker.
func (t taken) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(t.ResponseWriter).Hijack()
}
