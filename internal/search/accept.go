package search

import (
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// form is the first that the client accepts and the fleet can give.
func form(r *http.Request) (string, error) {
	for _, m := range accepted(r) {
		switch m.name {
		case "application/json", "application/*", "*/*":
		default:
			continue
		}
		as, transformed := m.params["as"]
		if !transformed {
			return asObjects, nil
		}
		as = strings.TrimSuffix(as, "List")
		if m.params["g"] == metav1.GroupName && m.params["v"] == "v1" && (as == asTable || as == asPartial) {
			return as, nil
		}
	}
	return "", failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"the fleet answers in application/json, plain or as=Table or as=PartialObjectMetadata(List) of meta.k8s.io/v1")
}
