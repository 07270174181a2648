package facts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// unobserved is the AppliedStep.Drift of every step if the agent on the host cannot report the
// present state.
const unobserved = "not known: the agent on the host is missing or does not answer"

// record is the part of the host's record of applied steps that is read without an agent. Package
// node writes it. Checksum is the digest of Value, as sha256:HEX.
type record struct {
	Checksum string          `json:"checksum"`
	Value    json.RawMessage `json:"value"`
}

// recordValue is the Value of a record: the cluster of the host, and the steps that were applied to
// it.
type recordValue struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Version   string `json:"version"`
	Steps     []struct {
		Step struct {
			ID string `json:"id"`
		} `json:"step"`
		Hash     string `json:"hash"`
		Complete bool   `json:"complete"`
	} `json:"steps"`
}

// recorded returns what was applied to a host, from the contents of its record file and the backup
// of that file. It takes the first undamaged one. The drift of all steps is unobserved. If all
// contents are damaged, it returns their joined errors.
func recorded(contents []string) (plan.Applied, error) {
	var errs []error
	for _, content := range contents {
		applied, err := readRecord(content)
		if err == nil {
			return applied, nil
		}
		errs = append(errs, err)
	}
	return plan.Applied{}, errors.Join(errs...)
}

// readRecord parses the content of a host's record of applied steps. It returns an error if the
// content is invalid or its checksum is wrong.
func readRecord(content string) (plan.Applied, error) {
	var r record
	var v recordValue
	if err := json.Unmarshal([]byte(content), &r); err != nil {
		return plan.Applied{}, fmt.Errorf("read the host's record: %w", err)
	}
	if sum := sha256.Sum256(r.Value); "sha256:"+hex.EncodeToString(sum[:]) != r.Checksum {
		return plan.Applied{}, errors.New("read the host's record: its checksum does not fit")
	}
	if err := json.Unmarshal(r.Value, &v); err != nil {
		return plan.Applied{}, fmt.Errorf("read the host's record: %w", err)
	}
	applied := plan.Applied{Cluster: v.Cluster, ClusterID: v.ClusterID, Version: v.Version}
	for _, s := range v.Steps {
		applied.Steps = append(applied.Steps, plan.AppliedStep{ID: s.Step.ID, Hash: s.Hash, Complete: s.Complete, Drift: unobserved})
	}
	return applied, nil
}
