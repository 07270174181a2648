package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// listsOfOne is the number of types of one cluster that are listed at the same time.
const listsOfOne = 8

// listsOfAll is the number of lists that run at the same time in all clusters together, first come,
// first served. It limits the memory when a thousand clusters are listed at once, after a start or
// an outage. A list that takes longer than slowList no longer counts, so that hanging clusters do
// not delay others. If a type was listed before and is listed again for longer than longList, its
// data counts as not current.
const (
	listsOfAll = 64
	slowList   = 10 * time.Second
	longList   = 2 * time.Minute
)

// listSlot waits until fewer than listsOfAll lists run. The caller calls done when its list has
// ended. If ctx ends first, listSlot returns nil and false.
func (m *Mirror) listSlot(ctx context.Context) (done func(), ok bool) {
	select {
	case m.listing <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	free := sync.OnceFunc(func() { <-m.listing })
	slow := time.AfterFunc(slowList, free)
	return func() { slow.Stop(); free() }, true
}

// cluster mirrors one cluster: it has a table for each of its types, and the consumers of the
// objects in the tables.
type cluster struct {
	mirror  *Mirror
	name    string
	source  source
	barrier *barrier

	wake    chan struct{}   // see wakeUp
	slots   chan struct{}   // one for each running list of a type
	quit    context.Context //nolint:containedctx // ended by stop
	end     context.CancelFunc
	stopped chan struct{} // closed when all goroutines of the cluster have ended
	kept    keptData      // which Secrets the store keeps with data; only run uses it
	drops   typeDrops     // deletions of types that are retried; only run uses it
	// Types with stored rows that the store has no record of. dropStrays deletes them once it is
	// certain that they are not mirrored. Only run uses it.
	strays []schema.GroupResource

	rest     rest.Interface // for watches
	objects  dynamic.Interface
	metadata metadata.Interface

	mu        sync.Mutex // guards the fields below, and those of the tables
	tables    map[schema.GroupResource]*table
	index     *index
	capacity  *capacity
	consumers []consumer // of all types, in the order in which they are called
	since     time.Time  // when the cluster last became reachable or unreachable
	answered  bool       // the cluster was reachable since this process started
	planned   bool       // the cluster's list of served APIs was read
	decided   selection  // what to mirror, computed from decidedOn
	kinds     int        // number of changes of the CustomResourceDefinitions
	decidedOn inputs     // from which decided was computed
	problem   error      // why there is no client for the cluster
}

func newCluster(m *Mirror, name string, s source) *cluster {
	c := &cluster{
		mirror: m, name: name, source: s, barrier: newBarrier(),
		wake: make(chan struct{}, 1), slots: make(chan struct{}, listsOfOne), stopped: make(chan struct{}),
		tables: map[schema.GroupResource]*table{}, capacity: newCapacity(), since: time.Now(),
		index: &index{mirror: m, placed: map[place]*Object{}, orphans: map[place]*Object{}, marks: map[string]namespaceMarks{}},
	}
	c.consumers = []consumer{c.capacity, c.index}
	c.quit, c.end = context.WithCancel(context.Background())
	return c
}

// reachable records that the cluster is now reachable (yes), or unreachable. It opens or closes the
// barrier at which lists and watches wait.
func (c *cluster) reachable(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = c.answered || yes
	if c.barrier.set(yes) {
		c.since = time.Now()
	}
}

// wakeUp makes run compare the tables with the types that the cluster serves and with the settings
// again. It does not block.
func (c *cluster) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // a signal is pending
	}
}

// stop ends run with all goroutines of the cluster, and waits until they have ended.
func (c *cluster) stop() {
	c.end()
	<-c.stopped
}

// forget makes the consumers forget all objects of the cluster, and drops the tables. It publishes
// no events. stop must have returned before.
func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		t.discardAll()
	}
	c.tables = nil
}

// run mirrors the cluster until ctx ends or stop is called.
func (c *cluster) run(ctx context.Context) {
	defer close(c.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.quit, cancel)() //nolint:contextcheck // stop ends it, beside ctx
	log := logr.FromContextOrDiscard(ctx).WithValues("cluster", c.name)
	ctx = logr.NewContext(ctx, log)
	if !c.connect(ctx) {
		return
	}
	var readingData sync.WaitGroup
	defer readingData.Wait()
	defer c.drops.running.Wait()
	for {
		// The settings for Secrets are read before the plan. If the plan reads newer settings, wakeUp has
		// been called again.
		data := c.secretData()
		next, unwanted, changed := c.plan()
		for _, t := range changed {
			t.stop()
			t.takeBack()
		}
		var retry <-chan time.Time
		for i, gone := range c.confirm(ctx, unwanted) {
			if gone {
				c.drop(ctx, unwanted[i])
			} else {
				retry = time.After(confirmAgain)
			}
		}
		c.dropStrays(ctx)
		c.keepData(ctx, &readingData, data)
		if len(changed) > 0 {
			continue // now the changed tables can be started again
		}
		enter := c.slots
		if next == nil {
			enter = nil
		}
		select {
		case enter <- struct{}{}:
			c.drops.end(resourceOf(next.api))
			next.start(ctx, sync.OnceFunc(func() { <-c.slots }))
		case <-c.wake:
		case <-retry:
		case <-ctx.Done():
			for _, t := range c.all() {
				t.stop()
			}
			return
		}
	}
}

