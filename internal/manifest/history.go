package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// Past is one event in the history of an object: what happened, and the object after that.
type Past struct {
	Type   watch.EventType
	Object *unstructured.Unstructured
}

// historyLasts is the time, in seconds, for which an API server sends the history of an object.
const historyLasts = "2"

// History returns the events of an object since a resourceVersion of its API server, the oldest
// first. It takes as long as the API server sends them, about two seconds. known is false, without
// an error, if the server's history does not reach back to since, or the server has not reached
// since yet.
func (c Client) History(ctx context.Context, o Object, since string) (past []Past, known bool, err error) {
	c.options.Called("watch")
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	name := o.Name
	o.Name = ""
	body, err := c.rest.Get().AbsPath(o.path()...).SetHeader("Accept", "application/json").
		Param("watch", "true").Param("resourceVersion", since).Param("fieldSelector", "metadata.name="+name).
		Param("timeoutSeconds", historyLasts).Stream(ctx)
	switch {
	case forgotten(err):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	decoder := json.NewDecoder(body)
	for {
		var e struct {
			Type   watch.EventType `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF):
			return past, true, nil
		case err != nil:
			return nil, false, fmt.Errorf("read the history of %s %s: %w", o.Resource.GroupResource(), name, err)
		}
		switch e.Type {
		case watch.Error:
			status := metav1.Status{}
			if err := json.Unmarshal(e.Object, &status); err != nil {
				return nil, false, fmt.Errorf("read the history of %s %s: %w", o.Resource.GroupResource(), name, err)
			}
			if failed := apierrors.FromObject(&status); !forgotten(failed) {
				return nil, false, failed
			}
			return nil, false, nil
		case watch.Added, watch.Modified, watch.Deleted:
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(e.Object); err != nil {
				return nil, false, fmt.Errorf("read the history of %s %s: %w", o.Resource.GroupResource(), name, err)
			}
			past = append(past, Past{e.Type, object})
		case watch.Bookmark:
		}
	}
}

// forgotten reports whether an API server refused a watch because the resourceVersion is too old,
// or larger than any that the server has given. It is false for nil.
func forgotten(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsGone(err) || apierrors.IsResourceExpired(err) ||
		errors.As(err, &status) && (status.Status().Code == http.StatusGone || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge))
}
