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
	// attemptTimeout bounds each attempt to reach an address, so that a lost packet costs one attempt
	// and not the whole window.
	attemptTimeout = 2 * time.Second
	// pause is the delay between two attempts.
	pause = 100 * time.Millisecond
	// payload is the number of bytes that are sent there and back on a connection: many packets at any
	// MTU.
	payload = 64 << 10

	greeting = "orrery-reach "
	thanks   = "."
)

// counter counts the exchanges in which another host was the client and all went well. In an
// exchange, a client sends a greeting and a payload, gets both back and confirms them. counter is
// safe for use by several goroutines.
type counter struct {
	enough chan struct{} // closed when the expected number of exchanges is complete

	mu   sync.Mutex // guards the field below
	left int
}

// newCounter returns a counter that expects this number of exchanges.
func newCounter(expected int) *counter { return &counter{enough: make(chan struct{}), left: expected} }

// add counts one complete exchange. When the expected number is reached, it closes c.enough. If the
// expected number is zero, it never does.
func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		close(c.enough)
	}
}

// answer answers the connections to one port of this host until ctx ends, and then closes the
// listener. It returns when all connections are closed. It counts complete exchanges in answers.
// token is that of the check.
func answer(ctx context.Context, listener net.Listener, token string, answers *counter) {
	var answering sync.WaitGroup
	defer answering.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // ends the loop over Accept
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
		default: // clients whose connections were not accepted dial again
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// respond answers one client of the check, and closes the connection. It sends back the greeting
// and the payload of the client. It returns nil when the client has confirmed both. A greeting with
// another token is an error.
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

// limit makes reads and writes of a connection fail after attemptTimeout, or when ctx ends. The
// caller calls release, which closes the connection. If limit returns an error, the connection is
// closed already.
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

// dial tries to reach an address of another host until that succeeds or ctx ends. It returns nil
// after a success, else the problem. That is the problem of the last attempt, unless the end of ctx
// cut that attempt short.
func dial(ctx context.Context, address, token string) *Peer {
	var found *Peer
	for {
		problem, err := exchange(ctx, address, token)
		switch {
		case err == nil:
			return nil
		case found == nil || !ended(ctx):
			found = &Peer{Address: address, Problem: problem, Message: cause(err)}
		}
		select {
		case <-ctx.Done():
			return found
		case <-time.After(pause):
		}
	}
}

// ended reports whether ctx has ended, or its deadline has passed. A dialer compares the deadline
// with the clock. So an attempt may end at the deadline a moment before ctx itself ends.
func ended(ctx context.Context) bool {
	deadline, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(deadline)
}

// exchange makes one attempt to reach an address: it connects, and sends the greeting and the
// payload, which the other host must send back. It returns "" and nil after a success, else the
// kind of the problem and the error.
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

// problemOf returns the kind of problem that a failed connection attempt shows. An unknown error
// counts as ProblemTimeout.
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
