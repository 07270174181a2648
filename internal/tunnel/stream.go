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

// errSilent is the error of stream.Read if the other side has sent nothing for Timing.Dead, so that
// the stream was closed.
var errSilent = errors.New("tunnel: nothing is heard from the other side")

// stream is a net.Conn that sends and receives the binary messages of a WebSocket. After a deadline
// has passed, it is unusable. As with other connections, one goroutine may read while others write
// and close.
//
// Each side sends a heartbeat, an unsolicited pong (RFC 6455, 5.5.3), when it has written nothing
// for a while. A side checks the heartbeats of the other only while it waits in Read, because slow
// reading delays them. Pings are not used: they need an answer, and a side cannot see a ping behind
// bytes that it is not ready to read.
type stream struct {
	*websocket.Conn

	timing  Timing
	heard   atomic.Int64 // time of the last frame, Unix nanoseconds
	waiting atomic.Bool  // a Read waits
	wrote   atomic.Int64 // time of the last Write, Unix nanoseconds
	beating atomic.Bool  // a heartbeat is being sent
	silent  atomic.Bool  // closed because the other side was silent
	over    atomic.Bool  // closed

	writing sync.Mutex
	rest    io.Reader // unread part of the current message; nil: none

	once   sync.Once
	tick   *time.Timer
	closed func()
}

// NewStream returns a connection that carries bytes over a WebSocket, once both sides have agreed
// that bytes follow. The caller must close the connection, which closes the WebSocket, and must no
// longer use the WebSocket itself. closed is called once, when the caller closes the connection or
// the other side is silent. closed may be nil.
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

// beat sends a heartbeat if nothing was written for a while. If a Read waits and the other side was
// silent for Timing.Dead, it closes the stream. A timer calls it every Timing.Heartbeat.
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

// Read implements net.Conn. It returns io.EOF after the other side has closed the stream,
// io.ErrUnexpectedEOF if the connection broke, and errSilent if the other side was silent.
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

// ended converts an error of the WebSocket to the error that Read returns: io.EOF,
// io.ErrUnexpectedEOF, errSilent or the error itself. It is nil for nil.
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

// Write implements net.Conn. It sends p as one message.
func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, fmt.Errorf("tunnel: %w", err)
	}
	s.wrote.Store(time.Now().UnixNano())
	return len(p), nil
}

// Close implements net.Conn. The second and later calls do nothing and return nil.
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
