package node

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// stall is how long a peer may take for the next piece of a blob.
	stall = 30 * time.Second
	// piece is the number of bytes after which the deadline of a peer is renewed.
	piece = 4 << 20
	// questionSize bounds the line with the token and the digest.
	questionSize = 1024
)

// Serve sends stored content and the agent to other hosts. It reads a ServeRequest from r, writes a
// Serving to w, and serves until r or ctx ends. If listen has no host, the address of the request
// is used.
func (n *Node) Serve(ctx context.Context, r io.Reader, listen string, w io.Writer) error {
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var req ServeRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if req.Token == "" {
		return errors.New("read request: it has no token")
	}
	if host, port, err := net.SplitHostPort(listen); err == nil && host == "" {
		listen = net.JoinHostPort(req.Address, port)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("serve content: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // serving ends with the input, at the latest when the caller exits
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return errors.Join(fmt.Errorf("serve content: %s is no TCP address", listener.Addr()), listener.Close())
	}
	if err := json.NewEncoder(w).Encode(Serving{Port: addr.Port}); err != nil {
		return errors.Join(err, listener.Close())
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept returns an error then
	return n.accept(ctx, listener, req.Token)
}

func (n *Node) accept(ctx context.Context, listener net.Listener, token string) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	agent := sync.OnceValue(func() string {
		now, _ := n.agentNow() // empty if unreadable, and no client requests ""
		return now.Digest
	})
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("serve content: %w", err)
		}
		serving.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			defer conn.Close() //nolint:errcheck // whoever fetches knows the digest
			n.answer(conn, token, agent)
		})
	}
}

// answer sends one blob. It sends nothing without the token, or if the host does not have the blob.
func (n *Node) answer(conn net.Conn, token string, agent func() string) {
	if conn.SetDeadline(time.Now().Add(stall)) != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(conn, questionSize)).ReadString('\n')
	if err != nil {
		return
	}
	given, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
		return
	}
	path, err := n.blobPath(digest)
	if err != nil {
		return
	}
	f, err := os.Open(path)
	if err != nil && digest == agent() {
		f, err = os.Open(n.path(AgentPath))
	}
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // only read
	for err == nil && conn.SetDeadline(time.Now().Add(stall)) == nil {
		_, err = io.CopyN(conn, f, piece)
	}
}

// fetchBlob gets a blob from another host, and verifies its digest.
func fetchBlob(ctx context.Context, source, token, digest string, w io.Writer) error {
	dialer := net.Dialer{Timeout: stall / 3}
	conn, err := dialer.DialContext(ctx, "tcp", source)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "%s %s\n", token, digest); err != nil {
		return fmt.Errorf("ask %s: %w", source, err)
	}
	v := newVerifier(digest)
	out := io.MultiWriter(w, v)
	var size int64
	for {
		copied, err := io.CopyN(out, conn, piece)
		size += copied
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = conn.SetDeadline(time.Now().Add(stall))
		}
		if err != nil {
			return fmt.Errorf("fetch from %s: %w", source, errors.Join(err, context.Cause(ctx)))
		}
	}
	if size == 0 {
		return fmt.Errorf("host %s does not have it", source)
	}
	return v.verify()
}
