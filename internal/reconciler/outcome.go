package reconciler

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReasonError is the reason of a condition whose step returned a plain error.
const ReasonError = "Error"

// outcome is an error with the condition of a step and the time of the next attempt.
type outcome struct {
	status          metav1.ConditionStatus
	reason, message string
	after           time.Duration // delay before the next attempt; 0: only events cause one
	keep            bool          // the following steps keep their conditions
	retry           error         // retried with backoff
}

// Error implements error.
func (v *outcome) Error() string { return v.reason + ": " + v.message }

// Unwrap returns the error that causes a retry; nil: none.
func (v *outcome) Unwrap() error { return v.retry }

// condition of the given type.
func (v *outcome) condition(conditionType string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: v.status, Reason: v.reason, Message: truncate(v.message)}
}

// Stalled returns an outcome with a False condition. Nothing is retried: only a change of the
// object, or of an object that it watches, causes another attempt.
func Stalled(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

// Waiting returns an outcome with a False condition. The object is reconciled again after the
// delay; 0: only after events.
func Waiting(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...), after: after}
}

// Unknown returns an outcome with an Unknown condition. The state of the following steps is
// unknown as well, so their conditions stay as they are. The object is reconciled again after
// the delay; 0: only after events.
func Unknown(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionUnknown, reason: reason, message: fmt.Sprintf(format, args...), after: after, keep: true}
}

// Done returns an outcome with a True condition, a reason and a message. A step without a
// message returns nil.
func Done(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionTrue, reason: reason, message: fmt.Sprintf(format, args...)}
}

// judge converts the result of a step into an outcome. A plain error may be temporary, so the
// following steps keep their conditions, which must not flap.
func judge(condition string, err error) outcome {
	if err == nil {
		return outcome{status: metav1.ConditionTrue, reason: condition}
	}
	if v, ok := errors.AsType[*outcome](err); ok {
		return *v
	}
	return outcome{status: metav1.ConditionFalse, reason: ReasonError, message: err.Error(), keep: true, retry: err}
}

// maxMessage is the maximum length of a condition's message in the API.
const maxMessage = 32768

func truncate(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage-3] + "..."
	}
	return message
}

// IsOutcome reports whether Stalled, Waiting, Unknown or Done returned err.
func IsOutcome(err error) bool {
	_, ok := errors.AsType[*outcome](err)
	return ok
}

// Succeeded reports whether a step that returned err leaves its condition True.
func Succeeded(err error) bool { return judge("", err).status == metav1.ConditionTrue }
