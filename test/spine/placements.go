package spine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
)

// Version is read from the annotations of a copy: the value of the override that was applied to
// it, and the number of the edit of its template.
type Version struct{ Over, edit int }

// Without is the override value in the annotations of templates. No copy may ever have it.
const Without = "none"

// VersionIn returns the Version of a copy. It returns an error if the override is not applied,
// or the object is no copy.
func VersionIn(object map[string]any) (Version, error) {
	var v Version
	annotations, _, _ := unstructured.NestedStringMap(object, "metadata", "annotations")
	var errs [2]error
	v.Over, errs[0] = strconv.Atoi(annotations["over"])
	v.edit, errs[1] = strconv.Atoi(annotations["edit"])
	return v, errors.Join(errs[:]...)
}

// Stamp returns an override policy that writes value into all objects of a group.
func Stamp(ns string, group, value int) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: stamp-%[2]d, namespace: %[1]s}
spec:
  resourceSelectors: [%[4]s]
  overrideRules: [{overriders: {annotationsOverrider: [{operator: replace, value: {over: "%[3]d"}}]}}]
`, ns, group, value, stamped(group))
}

func stamped(group int) string {
	var all []string
	for _, k := range []string{"apps/v1, kind: Deployment", "v1, kind: ConfigMap", "v1, kind: Secret", "spine.example.org/v1, kind: Widget"} {
		all = append(all, fmt.Sprintf(`{apiVersion: %s, labelSelector: {matchLabels: {group: "%d"}}}`, k, group))
	}
	return strings.Join(all, ", ")
}

// Placements holds templates under policies and overrides, the copies that members shall have
// of them, and all writes there. A name that begins with "app" is a Deployment with a ConfigMap
// and a Secret as its dependencies. Every other name is a ConfigMap.
type Placements struct {
	*World
	*Ledger
	// in are the members with copies. Several members of one name are one cluster at different
	// times.
	in       []*testenv.Member
	clusters int64
	Over     map[int]int // by group
	Group    map[string]int
	Edit     map[string]int
}

// Placing creates policies that place the templates of the world in members.
func (w *World) Placing(share int64, in ...*testenv.Member) *Placements {
	w.Helper()
	p := &Placements{
		World: w, in: in, Over: map[int]int{}, Group: map[string]int{}, Edit: map[string]int{},
		Ledger: &Ledger{namespace: w.Namespace, share: share, seen: map[*testenv.Member]int{}, Last: map[string]Version{}, since: map[*testenv.Member]int{}, repeated: map[*testenv.Member]int{}, lives: map[string]int{}, unheard: map[string]bool{}},
	}
	var clusters []string
	for _, m := range in {
		p.seen[m] = m.Mark()
		if !slices.Contains(clusters, m.Name) {
			clusters = append(clusters, m.Name)
		}
	}
	p.clusters = int64(len(clusters))
	placedIn := "clusterAffinity: {clusterNames: [" + strings.Join(clusters, ", ") + "]}"
	w.Hub.Apply(w, Policy(w.Namespace, "apps", `{apiVersion: apps/v1, kind: Deployment}`, equally(clusters...), "propagateDeps: true")+
		Policy(w.Namespace, "settings", `{apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {own: "yes"}}}, {apiVersion: spine.example.org/v1, kind: Widget}`,
			placedIn))
	return p
}

// equally returns a placement that divides replicas into equal shares.
func equally(clusters ...string) string {
	list := make([]string, 0, len(clusters))
	for _, c := range clusters {
		list = append(list, "{targetCluster: {clusterNames: ["+c+"]}, weight: 1}")
	}
	return In(clusters...) + ", replicaScheduling: {replicaSchedulingType: Divided, weightPreference: {staticWeightList: [" + strings.Join(list, ", ") + "]}}"
}

// Manifests returns the templates of a name after that many edits.
func (p *Placements) Manifests(name string, group, edit int) string {
	meta := fmt.Sprintf(`metadata: {name: %s, namespace: %s, labels: {group: "%d", own: "yes"}, annotations: {over: %s, edit: "%d"}}`, name, p.Namespace, group, Without, edit)
	conf := "---\napiVersion: v1\nkind: ConfigMap\n" + meta + "\ndata: {key: value}\n"
	if !isApp(name) {
		return conf
	}
	meta = strings.Replace(meta, `, own: "yes"`, "", 1) // no policy selects dependencies
	return strings.Replace(conf, `, own: "yes"`, "", 1) + "---\napiVersion: v1\nkind: Secret\n" + meta + "\nstringData: {key: value}\n" +
		"---\napiVersion: apps/v1\nkind: Deployment\n" + meta + fmt.Sprintf(`
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: web, image: "example.org/web:1", envFrom: [{configMapRef: {name: %[1]s}}, {secretRef: {name: %[1]s}}]}]}
`, name, p.share*p.clusters)
}

func isApp(name string) bool { return strings.HasPrefix(name, "app") }

// Put creates or edits templates, and does not wait for members.
func (p *Placements) Put(edit int, names ...string) {
	p.Helper()
	for _, name := range names {
		p.Hub.Apply(p, p.Manifests(name, p.Group[name], edit))
		p.Edit[name] = edit
	}
}

// Override changes the value in the override of a group.
func (p *Placements) Override(group, value int) {
	p.Helper()
	p.Hub.Apply(p, Stamp(p.Namespace, group, value))
	p.Over[group] = value
}

// Wanted returns all copies that a member shall have, by the name that Write.Object gives them.
func (p *Placements) Wanted() map[string]Version {
	all := map[string]Version{}
	for name, edit := range p.Edit {
		v := Version{Over: p.Over[p.Group[name]], edit: edit}
		all["configmaps "+p.Namespace+"/"+name] = v
		if isApp(name) {
			all["secrets "+p.Namespace+"/"+name] = v
			all["deployments.apps "+p.Namespace+"/"+name] = v
		}
	}
	return all
}

// Have waits until the members have all copies in the wanted version.
func (p *Placements) Have(in ...*testenv.Member) {
	p.Helper()
	for _, m := range in {
		testenv.Eventually(p, m.Name+" has everything as it is wanted now", 3*Patience, func() error { return p.missing(m) })
	}
}

// missing returns an error that lists copies which a member lacks or has in another version.
func (p *Placements) missing(m *testenv.Member) error {
	has := map[string]Version{}
	for resource, k := range map[string]Kind{"configmaps": {"v1", "ConfigMap"}, "secrets": {"v1", "Secret"}, "deployments.apps": {"apps/v1", "Deployment"}} {
		list, err := m.ListKind(p.Context(), k.APIVersion, k.Kind, p.Namespace)
		if err != nil {
			return err
		}
		for _, o := range list {
			if v, err := VersionIn(o.Object); err == nil {
				has[resource+" "+p.Namespace+"/"+o.GetName()] = v
			}
		}
	}
	var differ []string
	for object, want := range p.Wanted() {
		if is, ok := has[object]; !ok || is != want {
			differ = append(differ, fmt.Sprintf("%s is %+v (%t), want %+v", object, is, ok, want))
		}
	}
	slices.Sort(differ)
	if len(differ) > 0 {
		return fmt.Errorf("%d: %s", len(differ), strings.Join(differ[:min(5, len(differ))], "; "))
	}
	return nil
}

// AllApplied waits until every binding on the hub is fully applied.
func (p *Placements) AllApplied() {
	p.Helper()
	testenv.Eventually(p, "the hub says that everything is applied", 3*Patience, func() error {
		bindings, err := p.Hub.ListKind(p.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", p.Namespace)
		if err != nil {
			return err
		}
		applied := 0
		for _, b := range bindings {
			if has := Conditions(&b); strings.Contains(has, "FullyApplied=True/") {
				applied++
			} else {
				err = errors.Join(err, fmt.Errorf("%s: %s", b.GetName(), has))
			}
		}
		if want := len(p.Wanted()); err == nil && applied < want {
			err = fmt.Errorf("there are %d bindings, want %d or more", applied, want)
		}
		return err
	})
}

// Ledger checks every write in members against the invariants that hold during any fault.
type Ledger struct {
	namespace string
	share     int64                   // replicas of a Deployment in each cluster
	seen      map[*testenv.Member]int // how many writes were judged
	Last      map[string]Version      // NAME OBJECT: its last version in a member of that name
	since     map[*testenv.Member]int // accepted writes since the last call of Counted
	repeated  map[*testenv.Member]int // the part of since that repeats a write in unheard
	// lives counts ADDRESS OBJECT VERSION: how often it was written since the last start of the
	// hub.
	lives map[string]int
	// unheard has the keys of lives whose last write was answered so late that the hub stopped
	// waiting, and so writes again.
	unheard map[string]bool
	// twice lists writes that repeat a version although the hub got the answer to the first
	// write.
	twice []string
	wrong []string
}

// Restarted must be called when another process of the hub takes over.
func (l *Ledger) Restarted() { clear(l.lives) }

// heard is the longest time to an answer that the hub certainly receives. The hub waits for 15
// s.
const heard = 10 * time.Second

// Heard reports whether the hub certainly got the answer to a write. If not, the hub may repeat
// the write.
func Heard(r testenv.Write) bool { return r.Code != 0 && r.Ended.Sub(r.Time) <= heard }

// Once drops each write whose predecessor with the same key may have had no answer.
func Once(writes []testenv.Write, key func(testenv.Write) string) []testenv.Write {
	var once []testenv.Write
	last := map[string]testenv.Write{}
	for _, r := range writes {
		before, again := last[key(r)]
		last[key(r)] = r
		if !again || Heard(before) {
			once = append(once, r)
		}
	}
	return once
}

// Judge checks the new writes in a member, up to the first write that has not ended. For that
// write, Judge returns an error.
func (l *Ledger) Judge(m *testenv.Member) error {
	for _, r := range m.Writes(l.seen[m]) {
		if r.Ended.IsZero() {
			return fmt.Errorf("%s: %s is on its way", m.Name, r)
		}
		l.seen[m]++
		if r.DryRun || r.Impersonated != "" || cmp.Or(r.Namespace, r.Name) != l.namespace {
			continue
		}
		wrong := func(format string, args ...any) {
			l.wrong = append(l.wrong, m.Name+": "+r.String()+": "+fmt.Sprintf(format, args...))
		}
		if strings.HasPrefix(r.Verb, "delete") {
			wrong("nobody deleted anything")
		}
		if r.Resource == "namespaces" || r.Verb == "delete" {
			continue
		}
		v, err := VersionIn(r.Body)
		if err != nil {
			wrong("the override is not applied: %v", err)
			continue
		}
		object := m.Name + " " + r.Object()
		if before, ok := l.Last[object]; ok && (v.Over < before.Over || v.edit < before.edit) {
			wrong("%+v comes after %+v", v, before)
		}
		if n, ok := r.Replicas(); ok && n != l.share {
			wrong("the cluster's share is %d", l.share)
		}
		l.Last[object] = v
		if !r.Changed() {
			continue
		}
		key := fmt.Sprintf("%s %s %+v", m.Config().Host, r.Object(), v)
		again := l.lives[key] > 0 && l.unheard[key]
		l.unheard[key] = !Heard(r)
		l.since[m]++
		if again {
			l.repeated[m]++
			continue
		}
		if l.lives[key]++; l.lives[key] > 1 {
			l.twice = append(l.twice, m.Name+": "+r.String()+fmt.Sprintf(": %+v once more", v))
		}
	}
	return nil
}

// Settled waits until every write in every member has ended, and judges them all.
func (p *Placements) Settled() {
	p.Helper()
	p.Eventually("writes end", func() error {
		var errs []error
		for _, m := range p.in {
			errs = append(errs, p.Judge(m))
		}
		return errors.Join(errs...)
	})
}

// Counted returns how many writes a member accepted since the last call, and the writes among
// them that repeat a version.
func (l *Ledger) Counted(m *testenv.Member) (writes int, twice []string) {
	writes, l.since[m], l.repeated[m] = l.since[m], 0, 0
	l.twice = slices.DeleteFunc(l.twice, func(s string) bool {
		if mine := strings.HasPrefix(s, m.Name+": "); mine {
			twice = append(twice, s)
			return true
		}
		return false
	})
	return writes, twice
}

// Close fails the test for every violation.
func (p *Placements) Close() {
	p.Helper()
	p.Settled()
	for i, wrong := range p.wrong {
		if i == 20 {
			p.Errorf("and %d more", len(p.wrong)-i)
			break
		}
		p.Error(wrong)
	}
	p.wrong = nil
}

// Exactly fails the test unless a member accepted that many writes since the last count,
// without repetition. It does not count a repetition of a write whose answer came too late for
// the hub.
func (p *Placements) Exactly(m *testenv.Member, want int) {
	p.Helper()
	p.Settled()
	repeated := p.repeated[m]
	writes, twice := p.Counted(m)
	writes -= repeated
	if writes != want || len(twice) > 0 {
		p.Errorf("%s was written %d times, want %d; again and again: %s", m.Name, writes, want, strings.Join(twice, "\n"))
	}
}

// AtMost fails the test if a member accepted more writes since the last count. Repetitions
// count.
func (p *Placements) AtMost(m *testenv.Member, most int) {
	p.Helper()
	p.Settled()
	writes, twice := p.Counted(m)
	p.Logf("%s was written %d times (at most %d), %d of them a version that it had", m.Name, writes, most, len(twice))
	if writes > most {
		p.Errorf("%s was written %d times, want at most %d:\n%s", m.Name, writes, most, strings.Join(twice, "\n"))
	}
}

// Try applies manifests once.
func Try(ctx context.Context, api *testenv.API, manifests string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return api.TryApply(ctx, manifests)
}
