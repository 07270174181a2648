package catalog

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
)

// data is the content of a catalog file. builtin.yaml explains it.
type data struct {
	Kubernetes map[string]release  `json:"kubernetes,omitempty"`
	Files      map[string]template `json:"files,omitempty"`
	Images     map[string]string   `json:"images,omitempty"`
	Plugins    map[string]Plugin   `json:"plugins,omitempty"`
	Digests    map[string]string   `json:"digests,omitempty"`
}

// release has the versions of components for a Kubernetes release.
type release struct {
	Versions map[string]string `json:"versions,omitempty"`
	// Fits has the allowed ranges of Versions.
	Fits map[string]string `json:"fits,omitempty"`
}

// template describes all versions of a file.
type template struct {
	Version  string            `json:"version,omitempty"`
	URL      string            `json:"url"`
	Checksum string            `json:"checksum,omitempty"`
	Archive  string            `json:"archive,omitempty"`
	Members  map[string]string `json:"members,omitempty"`
}

// merge returns d overridden by over. It changes neither.
func (d data) merge(over data) data {
	merged := data{
		Kubernetes: maps.Clone(d.Kubernetes),
		Files:      union(d.Files, over.Files),
		Images:     union(d.Images, over.Images),
		Plugins:    union(d.Plugins, over.Plugins),
		Digests:    union(d.Digests, over.Digests),
	}
	if merged.Kubernetes == nil {
		merged.Kubernetes = map[string]release{}
	}
	for name, r := range over.Kubernetes {
		merged.Kubernetes[name] = merged.Kubernetes[name].merge(r)
	}
	return merged
}

func (r release) merge(over release) release {
	return release{Versions: union(r.Versions, over.Versions), Fits: union(r.Fits, over.Fits)}
}

