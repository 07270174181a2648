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

// stateVersion is the version of the JSON format in which a state and the records of hosts are
// stored.
const stateVersion = 1

// keptState is a State in the form in which it is stored as JSON. The leaf certificates of hosts
// are not in it, but in the records of hosts (keptHost).
type keptState struct {
	Version int `json:"version"`
	*State
	// Hosts lists the hosts with records, sorted. Records of other hosts are ignored.
	Hosts []string `json:"hosts"`
	// Leaves has the leaf certificates that belong to no host, such as the administrator's. Renewed
	// has their successors.
	Leaves  pki.Bundle `json:"leaves"`
	Renewed pki.Bundle `json:"renewed,omitempty"`
}

// keptHost is the stored record of a host, as JSON: its leaf certificates in use (Keys) and their
// successors (Renewed). The names lack the prefix HOST/.
type keptHost struct {
	Version int        `json:"version"`
	Cluster string     `json:"cluster"`
	ID      string     `json:"id"` // ID of the cluster
	Host    string     `json:"host"`
	Keys    pki.Bundle `json:"keys,omitempty"`
	Renewed pki.Bundle `json:"renewed,omitempty"`
}

// pieces divides a state for storage: the state itself without the leaf certificates of hosts, and
// a record with these certificates for each host. keptState refers to s. A host without
// certificates has no record.
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

// encodePiece returns a keptState or keptHost as JSON.
func encodePiece(piece any) ([]byte, error) {
	content, err := json.Marshal(piece)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return content, nil
}

// laterError means that a later version of Orrery has written a stored piece, in a format that this
// version cannot read. version is that of the format.
type laterError struct{ version int }

// Error names both formats and asks the user for the later version of Orrery.
func (e laterError) Error() string {
	return fmt.Sprintf("a later version of Orrery has written it (its format is %d, and this one knows %d); use that version", e.version, stateVersion)
}

// decodeState decodes a stored state, without the leaf certificates of hosts. named lists the hosts
// whose records have these certificates. It returns a laterError if a later version of Orrery has
// written the content.
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

// decodeHost adds the leaf certificates in the stored record of a host to s. ours is false if the
// record belongs to another cluster with the same name, and nothing is added then. It returns a
// laterError if a later version of Orrery has written the record. A record of another host is an
// error, too.
func (s *State) decodeHost(host string, content []byte) (ours bool, err error) {
	kept := &keptHost{}
	if err := json.Unmarshal(content, kept); err != nil {
		return false, err
	}
	switch {
	case kept.Version > stateVersion:
		return false, laterError{kept.Version}
	case kept.Cluster != s.Cluster || kept.Host != host:
		return false, fmt.Errorf("it is the record of host %s of cluster %s", kept.Host, kept.Cluster)
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
