package reach

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// attemptTimeout bounds each attempt, so that a lost packet costs one attempt and not the window.
	attemptTimeout = 2 * time.Second
	// pause is the delay between attempts.
	pause = 100 * time.Millisecond
	// payload is the number of bytes in each direction: many packets at any MTU.
	payload = 64 << 10

	greeting = "orrery-reach "
	thanks   = "."
)

// counter counts complete exchanges.
type counter struct {
	enough chan struct{} // closed at the expected number

	mu   sync.Mutex // guards the field below
	left int
}

func newCounter(expected int) *counter { return &counter{enough: make(chan struct{}), left: expected} }

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		close(c.enough)
	}
}

// answer answers connections to the listener until ctx ends, and closes it.
func answer(ctx context.Context, listener net.Listener, token string, answers *counter) {
	var answering sync.WaitGroup
	defer answering.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // ends the loop below
	defer stop()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			answering.Go(func() {
				if respond(ctx, conn, token) == nil {
					answers.add()
				}
			})
		case ctx.Err() != nil:
			return
		default: // clients that were not accepted try again
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// respond sends back the greeting and the payload. It returns nil when the other side has received
// both.
func respond(ctx context.Context, conn net.Conn, token string) error {
	release, err := limit(ctx, conn)
	if err != nil {
		return err
	}
	defer release()
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	if line != greeting+token+"\n" {
		return errors.New("read greeting: it is not ours")
	}
	if _, err := io.WriteString(conn, line); err != nil {
		return fmt.Errorf("greet: %w", err)
	}
	content := make([]byte, payload)
	if _, err := io.ReadFull(in, content); err != nil {
		return fmt.Errorf("read payload: %w", err)
	}
	if _, err := conn.Write(content); err != nil {
		return fmt.Errorf("return payload: %w", err)
	}
	if _, err := in.Discard(len(thanks)); err != nil {
		return fmt.Errorf("read thanks: %w", err)
	}
	return nil
}

// limit ends reads and writes of the connection after attemptTimeout, or when ctx ends. release
// closes the connection.
func limit(ctx context.Context, conn net.Conn) (release func(), err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	release = func() {
		stop()
		_ = conn.Close()
	}
	if err := conn.SetDeadline(time.Now().Add(attemptTimeout)); err != nil {
		release()
		return nil, fmt.Errorf("set deadline: %w", err)
	}
	return release, nil
}

// dial tries the address until it answers or ctx ends. It returns the problem of the last complete
// attempt, or nil.
func dial(ctx context.Context, address, token string) *Peer {
	var found *Peer
	for {
		problem, err := exchange(ctx, address, token)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil || found == nil:
			found = &Peer{Address: address, Problem: problem, Message: cause(err)}
		}
		select {
		case <-ctx.Done():
			return found
		case <-time.After(pause):
		}
	}
}

// exchange makes one attempt.
func exchange(ctx context.Context, address, token string) (Problem, error) {
	dialer := net.Dialer{Timeout: attemptTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return problemOf(err), fmt.Errorf("dial: %w", err)
	}
	release, err := limit(ctx, conn)
	if err != nil {
		return ProblemTimeout, err
	}
	defer release()
	line := []byte(greeting + token + "\n")
	if _, err := conn.Write(line); err != nil {
		return ProblemStranger, fmt.Errorf("greet: %w", err)
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(conn, got); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("accepts connections and does not answer")
		}
		return ProblemStranger, err
	}
	if !bytes.Equal(got, line) {
		return ProblemStranger, errors.New("the answer is not that of the check")
	}
	want := bytes.Repeat([]byte("orrery.."), payload/8)
	if _, err := conn.Write(want); err != nil {
		return ProblemLargeLost, fmt.Errorf("send payload: %w", err)
	}
	back := make([]byte, payload)
	if _, err := io.ReadFull(conn, back); err != nil {
		return ProblemLargeLost, fmt.Errorf("read payload: %w", err)
	}
	if !bytes.Equal(want, back) {
		return ProblemStranger, errors.New("the payload came back changed")
	}
	if _, err := io.WriteString(conn, thanks); err != nil {
		return ProblemLargeLost, fmt.Errorf("send thanks: %w", err)
	}
	return "", nil
}

func problemOf(err error) Problem {
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return ProblemRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.As(err, &name):
		return ProblemNoRoute
	default:
		return ProblemTimeout
	}
}
