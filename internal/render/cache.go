package render

import (
	"container/list"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// cacheBytes is how many bytes of manifests, as JSON, a Cache keeps: a few thousand of the usual
// size. What is kept takes some times as much memory.
const (
	cacheBytes = 16 << 20
	entryBytes = 512 // about what one costs beside its manifest
)

// Cache renders, and renders what is the same for several clusters once: most clusters of a
// placement get the same manifest. It may be used by several goroutines, which share the manifests
// and must not change them.
type Cache struct {
	mu      sync.Mutex
	entries map[cacheKey]*list.Element // of *rendered
	recent  *list.List                 // the one that was used last comes first
	bytes   int
	most    int
}

// NewCache returns an empty Cache.
func NewCache() *Cache {
	return &Cache{entries: map[cacheKey]*list.Element{}, recent: list.New(), most: cacheBytes}
}

// cacheKey is all that a manifest depends on.
type cacheKey struct {
	version     string // of the template
	binding     types.UID
	replicas    int32 // -1: the template's
	completions int64 // the same
	rules       string
}

// rendered is the manifest of a key; who comes first renders it, and the others wait.
type rendered struct {
	key      cacheKey
	once     sync.Once
	manifest *unstructured.Unstructured
	digest   string
	size     int
	err      error
}

// Render is Render. version identifies what the template says; see template.Version.
func (c *Cache) Render(in Input, version string) (manifest *unstructured.Unstructured, digest string, err error) {
	key := in.key(version)
	c.mu.Lock()
	e, ok := c.entries[key]
	if ok {
		c.recent.MoveToFront(e)
	} else {
		e = c.recent.PushFront(&rendered{key: key})
		c.entries[key] = e
	}
	r, _ := e.Value.(*rendered)
	c.mu.Unlock()
	r.once.Do(func() {
		r.manifest, r.digest, r.size, r.err = render(in)
		r.size += len(key.rules) + entryBytes
		c.grown(e, r.size)
	})
	return r.manifest, r.digest, r.err
}

// grown counts a manifest that was rendered, and forgets those that were not used for longest.
func (c *Cache) grown(e *list.Element, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, _ := e.Value.(*rendered)
	if c.entries[r.key] != e {
		return // it was forgotten while it was rendered
	}
	c.bytes += size
	for c.bytes > c.most && c.recent.Len() > 0 {
		last, _ := c.recent.Remove(c.recent.Back()).(*rendered)
		delete(c.entries, last.key)
		c.bytes -= last.size
	}
}

// key is what the manifest depends on. Of the cluster that is which rules concern it.
func (in *Input) key(version string) cacheKey {
	k := cacheKey{version: version, binding: in.Binding, replicas: -1, completions: -1}
	if in.Divided && in.Target.Replicas != nil {
		k.replicas = *in.Target.Replicas
		if n, err := in.completions(in.Template); err == nil && n != nil { // an error is every cluster's
			k.completions = *n
		}
	}
	if len(in.Overrides) == 0 {
		return k
	}
	var rules strings.Builder
	for _, v := range in.Overrides {
		rules.WriteString(string(v.Policy.UID) + "/" + v.Policy.Namespace + "/" + v.Policy.Name + "/" + strconv.FormatInt(v.Policy.Generation, 10))
		for i := range v.rules {
			if v.err == nil && v.concerns(i, in.Cluster) {
				rules.WriteString("." + strconv.Itoa(i))
			}
		}
		rules.WriteByte(' ')
	}
	k.rules = rules.String()
	return k
}
