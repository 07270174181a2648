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

// data is the content of a catalog file. The comments in builtin.yaml explain its fields.
type data struct {
	Kubernetes map[string]release  `json:"kubernetes,omitempty"`
	Files      map[string]template `json:"files,omitempty"`
	Images     map[string]string   `json:"images,omitempty"`
	Plugins    map[string]Plugin   `json:"plugins,omitempty"`
	Digests    map[string]string   `json:"digests,omitempty"`
}

// release has the versions of components, by name, that are installed with a Kubernetes release.
type release struct {
	Versions map[string]string `json:"versions,omitempty"`
	// Fits has ranges by component, such as ">=1.2.0 <2.0.0". A version in Versions must be in the
	// range.
	Fits map[string]string `json:"fits,omitempty"`
}

// template describes a file of a catalog for all its versions and architectures. Its texts have
// placeholders, such as {{version}}.
type template struct {
	Version  string            `json:"version,omitempty"`
	URL      string            `json:"url"`
	Checksum string            `json:"checksum,omitempty"`
	Archive  string            `json:"archive,omitempty"`
	Members  map[string]string `json:"members,omitempty"`
}

// merge returns d with the entries of over, which override entries with the same name. Versions of
// a release are overridden one by one, other entries as a whole. It changes neither d nor over.
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

// merge returns r with the versions and ranges of over, which override those of the same component.
func (r release) merge(over release) release {
	return release{Versions: union(r.Versions, over.Versions), Fits: union(r.Fits, over.Fits)}
}

// union returns the entries of a and b in a new map. For the same key it has the value of b.
func union[T any](a, b map[string]T) map[string]T {
	all := map[string]T{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// release returns the versions for a Kubernetes version such as v1.36.3: those of its minor,
// overridden by those of the version itself. It is empty for a release that the catalog does not
// have.
func (d data) release(version string) release {
	return d.Kubernetes[minorOf(version)].merge(d.Kubernetes[version])
}

var (
	// releasePattern matches a minor or patch version of Kubernetes.
	releasePattern = regexp.MustCompile(`^v\d+\.\d+(\.\d+(-[0-9a-z.-]+)?)?$`)
	// digestPattern matches sha256:HEX in lower case.
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// placeholder matches a placeholder such as {{version}}.
	placeholder = regexp.MustCompile(`\{\{[^}]*\}\}`)
)

// validate returns an error that joins all errors in d, with their paths in the file, or nil.
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

// validateRelease returns the errors in a Kubernetes release. These are versions that are invalid,
// or that belong to no file, image or plugin. They are also versions outside of their range in
// Fits, and invalid ranges.
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
		// The loop over r.Fits reports a range that cannot be parsed.
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

// validate returns the errors in t. path is the path of t in the file, for messages.
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

// web returns errors unless text is an http or https URL with no other than the given placeholders.
// path is the path of the field in the file, for messages.
func web(path, text string, placeholders ...string) []error {
	errs := known(path, text, placeholders...)
	u, err := url.Parse(placeholder.ReplaceAllString(text, "x"))
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		errs = append(errs, fmt.Errorf("%s: %q is not an http or https URL", path, text))
	}
	return errs
}

// known returns an error for each placeholder in text other than the given ones. path is the path
// of the field in the file, for messages.
func known(path, text string, placeholders ...string) []error {
	var errs []error
	for _, found := range placeholder.FindAllString(text, -1) {
		if !slices.Contains(placeholders, strings.Trim(found, "{}")) {
			errs = append(errs, fmt.Errorf("%s: %s is not known here; there are {{%s}}", path, found, strings.Join(placeholders, "}}, {{")))
		}
	}
	return errs
}

// expand replaces the placeholders in a text by their values. A placeholder without a value becomes
// "".
func expand(text string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string { return values[strings.Trim(found, "{}")] })
}

// versioned returns the values of the placeholders for a version: version, and number, which lacks
// the v.
func versioned(version string) map[string]string {
	return map[string]string{"version": version, "number": strings.TrimPrefix(version, "v")}
}

// minorOf returns the minor version of a release: v1.36 for v1.36.3 and for v1.36. It is v0.0 for
// an invalid release.
func minorOf(name string) string {
	v := order(name)
	return fmt.Sprintf("v%d.%d", v.Major, v.Minor)
}

// order returns the version of a release in a form that can be compared. It is 0.0.0 for an invalid
// release.
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
