package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interruptedError is why the context of a command ends on a signal. It counts as context.Canceled.
type interruptedError struct{ signal syscall.Signal }

// Error implements error.
func (interruptedError) Error() string { return "interrupted" }

// Is implements errors.Is.
func (interruptedError) Is(target error) bool { return target == context.Canceled }

// code is the process's exit code: that by which shells know a process that the signal ended.
func (e interruptedError) code() int { return 128 + int(e.signal) }

// untilSignal returns a context that ends with the first signal that asks the process to end, and
// with it every command in good order. A second one kills the process as if nothing had been asked
// for.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			number, _ := s.(syscall.Signal) // on every system that orrery runs on
			cancel(interruptedError{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
