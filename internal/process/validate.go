package process

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validate returns an error with all mistakes in the plan, each with the path of its field; nil if
// the plan is valid.
func (p Plan) validate() error {
	var errs field.ErrorList
	if p.Parallelism < 0 {
		errs = append(errs, field.Invalid(field.NewPath("parallelism"), p.Parallelism, "must be 0 (no bound) or more"))
	}
	byName := make(map[string]Process, len(p.Processes))
	for i, proc := range p.Processes {
		at := field.NewPath("processes").Index(i).Child("name")
		for _, problem := range validation.IsDNS1123Subdomain(proc.Name) {
			errs = append(errs, field.Invalid(at, proc.Name, problem))
		}
		if _, ok := byName[proc.Name]; ok {
			errs = append(errs, field.Duplicate(at, proc.Name))
		}
		byName[proc.Name] = proc
	}
	for _, proc := range p.Processes {
		at := field.NewPath("processes").Key(proc.Name)
		errs = append(errs, proc.validate(at)...)
		for _, dependency := range proc.After {
			if _, ok := byName[dependency]; !ok {
				errs = append(errs, field.NotFound(at.Child("after"), dependency))
			}
		}
	}
	if cycle := p.cycle(byName); cycle != nil {
		at := field.NewPath("processes").Key(cycle[0]).Child("after")
		errs = append(errs, field.Invalid(at, strings.Join(cycle, " → "), "processes wait for each other"))
	}
	return errs.ToAggregate()
}

// validate returns all mistakes in the process. at is the path of the process in the plan.
func (p Process) validate(at *field.Path) field.ErrorList {
	errs := validateCommand(at.Child("command"), p.Command)
	for i, f := range p.Files {
		if f.Path == "" {
			errs = append(errs, field.Required(at.Child("files").Index(i).Child("path"), ""))
		}
	}
	switch p.DeathSignal {
	case "", DeathSignalKill, DeathSignalTerm:
	default:
		errs = append(errs, field.NotSupported(at.Child("deathSignal"), p.DeathSignal,
			[]DeathSignal{DeathSignalKill, DeathSignalTerm}))
	}
	switch p.KillMode {
	case "", KillModeGroup, KillModeProcess:
	default:
		errs = append(errs, field.NotSupported(at.Child("killMode"), p.KillMode, []KillMode{KillModeGroup, KillModeProcess}))
	}
	if p.Ready != nil {
		errs = append(errs, p.Ready.validate(at.Child("ready"))...)
	}
	return errs
}

// validate returns all mistakes in the probe. at is the path of the probe in the plan.
func (p Probe) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Timeout.Duration < 0 {
		errs = append(errs, field.Invalid(at.Child("timeout"), p.Timeout.Duration.String(), "must not be negative"))
	}
	kinds := 0
	if p.HTTP != nil {
		kinds++
		errs = append(errs, p.HTTP.validate(at.Child("http"))...)
	}
	if p.TCP != nil {
		kinds++
		if _, _, err := net.SplitHostPort(p.TCP.Address); err != nil {
			errs = append(errs, field.Invalid(at.Child("tcp", "address"), p.TCP.Address, "must be HOST:PORT"))
		}
	}
	if p.File != nil {
		kinds++
		if p.File.Path == "" {
			errs = append(errs, field.Required(at.Child("file", "path"), ""))
		}
	}
	if p.Exec != nil {
		kinds++
		errs = append(errs, validateCommand(at.Child("exec", "command"), p.Exec.Command)...)
	}
	if kinds != 1 {
		errs = append(errs, field.Invalid(at, kinds, "must have exactly one of http, tcp, file and exec"))
	}
	return errs
}

// validate returns all mistakes in the probe. at is the path of the probe in the plan.
func (p *HTTPProbe) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	u, err := url.Parse(p.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, field.Invalid(at.Child("url"), p.URL, "must be an http or https URL with a host"))
	}
	if (p.CertFile == "") != (p.KeyFile == "") {
		errs = append(errs, field.Invalid(at, p.CertFile+p.KeyFile, "certFile and keyFile go together"))
	}
	return errs
}

// validateCommand returns a mistake if the command has no executable. at is the path of the command
// in the plan.
func validateCommand(at *field.Path, command []string) field.ErrorList {
	if len(command) == 0 || command[0] == "" {
		return field.ErrorList{field.Required(at, "name the executable")}
	}
	return nil
}

// cycle returns the names along the first cycle of dependencies (Process.After), with the first
// name again at the end; nil if there is no cycle. byName are the processes by name. It ignores
// dependencies that byName does not have.
func (p Plan) cycle(byName map[string]Process) []string {
	acyclic := make(map[string]bool, len(byName))
	var path []string
	var visit func(name string) []string
	visit = func(name string) []string {
		if i := slices.Index(path, name); i >= 0 {
			return append(slices.Clone(path[i:]), name)
		}
		if acyclic[name] {
			return nil
		}
		path = append(path, name)
		for _, dependency := range byName[name].After {
			if cycle := visit(dependency); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		acyclic[name] = true
		return nil
	}
	for _, proc := range p.Processes {
		if cycle := visit(proc.Name); cycle != nil {
			return cycle
		}
	}
	return nil
}
