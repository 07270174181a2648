package search

import (
	"cmp"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// media is one media type of an Accept header, with its parameters.
type media struct {
	name   string
	params map[string]string
}

// accepted returns the media types of the Accept header in the order in which API servers of
// Kubernetes rank them. A higher q comes first, then fewer wildcards, then the order of the client.
// Invalid types and types with q=0 are left out. Without the header the result is */*.
func accepted(r *http.Request) []media {
	type ranked struct {
		media
		q float64
	}
	var all []ranked
	for _, header := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(header, ",") {
			name, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			m := ranked{media{name, params}, 1}
			if q, ok := params["q"]; ok {
				if m.q, err = strconv.ParseFloat(q, 64); err != nil || m.q <= 0 {
					continue
				}
			}
			all = append(all, m)
		}
	}
	if len(all) == 0 && strings.TrimSpace(strings.Join(r.Header.Values("Accept"), "")) == "" {
		return []media{{name: "*/*"}}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.q, a.q), cmp.Compare(strings.Count(a.name, "*"), strings.Count(b.name, "*")))
	})
	out := make([]media, len(all))
	for i, m := range all {
		out[i] = m.media
	}
	return out
}

// The values of form.as: objects as they are, as a table, or only their metadata.
const (
	asObjects = ""
	asTable   = "Table"
	asPartial = "PartialObjectMetadata" // for a list: PartialObjectMetadataList
)

// form is how an answer represents objects: what of them (as), and in which encoding (wire). For a
// table and for PartialObjectMetadata, version is the version of meta.k8s.io: v1, or the identical
// v1beta1 for older clients.
type form struct {
	as, version string
	wire        wire
}

// apiVersion returns the apiVersion of a table or of PartialObjectMetadata in this form.
func (f form) apiVersion() string {
	return schema.GroupVersion{Group: metav1.GroupName, Version: f.version}.String()
}

// forms are the forms that a client accepts and the fleet supports, the best first.
type forms []form

// formsFor returns the forms in which a request with the parameters p can be answered, the best
// first. It is formsOf, except that the parameter onlyMetadata turns objects into
// PartialObjectMetadata.
func (p *params) formsFor(r *http.Request) forms {
	all := formsOf(r)
	for i := range all {
		all[i] = p.form(all[i])
	}
	return all
}

// form returns the form of the answer if the client accepts the form as. It differs only for whole
// objects with the parameter onlyMetadata: the answer has PartialObjectMetadata then.
func (p *params) form(as form) form {
	if p.onlyMetadata && as.as == asObjects {
		as.as, as.version = asPartial, "v1"
	}
	return as
}

// formsOf returns the forms that the Accept header of a request names and the fleet supports, the
// best first. There may be none.
func formsOf(r *http.Request) forms {
	var all forms
	for _, m := range accepted(r) {
		f := form{}
		switch m.name {
		case mediaJSON, "application/*", "*/*":
		case mediaYAML:
			f.wire = inYAML
		case mediaCBOR, mediaCBORSequence:
			f.wire = inCBOR
		case mediaProtobuf:
			f.wire = inProtobuf
		default:
			continue
		}
		as, transformed := m.params["as"]
		if !transformed {
			all = append(all, f)
			continue
		}
		f.as, f.version = strings.TrimSuffix(as, "List"), m.params["v"]
		if m.params["g"] == metav1.GroupName && (f.version == "v1" || f.version == "v1beta1") && (f.as == asTable || f.as == asPartial) {
			all = append(all, f)
		}
	}
	return all
}

// first returns the first form for which can returns true. If there is none, it returns an error
// (406) that names the forms which the fleet supports.
func (f forms) first(can func(form) bool) (form, error) {
	if i := slices.IndexFunc(f, can); i >= 0 {
		return f[i], nil
	}
	return form{}, failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"the fleet answers in application/json, application/yaml (but watches) and application/cbor, plain or as=Table or as=PartialObjectMetadata(List) of "+
			"meta.k8s.io/v1 or v1beta1, and in application/vnd.kubernetes.protobuf where it is not a table, nor a kind that Kubernetes does not have: accept application/json as well")
}

// choose returns the form for an answer with objects of a kind: the first for which can returns
// true. Protobuf is skipped if learn has recorded that it loses fields of the kind, unless the
// client accepts nothing else. Otherwise protobuf becomes inWholeProtobuf, which returns a
// lossError for such an object. If can accepts no form, choose returns an error (406).
func (s *Search) choose(accepts forms, kind schema.GroupVersionKind, can func(form) bool) (form, error) {
	as, err := accepts.first(func(f form) bool {
		_, loses := s.lossy.Load(f.encodes(kind))
		return can(f) && (!loses || !f.wire.protobuf())
	})
	if err != nil {
		return accepts.first(can)
	}
	if as.wire == inProtobuf {
		as.wire = inWholeProtobuf
	}
	return as, nil
}

// learn reports whether err is a lossError: protobuf would lose fields of an object. If so, it
// records the kind that e encodes, so that choose avoids protobuf for the kind. The caller then
// answers again.
func (s *Search) learn(e encoder, err error) bool {
	_, lost := errors.AsType[lossError](err)
	if lost {
		s.lossy.Store(e.of, true)
	}
	return lost
}

// encodes returns the kind in which objects of a kind are encoded in this form:
// PartialObjectMetadata, or the kind itself. It does not apply to tables.
func (f form) encodes(kind schema.GroupVersionKind) schema.GroupVersionKind {
	if f.as == asPartial {
		return schema.FromAPIVersionAndKind(f.apiVersion(), asPartial)
	}
	return kind
}

// formOf returns the best form for an answer that is not a list, object or watch of one type, such
// as counts. Protobuf cannot encode such answers. If the client accepts no other form, it returns
// an error (406).
func formOf(r *http.Request) (form, error) {
	return formsOf(r).first(func(f form) bool { return f.wire != inProtobuf })
}
