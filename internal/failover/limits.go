package failover

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"
)

// Limits are the settings that bound evictions: the objects that begin to leave a cluster because
// of a taint. The zero value evicts nothing. DefaultLimits are the defaults of the flags.
type Limits struct {
	// Rate is how many evictions may begin in a second. SecondaryRate is the rate while more than
	// Threshold of the clusters do not answer. A rate of 0 evicts nothing.
	Rate, SecondaryRate float64
	// Threshold is a part of the fleet, from 0 to 1. While more than this part does not answer,
	// evictions wait at first, and then begin at SecondaryRate.
	Threshold float64
	// LargeFleet is the largest number of clusters in a fleet in which SecondaryRate counts as 0.
	LargeFleet int
	// NoExecute is false if no taint evicts anything.
	NoExecute bool
	// Settling is how long nothing leaves a cluster that began or ceased to answer.
	Settling time.Duration

	flags bool // AddFlags was called: the values are those of a user, even if all are zero
}

// OrDefault returns DefaultLimits for the zero value, and otherwise l. Limits of flags are no zero
// value, even if a user sets each of them to 0.
func (l *Limits) OrDefault() Limits { return cmp.Or(*l, DefaultLimits) }

// DefaultLimits are the defaults of the flags of Limits.AddFlags. The rates and the thresholds are
// those of Karmada. Do not change them.
var DefaultLimits = Limits{
	Rate: 0.5, SecondaryRate: 0.1, Threshold: 0.55, LargeFleet: 10, NoExecute: true, Settling: 30 * time.Second,
}

// Names of the flags, which messages mention.
const (
	flagRate          = "resource-eviction-rate"
	flagSecondaryRate = "secondary-resource-eviction-rate"
	flagThreshold     = "unhealthy-cluster-threshold"
	flagLargeFleet    = "large-cluster-num-threshold"
	flagNoExecute     = "enable-no-execute-taint-eviction"
	flagSettling      = "failover-settling-time"
)

// AddFlags adds the flags of the limits, and sets l to their defaults.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	l.flags = true
	fs.Float64Var(&l.Rate, flagRate, DefaultLimits.Rate,
		"how many objects may begin to leave a cluster in a second because of a taint with the effect NoExecute, in the whole fleet; 0: none")
	fs.Float64Var(&l.SecondaryRate, flagSecondaryRate, DefaultLimits.SecondaryRate,
		"the rate instead of --"+flagRate+" while more than --"+flagThreshold+" of the clusters do not answer; 0: none")
	fs.Float64Var(&l.Threshold, flagThreshold, DefaultLimits.Threshold,
		"part of the clusters, from 0 to 1; while more do not answer, nothing is evicted for ten minutes, and then objects at --"+flagSecondaryRate)
	fs.IntVar(&l.LargeFleet, flagLargeFleet, DefaultLimits.LargeFleet,
		"in a fleet of at most so many clusters nothing is evicted while more than --"+flagThreshold+" of them do not answer")
	fs.BoolVar(&l.NoExecute, flagNoExecute, DefaultLimits.NoExecute,
		"whether taints of clusters with the effect NoExecute evict objects that do not tolerate them")
	fs.DurationVar(&l.Settling, flagSettling, DefaultLimits.Settling,
		"how long nothing is evicted from a cluster that began or ceased to answer")
}

// Validate returns an error with every flag whose value is out of range, or nil. It changes
// nothing.
func (l *Limits) Validate() error {
	var errs []error
	for _, rate := range []struct {
		flag  string
		value float64
	}{{flagRate, l.Rate}, {flagSecondaryRate, l.SecondaryRate}} {
		if math.IsNaN(rate.value) || math.IsInf(rate.value, 0) || rate.value < 0 {
			errs = append(errs, fmt.Errorf("--%s %v: want 0, which evicts nothing, or more: the number of objects in a second", rate.flag, rate.value))
		}
	}
	if math.IsNaN(l.Threshold) || l.Threshold < 0 || l.Threshold > 1 {
		errs = append(errs, fmt.Errorf("--%s %v: want a part of the clusters, from 0 to 1", flagThreshold, l.Threshold))
	}
	if l.LargeFleet < 0 {
		errs = append(errs, fmt.Errorf("--%s %d: want a number of clusters, 0 or more", flagLargeFleet, l.LargeFleet))
	}
	if l.Settling < 0 {
		errs = append(errs, fmt.Errorf("--%s %s: want 0 or more", flagSettling, l.Settling))
	}
	return errors.Join(errs...)
}
