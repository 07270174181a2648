package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Redacted returns the plan with a digest in the place of each secret, so that it can be shown.
func (p *Plan) Redacted() *Plan {
	shown := *p
	shown.Hosts = slices.Clone(p.Hosts)
	for i := range shown.Hosts {
		h := &shown.Hosts[i]
		h.Stages = slices.Clone(h.Stages)
		for j := range h.Stages {
			stage := &h.Stages[j]
			stage.Steps = slices.Clone(stage.Steps)
			for k := range stage.Steps {
				stage.Steps[k] = stage.Steps[k].redacted()
			}
		}
	}
	return &shown
}

func (s Step) redacted() Step {
	if s.File == nil || !s.File.Secret {
		return s
	}
	f := *s.File
	sum := sha256.Sum256([]byte(f.Content))
	f.Content = "secret sha256:" + hex.EncodeToString(sum[:])
	s.File = &f
	return s
}
