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

// events is one watch of a type in a cluster: a stream, or several of them merged. Events come in
// order. Only one goroutine may call next.
type events interface {
	// next waits for the next event. It returns io.EOF once the watch has ended or its connection
	// was broken. After any error, next must not be called again. An error that the API server
	// sends in the watch is not an error of next, but an event of the type watch.Error.
	next() (watch.Event, error)
	// reached returns the resource version up to which all events were returned.
	reached() string
	close()
}

// stream is one watch request. Its next reads an event in the caller's goroutine. The
// watch.Interface of client-go has a goroutine, a channel and two buffers more for each watch, and
// a hub has more than ten thousand watches. The caller must close a stream.
type stream struct {
	api     member.API
	partial bool // only the metadata of objects is read
	body    io.ReadCloser
	decoder *json.Decoder
	last    string // resource version of the last event
}

// onlyMetadata is the media type with which a watch request asks for the metadata of objects only.
const onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// watchOne opens one watch of the table's type, for the namespace and the selector in of, after the
// version o.ResourceVersion. The watch ends with ctx. An error is returned as client-go returns it,
// so that the functions of apierrors recognize it.
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

// next implements events.
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
		if s.partial { // a server that ignores the media type sends whole objects
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
