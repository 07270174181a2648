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

// mostMissed is how many warnings of what was not looked at are printed before the rest is counted.
const mostMissed = 20

// missed collects what the fleet says that it cannot answer for, each text once. It implements
// rest.WarningHandlerWithContext.
type missed struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext takes a warning of an answer. Only code 299 is one of an API
// server's.
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

// clusters adds those of the hub's clusters in which some types are not known, because the API of
// these does not answer.
func (m *missed) clusters(all []clusterv1alpha1.Cluster) {
	for i := range all {
		c := meta.FindStatusCondition(all[i].Status.Conditions, clusterv1alpha1.ConditionAPIsComplete)
		if c != nil && c.Reason == clusterv1alpha1.ReasonPartial && !onlyMeasures(c.Message) {
			m.add(fmt.Sprintf("cluster %s: %s", all[i].Name, c.Message))
		}
	}
}

// onlyMeasures reports whether the versions that end the message of APIsComplete are measurements,
// which nothing places.
func onlyMeasures(message string) bool {
	_, versions, _ := strings.Cut(message, ": ")
	return !slices.ContainsFunc(strings.Split(versions, ", "), func(version string) bool {
		group, _, _ := strings.Cut(version, "/")
		return !measures(group)
	})
}

// about returns what matters to a cluster, "" for all: not what names other clusters alone.
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
			return false // a list of clusters that was cut may have this one
		}
		for name := range p.clusters {
			if name != cluster && of(name) && !of(cluster) {
				return true
			}
		}
		return false
	})
}

// warnOf prints what was not looked at as other commands print the warnings of the hub.
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