// connect creates the clients of the cluster. After an error it tries again, until that succeeds.
// It returns false if ctx ended first.
func (c *cluster) connect(ctx context.Context) bool {
	for {
		err := c.clients()
		c.mu.Lock()
		news := err != nil && (c.problem == nil || c.problem.Error() != err.Error())
		c.problem = err
		c.mu.Unlock()
		if err == nil {
			return true
		}
		if news {
			logr.FromContextOrDiscard(ctx).Error(err, "Cluster cannot be mirrored; it is tried again until it can")
			c.mirror.fleet.Refresh(c.name)
		}
		select {
		case <-time.After(longestDelay):
		case <-c.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// clients sets the fields rest, objects and metadata from the connection settings of the member.
func (c *cluster) clients() (err error) {
	config := dynamic.ConfigFor(c.source.Config())
	config.GroupVersion = &schema.GroupVersion{} // each request has its own
	if c.rest, err = rest.RESTClientFor(config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	c.objects = dynamic.New(c.rest)
	if c.metadata, err = metadata.NewForConfig(c.source.Config()); err != nil {
		return fmt.Errorf("make metadata client: %w", err)
	}
	return nil
}

// remember adds a table for each type that the store has of the cluster, unless there is one. So
// the stored rows can be searched while the cluster does not answer.
func (c *cluster) remember(apis []member.API) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, api := range apis {
		if gr := resourceOf(api); c.tables != nil && c.tables[gr] == nil {
			c.tables[gr] = newTable(c, api)
		}
	}
}

// all returns the tables of the cluster, in no order.
func (c *cluster) all() []*table {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.tables))
}

// plan compares the tables with the types that the cluster serves and the settings select. next is
// one table to start; nil: none. unwanted are the tables of types to delete, and changed those that
// must be stopped and started again with other settings. All are nil while the list of served APIs
// was not read.
func (c *cluster) plan() (next *table, unwanted, changed []*table) {
	apis, complete := c.source.serves()
	if len(apis) == 0 {
		return nil, nil, nil // the API list was not read yet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	want := c.selected(apis)
	c.planned = true
	keep := make(map[schema.GroupResource]bool, len(want.types))
	served := make(map[schema.GroupResource]bool, len(want.types))
	for _, d := range want.types {
		gr := resourceOf(d.api)
		served[gr] = true
		if !d.mirrored {
			continue
		}
		keep[gr] = true
		t := c.tables[gr]
		if t == nil {
			t = newTable(c, d.api)
			c.tables[gr] = t
		}
		if t.plan(d) {
			changed = append(changed, t)
		}
		if !t.running && next == nil {
			next = t
		}
	}
	for gr, t := range c.tables {
		// While an API group does not answer, its types may still exist. While the custom resource
		// types are unknown, any type may be one of them.
		if !keep[gr] && !want.unsure && (complete(gr.Group) || served[gr]) {
			unwanted = append(unwanted, t)
		}
		switch {
		case served[gr]:
			t.unlisted = time.Time{}
		case t.unlisted.IsZero() && complete(gr.Group):
			t.unlisted = time.Now()
		}
	}
	return next, unwanted, changed
}

// confirmAgain is the interval at which a cluster is asked for a type that its API list lacks.
const confirmAgain = 10 * time.Second

// confirm returns, for each of the tables of types to delete, whether it may be deleted. A type
// that the API list lacks may still exist: an API server that starts, or an aggregator that loses a
// server, serves a list without it for a moment. Such a type is deleted once the cluster answers a
// request for it with Not Found. It is also deleted if a cluster that answers has lacked the type
// in its API lists for absentFor, and refuses such requests. Until then its objects count as stale.
func (c *cluster) confirm(ctx context.Context, unwanted []*table) []bool {
	gone := make([]bool, len(unwanted))
	answers := true
	for i, t := range unwanted {
		c.mu.Lock()
		unlisted, asked, api := t.unlisted, t.asked, t.api
		c.mu.Unlock()
		switch {
		case unlisted.IsZero(), time.Since(unlisted) > absentFor && c.source.Reachable():
			gone[i] = true
			continue
		case !answers || time.Since(asked) < confirmAgain:
			continue
		}
		var err error
		if answers, err = c.lists(ctx, api); apierrors.IsNotFound(err) {
			gone[i] = true
			continue
		}
		c.mu.Lock()
		if t.asked, t.away = time.Now(), true; err == nil {
			t.unlisted = t.asked
		}
		c.mu.Unlock()
	}
	return gone
}

// lists asks the cluster for objects of a type, and returns the error of the list. answered is
// false if no answer came in time.
func (c *cluster) lists(ctx context.Context, api member.API) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, longestDelay)
	defer cancel()
	namespace := ""
	if len(api.Within) > 0 {
		namespace = api.Within[0]
	}
	_, err = c.metadata.Resource(api.GroupVersionResource()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status), err
}

