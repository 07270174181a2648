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

// mostMissed is the maximum number of warnings that are printed. Further ones are only counted.
const mostMissed = 20

// missed collects warnings of the fleet about missing data, each once. It implements
// rest.WarningHandlerWithContext.
type missed struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext takes a warning of a response. Only code 299 is from an API
// server.
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

// clusters adds the clusters of the hub with some unknown types, because the API for these does
// not respond.
func (m *missed) clusters(all []clusterv1alpha1.Cluster) {
	for i := range all {
		c := meta.FindStatusCondition(all[i].Status.Conditions, clusterv1alpha1.ConditionAPIsComplete)
		if c != nil && c.Reason == clusterv1alpha1.ReasonPartial && !onlyMeasures(c.Message) {
			m.add(fmt.Sprintf("cluster %s: %s", all[i].Name, c.Message))
		}
	}
}

// onlyMeasures reports whether all versions at the end of the message of APIsComplete are
// measurements, which cannot be placed.
func onlyMeasures(message string) bool {
	_, versions, _ := strings.Cut(message, ": ")
	return !slices.ContainsFunc(strings.Split(versions, ", "), func(version string) bool {
		group, _, _ := strings.Cut(version, "/")
		return !measures(group)
	})
}

// about returns the warnings for a cluster ("": all). It leaves out warnings that name only
// other clusters.
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

// warnOf prints warnings in the same format as other commands.
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
