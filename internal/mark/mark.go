// Package mark reads and writes the marks on copies in members, which say where a copy comes
// from. It is pure. docs/design/0003-spine.md describes each mark.
package mark

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Source is the content of the mark work.orrery.dev/source on a copy: the state of the hub from
// which the copy was rendered, and the cluster for which.
type Source struct {
	// Template is the UID of the template, and Generation its generation; 0 for kinds without
	// generations.
	Template   types.UID
	Generation int64
	// Epoch is the number of confirmed restores of the hub from a backup.
	Epoch int64
	// Version is the resourceVersion of the template on the hub, or that of the binding if the
	// template is gone.
	Version uint64
	// Placement is the generation of the binding; 0 if it is not known.
	Placement int64
	// Cluster is the UID of the Cluster object, which differs for each join. It is empty on an object
	// that became an orphan in a cluster that stays joined.
	Cluster types.UID
}

// Newer reports whether s, the source of a copy, names a later state than other, the present state
// of the hub. Then the hub was restored from a backup since. It is false if the templates differ.
func (s Source) Newer(other Source) bool {
	switch {
	case s.Template != other.Template:
		return false
	case s.Epoch != other.Epoch:
		return s.Epoch > other.Epoch
	default:
		return s.Generation > other.Generation || s.Version > other.Version || s.Placement > other.Placement
	}
}

// Key is the secret by which the hub recognizes its own marks. A member can replay marks that
// it got, but cannot make new ones.
type Key []byte

// KeySize is the number of random bytes of a Key.
const KeySize = 32

// The Secret of the hub that holds its Key, in the namespace of the clusters' credentials.
const (
	// KeySecret is the name of the Secret of the hub that holds its Key, in the namespace of the
	// clusters' credentials.
	KeySecret = "hub-marks"
	// KeyField is the key in the data of that Secret.
	KeyField = "key"
)

// errForged is the error of Verify for a mark that was signed with another key.
var errForged = errors.New("the mark was not made by this hub")

// macLength is the number of characters of a MAC in a mark. Each has five bits, so a MAC has 100
// bits.
const macLength = 20

// Sign returns s as the signed value of the annotation work.orrery.dev/source:
// TEMPLATE-UID.GENERATION.EPOCH:VERSION:PLACEMENT.CLUSTER-UID.MAC. MAC covers all that is before
// it.
func (k Key) Sign(s Source) string {
	text := fmt.Sprintf("%s.%d.%d:%d:%d.%s", s.Template, s.Generation, s.Epoch, s.Version, s.Placement, s.Cluster)
	return text + "." + k.mac(text)
}

// mac returns the first macLength characters of an HMAC of text, in base32 and lower case.
func (k Key) mac(text string) string {
	h := hmac.New(sha256.New, k)
	_, _ = h.Write([]byte(text)) // a hash accepts every write
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:macLength]
}

// Verify returns the source in a value of work.orrery.dev/source. It returns an error if the value
// is malformed or was not signed with this key.
func (k Key) Verify(value string) (Source, error) {
	s, err := Parse(value)
	if err != nil {
		return Source{}, err
	}
	i := strings.LastIndexByte(value, '.')
	if !hmac.Equal([]byte(value[i+1:]), []byte(k.mac(value[:i]))) {
		return Source{}, errForged
	}
	return s, nil
}

// Parse returns the source in a value of work.orrery.dev/source, without verifying who signed it.
// Placement is 0 in values of an earlier version, which had none. A malformed value is an error.
func Parse(value string) (Source, error) {
	malformed := func(what string) (Source, error) {
		return Source{}, fmt.Errorf("read the source of a copy: %s in %q", what, value)
	}
	parts := strings.Split(value, ".")
	if len(parts) != 5 {
		return malformed(fmt.Sprintf("%d parts, not 5,", len(parts)))
	}
	generation, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return malformed("no generation")
	}
	numbers := strings.Split(parts[2], ":")
	// An earlier version wrote no placement. Its marks are valid all the same.
	if len(numbers) == 2 {
		numbers = append(numbers, "0")
	}
	if len(numbers) != 3 {
		return malformed("not an epoch, a resourceVersion and a placement")
	}
	epoch, err := strconv.ParseInt(numbers[0], 10, 64)
	if err != nil {
		return malformed("no epoch")
	}
	version, err := strconv.ParseUint(numbers[1], 10, 64)
	if err != nil {
		return malformed("no resourceVersion")
	}
	placement, err := strconv.ParseInt(numbers[2], 10, 64)
	if err != nil {
		return malformed("no placement")
	}
	return Source{
		Template: types.UID(parts[0]), Generation: generation, Epoch: epoch, Version: version, Placement: placement,
		Cluster: types.UID(parts[3]),
	}, nil
}

// Orphan is the content of the mark work.orrery.dev/orphan, which stays on an object that lost its
// other marks: the hub no longer manages the object, but recognizes it when the cluster joins
// again.
type Orphan struct {
	Hub      string    // the ID of the hub
	Template types.UID // empty on a namespace that the hub created
	// Source is the signed value of work.orrery.dev/source; empty if this hub did not sign it.
	Source string
	Origin string // the value of work.orrery.dev/origin
}

// String returns the value of work.orrery.dev/orphan: HUB-ID/SOURCE, or HUB-ID/TEMPLATE-UID
// without a source, followed by /ORIGIN if there is an origin.
func (o Orphan) String() string {
	value := o.Hub + "/" + cmp.Or(o.Source, string(o.Template))
	if o.Origin != "" {
		value += "/" + o.Origin
	}
	return value
}

// ParseOrphan returns the content of a value of work.orrery.dev/orphan; false if the value is
// malformed. It does not verify the signature of Source, so callers must do that.
func ParseOrphan(value string) (Orphan, bool) {
	parts := strings.Split(value, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return Orphan{}, false
	}
	o := Orphan{Hub: parts[0], Template: types.UID(parts[1])}
	if from, err := Parse(parts[1]); err == nil {
		o.Template, o.Source = from.Template, parts[1]
	}
	if len(parts) == 3 {
		o.Origin = parts[2]
	}
	return o, true
}
