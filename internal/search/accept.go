package search

import (
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// media is one media type that a client accepts.
type media struct {
	name   string
	params map[string]string
}

// accepted lists the media types of the Accept header in the client's order, which is
// how Kubernetes' clients say what they prefer.
func accepted(r *http.Request) []media {
	var all []media
	for _, header := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(header, ",") {
			if name, params, err := mime.ParseMediaType(part); err == nil {
				all = append(all, media{name, params})
			}
		}
	}
	if len(all) == 0 {
		all = []media{{name: "*/*"}}
	}
	return all
}

// The forms in which objects can be had.
const (
	asObjects = ""
	asTable   = "Table"
	asPartial = "PartialObjectMetadata" // of a list: PartialObjectMetadataList
)

// form is one of those, and of which version of meta.k8s.io it is: v1 or, as older clients ask, v1beta1, which is the same.
type form struct{ as, version string }

func (f form) apiVersion() string {
	return schema.GroupVersion{Group: metav1.GroupName, Version: f.version}.String()
}

// form is that of an answer which is to have nothing but metadata, unless the client wants a table.
func (p *params) form(as form) form {
	if p.onlyMetadata && as.as == asObjects {
		return form{asPartial, "v1"}
	}
	return as
}

// formOf is the first form that the client accepts and the fleet can give.
func formOf(r *http.Request) (form, error) {
	for _, m := range accepted(r) {
		switch m.name {
		case "application/json", "application/*", "*/*":
		default:
			continue
		}
		as, transformed := m.params["as"]
		if !transformed {
			return form{as: asObjects}, nil
		}
		as = strings.TrimSuffix(as, "List")
		v := m.params["v"]
		if m.params["g"] == metav1.GroupName && (v == "v1" || v == "v1beta1") && (as == asTable || as == asPartial) {
			return form{as, v}, nil
		}
	}
	return form{}, failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"the fleet answers in application/json, plain or as=Table or as=PartialObjectMetadata(List) of meta.k8s.io/v1 or v1beta1")
}
