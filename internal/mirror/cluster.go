package mirror

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/member"
)

// listsOfOne is the number of concurrent lists of one cluster.
const listsOfOne = 8

// listsOfAll is the number of concurrent lists of all clusters, first come, first served. It
// limits the memory for a thousand clusters that are listed at once, after a start or an outage.
// A list that takes longer than slowList frees its slot, so that clusters that hang do not delay
// others. A type that is listed again for longer than longList is not current.
const (
	listsOfAll = 64
	slowList   = 10 * time.Second
	longList   = 2 * time.Minute
)

// turn waits for a list slot of the mirror. ok is false if ctx ended first. done frees the slot.
func (m *Mirror) turn(ctx context.Context) (done func(), ok bool) {
	select {
	case m.listing <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	free := sync.OnceFunc(func() { <-m.listing })
	slow := time.AfterFunc(slowList, free)
	return func() { slow.Stop(); free() }, true
}

// cluster is the mirror of one cluster.
type cluster struct {
	mirror *Mirror
	name   string
	source source
	gate   *gate

	wake    chan struct{}
	slots   chan struct{}   // one for each running list of a type
	quit    context.Context //nolint:containedctx // ended by stop
	end     context.CancelFunc
	stopped chan struct{} // closed when all goroutines of the cluster have ended
	kept    keptData      // only run uses it
	drops   typeDrops     // only run uses it
	// Stored types that were not compared with a plan yet. Only run uses it.
	strays []schema.GroupResource

	rest     rest.Interface // for watches
	objects  dynamic.Interface
	metadata metadata.Interface

	mu        sync.Mutex // guards the fields below, and those of the tables
	tables    map[schema.GroupResource]*table
	placed    map[place]*Object
	orphans   map[place]*Object
	marks     map[string]namespaceMarks // of namespaces with NamespaceLabel
	capacity  *capacity
	since     time.Time // of the last change of reachability
	planned   bool      // the cluster's API list was read
	decided   selection // what to mirror, computed from decidedOn
	kinds     int       // number of changes of the CustomResourceDefinitions
	decidedOn inputs
	problem   error // why there is no client for the cluster
}

func newCluster(m *Mirror, name string, s source) *cluster {
	c := &cluster{
		mirror: m, name: name, source: s, gate: newGate(),
		wake: make(chan struct{}, 1), slots: make(chan struct{}, listsOfOne), stopped: make(chan struct{}),
		tables: map[schema.GroupResource]*table{}, placed: map[place]*Object{}, orphans: map[place]*Object{}, marks: map[string]namespaceMarks{}, capacity: newCapacity(), since: time.Now(),
	}
	c.quit, c.end = context.WithCancel(context.Background())
	return c
}

// reachable records whether the cluster is reachable.
func (c *cluster) reachable(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gate.set(yes) {
		c.since = time.Now()
	}
}

// wakeUp makes the cluster compare its tables with the settings.
func (c *cluster) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // a signal is pending
	}
}

// stop ends all work for the cluster and waits for the end.
func (c *cluster) stop() {
	c.end()
	<-c.stopped
}

// forget removes everything from the index. The cluster must be stopped, and can then observe
// nothing more.
func (c *cluster) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, o := range c.placed {
		c.mirror.bindings.remove(p, o)
	}
	c.tables, c.placed, c.orphans, c.marks = nil, nil, nil, nil
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
		// Read before the plan. If the plan sees newer settings, there is another wake-up.
		data := c.secretData()
		next, unwanted, changed := c.plan()
		for _, t := range changed {
			t.stop()
			t.takeBack()
		}
		for _, t := range unwanted {
			c.drop(ctx, t)
		}
		c.dropStrays(ctx)
		c.keepData(ctx, &readingData, data)
		if len(changed) > 0 {
			continue // their tables can start now
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
		case <-ctx.Done():
			for _, t := range c.all() {
				t.stop()
			}
			return
		}
	}
}

// connect creates the clients and retries on errors; false: ctx has ended.
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

// remember adds the stored types to the tables, so that a cluster that does not answer can be
// searched.
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

// plan compares the tables with the types that the cluster serves. next is the table to start,
// unwanted are those to delete, and changed those to restart.
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
		// While an API group does not answer, its types may still exist. While custom resources
		// are unknown, a type may be one of them.
		if !keep[gr] && !want.unsure && (complete(gr.Group) || served[gr]) {
			unwanted = append(unwanted, t)
		}
	}
	return next, unwanted, changed
}

// selected returns what to mirror of the types that the cluster serves. The caller holds the
// cluster's lock.
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

// inputs identify the inputs of a selection. They are replaced, never changed.
type inputs struct {
	apis     *member.API
	count    int
	cluster  *clusterv1alpha1.Cluster
	custom   int
	policies *[]policy
	required *map[schema.GroupVersionKind]bool
}

// drop deletes a type that the cluster no longer serves, or that is no longer to be mirrored.
func (c *cluster) drop(ctx context.Context, t *table) {
	t.stop()
	m := c.mirror
	gr := resourceOf(t.api)
	c.mu.Lock()
	delete(c.tables, gr)
	events := make([]Event, 0, len(t.records))
	for k, r := range t.records {
		events = append(events, t.remove(k, r)...)
	}
	c.mu.Unlock()
	m.notify(events...)
	m.writer.forget(func(k rowKey) bool { return k.cluster == c.name && k.resource == gr })
	c.drops.try(ctx, c, gr)
}

// progress returns whether everything is listed, and no repeated list is overdue. The caller
// holds the cluster's lock.
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

// capacityKnown reports whether nodes and pods are listed. The caller holds the cluster's lock.
func (c *cluster) capacityKnown() bool {
	return c.tables[nodes] != nil && c.tables[nodes].synced && c.tables[pods] != nil && c.tables[pods].synced
}

// quotasKnown reports whether the cluster's quotas are known. It is also true if the cluster does
// not serve them or refuses access, or if nothing requires them. The caller holds the cluster's
// lock.
func (c *cluster) quotasKnown() bool {
	if !(*c.mirror.required.Load())[quotaKind] {
		return true
	}
	if t := c.tables[quotas]; t != nil && t.wanted {
		return t.synced || refused(t.problem)
	}
	// The cluster does not serve them.
	return c.decidedOn.required != nil && (*c.decidedOn.required)[quotaKind]
}
