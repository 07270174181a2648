package search

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/request"
	sigsjson "sigs.k8s.io/json"

	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/store"
)

// Live is a cluster that is asked itself, for what is never mirrored.
type Live interface {
	// Reachable is false once the cluster has not answered for a while.
	Reachable() bool
	// Serves says whether the cluster has a type, as far as is known.
	Serves(gvr schema.GroupVersionResource) presence.Presence
	// Get reads a path of the cluster, as JSON, without a limit: asker has one.
	Get(ctx context.Context, path string) (*http.Response, error)
}

// What it may cost to ask clusters. Who may see one namespace of theirs must be able to slow down neither them nor the hub.
const (
	liveTime       = 5 * time.Second  // a cluster may take to answer
	liveBudget     = 10 * time.Second // a request may take, waiting for its turn included
	liveFresh      = 2 * time.Second  // an answer is also that to who asks the same again
	liveRest       = 5 * time.Second  // a cluster that does not cope is not asked
	livePerCluster = 2                // questions are on their way to a cluster at once
	liveAtOnce     = 256              // and to all clusters
	liveWaiting    = 64               // questions are on their way to a cluster, or wait for it
	liveWaitingAll = 16384            // and for all clusters
	liveNamespaces = 4                // namespaces are asked for one by one; if it is more, all are
)

// bounds are of how many bytes there may be.
type bounds struct {
	answer   int64 // of an answer
	request  int64 // of what a request is answered with
	together int64 // of all that is held: answers, and what requests are answered with
}

var liveBounds = bounds{answer: 16 << 20, request: 64 << 20, together: 256 << 20}

var (
	errUnreachable = errors.New("it is unreachable")
	errNotServed   = errors.New("it has no metrics server")
	errNotAsked    = fmt.Errorf("it was not asked: within %s it was not its turn, so much else is asked at the same time", liveBudget)
	errBusy        = errors.New("it was not asked: too many questions wait for an answer already, yours or all. Ask in a moment, or single clusters")
	errLate        = fmt.Errorf("it has not answered when %s were over", liveBudget)
	errUnanswered  = fmt.Errorf("it did not answer within %s", liveTime)
	errLarge       = errors.New("its answer is too large: ask for single namespaces")
	errTooMuch     = errors.New("the answers together are too large: ask for single clusters or namespaces")
	errFull        = errors.New("the hub holds as many answers of clusters as it can: ask for single clusters or namespaces, or in a moment")
)

// question is one that a cluster is asked: for all objects of a type, or those of a namespace. One object is looked for in these: questions for
// ever other names would be ever other ones.
type question struct {
	cluster   string
	api       *member.API
	namespace string // "": all
}

func (q question) path() string {
	path := "/apis/" + q.api.GroupVersionKind.GroupVersion().String()
	if q.namespace != "" {
		path += "/namespaces/" + q.namespace
	}
	return path + "/" + q.api.Resource
}

// asker asks clusters, the same question once for all who ask it at about the same time. It has limits of its own: what users ask must not be
// taken out of those for the hub's own work in a cluster, nor teach these that a cluster is slow of which only the metrics server is.
type asker struct {
	live  func(cluster string) (Live, bool)
	slots chan struct{}
	most  bounds
	held  atomic.Int64 // bytes

	mu        sync.Mutex
	places    places
	inquiries map[question]*inquiry
	clusters  map[string]*contact
}

// contact is what is known of asking a cluster. It is kept while the cluster is asked, or rests.
type contact struct {
	slots  chan struct{}
	places places
	rests  time.Time // it is not asked before
	why    error
}

// places are those of questions that have no answer yet, by the users who asked them first. Nobody may have more of them than are left for
// all others, so that one who takes what there is leaves half of it.
type places struct {
	most, taken int
	of          map[string]int
}

func newPlaces(most int) places { return places{most: most, of: map[string]int{}} }

func (p *places) free(user string) bool { return p.of[user] < p.most-p.taken }

func (p *places) take(user string) {
	p.taken++
	p.of[user]++
}

func (p *places) giveBack(user string) {
	p.taken--
	if p.of[user]--; p.of[user] == 0 {
		delete(p.of, user)
	}
}

