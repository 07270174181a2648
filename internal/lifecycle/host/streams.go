package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// streamGuard guards the reader or writer that a caller has given to Run: after end, the stream is
// not used again. It may be used from several goroutines.
type streamGuard struct {
	inUse chan struct{} // has an element while the stream is in use
	ended atomic.Bool
}

// newStreamGuard returns a guard for a stream that is not in use.
func newStreamGuard() streamGuard { return streamGuard{inUse: make(chan struct{}, 1)} }

// use calls f, which uses the stream, and returns true. After end it returns false without a call.
// Calls of f do not overlap.
func (l *streamGuard) use(f func()) bool {
	l.inUse <- struct{}{}
	defer func() { <-l.inUse }()
	if l.ended.Load() {
		return false
	}
	f()
	return true
}

// end forbids further calls of use. It waits for a present call, but at most a second, because that
// call may block. The present call may then still go on.
func (l *streamGuard) end() {
	l.ended.Store(true)
	select {
	case l.inUse <- struct{}{}:
		<-l.inUse
	case <-time.After(time.Second):
	}
}

// input is the standard input of a command: the reader that the caller of Run has given. fail ends
// the context of the command.
type input struct {
	streamGuard

	reader io.Reader // nil means empty
	fail   context.CancelCauseFunc
}

// newInput returns the input for a reader; nil means an empty input. fail ends the context of the
// command.
func newInput(reader io.Reader, fail context.CancelCauseFunc) *input {
	return &input{streamGuard: newStreamGuard(), reader: reader, fail: fail}
}

// errEnded is the error of input.Read after end.
var errEnded = errors.New("the command has ended")

// Read reads from the caller's reader. After an error other than io.EOF, it ends the context of the
// command, which stops the command.
func (in *input) Read(p []byte) (n int, err error) {
	if !in.use(func() { n, err = in.reader.Read(p) }) {
		return 0, errEnded
	}
	if err != nil && !errors.Is(err, io.EOF) {
		in.fail(fmt.Errorf("read its standard input: %w", err))
	}
	return n, err
}

// copyTo copies the input to w, and reports whether it reached the end without an error. Only then
// may the command see the end of its input, because a partial file must not look complete.
func (in *input) copyTo(w io.Writer) bool {
	if in.reader == nil {
		return true
	}
	_, err := io.Copy(w, in)
	return err == nil
}

// output is the standard output of a command: the writer that the caller of Run has given. fail
// ends the context of the command.
type output struct {
	streamGuard

	writer io.Writer // nil discards
	fail   context.CancelCauseFunc
}

// newOutput returns the output for a writer; nil drops the output. fail ends the context of the
// command.
func newOutput(writer io.Writer, fail context.CancelCauseFunc) *output {
	return &output{streamGuard: newStreamGuard(), writer: writer, fail: fail}
}

// Write never fails, so that the command is not blocked. After an error of the caller's writer, it
// ends the context of the command, which stops the command. It drops later output, and output after
// end.
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
