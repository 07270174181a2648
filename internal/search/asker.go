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

// Live is a member cluster that the hub asks during a request, for metrics: they are never
// mirrored.
type Live interface {
	// Reachable is false if the cluster has not answered for some time.
	Reachable() bool
	// Serves returns whether the cluster has a type, as far as is known.
	Serves(gvr schema.GroupVersionResource) presence.Presence
	// Get sends a GET for a path to the API server of the cluster, for an answer in JSON. It does
	// not limit the size of the answer.
	Get(ctx context.Context, path string) (*http.Response, error)
}

// Limits on questions to clusters: requests for metrics. A user that may see one namespace must not
// be able to slow down the clusters or the hub.
const (
	// liveTime is the time that a cluster may take to answer a question for metrics.
	liveTime = 5 * time.Second
	// liveBudget is the time that one request for metrics may take, including the time in the queue.
	liveBudget = 10 * time.Second
	// liveFresh is the time for which an answer of a cluster with metrics also serves the same
	// question in other requests.
	liveFresh = 2 * time.Second
	// liveRest is the time for which a cluster is not asked for metrics after it failed or was
	// overloaded.
	liveRest = 5 * time.Second
	// livePerCluster is the maximum number of concurrent questions to one cluster for metrics.
	livePerCluster = 2
	// liveAtOnce is the maximum number of concurrent questions to all clusters for metrics.
	liveAtOnce = 256
	// liveWaiting is the maximum number of questions to one cluster for metrics that have no answer
	// yet.
	liveWaiting = 64
	// liveWaitingAll is the maximum number of questions to all clusters for metrics that have no
	// answer yet.
	liveWaitingAll = 16384
	// liveNamespaces is the maximum number of namespaces for which a cluster is asked one by one for
	// metrics. For more namespaces, one question is for all.
	liveNamespaces = 4
)

// bounds are the maximum numbers of bytes that answers of clusters may have.
type bounds struct {
	answer   int64 // one answer of a cluster
	request  int64 // the objects in the answer to one request
	together int64 // everything in memory: answers of clusters and answers to requests
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

// question asks one cluster for all metrics of a type, or for those of one namespace. There are no
// questions for single objects: they would all differ, and no answer would serve two requests. The
// caller finds the objects in the answer.
type question struct {
	cluster   string
	api       *member.API
	namespace string // "": all namespaces
}

// path returns the path on the API server of the cluster that answers the question.
func (q question) path() string {
	path := "/apis/" + q.api.GroupVersionKind.GroupVersion().String()
	if q.namespace != "" {
		path += "/namespaces/" + q.namespace
	}
	return path + "/" + q.api.Resource
}

// asker asks clusters for metrics, and shares the answers: equal questions at about the same time
// are one. Its limits are separate from those of the hub's other requests to a cluster, which users
// must not slow down. It may be used from several goroutines.
type asker struct {
	live  func(cluster string) (Live, bool)
	slots chan struct{}
	most  bounds
	held  atomic.Int64 // bytes in memory: answers, until liveFresh is over, and rows of requests

	mu        sync.Mutex
	places    places
	inquiries map[question]*inquiry
	clusters  map[string]*contact
}

// contact is the state of the questions to one cluster: its slots, and whether the cluster rests,
// which means that it is not asked for a while. A contact without unanswered questions is deleted,
// unless the cluster rests.
type contact struct {
	slots  chan struct{}
	places places
	rests  time.Time // the cluster is not asked before this time
	why    error     // the failure after which the cluster rests
}

// places counts the unanswered questions by the user that asked first, and limits them to most. A
// user gets no more of them than are free, so one user can take at most half. The asker must be
// locked.
type places struct {
	most, taken int
	of          map[string]int
}

func newPlaces(most int) places { return places{most: most, of: map[string]int{}} }

// free reports whether the user may have another unanswered question.
func (p *places) free(user string) bool { return p.of[user] < p.most-p.taken }

// take counts a new unanswered question of the user.
func (p *places) take(user string) {
	p.taken++
	p.of[user]++
}

// giveBack reverses one call of take, when the question was answered.
func (p *places) giveBack(user string) {
	p.taken--
	if p.of[user]--; p.of[user] == 0 {
		delete(p.of, user)
	}
}

// inquiry is a question that was asked, for one or more callers. done is closed when rows or err
// have the answer.
type inquiry struct {
	question
	user string // the user that asked first

	done    chan struct{} // closed when the answer is there
	sent    atomic.Bool   // the cluster was asked
	cancel  context.CancelFunc
	waiting int // number of callers that wait for the answer; the asker must be locked
	rows    []store.Row
	err     error
}

func newAsker(live func(cluster string) (Live, bool)) *asker {
	return &asker{
		live: live, most: liveBounds, slots: make(chan struct{}, liveAtOnce), places: newPlaces(liveWaitingAll),
		inquiries: map[question]*inquiry{}, clusters: map[string]*contact{},
	}
}

// ask asks a question, unless it is unanswered or was answered within liveFresh: then the result is
// that inquiry. ask does not block. The caller must call wait once with the result. If the user or
// all users have too many unanswered questions, wait returns errBusy at once. The end of ctx does
// not end the question.
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
	// The question outlives this request, because other callers may wait for its answer, too.
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go a.run(ctx, c, r)
	return r
}

