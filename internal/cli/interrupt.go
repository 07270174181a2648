package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interruptedError is the reason why the context of a command ends on a signal. It counts as
// context.Canceled.
type interruptedError struct{ signal syscall.Signal }

// Error implements error.
func (interruptedError) Error() string { return "interrupted" }

// Is implements errors.Is.
func (interruptedError) Is(target error) bool { return target == context.Canceled }

// code returns the exit code that shells use for a process that the signal ended.
func (e interruptedError) code() int { return 128 + int(e.signal) }

// untilSignal returns a context that ends with the first signal to end the process, so that
// every command can end in good order. A second signal kills the process.
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
