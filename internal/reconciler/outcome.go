package reconciler

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReasonError is the reason of a condition whose step returned a plain error.
const ReasonError = "Error"

// outcome is an error that says what a step's condition is and what happens next.
type outcome struct {
	status          metav1.ConditionStatus
	reason, message string
	after           time.Duration // look again then; 0: only on events
	keep            bool          // the following steps keep the conditions they have
	retry           error         // retried with backoff
}

// Error implements error.
func (v *outcome) Error() string { return v.reason + ": " + v.message }

// Unwrap returns the error that is to be retried.
func (v *outcome) Unwrap() error { return v.retry }

// condition of the given type.
func (v *outcome) condition(conditionType string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: v.status, Reason: v.reason, Message: truncate(v.message)}
}

// Stalled says that the condition is False until the object or something it watches
// changes; nothing is retried.
func Stalled(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

// Waiting says that the condition is False for now. The object is looked at again after
// the given time; if that is 0, only on events.
func Waiting(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...), after: after}
}

// Unknown says that the condition cannot be told. What the following steps own is as
// unknown, so their conditions keep what was last known. The object is looked at again
// after the given time; if that is 0, only on events.
func Unknown(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionUnknown, reason: reason, message: fmt.Sprintf(format, args...), after: after, keep: true}
}

// Done says that the condition is True, with a reason and a message. A step without
// anything to say returns nil.
func Done(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionTrue, reason: reason, message: fmt.Sprintf(format, args...)}
}

// judge turns what a step returned into an outcome. A plain error may be a passing one, so
// the following steps keep what they said: conditions must not flap.
func judge(condition string, err error) outcome {
	if err == nil {
		return outcome{status: metav1.ConditionTrue, reason: condition}
	}
	if v, ok := errors.AsType[*outcome](err); ok {
		return *v
	}
	return outcome{status: metav1.ConditionFalse, reason: ReasonError, message: err.Error(), keep: true, retry: err}
}

// maxMessage is the longest message that the API allows a condition.
const maxMessage = 32768

func truncate(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage-3] + "..."
	}
	return message
}

// IsOutcome is true for an error that Stalled, Waiting, Unknown or Done made.
func IsOutcome(err error) bool {
	_, ok := errors.AsType[*outcome](err)
	return ok
}

// Succeeded is true if a step that returned err leaves its condition True.
func Succeeded(err error) bool { return judge("", err).status == metav1.ConditionTrue }
