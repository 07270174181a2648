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

// accepted lists the media types of the Accept header as Kubernetes' API servers rank them: by q, then those without a wildcard, then in
// the client's order.
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

// The forms in which objects can be had.
const (
	asObjects = ""
	asTable   = "Table"
	asPartial = "PartialObjectMetadata" // of a list: PartialObjectMetadataList
)

// form is one of those, and of which version of meta.k8s.io it is: v1 or, as older clients ask, v1beta1, which is the same; and how it is
// encoded.
type form struct {
	as, version string
	wire        wire
}

func (f form) apiVersion() string {
	return schema.GroupVersion{Group: metav1.GroupName, Version: f.version}.String()
}

// forms are what a client accepts of what the fleet can give, the best first.
type forms []form

// formsFor are those in which a request is answered that a client accepts.
func (p *params) formsFor(r *http.Request) forms {
	all := formsOf(r)
	for i := range all {
		all[i] = p.form(all[i])
	}
	return all
}

// form is that of an answer which is to have nothing but metadata, unless the client wants a table.
func (p *params) form(as form) form {
	if p.onlyMetadata && as.as == asObjects {
		as.as, as.version = asPartial, "v1"
	}
	return as
}

// formsOf are those that the client accepts.
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

// first is the first that can be had, where what can be had in protobuf is given: those of nothing but metadata can always, tables never.
func (f forms) first(can func(form) bool) (form, error) {
	if i := slices.IndexFunc(f, can); i >= 0 {
		return f[i], nil
	}
	return form{}, failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"the fleet answers in application/json, application/yaml (but watches) and application/cbor, plain or as=Table or as=PartialObjectMetadata(List) of "+
			"meta.k8s.io/v1 or v1beta1, and in application/vnd.kubernetes.protobuf where it is not a table, nor a kind that Kubernetes does not have: accept application/json as well")
}

// choose is the first form that can be had in which objects of a kind are whole, as far as is known. If there is none, it is the first that can be had.
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

// learn remembers that protobuf loses something of what is encoded, if an error says so.
func (s *Search) learn(e encoder, err error) bool {
	_, lost := errors.AsType[lossError](err)
	if lost {
		s.lossy.Store(e.of, true)
	}
	return lost
}

// encodes is what objects of a kind are in a form that is no table.
func (f form) encodes(kind schema.GroupVersionKind) schema.GroupVersionKind {
	if f.as == asPartial {
		return schema.FromAPIVersionAndKind(f.apiVersion(), asPartial)
	}
	return kind
}

// formOf is the first form that the client accepts for what is no list, object or watch of one type: that is never in protobuf.
func formOf(r *http.Request) (form, error) {
	return formsOf(r).first(func(f form) bool { return f.wire != inProtobuf })
}