// inquiry is a question that is asked, and its answer when it is there.
type inquiry struct {
	question
	user string // who asked it first

	done    chan struct{} // closed when it is there
	sent    atomic.Bool
	cancel  context.CancelFunc
	waiting int // for it; the asker must be locked
	rows    []store.Row
	err     error
}

func newAsker(live func(cluster string) (Live, bool)) *asker {
	return &asker{
		live: live, most: liveBounds, slots: make(chan struct{}, liveAtOnce), places: newPlaces(liveWaitingAll),
		inquiries: map[question]*inquiry{}, clusters: map[string]*contact{},
	}
}

// ask asks a question, or joins those who do. It must be waited for. One for which there is no place is answered at once: with errBusy.
func (a *asker) ask(ctx context.Context, q question) *inquiry {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.inquiries[q]; ok {
		r.waiting++
		return r
	}
	r := &inquiry{question: q, done: make(chan struct{}), waiting: 1}
	if who, ok := request.UserFrom(ctx); ok {
		r.user = who.GetName()
	}
	c, ok := a.clusters[q.cluster]
	if !a.places.free(r.user) || ok && !c.places.free(r.user) {
		r.err = errBusy
		close(r.done)
		return r
	}
	if !ok {
		c = &contact{slots: make(chan struct{}, livePerCluster), places: newPlaces(liveWaiting)}
		a.clusters[q.cluster] = c
	}
	a.places.take(r.user)
	c.places.take(r.user)
	a.inquiries[q] = r
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // it may be of others, too
	go a.run(ctx, c, r)
	return r
}

// wait returns the rows of the answer, which are not to be changed.
func (a *asker) wait(ctx context.Context, r *inquiry) ([]store.Row, error) {
	defer a.leave(r)
	select {
	case <-r.done:
		return r.rows, r.err
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return r.rows, r.err
	default:
	}
	if r.sent.Load() {
		return nil, errLate
	}
	return nil, errNotAsked
}

// leave takes a question back for which nobody waits any more.
func (a *asker) leave(r *inquiry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.waiting--; r.waiting > 0 {
		return
	}
	select {
	case <-r.done:
	default:
		r.cancel()
		delete(a.inquiries, r.question)
	}
}

// run finds the answer.
func (a *asker) run(ctx context.Context, c *contact, r *inquiry) {
	var held int64
	defer func() {
		if panicked := recover(); panicked != nil {
			logr.FromContextOrDiscard(ctx).Error(unexpected(panicked), "cluster cannot be asked", "cluster", r.cluster, "path", r.path())
			r.err = errors.New("its answer cannot be read; the server's log says why")
		}
		if r.err != nil {
			a.held.Add(-held)
			r.rows, held = nil, 0
		}
		r.cancel()
		a.answered(c, r)
		time.AfterFunc(liveFresh, func() { a.forget(r, held) })
	}()
	l, ok := a.live(r.cluster)
	if !ok || !l.Reachable() {
		r.err = errUnreachable
		return
	}
	for _, slots := range []chan struct{}{c.slots, a.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			r.err = errNotAsked
			return
		}
	}
	if r.err = a.resting(c); r.err != nil {
		return
	}
	r.sent.Store(true)
	within, cancel := context.WithTimeout(ctx, liveTime)
	defer cancel()
	var copes bool
	r.rows, copes, r.err = a.read(within, l, r.question, &held)
	switch {
	case r.err == nil || ctx.Err() != nil:
		return
	case within.Err() != nil:
		r.err, copes = errUnanswered, false
	}
	if !copes {
		a.mu.Lock()
		c.rests, c.why = time.Now().Add(liveRest), r.err
		a.mu.Unlock()
		time.AfterFunc(liveRest, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.drop(r.cluster)
		})
	}
}

// answered gives the place of a question back, whose answer is there.
func (a *asker) answered(c *contact, r *inquiry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places.giveBack(r.user)
	c.places.giveBack(r.user)
	a.drop(r.cluster)
	close(r.done)
}

// drop gives up what is known of asking a cluster that is neither asked nor rests: it may have left. The asker must be locked.
func (a *asker) drop(cluster string) {
	if c, ok := a.clusters[cluster]; ok && c.places.taken == 0 && !time.Now().Before(c.rests) {
		delete(a.clusters, cluster)
	}
}

// resting is why a cluster is not asked at present.
func (a *asker) resting(c *contact) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(c.rests) {
		return c.why
	}
	return nil
}

