package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/pki"
)

// stateVersion is the version of the stored format.
const stateVersion = 1

// keptState is the stored form of a state, without the leaves of hosts.
type keptState struct {
	Version int `json:"version"`
	*State
	// Hosts lists the hosts with records. Records of other hosts are ignored.
	Hosts []string `json:"hosts"`
	// Leaves are those that belong to no host. Renewed are their successors.
	Leaves  pki.Bundle `json:"leaves"`
	Renewed pki.Bundle `json:"renewed,omitempty"`
}

// keptHost is the record of a host: its leaves, named without the host.
type keptHost struct {
	Version int        `json:"version"`
	Cluster string     `json:"cluster"`
	ID      string     `json:"id"` // of the cluster
	Host    string     `json:"host"`
	Keys    pki.Bundle `json:"keys,omitempty"`
	Renewed pki.Bundle `json:"renewed,omitempty"`
}

// pieces returns the stored form of a state, and the records by host.
func (s *State) pieces() (keptState, map[string]*keptHost) {
	hosts := map[string]*keptHost{}
	divide := func(leaves pki.Bundle, of func(*keptHost) *pki.Bundle) pki.Bundle {
		rest := pki.Bundle{}
		for name, pair := range leaves {
			host, leaf, ok := strings.Cut(name, "/")
			if !ok {
				rest[name] = pair
				continue
			}
			if hosts[host] == nil {
				hosts[host] = &keptHost{Version: stateVersion, Cluster: s.Cluster, ID: s.ID, Host: host}
			}
			into := of(hosts[host])
			if *into == nil {
				*into = pki.Bundle{}
			}
			(*into)[leaf] = pair
		}
		return rest
	}
	kept := keptState{Version: stateVersion, State: s}
	kept.Leaves = divide(s.Keys, func(h *keptHost) *pki.Bundle { return &h.Keys })
	kept.Renewed = divide(s.Renewed, func(h *keptHost) *pki.Bundle { return &h.Renewed })
	kept.Hosts = slices.Sorted(maps.Keys(hosts))
	return kept, hosts
}

func encodePiece(piece any) ([]byte, error) {
	content, err := json.Marshal(piece)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return content, nil
}

// laterError means that a piece has a later format than this version can read.
type laterError struct{ version int }

// Error gives the format and asks for the later version.
func (e laterError) Error() string {
	return fmt.Sprintf("a later version of Orrery has written it (its format is %d, and this one knows %d); use that version", e.version, stateVersion)
}

// decodeState reads a state without the leaves of hosts. named lists the hosts with records.
func decodeState(content []byte) (s *State, named []string, err error) {
	var format struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(content, &format); err != nil {
		return nil, nil, err
	}
	switch {
	case format.Version > stateVersion:
		return nil, nil, laterError{format.Version}
	case format.Version < stateVersion:
		return nil, nil, errors.New("it does not say which format it has")
	}
	kept := keptState{State: &State{}}
	if err := json.Unmarshal(content, &kept); err != nil {
		return nil, nil, err
	}
	kept.Keys, kept.State.Renewed = kept.Leaves, kept.Renewed
	kept.complete()
	return kept.State, kept.Hosts, nil
}

// decodeHost adds the leaves of a host's record to a state. ours is false for the record of an
// earlier cluster with the same name.
func (s *State) decodeHost(host string, content []byte) (ours bool, err error) {
	kept := &keptHost{}
	if err := json.Unmarshal(content, kept); err != nil {
		return false, err
	}
	switch {
	case kept.Version > stateVersion:
		return false, laterError{kept.Version}
	case kept.Cluster != s.Cluster || kept.Host != host:
		return false, fmt.Errorf("it is that of host %s of cluster %s", kept.Host, kept.Cluster)
	case kept.ID != s.ID:
		return false, nil
	}
	for leaf, pair := range kept.Keys {
		s.Keys[host+"/"+leaf] = pair
	}
	for leaf, pair := range kept.Renewed {
		s.Renewed[host+"/"+leaf] = pair
	}
	return true, nil
}