func union[T any](a, b map[string]T) map[string]T {
	all := map[string]T{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// release returns the versions for a Kubernetes version: those of its minor, overridden by those of
// its patch.
func (d data) release(version string) release {
	return d.Kubernetes[minorOf(version)].merge(d.Kubernetes[version])
}

var (
	releasePattern = regexp.MustCompile(`^v\d+\.\d+(\.\d+(-[0-9a-z.-]+)?)?$`)
	digestPattern  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	placeholder    = regexp.MustCompile(`\{\{[^}]*\}\}`)
)

// validate returns all errors, with their paths in the file.
func (d data) validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for name := range each(d.Kubernetes) {
		if !releasePattern.MatchString(name) {
			refuse("kubernetes[%q]: not a release such as v1.36, or v1.36.3", name)
			continue
		}
		errs = append(errs, d.validateRelease(name)...)
	}
	for name, t := range each(d.Files) {
		errs = append(errs, t.validate("files."+name)...)
	}
	for name, reference := range each(d.Images) {
		errs = append(errs, known("images."+name, reference, "version", "number")...)
		if host, path, ok := strings.Cut(reference, "/"); !ok || path == "" || !strings.ContainsAny(host, ".:") {
			refuse("images.%s: %q must begin with its registry, as registry.k8s.io/pause:{{version}} does", name, reference)
		}
	}
	for name, p := range each(d.Plugins) {
		switch path := "plugins." + name; {
		case (p.Manifest == "") == (p.Chart == nil):
			refuse("%s: exactly one of manifest and chart is needed", path)
		case p.Chart != nil:
			errs = append(errs, web(path+".chart.repo", p.Chart.Repo)...)
			errs = append(errs, known(path+".chart.version", p.Chart.Version, "version", "number")...)
		default:
			errs = append(errs, web(path+".manifest", p.Manifest, "version", "number")...)
		}
	}
	for key, digest := range each(d.Digests) {
		if !digestPattern.MatchString(digest) {
			refuse("digests[%q]: %q is not sha256: and 64 digits of lower case hexadecimal", key, digest)
		}
		if name, _, _ := strings.Cut(key, "/"); strings.Count(key, "/") != 2 || d.Files[name].URL == "" {
			refuse("digests[%q]: not the name/version/arch of a file under files", key)
		}
	}
	return errors.Join(errs...)
}

// validateRelease checks that the versions of a release are valid, have a file, image or plugin,
// and fit.
func (d data) validateRelease(name string) []error {
	var errs []error
	path := fmt.Sprintf("kubernetes[%q]", name)
	r := d.release(name)
	for component, text := range each(r.Versions) {
		_, file := d.Files[component]
		_, image := d.Images[component]
		_, plugin := d.Plugins[component]
		if !file && !image && !plugin {
			errs = append(errs, fmt.Errorf("%s.versions.%s: there is no such file, image or plugin", path, component))
			continue
		}
		version, err := semver.ParseTolerant(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.versions.%s: %q is not a version: %w", path, component, text, err))
			continue
		}
		bounds, ok := r.Fits[component]
		if !ok {
			continue
		}
		// The loop below reports an error in the bounds.
		if fits, err := semver.ParseRange(bounds); err == nil && !fits(version) {
			errs = append(errs, fmt.Errorf("%s.versions.%s: %s does not fit Kubernetes %s, which needs %s", path, component, text, name, bounds))
		}
	}
	for component, bounds := range each(r.Fits) {
		if _, err := semver.ParseRange(bounds); err != nil {
			errs = append(errs, fmt.Errorf("%s.fits.%s: %q is not a range such as >=1.2.0 <2.0.0: %w", path, component, bounds, err))
		}
	}
	return errs
}

func (t template) validate(path string) []error {
	errs := slices.Concat(
		known(path+".version", t.Version, "kubernetes"),
		web(path+".url", t.URL, "version", "number", "arch", "name"),
	)
	if t.Checksum != "" {
		errs = append(errs, web(path+".checksum", t.Checksum, "version", "number", "arch", "name")...)
	}
	switch t.Archive {
	case "":
		if len(t.Members) > 0 {
			errs = append(errs, fmt.Errorf("%s.members: only an archive has members; set archive to tar or tar.gz", path))
		}
	case "tar", "tar.gz":
		if len(t.Members) == 0 {
			errs = append(errs, fmt.Errorf("%s.members: say which members of the archive are used", path))
		}
	default:
		errs = append(errs, fmt.Errorf("%s.archive: %q is neither tar nor tar.gz", path, t.Archive))
	}
	for member, program := range each(t.Members) {
		errs = append(errs, known(path+".members", member, "version", "number", "arch", "name")...)
		if program == "" || program == "." || program == ".." || strings.Contains(program, "/") {
			errs = append(errs, fmt.Errorf("%s.members[%q]: %q is not a file name", path, member, program))
		}
	}
	return errs
}

// web checks that text is a URL with the given placeholders.
func web(path, text string, placeholders ...string) []error {
	errs := known(path, text, placeholders...)
	u, err := url.Parse(placeholder.ReplaceAllString(text, "x"))
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		errs = append(errs, fmt.Errorf("%s: %q is not an http or https URL", path, text))
	}
	return errs
}

// known checks that text has only the given placeholders.
func known(path, text string, placeholders ...string) []error {
	var errs []error
	for _, found := range placeholder.FindAllString(text, -1) {
		if !slices.Contains(placeholders, strings.Trim(found, "{}")) {
			errs = append(errs, fmt.Errorf("%s: %s is not known here; there are {{%s}}", path, found, strings.Join(placeholders, "}}, {{")))
		}
	}
	return errs
}

// expand replaces the placeholders in a text.
func expand(text string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string { return values[strings.Trim(found, "{}")] })
}

// versioned returns the values of a version's placeholders.
func versioned(version string) map[string]string {
	return map[string]string{"version": version, "number": strings.TrimPrefix(version, "v")}
}

// minorOf returns the minor version of a release, such as v1.36.
func minorOf(name string) string {
	v := order(name)
	return fmt.Sprintf("v%d.%d", v.Major, v.Minor)
}

// order returns the version for comparing releases. Invalid versions come first.
func order(name string) semver.Version {
	v, err := semver.ParseTolerant(name)
	if err != nil {
		return semver.Version{}
	}
	return v
}

// each iterates over a map in the order of its keys, so that messages have a fixed order.
func each[T any](m map[string]T) func(yield func(string, T) bool) {
	return func(yield func(string, T) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