// wait waits for the answer to an inquiry and returns its rows, which must not be changed. If ctx
// ends first, it returns errLate, or errNotAsked if the cluster was not asked yet. Each call of ask
// needs one call of wait: an inquiry without waiting callers is cancelled.
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

// leave subtracts one caller from an inquiry. Without an answer and without further callers, the
// inquiry is cancelled.
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

// run asks the cluster of the inquiry r, stores rows or an error in r, and closes r.done. After a
// failure of the cluster, c rests for liveRest. The answer serves other requests for liveFresh, and
// its bytes count in a.held until then.
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

// answered ends an inquiry after its answer: it subtracts the inquiry from the unanswered ones,
// deletes the contact if it is unused, and closes r.done.
func (a *asker) answered(c *contact, r *inquiry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places.giveBack(r.user)
	c.places.giveBack(r.user)
	a.drop(r.cluster)
	close(r.done)
}

// drop deletes the contact of a cluster that has no unanswered question and does not rest.
// Otherwise contacts of clusters that left the fleet would stay. The asker must be locked.
func (a *asker) drop(cluster string) {
	if c, ok := a.clusters[cluster]; ok && c.places.taken == 0 && !time.Now().Before(c.rests) {
		delete(a.clusters, cluster)
	}
}

// resting returns the failure after which a cluster is not asked for a while (liveRest); nil if it
// may be asked.
func (a *asker) resting(c *contact) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(c.rests) {
		return c.why
	}
	return nil
}

// forget ends the use of an answer for other requests, and subtracts its bytes from a.held.
func (a *asker) forget(r *inquiry, held int64) {
	a.held.Add(-held)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inquiries[r.question] == r {
		delete(a.inquiries, r.question)
	}
}

// read asks a cluster and parses its answer. copes is false if the cluster is overloaded or fails,
// so that it should rest. The number of bytes read is added to *held and a.held, also before an
// error. The error is errNotServed if the cluster does not have the type.
func (a *asker) read(ctx context.Context, l Live, q question, held *int64) (rows []store.Row, copes bool, err error) {
	resp, err := l.Get(ctx, q.path())
	if err != nil {
		return nil, false, errors.New("it did not answer")
	}
	defer func() { _ = resp.Body.Close() }() // the relevant part was read
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

// counted is the body of a cluster's answer. It adds the bytes that are read to held and together.
// Beyond the limits in most, Read returns errLarge or errFull.
type counted struct {
	from     io.Reader
	held     *int64
	together *atomic.Int64
	most     bounds
}

// Read implements io.Reader. It returns errLarge if this answer is too large, and errFull if all
// answers in memory together are.
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

// unreadable returns the error for an answer that cannot be parsed as the kind in question. If err
// is errLarge or errFull, the answer was too large, and err is returned. err may be nil.
func (q question) unreadable(err error) error {
	if errors.Is(err, errLarge) || errors.Is(err, errFull) {
		return err
	}
	return fmt.Errorf("its answer is no %s", q.api.GroupVersionKind.Kind)
}

// readList parses the answer to q, which must be a complete list of the kind, object by object. The
// rows are sorted by namespace and name. A list of another kind, or a part of a list, is an error.
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

// readItems parses the field items of a list. null counts as an empty list.
func readItems(q question, d *json.Decoder) (rows []store.Row, err error) {
	begin, err := d.Token()
	if err != nil || begin != nil && begin != json.Delim('[') {
		return nil, q.unreadable(err)
	}
	if begin == nil {
		return nil, nil // Go encodes an empty list as null
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

// rowOf returns the row of an object in the answer to q. It returns an error for an object that q
// did not ask for, and for one that cannot be decoded and encoded again: encodings would fail
// later, in the middle of an answer.
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
