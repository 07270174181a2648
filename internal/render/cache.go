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
	// cacheBytes is the maximum size of a Cache.
	cacheBytes = 16 << 20
	entryBytes = 512 // approximate cost of an entry beside its manifest
)

// Cache renders manifests, and renders a manifest that several clusters share only once: most
// clusters of a placement get the same manifest. most is the maximum of bytes. It is safe for
// concurrent use. Callers share the manifests and must not change them.
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
	replicas    int32  // -1: those of the template
	completions int64  // -1: those of the template
	rules       string // override policies, and which of their rules select the cluster
}

// rendered is an entry of the Cache: the manifest of a key, or the error of rendering it. The first
// caller renders it, and the others wait.
type rendered struct {
	key      cacheKey
	once     sync.Once
	manifest *unstructured.Unstructured
	digest   string
	err      error

	size int // the share of this entry in Cache.bytes, guarded by Cache.mu; 0 while it is rendered
}

// Render returns the manifest for one cluster and its digest, as the function Render does, from the
// cache if it is there. version identifies the content of the template; see template.Version. An
// error is cached as well. The manifest is read-only.
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
		var size int
		r.manifest, r.digest, size, r.err = render(in)
		c.grown(e, size+len(key.rules)+entryBytes)
	})
	return r.manifest, r.digest, r.err
}

// grown adds the size of entry e, which was just rendered. While the cache is too large, it removes
// the least recently used entries. It does nothing for an entry that was removed meanwhile.
func (c *Cache) grown(e *list.Element, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, _ := e.Value.(*rendered)
	if c.entries[r.key] != e {
		return // the entry was removed while it was rendered
	}
	r.size = size
	c.bytes += size
	for c.bytes > c.most && c.recent.Len() > 0 {
		last, _ := c.recent.Remove(c.recent.Back()).(*rendered)
		delete(c.entries, last.key)
		c.bytes -= last.size
	}
}

// key returns everything that the manifest depends on. version is that of the template, see
// template.Version. The key does not name the cluster, but the override rules that select it, so
// clusters with the same rules share a manifest.
func (in *Input) key(version string) cacheKey {
	k := cacheKey{version: version, binding: in.Binding, replicas: -1, completions: -1}
	if in.Divided && in.Target.Replicas != nil {
		k.replicas = *in.Target.Replicas
		// An error of completions is the same for all clusters, so the key need not contain it.
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
