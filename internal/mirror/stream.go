package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"orrery.dev/orrery/internal/member"
)

// events is one watch. Events come in order.
type events interface {
	// next waits for the next event. It returns io.EOF once the watch has ended or was broken off.
	next() (watch.Event, error)
	// reached returns the resource version up to which all events were returned.
	reached() string
	close()
}

// stream reads the events of a watch in the caller's goroutine. client-go's watch.Interface has
// one more goroutine, channel and two buffers for each watch, and a hub has more than ten
// thousand watches.
type stream struct {
	api     member.API
	partial bool // only metadata is kept
	body    io.ReadCloser
	decoder *json.Decoder
	last    string // resource version of the last event
}

// onlyMetadata is the media type that requests only the metadata of objects.
const onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// watchOne opens the watch of one request.
func (t *table) watchOne(ctx context.Context, of ask, o metav1.ListOptions) (*stream, error) {
	gvr := t.api.GroupVersionResource()
	path := []string{"/apis", gvr.Group, gvr.Version, gvr.Resource}
	if gvr.Group == "" {
		path = []string{"/api", gvr.Version, gvr.Resource}
	}
	o.Watch, o.LabelSelector = true, of.selector
	if of.namespace != "" {
		path = slices.Insert(path, len(path)-1, "namespaces", of.namespace)
	}
	request := t.cluster.rest.Get().AbsPath(path...).VersionedParams(&o, metav1.ParameterCodec)
	if t.onlyMetadata() {
		request.SetHeader("Accept", onlyMetadata)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // the API server's answer is judged by its kind
	}
	return &stream{api: t.api, partial: t.onlyMetadata(), body: body, decoder: json.NewDecoder(body), last: o.ResourceVersion}, nil
}

func (s *stream) reached() string { return s.last }

func (s *stream) close() { _ = s.body.Close() } // nothing was written

func (s *stream) next() (watch.Event, error) {
	var frame struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	switch err := s.decoder.Decode(&frame); {
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF), utilnet.IsProbableEOF(err), utilnet.IsTimeout(err):
		return watch.Event{}, io.EOF
	default:
		return watch.Event{}, fmt.Errorf("watch %s: %w", resourceOf(s.api), err)
	}
	e := watch.Event{Type: frame.Type}
	var err error
	switch frame.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		if s.partial { // other parts that the cluster sends are dropped
			o := &metav1.PartialObjectMetadata{}
			err, e.Object = json.Unmarshal(frame.Object, o), o
			break
		}
		o := &unstructured.Unstructured{}
		err, e.Object = utiljson.Unmarshal(frame.Object, &o.Object), o
	case watch.Bookmark: // only its resource version counts
		o := &metav1.PartialObjectMetadata{}
		err, e.Object = json.Unmarshal(frame.Object, o), o
	case watch.Error:
		status := &metav1.Status{}
		err, e.Object = json.Unmarshal(frame.Object, status), status
	default:
		err = fmt.Errorf("unknown type %q", frame.Type)
	}
	if about, ok := e.Object.(metav1.Object); ok && err == nil {
		s.last = about.GetResourceVersion()
	}
	if err != nil {
		return watch.Event{}, fmt.Errorf("watch %s: read event: %w", resourceOf(s.api), err)
	}
	return e, nil
}
