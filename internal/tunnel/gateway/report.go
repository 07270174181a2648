package gateway

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"orrery.dev/orrery/internal/slots"
	"orrery.dev/orrery/internal/tunnel"
)

// reportTime limits the processing of one report of an agent.
const reportTime = time.Minute

// Taker processes the report of an agent, and returns the answer to the agent. The agent has proved
// with the certificate that it belongs to the cluster. ctx ends after reportTime.
type Taker func(ctx context.Context, certificate *x509.Certificate, cluster string, report tunnel.Report) tunnel.Receipt

// Reports returns the http.Handler for tunnel.ReportPath. An agent authenticates as on tunnel.Path,
// sends one report, and gets the answer of take. Only one report of a cluster is processed at a
// time; a second one is refused at once.
func (g *Gateway) Reports(take Taker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ws, slot := g.upgrade(w, r); ws != nil {
			g.receive(r.Context(), ws, slot, r.RemoteAddr, take)
			_ = ws.Close() // the answer was sent, or the agent is gone
		}
	})
}

// receive authenticates an agent on the WebSocket ws, reads its report, and sends it the answer of
// take. It releases slot, and does not close ws.
func (g *Gateway) receive(ctx context.Context, ws *websocket.Conn, slot *slots.Slot, address string, take Taker) {
	meeting, cancel := context.WithTimeout(ctx, g.options.Timing.Handshake)
	defer cancel()
	stop := context.AfterFunc(meeting, func() { _ = ws.Close() })
	defer stop()
	var report tunnel.Report
	_, certificate, cluster, err := g.meet(meeting, ws)
	slot.Heard()
	if err != nil {
		g.refuse(ws, slot, address, cluster, err)
	} else if err = ws.WriteJSON(tunnel.Welcome{}); err == nil {
		ws.SetReadLimit(tunnel.MaxReport)
		err = ws.ReadJSON(&report)
	}
	slot.Release()
	if err != nil || !stop() {
		return
	}
	receipt := g.once(ctx, cluster, func(ctx context.Context) tunnel.Receipt { return take(ctx, certificate, cluster, report) })
	_ = ws.SetWriteDeadline(time.Now().Add(g.options.Timing.Handshake))
	if err := ws.WriteJSON(receipt); err != nil {
		g.options.Log.V(1).Info("an agent did not wait for the answer to its report", "cluster", cluster, "cause", err.Error())
	}
}

// once calls take and returns its answer; ctx of take ends after reportTime. If another report of
// the cluster is being processed, it returns a refusal instead.
func (g *Gateway) once(ctx context.Context, cluster string, take func(context.Context) tunnel.Receipt) tunnel.Receipt {
	g.mu.Lock()
	busy := g.reporting[cluster]
	g.reporting[cluster] = true
	g.mu.Unlock()
	if busy {
		return tunnel.Receipt{Refused: fmt.Sprintf("another report of cluster %s is being taken; try again", cluster)}
	}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.reporting, cluster)
	}()
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	return take(ctx)
}
