package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interruptedError is the cause with which a signal ends the context of a command. errors.Is finds
// context.Canceled in it.
type interruptedError struct{ signal syscall.Signal }

// Error implements error.
func (interruptedError) Error() string { return "interrupted" }

// Is reports whether target is context.Canceled; errors.Is calls it.
func (interruptedError) Is(target error) bool { return target == context.Canceled }

// code returns the exit code of a process that the signal ended: 128 and the number of the signal.
func (e interruptedError) code() int { return 128 + int(e.signal) }

// untilSignal returns a context that the first SIGINT or SIGTERM cancels, so that a command can end
// in good order. The cause is then an interruptedError. A second signal kills the process. stop
// releases the signals and cancels the context; the caller must call it.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			number, _ := s.(syscall.Signal) // a signal has this type on every system that orrery runs on
			cancel(interruptedError{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
