package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// mostMissed is the maximum number of warnings that warnOf prints, 20. The others are only counted.
const mostMissed = 20

// missed collects the warnings of a search for orphans about data that the fleet does not have.
// Each text is stored once. It is a rest.WarningHandlerWithContext for the responses of the fleet.
// The zero value is ready for use. It is safe for concurrent use.
type missed struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext: it stores the text of a
// warning. Warnings of API servers have the code 299; others are ignored.
func (m *missed) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code == 299 && text != "" {
		m.add(text)
	}
}

func (m *missed) add(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.texts, text) {
		m.texts = append(m.texts, text)
	}
}

// clusters adds a warning for each Cluster whose condition APIsComplete says that an API does not
// respond, so that its types are unknown. It adds none if all those types are measurements, which
// cannot be placed.
func (m *missed) clusters(all []clusterv1alpha1.Cluster) {
	for i := range all {
		c := meta.FindStatusCondition(all[i].Status.Conditions, clusterv1alpha1.ConditionAPIsComplete)
		if c != nil && c.Reason == clusterv1alpha1.ReasonPartial && !onlyMeasures(c.Message) {
			m.add(fmt.Sprintf("cluster %s: %s", all[i].Name, c.Message))
		}
	}
}

// onlyMeasures reports whether the message of the condition APIsComplete names only API versions of
// measurements, which cannot be placed. The versions follow ": ".
func onlyMeasures(message string) bool {
	_, versions, _ := strings.Cut(message, ": ")
	return !slices.ContainsFunc(strings.Split(versions, ", "), func(version string) bool {
		group, _, _ := strings.Cut(version, "/")
		return !measures(group)
	})
}

// about returns the stored warnings that may be about a cluster; "": all. It leaves out those that
// name other Clusters of p and not this one.
func (m *missed) about(cluster string, p *placedOnHub) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cluster == "" {
		return slices.Clone(m.texts)
	}
	return slices.DeleteFunc(slices.Clone(m.texts), func(text string) bool {
		names := strings.FieldsFunc(text, func(r rune) bool { return r != '-' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		of := func(name string) bool { return slices.Contains(names, name) }
		if strings.Contains(text, " more") {
			return false // a shortened list of clusters may contain this cluster
		}
		for name := range p.clusters {
			if name != cluster && of(name) && !of(cluster) {
				return true
			}
		}
		return false
	})
}

// warnOf prints warnings to s.err as "Warning: ...", in the form of client-go: at most mostMissed,
// and then the number of the others.
func (s streams) warnOf(texts []string) error {
	for i, text := range texts {
		if i == mostMissed {
			return say(s.err, "Warning: %d more of what was not looked at are left out\n", len(texts)-i)
		}
		if err := say(s.err, "Warning: %s\n", text); err != nil {
			return err
		}
	}
	return nil
}
