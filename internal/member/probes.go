package member

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Probes are the settings for health checks of clusters. The zero value as a whole means
// DefaultProbes.
type Probes struct {
	// Interval is the time between two probes of a cluster that answers.
	Interval time.Duration
	// Timeout is how long a cluster may take to answer each request of a probe.
	Timeout time.Duration
	// Failures is how many probes in a row must fail before the cluster counts as unreachable.
	Failures int
}

// DefaultProbes are the defaults of the flags --probe-interval, --probe-timeout and
// --probe-failures. Do not change them.
var DefaultProbes = Probes{Interval: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3} //nolint:gochecknoglobals // a constant

// Limits of the values that Validate accepts.
const (
	// minProbeTime is the least interval and timeout of probes. A new connection takes three round
	// trips before its first answer.
	minProbeTime = 500 * time.Millisecond
	// maxProbeInterval is the longest interval of probes. The hub's tokens are renewed after a probe,
	// so a longer interval could let them expire.
	maxProbeInterval = 5 * time.Minute
	maxProbeFailures = 100
)

// AddFlags adds the flags --probe-interval, --probe-timeout and --probe-failures, and sets p
// to their defaults.
func (p *Probes) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&p.Interval, "probe-interval", DefaultProbes.Interval,
		"time between two probes of the health of each cluster; shorter: a lost cluster is noticed sooner, for more requests to each")
	fs.DurationVar(&p.Timeout, "probe-timeout", DefaultProbes.Timeout,
		"how long a cluster may take to answer each question of a probe; at most --probe-interval")
	fs.IntVar(&p.Failures, "probe-failures", DefaultProbes.Failures,
		"how many probes in a row must fail before a cluster counts as unreachable")
}

// Validate returns an error with every flag whose value is out of range, or nil. The zero value of
// p is valid, because it means DefaultProbes. Validate changes nothing.
func (p *Probes) Validate() error {
	set := cmp.Or(*p, DefaultProbes)
	var errs []error
	if set.Interval < minProbeTime {
		errs = append(errs, fmt.Errorf("--probe-interval %s: is less than %s; the probes would be a load for each cluster, and a short pause of one would make it unreachable; "+
			"set it to %s or more", set.Interval, minProbeTime, minProbeTime))
	}
	if set.Interval > maxProbeInterval {
		errs = append(errs, fmt.Errorf("--probe-interval %s: is more than %s; a lost cluster would count as reachable for long, and the hub's tokens in clusters, which are renewed after a probe, could end; "+
			"set it to %s or less", set.Interval, maxProbeInterval, maxProbeInterval))
	}
	if set.Timeout < minProbeTime {
		errs = append(errs, fmt.Errorf("--probe-timeout %s: is less than %s; a new connection to a distant cluster takes as long, so it would count as unreachable; "+
			"set it to %s or more", set.Timeout, minProbeTime, minProbeTime))
	} else if set.Timeout > set.Interval {
		errs = append(errs, fmt.Errorf("--probe-timeout %s: is more than --probe-interval %s; a cluster that hangs would be probed less often than one that answers, and its loss noticed late; "+
			"set --probe-timeout to %s or less, or raise --probe-interval", set.Timeout, set.Interval, set.Interval))
	}
	if set.Failures < 1 || set.Failures > maxProbeFailures {
		errs = append(errs, fmt.Errorf("--probe-failures %d: want 1 to %d; a cluster counts as unreachable after so many failed probes", set.Failures, maxProbeFailures))
	}
	return errors.Join(errs...)
}
