package store

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
)

// position is a place in the order of a query's result: after the last object of a page. It has the
// object's key, creation time and id. The zero value is the beginning.
type position struct {
	Query     uint64 `json:"q"`           // fingerprint of the query
	Asked     uint64 `json:"a,omitempty"` // fingerprint of the query without clusters
	Cluster   string `json:"c"`
	Namespace string `json:"n"`
	Name      string `json:"o"`
	Created   int64  `json:"t,omitempty"` // Unix seconds
	ID        int64  `json:"i"`
}

// token encodes the position in the result of q as the continue token of the next page. Clients
// must not interpret it.
func (p position) token(q Query) string {
	p.Query, p.Asked = q.fingerprint(), q.asked()
	b, _ := json.Marshal(p) //nolint:errchkjson // strings and a number
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseContinue decodes q.Continue, the token of the previous page. It returns the zero position if
// that is "". A damaged token, or one of a query with other parameters, is an ErrContinue. If only
// the clusters or versions of the query differ, the error is an ErrOtherQuery.
func parseContinue(q Query) (position, error) {
	var p position
	if q.Continue == "" {
		return p, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(q.Continue)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return position{}, fmt.Errorf("%w: it is damaged; list again without it", ErrContinue)
	}
	if p.Cluster == "" || p.Name == "" || p.ID <= 0 {
		return position{}, fmt.Errorf("%w: it is damaged; list again without it", ErrContinue)
	}
	if p.Asked != 0 && p.Asked != q.asked() {
		return position{}, fmt.Errorf("%w: it was returned for other parameters; ask with those, or list again without it", ErrContinue)
	}
	if p.Query != q.fingerprint() {
		return position{}, fmt.Errorf("%w; list again without it", ErrOtherQuery)
	}
	return p, nil
}

// asked returns a hash of the query as fingerprint does, but without its clusters and versions. The
// clusters that have the type may change between two pages.
func (q Query) asked() uint64 {
	q.Clusters, q.Version, q.Interchangeable = nil, "", nil
	return q.fingerprint()
}

// fingerprint returns a hash of the query. Limit, Offset, Continue, Scopes, CreatedFrom and
// CreatedBefore are left out, because they may change between two pages of one query.
func (q Query) fingerprint() uint64 {
	selector := ""
	if q.Labels != nil {
		selector = q.Labels.String()
	}
	h := fnv.New64a()
	// A hash never fails.
	_, _ = fmt.Fprintf(h, "%q %q %q %q %q %q %q %q %q %d %q %q %q %q %d %d %d", q.Group, q.Version, q.Resource, q.Clusters, q.Namespaces, q.Names, q.OwnerUID, selector, q.Fields, q.Order, q.NamePrefix,
		q.NameContains, q.OwnerName, q.OwnerResource.String(), q.OwnerSteps, seconds(q.Since), seconds(q.Before))
	// Creation times may come from an age, and so change.
	if len(q.Patterns) > 0 || len(q.Mentions) > 0 {
		_, _ = fmt.Fprintf(h, " slim %v %q", q.Patterns, q.Mentions)
	}
	if len(q.Texts) > 0 {
		_, _ = fmt.Fprintf(h, " texts %v", q.Texts)
	}
	if len(q.Interchangeable) > 0 {
		_, _ = fmt.Fprintf(h, " or %q", q.Interchangeable)
	}
	if !q.At.IsZero() {
		_, _ = fmt.Fprintf(h, " at %d", q.At.UnixMilli())
	}
	return h.Sum64()
}
