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

// errSilent ends a stream whose other side says nothing any more.
var errSilent = errors.New("tunnel: nothing is heard from the other side")

// stream is a net.Conn made of the binary messages of a WebSocket. After a deadline has passed it cannot be used any more.
//
// Each side says that it is there, by a pong that nobody asked for (RFC 6455, 5.5.3), whenever it has written nothing for a while. A side
// judges the other only while it waits to read: one that is slow to read what is for it holds up the other's heartbeats as well. That
// a side must not answer is why these are no pings: it could not see one behind bytes that it is not ready to take.
type stream struct {
	*websocket.Conn

	timing  Timing
	heard   atomic.Int64 // when the last frame came, in nanoseconds of the Unix epoch
	waiting atomic.Bool  // a Read waits
	wrote   atomic.Int64
	beating atomic.Bool
	silent  atomic.Bool // the other side was given up
	over    atomic.Bool // it was closed

	writing sync.Mutex
	rest    io.Reader // of the message that is being read

	once   sync.Once
	tick   *time.Timer
	closed func()
}

// NewStream makes a connection of a WebSocket on which both sides have said that bytes follow. closed is called once, when it ends;
// it may be nil.
func NewStream(ws *websocket.Conn, timing Timing, closed func()) net.Conn {
	s := &stream{Conn: ws, timing: timing, closed: closed}
	ws.SetReadLimit(0)
	hear := func(string) error { s.heard.Store(time.Now().UnixNano()); return nil }
	ws.SetPongHandler(hear)
	ws.SetPingHandler(hear) // nobody sends one; an answer would be one more thing that can block
	now := time.Now().UnixNano()
	s.heard.Store(now)
	s.wrote.Store(now)
	s.tick = time.AfterFunc(math.MaxInt64, s.beat)
	s.tick.Reset(timing.Heartbeat) // the first beat knows the timer
	return s
}

// beat says that this side is there, and judges the other.
func (s *stream) beat() {
	now := time.Now()
	if s.waiting.Load() && now.Sub(time.Unix(0, s.heard.Load())) > s.timing.Dead {
		s.silent.Store(true)
		_ = s.Close() // whoever reads is told
		return
	}
	if now.Sub(time.Unix(0, s.wrote.Load())) >= s.timing.Heartbeat/2 && s.beating.CompareAndSwap(false, true) {
		go func() { // it waits for the other side if that does not read
			defer s.beating.Store(false)
			_ = s.WriteControl(websocket.PongMessage, nil, time.Time{}) // a broken connection is found by who uses it
		}()
	}
	s.tick.Reset(s.timing.Heartbeat) // without waiting for a Write, which may wait for ever
	if s.over.Load() {
		s.tick.Stop()
	}
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.heard.Store(time.Now().UnixNano()) // time in which nobody read says nothing about the other side
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
				continue // the answer to a probe that was on its way
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

// ended is the error of a connection whose WebSocket ended with one.
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
		// The other side is told if that is possible at once: it need not guess then.
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