// selected returns which of the types that the cluster serves (apis, not empty) are mirrored, and
// how. It computes the result again only if an input has changed. The caller holds the cluster's
// lock.
func (c *cluster) selected(apis []member.API) selection {
	m := c.mirror
	now := inputs{
		apis: &apis[0], count: len(apis), cluster: c.source.Cluster(), custom: c.kinds,
		policies: m.policies.Load(), required: m.required.Load(),
	}
	if now != c.decidedOn {
		f := facts{apis: apis, required: *now.required, defaults: m.defaults}
		if t := c.tables[crds]; t != nil && t.synced {
			f.custom = make(map[schema.GroupResource]bool, len(t.records))
			for k, r := range t.records { // named RESOURCE.GROUP
				if !r.gone {
					f.custom[schema.ParseGroupResource(k.name)] = true
				}
			}
		}
		c.decided, c.decidedOn = decide(statements(now.cluster, *now.policies), f), now
	}
	return c.decided
}

// inputs identify the inputs from which a selection was computed. If two inputs are equal with ==,
// the selection is the same: the values behind the pointers are replaced after a change, never
// modified.
type inputs struct {
	apis     *member.API // the first API of the list
	count    int         // length of that list
	cluster  *clusterv1alpha1.Cluster
	custom   int // number of changes of the CustomResourceDefinitions
	policies *[]policy
	required *map[schema.GroupVersionKind]bool
}

// drop stops mirroring a type that the cluster no longer serves, or that is no longer selected. It
// makes the consumers forget the objects of the type, publishes their deletion, and deletes the
// rows. If the rows cannot be deleted, that is retried in the background.
func (c *cluster) drop(ctx context.Context, t *table) {
	t.stop()
	m := c.mirror
	gr := resourceOf(t.api)
	c.mu.Lock()
	delete(c.tables, gr)
	events := t.discardAll()
	if Measured(gr) { // the free capacity is another one, or is unknown now
		m.fleet.Refresh(c.name)
		c.measured()
	}
	c.mu.Unlock()
	m.notify(events...)
	m.writer.forget(func(k rowKey) bool { return k.cluster == c.name && k.resource == gr })
	c.drops.try(ctx, c, gr)
}

// progress returns an Observation with only Synced and Message set. Synced is true if every
// mirrored type is listed, its rows were passed to the store, and no repeated list is overdue. Else
// Message says what is missing. The caller holds the cluster's lock.
func (c *cluster) progress() member.Observation {
	if c.problem != nil {
		return member.Observation{Message: c.problem.Error()}
	}
	if !c.planned {
		return member.Observation{Message: "the API list is not known yet"}
	}
	var missing, overdue []string
	total := 0
	for gr, t := range c.tables {
		if !t.wanted {
			continue
		}
		total++
		switch {
		case t.synced && t.overdue != nil:
			overdue = append(overdue, gr.String()+" ("+t.overdue.Error()+")")
		case t.synced:
		case t.problem != nil:
			missing = append(missing, gr.String()+" ("+t.problem.Error()+")")
		default:
			missing = append(missing, gr.String())
		}
	}
	what := "types are not listed yet"
	if len(missing) == 0 && len(overdue) > 0 {
		missing, what = overdue, "types are listed again, and not current"
	}
	if len(missing) == 0 {
		for gr, t := range c.tables {
			if t.wanted && !t.complete() {
				missing = append(missing, gr.String())
			}
		}
		what = "types are read again, for what was stored of them was lost"
	}
	if len(missing) == 0 {
		return member.Observation{Synced: true, Message: fmt.Sprintf("%d types", total)}
	}
	slices.Sort(missing)
	o := member.Observation{Message: fmt.Sprintf("%d of %d %s: ", len(missing), total, what)}
	if len(missing) > 3 {
		missing = append(missing[:3:3], "…")
	}
	o.Message += strings.Join(missing, ", ")
	return o
}

// capacityKnown reports whether the nodes and the pods of the cluster are listed. The caller holds
// the cluster's lock.
func (c *cluster) capacityKnown() bool {
	return c.tables[nodes] != nil && c.tables[nodes].synced && c.tables[pods] != nil && c.tables[pods].synced
}

// quotasKnown reports whether everything is known of the ResourceQuotas that limit the cluster's
// free capacity. It is also true if nothing requires quotas (see Mirror.Require), and if the
// cluster does not serve them or refuses access to them. The caller holds the cluster's lock.
func (c *cluster) quotasKnown() bool {
	if !(*c.mirror.required.Load())[quotaKind] {
		return true
	}
	if t := c.tables[quotas]; t != nil && t.wanted {
		return t.synced || refused(t.problem)
	}
	// The cluster does not serve ResourceQuotas, if that was decided after they were required.
	return c.decidedOn.required != nil && (*c.decidedOn.required)[quotaKind]
}
