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

// media is one media type that a client accepts.
type media struct {
	name   string
	params map[string]string
}

// accepted returns the media types of the Accept header as the API servers of Kubernetes rank
// them: by q, then types without a wildcard first, then in the order of the client.
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

// The forms in which objects can be returned.
const (
	asObjects = ""
	asTable   = "Table"
	asPartial = "PartialObjectMetadata" // for a list: PartialObjectMetadataList
)

// form is one of these forms, with the version of meta.k8s.io (v1 or the identical v1beta1 of
// older clients), and the encoding.
type form struct {
	as, version string
	wire        wire
}

func (f form) apiVersion() string {
	return schema.GroupVersion{Group: metav1.GroupName, Version: f.version}.String()
}

// forms are the accepted forms that the fleet supports, the best first.
type forms []form

// formsFor returns the forms in which a request can be answered.
func (p *params) formsFor(r *http.Request) forms {
	all := formsOf(r)
	for i := range all {
		all[i] = p.form(all[i])
	}
	return all
}

// form returns the form of an answer. With onlyMetadata it is PartialObjectMetadata, unless the
// client wants a table.
func (p *params) form(as form) form {
	if p.onlyMetadata && as.as == asObjects {
		as.as, as.version = asPartial, "v1"
	}
	return as
}

// formsOf returns the supported forms that the client accepts.
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

// first returns the first form for which can is true, or an error with the supported forms.
func (f forms) first(can func(form) bool) (form, error) {
	if i := slices.IndexFunc(f, can); i >= 0 {
		return f[i], nil
	}
	return form{}, failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"the fleet answers in application/json, application/yaml (but watches) and application/cbor, plain or as=Table or as=PartialObjectMetadata(List) of "+
			"meta.k8s.io/v1 or v1beta1, and in application/vnd.kubernetes.protobuf where it is not a table, nor a kind that Kubernetes does not have: accept application/json as well")
}

// choose returns the first possible form in which objects of a kind lose no field, as far as is
// known. If there is none, it returns the first possible form.
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

// learn records that a kind loses fields in protobuf, if err says so. It reports whether it did.
func (s *Search) learn(e encoder, err error) bool {
	_, lost := errors.AsType[lossError](err)
	if lost {
		s.lossy.Store(e.of, true)
	}
	return lost
}

// encodes returns the kind of the encoded objects, for a form that is not a table.
func (f form) encodes(kind schema.GroupVersionKind) schema.GroupVersionKind {
	if f.as == asPartial {
		return schema.FromAPIVersionAndKind(f.apiVersion(), asPartial)
	}
	return kind
}

// formOf returns the first accepted form except protobuf, for answers that are not a list,
// object or watch of one type.
func formOf(r *http.Request) (form, error) {
	return formsOf(r).first(func(f form) bool { return f.wire != inProtobuf })
}