func (a *asker) forget(r *inquiry, held int64) {
	a.held.Add(-held)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inquiries[r.question] == r {
		delete(a.inquiries, r.question)
	}
}

// read asks. copes is false if the cluster says or shows that it is not to be asked now. held is what is held of the answer, also after an error.
func (a *asker) read(ctx context.Context, l Live, q question, held *int64) (rows []store.Row, copes bool, err error) {
	resp, err := l.Get(ctx, q.path())
	if err != nil {
		return nil, false, errors.New("it did not answer")
	}
	defer func() { _ = resp.Body.Close() }() // it was read as far as it matters
	body := &counted{from: resp.Body, held: held, together: &a.held, most: a.most}
	switch code := resp.StatusCode; code {
	case http.StatusOK:
		rows, err = readList(q, body)
		return rows, true, err
	case http.StatusNotFound:
		return nil, true, errNotServed
	default:
		return nil, code != http.StatusTooManyRequests && code < http.StatusInternalServerError, fmt.Errorf("it answers with %d %s", code, http.StatusText(code))
	}
}

// counted is an answer of which is counted what was read.
type counted struct {
	from     io.Reader
	held     *int64
	together *atomic.Int64
	most     bounds
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	*c.held += int64(n)
	switch together := c.together.Add(int64(n)); {
	case *c.held > c.most.answer:
		return 0, errLarge
	case together > c.most.together:
		return 0, errFull
	}
	return n, err
}

// unreadable is what is said of an answer that cannot be read.
func (q question) unreadable(err error) error {
	if errors.Is(err, errLarge) || errors.Is(err, errFull) {
		return err
	}
	return fmt.Errorf("its answer is no %s", q.api.GroupVersionKind.Kind)
}

// readList reads a list, object by object.
func readList(q question, from io.Reader) (rows []store.Row, err error) {
	d := json.NewDecoder(from)
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil, q.unreadable(err)
	}
	var kind string
	var meta metav1.ListMeta
	listed := false
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, q.unreadable(err)
		}
		switch name {
		case "kind":
			err = d.Decode(&kind)
		case "metadata":
			err = d.Decode(&meta)
		case "items":
			listed = true
			if rows, err = readItems(q, d); err != nil {
				return nil, err
			}
		default:
			err = d.Decode(&json.RawMessage{})
		}
		if err != nil {
			return nil, q.unreadable(err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, q.unreadable(err)
	}
	switch {
	case !listed || kind != q.api.GroupVersionKind.Kind+"List":
		return nil, fmt.Errorf("its answer is no list of %s", q.api.GroupVersionKind.Kind)
	case meta.Continue != "":
		return nil, errors.New("its answer is a part of the list, although the whole was asked for")
	}
	slices.SortFunc(rows, func(a, b store.Row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return rows, nil
}

func readItems(q question, d *json.Decoder) (rows []store.Row, err error) {
	begin, err := d.Token()
	if err != nil || begin != nil && begin != json.Delim('[') {
		return nil, q.unreadable(err)
	}
	if begin == nil {
		return nil, nil // an empty list of Go
	}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, q.unreadable(err)
		}
		row, err := rowOf(q, raw)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if _, err := d.Token(); err != nil {
		return nil, q.unreadable(err)
	}
	return rows, nil
}

// rowOf is the row of an object. What cannot be encoded in every form that may be asked for is an error here, before anything is written.
func rowOf(q question, raw []byte) (store.Row, error) {
	var content map[string]any
	var o struct {
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := errors.Join(utiljson.Unmarshal(raw, &content), sigsjson.UnmarshalCaseSensitivePreserveInts(raw, &o)); err != nil {
		return store.Row{}, fmt.Errorf("an object of its answer is no %s", q.api.GroupVersionKind.Kind)
	}
	if o.Name == "" || (o.Namespace != "") != q.api.Namespaced || q.namespace != "" && o.Namespace != q.namespace {
		return store.Row{}, errors.New("its answer has objects that were not asked for")
	}
	body, err := json.Marshal(content)
	gvk := q.api.GroupVersionKind
	return store.Row{
		Cluster: q.cluster, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Resource: q.api.Resource,
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, Created: o.CreationTimestamp.Time, Labels: o.Labels, Body: body,
	}, err
}
