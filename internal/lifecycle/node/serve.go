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
	// stall is how long a peer may take to send its request, or to send or take one piece of a blob.
	stall = 30 * time.Second
	// piece is the number of bytes after which the deadline of a peer is renewed.
	piece = 4 << 20
	// questionSize is the maximum length in bytes of the request, which is a line with token and
	// digest.
	questionSize = 1024
)

// Serve does the work of `orrery node serve`: it sends stored blobs, and the agent's program, to
// other hosts. It reads a ServeRequest from r, writes a Serving to w, and serves until r or ctx
// ends, which is no error. listen is host:port. If it has no host, the address in the request is
// used.
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
	go func() { // serve until r ends: it ends when the engine disconnects
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

// accept answers each connection in its own goroutine. When ctx ends, it returns nil after all
// goroutines have ended. It returns an error if the listener fails before that. token is what
// clients must send.
func (n *Node) accept(ctx context.Context, listener net.Listener, token string) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	agent := sync.OnceValue(func() string {
		now, _ := n.agentNow() // "" if the program cannot be read; no client requests ""
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

// answer reads the request of a client, which is a line with token and digest, and sends the blob
// with this digest. If the digest is that of the agent's program, it sends that program. It does
// not verify the content; the client does.
//
// It sends nothing if the token is wrong or the host does not have the content. agent returns the
// digest of the agent's program, or "".
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

// fetchBlob copies a blob from another host to w, and verifies its digest. source is the host:port
// at which the other host serves. It returns an error if the other host does not have the blob,
// which an empty answer means. After an error, w may have got a part of the blob or other content.
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
