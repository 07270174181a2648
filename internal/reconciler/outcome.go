package reconciler

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"orrery.dev/orrery/internal/neutral"
)

// ReasonError is the reason of a step's condition if the step returned an error that is not an
// outcome: "Error".
const ReasonError = "Error"

// outcome is the result of a step that is not just success: the condition that the step sets, and
// when the object is reconciled again. It is an error, so that a step can return it. Stalled,
// Waiting, Unknown and Done make it.
type outcome struct {
	status          metav1.ConditionStatus
	reason, message string
	after           time.Duration // delay before the next attempt; 0: only an event causes one
	keep            bool          // the steps after this one keep their conditions
	retry           error         // an error, with which the object is retried with backoff; nil: none
}

// Error implements error. It returns REASON: MESSAGE.
func (v *outcome) Error() string { return v.reason + ": " + v.message }

// Unwrap returns the error that is retried with backoff; nil if there is none.
func (v *outcome) Unwrap() error { return v.retry }

// condition returns the condition of the given type that the outcome means. Its message is cut to
// maxMessage.
func (v *outcome) condition(conditionType string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: v.status, Reason: v.reason, Message: truncate(v.message)}
}

// Stalled returns the result of a step that cannot succeed until something changes: its condition
// is False, with the reason and the formatted message. The object is not retried. Only an event of
// the object or of an object that its controller watches causes another attempt.
func Stalled(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

// Waiting returns the result of a step that has not succeeded yet: its condition is False, with the
// reason and the formatted message. The object is reconciled again after the delay. If that is 0,
// only an event causes another attempt.
func Waiting(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...), after: after}
}

// Unknown returns the result of a step that could not find out its state: its condition is Unknown,
// with the reason and the formatted message. The following steps do not run and keep their
// conditions. The object is reconciled again after the delay. If that is 0, only an event causes
// another attempt.
func Unknown(reason string, after time.Duration, format string, args ...any) error {
	return &outcome{status: metav1.ConditionUnknown, reason: reason, message: fmt.Sprintf(format, args...), after: after, keep: true}
}

// Done returns the result of a step that succeeded with something to say: its condition is True,
// with the reason and the formatted message. The result is an error that is not nil; Succeeded
// recognizes it. A step that has nothing to say returns nil instead.
func Done(reason, format string, args ...any) error {
	return &outcome{status: metav1.ConditionTrue, reason: reason, message: fmt.Sprintf(format, args...)}
}

// judge converts the error of a step with a condition of this type into an outcome. nil means True,
// with the type as the reason. An error that is not an outcome may be temporary. It means False,
// and the object is retried with backoff. The following steps then keep their conditions, so that
// these do not change back and forth.
func judge(condition string, err error) outcome {
	if err == nil {
		return outcome{status: metav1.ConditionTrue, reason: condition}
	}
	if v, ok := errors.AsType[*outcome](err); ok {
		return *v
	}
	return outcome{status: metav1.ConditionFalse, reason: ReasonError, message: err.Error(), keep: true, retry: err}
}

// maxMessage is the maximum length of a condition's message that the API accepts: 32768 bytes.
const maxMessage = 32768

// truncate cuts a message that is longer than the API accepts, at the end of a character, and
// appends an ellipsis.
func truncate(message string) string {
	if len(message) > maxMessage {
		return neutral.Cut(message, maxMessage-len("…"))
	}
	return message
}

// IsOutcome reports whether err is, or wraps, a result of Stalled, Waiting, Unknown or Done. It is
// false for nil and for every other error.
func IsOutcome(err error) bool {
	_, ok := errors.AsType[*outcome](err)
	return ok
}

// Succeeded reports whether a step that returned err has a True condition: err is nil, or is or
// wraps a result of Done.
func Succeeded(err error) bool { return judge("", err).status == metav1.ConditionTrue }
