package render

import (
	"container/list"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of a Cache, in bytes of manifests as JSON: a few thousand manifests of the usual size.
// They take several times as much memory.
const (
	cacheBytes = 16 << 20
	entryBytes = 512 // approximate cost of an entry beside its manifest
)

// Cache renders manifests, and renders a manifest that several clusters share only once: most
// clusters of a placement get the same manifest. It is safe for concurrent use. Callers share
// the manifests and must not change them.
type Cache struct {
	mu      sync.Mutex
	entries map[cacheKey]*list.Element // of *rendered
	recent  *list.List                 // most recently used first
	bytes   int
	most    int
}

// NewCache returns an empty Cache.
func NewCache() *Cache {
	return &Cache{entries: map[cacheKey]*list.Element{}, recent: list.New(), most: cacheBytes}
}

// cacheKey is everything that a manifest depends on.
type cacheKey struct {
	version     string // of the template
	binding     types.UID
	replicas    int32 // -1: those of the template
	completions int64 // -1: those of the template
	rules       string
}

// rendered is the manifest of a key. The first caller renders it, and the others wait.
type rendered struct {
	key      cacheKey
	once     sync.Once
	manifest *unstructured.Unstructured
	digest   string
	size     int
	err      error
}

// Render is the function Render with a cache. version identifies the content of the template;
// see template.Version.
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

// grown adds the size of a rendered manifest, and removes the least recently used entries above
// the limit.
func (c *Cache) grown(e *list.Element, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, _ := e.Value.(*rendered)
	if c.entries[r.key] != e {
		return // it was removed while it was rendered
	}
	c.bytes += size
	for c.bytes > c.most && c.recent.Len() > 0 {
		last, _ := c.recent.Remove(c.recent.Back()).(*rendered)
		delete(c.entries, last.key)
		c.bytes -= last.size
	}
}

// key returns what the manifest depends on. The cluster counts only by the rules that concern
// it.
func (in *Input) key(version string) cacheKey {
	k := cacheKey{version: version, binding: in.Binding, replicas: -1, completions: -1}
	if in.Divided && in.Target.Replicas != nil {
		k.replicas = *in.Target.Replicas
		// An error is the same for every cluster.
		if n, err := in.completions(in.Template); err == nil && n != nil {
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
