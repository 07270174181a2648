package tunnel

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// errSilent ends a stream whose other side sends nothing any more.
var errSilent = errors.New("tunnel: nothing is heard from the other side")

// stream is a net.Conn over the binary messages of a WebSocket. After a deadline has passed, it is
// unusable.
//
// Each side sends an unsolicited pong (RFC 6455, 5.5.3) when it has written nothing for a while. A
// side judges the other only while it waits in Read: slow reading delays the other's heartbeats,
// too. Pings would need an answer. A side could not see a ping behind bytes that it is not ready to
// read.
type stream struct {
	*websocket.Conn

	timing  Timing
	heard   atomic.Int64 // time of the last frame, Unix nanoseconds
	waiting atomic.Bool  // a Read waits
	wrote   atomic.Int64
	beating atomic.Bool
	silent  atomic.Bool // closed because the other side was silent
	over    atomic.Bool // closed

	writing sync.Mutex
	rest    io.Reader // of the current message

	once   sync.Once
	tick   *time.Timer
	closed func()
}

// NewStream returns a connection over a WebSocket after both sides agreed that bytes follow. closed
// is called once, when the connection ends; it may be nil.
func NewStream(ws *websocket.Conn, timing Timing, closed func()) net.Conn {
	s := &stream{Conn: ws, timing: timing, closed: closed}
	ws.SetReadLimit(0)
	hear := func(string) error { s.heard.Store(time.Now().UnixNano()); return nil }
	ws.SetPongHandler(hear)
	ws.SetPingHandler(hear) // neither side sends pings; an answer could block
	now := time.Now().UnixNano()
	s.heard.Store(now)
	s.wrote.Store(now)
	s.tick = time.AfterFunc(math.MaxInt64, s.beat)
	s.tick.Reset(timing.Heartbeat) // only now: beat uses s.tick
	return s
}

// beat sends a heartbeat if nothing was written, and closes the stream if the other side is silent.
func (s *stream) beat() {
	now := time.Now()
	if s.waiting.Load() && now.Sub(time.Unix(0, s.heard.Load())) > s.timing.Dead {
		s.silent.Store(true)
		_ = s.Close() // a waiting Read returns errSilent
		return
	}
	if now.Sub(time.Unix(0, s.wrote.Load())) >= s.timing.Heartbeat/2 && s.beating.CompareAndSwap(false, true) {
		go func() { // it blocks if the other side does not read
			defer s.beating.Store(false)
			// Read or Write find a broken connection.
			_ = s.WriteControl(websocket.PongMessage, nil, time.Time{})
		}()
	}
	s.tick.Reset(s.timing.Heartbeat) // without waiting for a Write, which may block forever
	if s.over.Load() {
		s.tick.Stop()
	}
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.heard.Store(time.Now().UnixNano()) // time in which nothing was read does not count as silence
	s.waiting.Store(true)
	defer s.waiting.Store(false)
	for {
		if s.rest == nil {
			kind, message, err := s.NextReader()
			if err != nil {
				return 0, s.ended(err)
			}
			s.heard.Store(time.Now().UnixNano())
			if kind != websocket.BinaryMessage {
				continue // a late answer to a probe
			}
			s.rest = message
		}
		n, err := s.rest.Read(p)
		s.heard.Store(time.Now().UnixNano())
		if errors.Is(err, io.EOF) {
			s.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, s.ended(err)
		}
	}
}

// ended maps an error of the WebSocket to the error of the connection; nil for nil.
func (s *stream) ended(err error) error {
	switch {
	case err == nil:
		return nil
	case s.silent.Load():
		return errSilent
	case websocket.IsCloseError(err, websocket.CloseNormalClosure):
		return io.EOF
	case websocket.IsCloseError(err, websocket.CloseAbnormalClosure):
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("tunnel: %w", err)
}

// Write implements net.Conn.
func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, fmt.Errorf("tunnel: %w", err)
	}
	s.wrote.Store(time.Now().UnixNano())
	return len(p), nil
}

// Close implements net.Conn.
func (s *stream) Close() error {
	var err error
	s.once.Do(func() {
		s.over.Store(true)
		s.tick.Stop()
		// A close frame is sent if that is possible at once, so that the other side need not wait.
		_ = s.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(s.timing.Heartbeat/40))
		err = s.Conn.Close()
		if s.closed != nil {
			s.closed()
		}
	})
	return err
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
