package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// latch guards a caller's reader or writer. After Run has returned, the stream belongs to the
// caller again.
type latch struct {
	turn  chan struct{} // has an element while the stream is in use
	ended atomic.Bool
}

func newLatch() latch { return latch{turn: make(chan struct{}, 1)} }

// use calls f and returns true, unless end was called.
func (l *latch) use(f func()) bool {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.ended.Load() {
		return false
	}
	f()
	return true
}

// end forbids further use. It waits up to a second for a present use, which may block.
func (l *latch) end() {
	l.ended.Store(true)
	select {
	case l.turn <- struct{}{}:
		<-l.turn
	case <-time.After(time.Second):
	}
}

// input is the standard input of a command.
type input struct {
	latch

	reader io.Reader // nil means empty
	fail   context.CancelCauseFunc
}

func newInput(reader io.Reader, fail context.CancelCauseFunc) *input {
	return &input{latch: newLatch(), reader: reader, fail: fail}
}

// errEnded means that a stream is no longer used.
var errEnded = errors.New("the command has ended")

// Read reads for the command. An error other than io.EOF stops the command.
func (in *input) Read(p []byte) (n int, err error) {
	if !in.use(func() { n, err = in.reader.Read(p) }) {
		return 0, errEnded
	}
	if err != nil && !errors.Is(err, io.EOF) {
		in.fail(fmt.Errorf("read its standard input: %w", err))
	}
	return n, err
}

// copyTo copies everything to w, and reports whether it reached the end. Only then may the command
// see the end of its input, because a partial file must not look complete.
func (in *input) copyTo(w io.Writer) bool {
	if in.reader == nil {
		return true
	}
	_, err := io.Copy(w, in)
	return err == nil
}

// output is the standard output of a command.
type output struct {
	latch

	writer io.Writer // nil discards
	fail   context.CancelCauseFunc
}

func newOutput(writer io.Writer, fail context.CancelCauseFunc) *output {
	return &output{latch: newLatch(), writer: writer, fail: fail}
}

// Write never fails, so that the command is not blocked. An error of the writer stops the command.
func (out *output) Write(p []byte) (int, error) {
	if out.writer == nil {
		return len(p), nil
	}
	var err error
	out.use(func() { _, err = out.writer.Write(p) })
	if err != nil {
		out.ended.Store(true)
		out.fail(fmt.Errorf("write its standard output: %w", err))
	}
	return len(p), nil
}
